"""Every setting as text: its name, its default and its meaning.

The meaning is the comment that stands behind the setting, or above it, in this folder's code.
"""

import ast
import inspect
import io
import json
import textwrap
import tokenize
import typing
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from isojax.core.config.load import Config
from isojax.core.config.section import Section


@dataclass(frozen=True)
class Setting:
    """A setting, as a person reads of it."""

    name: str  # with dots: cell.rl.kl
    default: str  # as YAML takes it: 0.0, null, [2, 4]; in words where there is none
    meaning: str  # its comment, in one line


def describe_settings() -> list[Setting]:
    """All settings of a config, section by section.

    Of a section that may be null, its settings follow it.
    """
    return list(_settings_below(Config, ""))


def _settings_below(section: type[BaseModel], prefix: str) -> Iterator[Setting]:
    """The settings of a section and of those in it, in the order of the code. `prefix`: the
    section's dotted name with a dot behind it, "" of the whole config."""
    comments = inherited_comments(section)
    for field_name, field in section.model_fields.items():
        name = prefix + field_name
        subsections = list(_sections_in(field.annotation))

        if not subsections or field.default is None:
            yield Setting(name, _default_text(field), comments.get(field_name, ""))
        for subsection in subsections:
            yield from _settings_below(subsection, f"{name}.")


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "(must be set where its section is)"
    return json.dumps(field.get_default(call_default_factory=True), default=list)


def _sections_in(annotation: object) -> Iterator[type[Section]]:
    """The section that a type is, or that it may be besides null."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _sections_in(part)


def inherited_comments(cls: type) -> dict[str, str]:
    """The comments of the fields of a class and of those it is derived from."""
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        comments |= field_comments(base)
    return comments


def field_comments(cls: type) -> dict[str, str]:
    """The comment of each field of a class of isojax, behind the field or above it.

    By the field's name, in one line, with the lines above it first; "" of a field without one. {}
    for a class of another package.
    """
    if not cls.__module__.startswith("isojax."):
        return {}

    # By the number of the line in the class, from 1. "# fmt: off" and the like are no comments.
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    comment_of_line = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith("# fmt:")
    }

    texts: dict[str, str] = {}
    for node in typing.cast(ast.ClassDef, ast.parse(source).body[0]).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue

        # Up to the first of the lines above the field that are comments alone: a comment behind the
        # field before belongs to that one.
        first_line = node.lineno
        while first_line - 1 in comment_of_line and lines[first_line - 2].lstrip().startswith("#"):
            first_line -= 1

        field_lines = range(first_line, (node.end_lineno or node.lineno) + 1)
        texts[node.target.id] = " ".join(
            comment_of_line[n] for n in field_lines if n in comment_of_line
        )
    return texts
