"""What every group of settings is, and the kinds of numbers in it."""

from typing import Annotated

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
