"""What the texts of settings name: a plug-in, a file, a place on the hosts, or nothing.

Each setting that holds text has one of these marks in its type, so that what a config refers to is
found by the settings themselves: `Annotated[str, PathName()]`.
"""

import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class PlainText:
    """The text names no file."""


@dataclass(frozen=True)
class PluginName:
    """The text is a plug-in's name, with an argument after a colon where the plug-in takes one."""

    folders: tuple[str, ...]  # of isojax's own plug-ins that the setting takes: ("rl.losses",)


@dataclass(frozen=True)
class PathName:
    """The text is the path of a file or folder that is read."""

    # Which of a folder's files are read, as patterns from the folder on.
    inside: tuple[str, ...] = ("**/*",)


@dataclass(frozen=True)
class PluginFolder:
    """The text is a folder in which files of plug-ins are looked up."""


@dataclass(frozen=True)
class HostPath:
    """The text is a path, or a URL, of the machines that run: what is there is written, or is
    there already."""


Mark = PlainText | PluginName | PathName | PluginFolder | HostPath


class NamedText(NamedTuple):
    """A text of a setting, and what it names."""

    setting: str  # its dotted name, such as "cell.task"
    mark: Mark
    text: str


def field_mark(field: FieldInfo) -> Mark | None:
    """The mark in a setting's type; None of a setting without text."""
    for part in (*field.metadata, *_parts(field.annotation)):
        if isinstance(part, Mark):
            return part
    return None


def _parts(annotation: Any) -> list[Any]:
    """Everything that a type is made of: of Annotated[str, X] | None that is str, X and None."""
    inner = [*typing.get_args(annotation), *getattr(annotation, "__metadata__", ())]
    return [annotation, *(part for one in inner for part in _parts(one))]


def named_texts(section: BaseModel) -> list[NamedText]:
    """Every text of a config, those of its defaults too, in the order of the settings."""
    texts: list[NamedText] = []

    def note(named: NamedText) -> str:
        texts.append(named)
        return named.text

    with_changed_texts(section, note)
    return texts


def with_changed_texts(section: M, change: Callable[[NamedText], str], prefix: str = "") -> M:
    """A copy of a config, or of a section, with other texts.

    change: gives the text that takes the place of one. prefix: the section's dotted name with a dot
    behind it. Settings whose texts stay are as they were, those that nobody has set among them.
    """
    changed: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = vars(section)[name]
        setting = f"{prefix}{name}"
        if isinstance(value, BaseModel):
            new_value: Any = with_changed_texts(value, change, f"{setting}.")
        else:
            mark = field_mark(field)
            new_value = value if mark is None else _changed(value, setting, mark, change)
        if new_value != value:
            changed[name] = new_value
    return section.model_copy(update=changed)


def _changed(value: Any, setting: str, mark: Mark, change: Callable[[NamedText], str]) -> Any:
    """A setting's value with other texts: a text, or several in a tuple, a list or a dict."""
    if isinstance(value, str):
        return change(NamedText(setting, mark, value))
    if isinstance(value, dict):
        return {key: _changed(one, f"{setting}.{key}", mark, change) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_changed(one, setting, mark, change) for one in value)
    return value
