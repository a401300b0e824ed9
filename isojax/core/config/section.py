"""The base of every section of a config, and the numbers that it may hold.

The docstring of a section, one paragraph, and the comments of its settings are what the page of all
settings says of them (docs/hooks.py), and `isojax settings`.
"""

from os.path import expanduser
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from isojax.core.config.marks import HostPath, PathName, PlainText, PluginFolder, PluginName
from isojax.core.limits import MAX_SETTING, MAX_SIZE

Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveInt = Annotated[int, Field(gt=0, le=MAX_SIZE)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_SIZE)]
PositiveFloat = Annotated[float, Field(gt=0, le=MAX_SETTING)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=MAX_SETTING)]
# Texts, by what they name (marks.py): nothing, a place of the machines that run, a file, a plug-in.
# A shell leaves the ~ of run.dir=~/runs as it is.
Text = Annotated[str, PlainText()]
HostFolder = Annotated[str, AfterValidator(expanduser), HostPath()]
ReadPath = Annotated[str, AfterValidator(expanduser), PathName()]
PluginFolderPath = Annotated[str, PluginFolder()]
SweepFolder = Annotated[
    str, AfterValidator(expanduser), PathName(inside=("config.yaml", "base/**/*"))
]
TaskName = Annotated[str, PluginName(("tasks.device", "tasks.sources"))]
VerifierName = Annotated[str, PluginName(("tasks.verifiers",))]


class Section(BaseModel):
    """A frozen section; an unknown key is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def with_settings(self, **settings: Any) -> Self:
        """A copy with other settings, which are not checked.

        Of a section in it, those that a dict names: sweep={"seeds": 1}.
        """
        changed = dict(settings)
        for name, value in settings.items():
            section = vars(self)[name] if isinstance(value, dict) else None
            if isinstance(section, Section):  # else a map of the user's names, replaced whole
                changed[name] = section.with_settings(**value)
        return self.model_copy(update=changed)

    @field_validator("*")
    @classmethod
    def _check_texts(cls, value: Any) -> Any:
        """Refuse NUL, which no path, no environment variable and no JSON of a log may hold."""
        if isinstance(value, dict):
            items = [*value, *value.values()]
        elif isinstance(value, tuple):
            items = [*value]
        else:
            items = [value]

        if any(isinstance(item, str) and "\0" in item for item in items):
            raise PydanticCustomError("nul_character", "text without NUL characters")
        return value
