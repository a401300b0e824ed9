"""Prompts that are the text of a list of messages, as tables of text hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isojax.core.config import DataConfig
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import open_source
from isojax.tasks.text_literals import parse_messages
from tests.refusals import refused

MESSAGES = [
    {"role": "system", "content": 'Be "brief", don\'t guess.\n'},
    {"role": "user", "content": "What is $\\frac{1}{2} + 1$?"},
]


def as_numpy(messages: list[dict[str, str]]) -> Any:
    return np.array(messages, dtype=object)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(MESSAGES),
        json.dumps(MESSAGES, indent=2),
        str(MESSAGES),
        f"  {MESSAGES}\n",
        str(as_numpy(MESSAGES)),
        repr(as_numpy(MESSAGES)),
        json.dumps({"messages": MESSAGES}),
    ],
    ids=["json", "indented", "python", "spaces", "numpy_str", "numpy_repr", "object"],
)
def test_the_text_of_messages_is_read_as_messages(text: str) -> None:
    assert parse_messages(text) == MESSAGES


@pytest.mark.parametrize(
    "text",
    [
        "What is 2 + 2?",
        "[1, 2, 3] has how many elements?",
        "[[1, 2], [3, 4]]",
        '[{"x": 1}, {"x": 2}]',
        '{"role": 3} is an object of how many keys?',
        "",
    ],
)
def test_other_texts_stay_what_they_are(text: str) -> None:
    assert parse_messages(text) is None


def read(path: Path, prompt: Any) -> Problem:
    path.write_text(json.dumps({"prompt": prompt, "answer": "1"}) + "\n")
    (problem,) = open_source(f"jsonl:{path}", DataConfig()).problems(9, np.random.default_rng(0))
    return problem


def test_a_problem_from_text_is_the_one_from_a_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read(tmp_path / "text.jsonl", str(MESSAGES)) == read(tmp_path / "list.jsonl", MESSAGES)
    assert read(tmp_path / "one.jsonl", str(MESSAGES[1])).messages == (MESSAGES[1],)
    assert (
        "text.jsonl: texts in 'prompt' that write a list of messages are read as messages"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "prompt",
    [
        str(MESSAGES).replace("'user', ", "'user' "),
        str([{"from": "human", "value": "2 + 2?"}]),
        str([*MESSAGES, {"role": "assistant", "content": "3/2"}]),
        json.dumps([{"role": "user", "content": [{"type": "text"}]}]),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_line(tmp_path: Path, prompt: str) -> None:
    with refused(where="p.jsonl, line 1"):
        read(tmp_path / "p.jsonl", prompt)
