"""What `mkdocs build` adds to docs/: pages kept elsewhere, tables made from the code, and the code
that pages link to.

The pages link to files of the repository by relative paths. README.md, CONTRIBUTING.md,
CHANGELOG.md and benchmarks/README.md become pages of the site; any other file or folder outside
docs/ becomes a page with its text. A line `<!-- generated: NAME -->` of a page becomes what the
function of GENERATED returns."""

from __future__ import annotations

import dataclasses
import inspect
import json
import posixpath
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel, TypeAdapter

from isojax.cli.app import COMMANDS
from isojax.core.config import Config
from isojax.core.config.describe import field_comments, inherited_comments
from isojax.core.nouns import EvalPoint
from isojax.scaling.allocate.constraints import TimeBudget
from isojax.scaling.allocate.quote import Quote
from isojax.scaling.allocate.recommendation import Recommendation
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.result import FitResult

ROOT = Path(__file__).parents[1]
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
SETTINGS_PAGE, FIRST_TABLE = "docs/reference/config.md", "## The top level"
SHOWN = (".py", ".sh", ".yaml")  # files of a linked folder that become pages
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that docs/ does not have."""
    pages: dict[str, str] = {}
    sources: set[str] = set()
    for path in [*MOVED, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]:
        text, linked = site_links((ROOT / path).read_text(), path)
        sources |= linked
        if path in MOVED:
            pages[MOVED[path]] = text
    sources |= {
        str(file) for path in sources if (ROOT / path).is_dir() for file in listed_files(path)
    }
    for path, text in (pages | {site_path(path): source_page(path) for path in sources}).items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is generated, and give the pages of docs/ the site's links."""
    if page.file.generated_by:
        return markdown
    markdown = re.sub(r"<!-- generated: (\w+) -->", lambda match: GENERATED[match[1]](), markdown)
    return site_links(markdown, f"docs/{page.file.src_uri}")[0]


def site_path(path: str) -> str:
    """Where the site has a file or a folder of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return MOVED.get(path) or f"source/{path}{'.md' if (ROOT / path).is_file() else '/index.md'}"


def site_links(text: str, page_path: str) -> tuple[str, set[str]]:
    """The text of a page of the repository with the site's links, and the files that become pages
    of source code."""
    sources: set[str] = set()

    def move(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page_path), link[1]))
        if not (ROOT / path).exists():
            return link[1]  # broken, which mkdocs reports
        if not path.startswith("docs/") and path not in MOVED:
            sources.add(path)
        return posixpath.relpath(site_path(path), posixpath.dirname(site_path(page_path)) or ".")

    return LINK.sub(move, text), sources


def listed_files(folder: str) -> list[Path]:
    """The files of a folder whose text the site shows, by their paths in the repository."""
    return sorted(
        path.relative_to(ROOT) for path in (ROOT / folder).iterdir() if path.suffix in SHOWN
    )


def source_page(path: str) -> str:
    """The text of a file, or the names in a folder, with links to the files."""
    head = f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n"
    if (ROOT / path).is_file():
        language = {".py": "python", ".sh": "bash"}.get(Path(path).suffix, "text")
        return f"{head}``````{language}\n{(ROOT / path).read_text()}``````\n"
    folders = sorted(f"`{item.name}/`" for item in (ROOT / path).iterdir() if item.is_dir())
    files = [f"[`{file.name}`]({file.name}.md)" for file in listed_files(path)]
    return head + "".join(f"- {name}\n" for name in folders + files if name != "`__pycache__/`")


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


def settings_page() -> str:
    """docs/reference/config.md, which the repository holds, so that it can be read where there is
    no site."""
    text = (ROOT / SETTINGS_PAGE).read_text()
    return (
        text[: text.index(FIRST_TABLE)]
        + tables(Config, "The top level", explained=True).strip()
        + "\n"
    )


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


GENERATED = {
    "commands": command_help,
    "fit": lambda: tables(FitResult, "The file"),
    "records": lambda: tables(EvalPoint, "An evaluation"),
    "recommendation": lambda: tables(Recommendation),
    "quote": lambda: tables(Quote),
    "time": lambda: tables(TimeBudget),
    "fit_options": fit_options,
}
