"""A text task that replies: what its `reply` is given and what the policy gets, raw and in a chat;
and replies that fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isojax.core import registry
from isojax.core.config import (
    CellConfig,
    InterruptConfig,
    ModelConfig,
    PromptConfig,
    SamplingConfig,
    VerifierConfig,
)
from isojax.core.nouns import Problem
from isojax.tasks.sources.calculator import reply
from isojax.tasks.task import TextTask, build_task
from isojax.tasks.turns import check_device_reply, describe_turns, find_reply, split_turns
from isojax.tasks.verifiers.integer import build
from tests.refusals import refused
from tests.tasks.tokenizer_folders import byte_level

ECHO = """\
import os, time
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import InMemorySource
from isojax.tasks.sources import source

def reply(problem, turns):
    last = turns[-1]
    if last == "hang": time.sleep(60)
    if last == "crash": os._exit(3)
    if last == "long": return "x" * 3000
    if last == "number": return 7
    if last == "empty": return ""
    return None if last == "done" else f"<{problem.id}:{'|'.join(turns)}>"

@source(reply=reply)
def echo(argument, data):
    return InMemorySource([Problem(i, f"{i} + 1 =", str(i + 1)) for i in range(9)])
"""
PROBLEM = Problem(4, "4 + 1 =", "5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_level(tmp_path_factory.mktemp("model"), eos_token_id=[0, 2])


@pytest.fixture
def made(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes the task `echo` with settings of its prompt, and ends its processes."""
    (tmp_path / "echo_task.py").write_text(ECHO)
    monkeypatch.setenv(registry.FOLDERS_VARIABLE, str(tmp_path))
    tasks: list[TextTask] = []

    def make(interrupt: InterruptConfig | None = None, **prompt: Any) -> TextTask:
        cell = CellConfig(
            task="echo_task",
            model=ModelConfig(path=str(folder)),
            prompt=PromptConfig(**prompt),
            verifier=VerifierConfig(use="exact", timeout=3.0),
            sampling=SamplingConfig(response_length=200, interrupt=interrupt),
        )
        task = build_task(cell, 1)
        assert isinstance(task, TextTask)
        tasks.append(task)
        return task

    yield make
    for task in tasks:
        task.close()


def tokens_of(task: TextTask, text: str) -> np.ndarray:
    return np.array(task.tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)


def test_turns_are_runs_of_one_sign() -> None:
    assert [turn.tolist() for turn in split_turns(np.array([5, 0, ~0, ~7, 3, ~2, 1]))] == [
        [5, 0],
        [~0, ~7],
        [3],
        [~2],
        [1],
    ]


def test_two_replies_in_raw_text(made: Any) -> None:
    task = made(stop=("\n",))
    assert task.stops.host_replies and task.stops.interruption is None
    first = tokens_of(task, "a dog\n")
    (context,), failures = task.reply_tokens([PROBLEM], [first])
    assert not failures and task.tokenizer.decode(context) == "<4:a dog>"
    second = np.concatenate([first, ~context, tokens_of(task, "ran\n")])
    (more,), _ = task.reply_tokens([PROBLEM], [second])
    assert task.tokenizer.decode(more) == "<4:a dog|<4:a dog>|ran>"
    # whole up to the last turn, which its stop cuts
    assert task.decode(second) == "a dog\n<4:a dog>ran"
    (none,), _ = task.reply_tokens(
        [PROBLEM], [np.concatenate([second, ~more, tokens_of(task, "done\n")])]
    )
    assert len(none) == 0


def test_a_reply_in_a_chat_is_a_users_message(made: Any) -> None:
    task = made(format="chat")
    first = np.append(tokens_of(task, "a dog"), 2).astype(np.int32)  # <|im_end|>
    (context,), _ = task.reply_tokens([PROBLEM], [first])
    whole = task.tokenizer.decode(np.concatenate([first, context]))
    assert (
        whole == "a dog<|im_end|>\n<|im_start|>user\n<4:a dog><|im_end|>\n<|im_start|>assistant\n"
    )
    second = np.concatenate([first, ~context, tokens_of(task, "ran"), [2]]).astype(np.int32)
    (more,), _ = task.reply_tokens([PROBLEM], [second])
    assert "<4:a dog|<4:a dog>|ran>" in task.tokenizer.decode(more)


def test_a_reply_that_fails_ends_the_response_and_is_counted(made: Any) -> None:
    task = made(stop=("\n",))
    turns = ["hang", "crash", "long", "number", "empty", "done", "fine"]
    contexts, failures = task.reply_tokens(
        [PROBLEM] * 7, [tokens_of(task, f"{turn}\n") for turn in turns]
    )
    assert [len(context) > 0 for context in contexts] == [False] * 6 + [True]
    assert failures == {"timeout": 1, "crash": 1, "error": 2}


def test_interruptions_are_refused(made: Any) -> None:
    with refused(where="cell.sampling.interrupt"):
        made(interrupt=InterruptConfig(after=2, text="stop", unless=""), stop=("\n",))


def test_the_calculator() -> None:
    assert (
        reply(PROBLEM, ["8+26"]) == "34\n" and reply(PROBLEM, ["8+26", "34\n", " 34 + 9"]) == "43\n"
    )
    assert all(
        reply(PROBLEM, [text]) is None for text in ("43", "8+26+9", "8-2", "", "1234567890+1")
    )
    check = build("last_line")
    problem = Problem(1, "8 + 26 + 9 =", "43")
    rewards = {
        "8+26\n34\n34+9\n43\n43": True,
        "43": True,
        "8+26\n34\n34": False,
        "34+9\n43\n": False,
    }
    assert {text: check(problem, "", text).correct for text in rewards} == rewards


def test_a_plan_names_a_verifier_that_expects_no_reply() -> None:
    def said(use: Any) -> str:
        return describe_turns(CellConfig(task="calculator", verifier=VerifierConfig(use=use)))

    assert "calculator replies after a turn" in said("integer:last_line") and "warning" not in said(
        "integer:last_line"
    )
    assert "warning: integer calls a response wrong that has a reply" in said("integer")
    assert "warning: exact calls" in said({"a": "exact", "b": "math"})


def test_a_reply_on_device_of_other_shapes_is_refused() -> None:
    check_device_reply("mine", lambda answers, tokens, lengths: (tokens[:, :2], lengths), 5)
    for wrong_reply in (
        lambda answers, tokens, lengths: (tokens[:, 0], lengths),
        lambda answers, tokens, lengths: (tokens, lengths[:1]),
        lambda answers, tokens: (tokens, tokens[:, 0]),
        lambda answers, tokens, lengths: tokens,
        lambda answers, tokens, lengths: (tokens if lengths[0] else answers, lengths),
    ):
        with refused(where="cell.task = mine"):
            check_device_reply("mine", wrong_reply, 5)


def test_a_reply_of_other_arguments_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "short_task.py").write_text(
        ECHO.replace("def reply(problem, turns)", "def reply(turns)")
    )
    monkeypatch.setenv(registry.FOLDERS_VARIABLE, str(tmp_path))
    with refused(where="cell.task = short_task"):
        find_reply("short_task")
