"""What every group of settings is, and the kinds of numbers in it."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

_MAX_COUNT, _MAX_THREADS = 10**7, 4096  # more than any run has: what is larger is a slip
Count = Annotated[int, Field(ge=1, le=_MAX_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
Threads = Annotated[int, Field(ge=1, le=_MAX_THREADS)]

T = TypeVar("T")
_MAY_CHANGE = "may change on resume"
MayChange = Annotated[T, _MAY_CHANGE]
"""The type of a setting with which a resumed run may go on with another value.

The others say what a checkpoint holds, or which tasks its position stands for.
"""


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

    whole_may_change: ClassVar[bool] = False
    """Whether a resumed run may change every setting of the section."""

    @classmethod
    def may_change(cls, name: str) -> bool:
        """Whether a resumed run may go on with another value of the setting."""
        return cls.whole_may_change or _MAY_CHANGE in cls.model_fields[name].metadata

    def conflicts(self, _run: Any) -> Iterator[str]:
        """Yields what cannot work or has no effect in the run's settings, a message each."""
        yield from ()

    def changed(self) -> set[str]:
        """Returns the names of the settings that differ from their defaults."""
        default = dict(type(self)())
        return {name for name, value in self if value != default[name]}
