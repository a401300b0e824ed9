"""The base of every section of a config, and the numbers that it may hold."""

from os.path import expanduser
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from isojax.core.limits import MAX_SETTING, MAX_SIZE

Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveInt = Annotated[int, Field(gt=0, le=MAX_SIZE)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_SIZE)]
PositiveFloat = Annotated[float, Field(gt=0, le=MAX_SETTING)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=MAX_SETTING)]
# a shell leaves the ~ of run.dir=~/runs as it is
FolderPath = Annotated[str, AfterValidator(expanduser)]


class Section(BaseModel):
    """A frozen section; an unknown key is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def with_settings(self, **settings: Any) -> Self:
        """A copy with other settings, not checked; of a section in it those that a dict names:
        sweep={"seeds": 1}."""
        sections = {name: vars(self)[name] for name in settings if isinstance(settings[name], dict)}
        changed = {
            name: s.with_settings(**settings[name])
            for name, s in sections.items()
            if isinstance(s, Section)
        }
        return self.model_copy(update=settings | changed)

    @field_validator("*")
    @classmethod
    def _check_texts(cls, value: Any) -> Any:
        items = (
            [*value, *value.values()]
            if isinstance(value, dict)
            else value
            if isinstance(value, tuple)
            else [value]
        )
        if any(isinstance(item, str) and "\0" in item for item in items):
            raise PydanticCustomError("nul_character", "text without NUL characters")
        return value
