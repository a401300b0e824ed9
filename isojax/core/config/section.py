"""The base of every section of a config."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A frozen section; an unknown key is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
