"""A chat template is rendered as transformers renders it, in a process that ends when it takes too
much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isojax.tasks import tokenizer
from isojax.tasks.tokenizer import load_tokenizer
from tests.refusals import refused
from tests.tasks.tokenizer_folders import byte_level

CHATS = [[{"role": "user", "content": f"1 + {i} ="}] for i in range(3)]


@pytest.fixture(autouse=True)
def chat_templates_need_no_process() -> None:
    """Here they have one: the fixture of conftest.py is not used."""


def render(folder: Path, template: str, **options: Any) -> list[str]:
    return tokenizer.render_chats(load_tokenizer(byte_level(folder, chat=template)), CHATS, options)


def test_it_is_what_transformers_writes(tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m | tojson }}{% endfor %}{% if thinking %}!{% "
        "endif %}\n é"
    )
    loaded = load_tokenizer(byte_level(tmp_path, chat=template))
    assert render(tmp_path, template, thinking=True) == [
        loaded.apply_chat_template(chat, tokenize=False, thinking=True) for chat in CHATS
    ]


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**10 }}",
        "{{ 'a' * 10**7 }}",
        "{{ '%0999999999d' % 1 }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ " + "(" * 999,
        "{% if messages[0].content == '1 + 1 =' %}{{ raise_exception('not this') }}{% endif %}",
    ],
)
def test_what_takes_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr(tokenizer, "SECONDS", 1.0)
    with refused():
        render(tmp_path, template)
