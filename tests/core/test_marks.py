"""What settings name: every setting with text says it, and texts are changed where they stand."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from isojax.core.config import Config, ModelConfig
from isojax.core.config.marks import (
    HostPath,
    NamedText,
    PathName,
    PlainText,
    PluginName,
    field_mark,
    named_texts,
    with_changed_texts,
)


def settings(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting, those of sections that may be null among them."""
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}", field
        for part in types_in(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from settings(part, f"{prefix}{name}.")


def types_in(annotation: Any) -> Iterator[Any]:
    """What a type is made of, without the keys of a dict."""
    yield annotation
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is dict:
        parts = parts[1:]
    for part in parts:
        if typing.get_origin(annotation) is not typing.Literal:
            yield from types_in(part)


def has_text(field: FieldInfo) -> bool:
    return any(part in (str, Any) for part in types_in(field.annotation))


def test_every_setting_with_text_says_what_it_names() -> None:
    unmarked = [
        name for name, field in settings(Config) if has_text(field) and field_mark(field) is None
    ]
    assert not unmarked, "give them a type of core/config/section.py, such as Text or ReadPath"


def test_a_setting_without_a_mark_would_be_noticed() -> None:
    class Unmarked(BaseModel):
        label_file: str | None = None
        sizes: dict[str, int] = {}
        size: int = 1

    assert [name for name, field in settings(Unmarked) if has_text(field)] == ["label_file"]
    assert field_mark(Unmarked.model_fields["label_file"]) is None


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("cell.task", PluginName(("tasks.device", "tasks.sources"))),
        ("cell.data.held_out", PluginName(("tasks.device", "tasks.sources"))),
        ("cell.eval.extra", PluginName(("tasks.device", "tasks.sources"))),
        ("cell.verifier.use", PluginName(("tasks.verifiers",))),
        ("cell.rl.advantage", PluginName(("rl.advantages",))),
        ("cell.model.path", PathName()),
        ("run.base_from", PathName(("config.yaml", "base/**/*"))),
        ("run.server.weights", HostPath()),
        ("cell.prompt.system", PlainText()),
    ],
)
def test_marks(name: str, mark: object) -> None:
    assert field_mark(dict(settings(Config))[name]) == mark


def test_texts_are_read_and_changed_where_they_stand() -> None:
    config = Config().with_settings(
        cell={
            "task": "jsonl:a.jsonl",
            "verifier": {"use": {"right": "math", "short": "function:r.py:short"}},
            "eval": {"extra": {"hard": "jsonl:b.jsonl"}},
        },
        run={"loggers": ("mine", "tensorboard")},
    )
    texts = {(named.setting, named.text) for named in named_texts(config)}
    assert {
        ("cell.task", "jsonl:a.jsonl"),
        ("cell.verifier.use.right", "math"),
        ("cell.verifier.use.short", "function:r.py:short"),
        ("cell.eval.extra.hard", "jsonl:b.jsonl"),
        ("run.loggers", "mine"),
    } <= texts

    def change(named: NamedText) -> str:
        return named.text.replace("jsonl:", "jsonl:data/").replace("mine", "yours")

    changed = with_changed_texts(config, change)
    assert changed.cell.task == "jsonl:data/a.jsonl"
    assert changed.cell.eval.extra == {"hard": "jsonl:data/b.jsonl"}
    assert changed.run.loggers == ("yours", "tensorboard")
    assert changed.cell.verifier == config.cell.verifier
    # What nobody has set stays so: a task's own defaults take its place.
    assert "use" in changed.cell.verifier.model_fields_set
    assert changed.cell.prompt.model_fields_set == set()
    assert isinstance(changed.cell.model, ModelConfig)
