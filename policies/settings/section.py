"""What every group of settings is, and the kinds of numbers in it."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

_MAX_COUNT, _MAX_THREADS = 10**7, 4096  # more than any run has: what is larger is a slip
Count = Annotated[int, Field(ge=1, le=_MAX_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
Threads = Annotated[int, Field(ge=1, le=_MAX_THREADS)]


class Section(BaseModel):
    """A strict, frozen group of settings."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    def conflicts(self, _run: Any) -> Iterator[str]:
        """Yields what cannot work or has no effect in the run's settings, a message each."""
        yield from ()

    def changed(self) -> set[str]:
        """Returns the names of the settings that differ from their defaults."""
        default = dict(type(self)())
        return {name for name, value in self if value != default[name]}
