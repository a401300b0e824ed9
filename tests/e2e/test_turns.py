"""Tasks of turns from end to end: a run on device and one whose replies come from the host's
processes, each killed and resumed; and two processes that are one run, each of which
replies to its own rollouts."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from tests.compiler import QUICK, flags
from tests.e2e.command_line import Isojax
from tests.e2e.test_hosts import ended, start
from tests.e2e.test_text import FLAGS, killed_at, prepare

pytestmark = [pytest.mark.slow, pytest.mark.seconds(55)]

KILLS = int(os.environ.get("ISOJAX_TEST_KILLS", "1"))  # of each run
ON_DEVICE = (
    "train",
    "tiny.yaml",
    "cell.task=guess",
    "cell.sampling={prompt_length: 7, response_length: 20}",
    "sweep.n=[4]",
    "sweep.seeds=1",
    "sweep.budget=1500",
)
# The reply hangs on problem and turns, has none to five characters, and ends about a third of the
# responses.
CHAT = """\
from zlib import crc32
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import InMemorySource
from isojax.tasks.sources import source

def reply(problem, turns):
    mark = crc32(f"{problem.prompt}{'|'.join(turns)}".encode())
    return None if mark % 3 == 0 else "abcde"[: mark // 3 % 6]

@source(reply=reply)
def chat(argument, data):
    return InMemorySource([Problem(i, f"{i} + 1 =", str(i + 1)) for i in range(60)])
"""
ON_HOST = (
    "sums.yaml",
    "cell.task=chat_task",
    "cell.sampling.response_length=16",
    "cell.prompt.stop=[a, e, i, o, t, s]",
    "sweep.n=[4]",
    "sweep.budget=200",
)
HOST_CELL = "4x4-s0"


def prepare_chat(place: Isojax) -> Isojax:
    (prepare(place).folder / "chat_task.py").write_text(CHAT)
    return place


def check_kills(isojax: Isojax, words: tuple[str, ...], name: str, cell: str) -> str:
    """A run that is killed after some of its evaluations, each time with a further one, leaves the
    ledger of one that is not. Returns what the latter printed."""
    printed = isojax.swept(*words, "name=whole", XLA_FLAGS=FLAGS).stderr
    whole = isojax.ledgers("whole")
    lines = whole[cell].count(b"\n")
    ledger = isojax.run(name) / "cells" / cell / "records.jsonl"
    for at in np.linspace(2, lines - 2, KILLS).astype(int).tolist():
        resume = ["--resume"] if ledger.exists() else []
        again = isojax.fork(
            *words, f"name={name}", "run.checkpoint_seconds=0", *resume, XLA_FLAGS=FLAGS
        )
        killed_at(again, ledger, at + 1)
        assert ledger.read_bytes().count(b"\n") < lines, "the run was finished before the kill"
    isojax.swept(*words, f"name={name}", "run.checkpoint_seconds=0", "--resume", XLA_FLAGS=FLAGS)
    assert isojax.ledgers(name) == whole
    return printed


@pytest.mark.nightly
def test_kills_on_device(isojax: Isojax) -> None:
    check_kills(isojax, ON_DEVICE, "killed", "8x4-s0")
    rows = isojax.rows("8x4-s0", "whole")
    assert all(row["metrics"]["turns"] > 1.2 for row in rows), [
        row["metrics"]["turns"] for row in rows
    ]
    assert all(
        row["train"]["sampler_logp_gap"] < 1e-4 and row["train"]["grad_norm"] > 0
        for row in rows
        if row["M"]
    )


def test_kills_where_the_host_replies(isojax: Isojax) -> None:
    printed = check_kills(prepare_chat(isojax), ("train", *ON_HOST), "killed", HOST_CELL)
    assert "turns: chat_task replies after a turn" in " ".join(printed.split())
    assert "«" in (isojax.run("whole") / "cells" / HOST_CELL / "samples.txt").read_text()
    rows = isojax.rows(HOST_CELL, "whole")
    assert all(row["metrics"]["turns"] > 1.2 for row in rows), [
        row["metrics"]["turns"] for row in rows
    ]
    assert all(
        row["train"]["sampler_logp_gap"] < 1e-4 and row["train"]["grad_norm"] > 0
        for row in rows
        if row["M"]
    )


def test_two_processes_reply_each_to_its_own_rollouts(isojax: Isojax) -> None:
    sizes = (*ON_HOST[1:4], "--mesh", "fsdp=4")
    two = prepare_chat(isojax)
    pair = ended(start(two, *sizes, "name=two"))
    assert [code for code, _ in pair] == [0, 0], pair
    words = ("train", *ON_HOST[:4], "sweep.n=[4]", "sweep.decode_slots=4", "sweep.microbatch=4")
    two.swept(
        *words,
        "sweep.prefill_batch=1",
        "sweep.budget=62",
        "name=one",
        "--mesh",
        "fsdp=4",
        XLA_FLAGS=flags(QUICK, devices=4),
    )
    ledgers = [two.ledgers(name)[HOST_CELL].splitlines() for name in ("one", "two")]
    for one, other in zip(
        *([json.loads(line) for line in lines] for lines in ledgers), strict=True
    ):
        if one["kind"] == "eval":
            assert one["counts"] == other["counts"] and one["metrics"] == pytest.approx(
                other["metrics"]
            )
            assert other.get("train", {}) == pytest.approx(one.get("train", {}), rel=2e-3, abs=1e-5)
