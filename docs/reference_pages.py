"""The parts of docs/reference that are made from the code: commands, settings, keys of files,
Python.

    python docs/reference_pages.py      writes them into the pages

The pages are committed, so that they can be read where the repository is hosted. A part of a page
begins with a line `<!-- NAME, by docs/reference_pages.py -->`, where NAME is a key of PARTS, and
ends with `<!-- end -->`. tests/test_reference_pages.py compares the pages with the code."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel, TypeAdapter

import isojax
from isojax.cli.app import COMMANDS
from isojax.core.atomic_files import write_text
from isojax.core.config import Config
from isojax.core.config.describe import field_comments, inherited_comments
from isojax.core.errors import InputError
from isojax.core.nouns import EvalPoint
from isojax.report.notebook import SweepFit
from isojax.scaling.allocate.constraints import TimeBudget
from isojax.scaling.allocate.quote import Quote
from isojax.scaling.allocate.recommendation import Recommendation
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.result import FitResult

PAGES = sorted((Path(__file__).parent / "reference").glob("*.md"))
PART = re.compile(r"(<!-- (\w+), by docs/reference_pages\.py -->\n).*?(?=<!-- end -->)", re.DOTALL)
FUNCTIONS = ("read_runs", "fit", "recommend", "quote", "compare", "plot", "load_study")


def main() -> None:
    """Write the parts into their pages."""
    for path, page in updated_pages().items():
        write_text(path, page)


def updated_pages() -> dict[Path, str]:
    """Each page of docs/reference, with its parts made again."""
    return {
        path: PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]().strip()}\n\n", path.read_text())
        for path in PAGES
    }


def command_help() -> str:
    """The help of every command."""
    text = ""
    for lazy_command in COMMANDS:
        command: Any = typer.main.get_command(lazy_command.load())
        below = getattr(command, "commands", {})
        names = {lazy_command.name: command} | {
            f"{lazy_command.name} {name}": one for name, one in below.items()
        }
        for name, one in names.items():
            context = one.make_context(
                f"isojax {name}", [], resilient_parsing=True, terminal_width=100
            )
            text += f"## isojax {name}\n\n```text\n{one.get_help(context)}\n```\n\n"
    return text


def classes_in(annotation: Any) -> Iterator[type]:
    """The models and dataclasses that a type names."""
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)
    ):
        yield annotation
    for part in typing.get_args(annotation):
        yield from classes_in(part)


def classes_below(cls: type, path: str, found: dict[type, str]) -> dict[type, str]:
    """A class and those that its fields name, each with the dotted path of the first field that
    names it. A field that no file holds names none."""
    if cls not in found:
        found[cls] = path
        excluded = {
            name for name, field in getattr(cls, "model_fields", {}).items() if field.exclude
        }
        for name, annotation in typing.get_type_hints(cls).items():
            for below in () if name in excluded else classes_in(annotation):
                classes_below(below, f"{path}.{name}".lstrip("."), found)
    return found


def tables(cls: type, title: str = "", explained: bool = False) -> str:
    """For a class and each below it: a heading, its docstring, and a row for each field, its type,
    default and comment. If `explained`, every field must have a comment or a table."""
    text = ""
    paths = classes_below(cls, "", {})
    links = {
        one.__name__: f"[{path}](#{path.lower().replace('.', '')})" for one, path in paths.items()
    }
    for one, path in paths.items():
        comments = inherited_comments(one)
        rows = ["key | type | default | meaning", "--- | --- | --- | ---"]
        for name, field in TypeAdapter(one).json_schema(mode="serialization")["properties"].items():
            classes = classes_in(typing.get_type_hints(one)[name])
            below = [docstring(each).partition(". ")[0].rstrip(".") for each in classes]
            meaning = comments.get(name) or next(iter(below), "")
            if explained and not meaning:
                raise ValueError(
                    f"{path}.{name} has no comment in {one.__module__} that says what it is"
                )
            has_default = "default" in field and not isinstance(field["default"], dict)
            default = f"`{json.dumps(field['default'], ensure_ascii=False)}`" if has_default else ""
            row = [
                f"`{name}`",
                type_text(field, links),
                default,
                " ".join(meaning.split()).replace("*", r"\*"),
            ]
            rows.append(" | ".join(cell.replace("|", r"\|") for cell in row))
        text += (
            f"## {path or title or cls.__name__}\n\n{docstring(one)}\n\n" + "\n".join(rows) + "\n\n"
        )
    return text


def fit_options() -> str:
    """FitOptions, of which one field is a function, so that it has no JSON schema."""
    rows = ["field | type | default | meaning", "--- | --- | --- | ---"]
    comments = field_comments(FitOptions)
    for field in dataclasses.fields(FitOptions):
        cells = [f"`{field.name}`", str(field.type), f"`{field.default!r}`", comments[field.name]]
        rows.append(" | ".join(cell.replace("|", r"\|") for cell in cells))
    return f"## isojax.FitOptions\n\n{docstring(FitOptions)}\n\n" + "\n".join(rows) + "\n\n"


def docstring(cls: type) -> str:
    """A class's docstring, without one that a dataclass makes of its fields."""
    return (
        ""
        if (cls.__doc__ or "").startswith(f"{cls.__name__}(")
        else inspect.cleandoc(cls.__doc__ or "")
    )


def type_text(schema: dict[str, Any], links: dict[str, str]) -> str:
    """A JSON schema in words; `links` has the text for each class."""
    kind = schema.get("type", "any")
    if "$ref" in schema:
        kind = links[schema["$ref"].rpartition("/")[2]]
    elif "anyOf" in schema:
        kind = " or ".join(type_text(one, links) for one in schema["anyOf"])
    elif "enum" in schema or "const" in schema:
        kind = " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    elif "prefixItems" in schema:
        kind = f"({', '.join(type_text(one, links) for one in schema['prefixItems'])})"
    elif kind == "array":
        kind = f"list of {type_text(schema['items'], links)}"
    elif kind == "object":
        values = schema["additionalProperties"]
        kind = "map" if values is True else f"map from name to {type_text(values, links)}"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
    limits = [
        f"{sign} {schema[key]:g}" for key, sign in signs.items() if schema.get(key, 1e6) <= 1000
    ]
    return " ".join([kind, *limits])


def python_api() -> str:
    """The functions of `import isojax`, the fit that they return, and the error that they raise."""
    functions = [(f"isojax.{name}", getattr(isojax, name)) for name in FUNCTIONS]
    methods = [
        (f"SweepFit.{name}", method)
        for name, method in vars(SweepFit).items()
        if getattr(method, "__qualname__", "") == f"SweepFit.{name}" and not name.startswith("_")
    ]
    sections = [describe_function(name, function) for name, function in functions]
    sections += [f"## SweepFit\n\n{markdown_docstring(SweepFit)}\n"]
    sections += [describe_function(name, method, level=3) for name, method in methods]
    sections += [f"## InputError\n\n{markdown_docstring(InputError)}\n"]
    return "\n".join(sections)


def describe_function(name: str, function: Any, level: int = 2) -> str:
    """A heading, the function's signature as its source has it, and its docstring."""
    (source,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(source, ast.FunctionDef) and source.returns is not None
    source.args.args = [arg for arg in source.args.args if arg.arg != "self"]
    signature = f"{name}({ast.unparse(source.args)}) -> {ast.unparse(source.returns)}"
    code = "\n".join(textwrap.wrap(signature, 100, subsequent_indent="    "))
    return f"{'#' * level} {name}\n\n```text\n{code}\n```\n\n{markdown_docstring(function)}\n"


def markdown_docstring(of: Any) -> str:
    """A docstring as Markdown, in which a star is a star."""
    return inspect.cleandoc(of.__doc__ or "").replace("*", r"\*")


PARTS = {
    "commands": command_help,
    "settings": lambda: tables(Config, "The top level", explained=True),
    "fit": lambda: tables(FitResult, "The file"),
    "records": lambda: tables(EvalPoint, "An evaluation"),
    "python": python_api,
    "recommendation": lambda: tables(Recommendation),
    "quote": lambda: tables(Quote),
    "time": lambda: tables(TimeBudget),
    "fit_options": fit_options,
}


if __name__ == "__main__":
    main()
