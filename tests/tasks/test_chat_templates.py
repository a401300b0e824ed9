"""A chat template is rendered as transformers renders it, in a process that ends when it takes too
much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isojax.core.errors import InputError
from isojax.tasks import tokenizer
from isojax.tasks.tokenizer import load_tokenizer
from tests.tasks.tokenizer_folders import byte_level

CHATS = [[{"role": "user", "content": f"1 + {i} ="}] for i in range(3)]


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
    ("template", "problem"),
    [
        ("{{ 'a' * 10**10 }}", "more than 512 MiB of memory"),
        ("{{ 'a' * 10**7 }}", "10,000,000 characters, expected at most 1,048,576"),
        ("{{ '%0999999999d' % 1 }}", "more than 512 MiB of memory"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "took more than 1 s",
        ),
        ("{{ " + "(" * 999, "Error"),
        (
            "{% if messages[0].content == '1 + 1 =' %}{{ raise_exception('not this') }}{% endif %}",
            "not this",
        ),
    ],
)
def test_what_takes_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, problem: str
) -> None:
    monkeypatch.setattr(tokenizer, "SECONDS", 1.0)
    with pytest.raises(
        InputError, match=r"the chat template in .* refuses the conversation .*1 \+ .*" + problem
    ):
        render(tmp_path, template)
