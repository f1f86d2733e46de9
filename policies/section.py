"""What every group of settings is."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A strict, frozen group of settings."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=()
    )
