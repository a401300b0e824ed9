"""An engine of a fork's own, one file, on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

# isojax's sampler, by another name: it counts what it is asked for.
ENGINE = """
from pathlib import Path
from isojax.rl.engines import RolloutEngine, rollout_engine
from isojax.rl.engines.local import local_engine

class Counting(RolloutEngine):
    def __init__(self, setup):
        self.setup, self.engine, self.published = setup, local_engine(setup), None
        self.run = ""

    def begin_run(self, cell, update):
        self.run = f"{cell.name} from {update}"

    def compile(self, params):
        return self.engine.compile(params)

    def publish(self, params, update):
        self.published = params
        with open("asked.txt", "a") as file:
            file.write(f"publish in {self.run}\\n")

    def sample(self, params, request, listener):
        assert self.published is params
        with open("asked.txt", "a") as file:
            file.write(f"{request.B_p} {request.n}\\n")
        return self.engine.sample(params, request, listener)

@rollout_engine
def build(setup):
    return Counting(setup)
"""
WORDS = ("train", "tiny.yaml", "sweep.n=[4]", "sweep.seeds=1", "sweep.budget=900")


def rows(isojax: Any, name: str) -> list[dict[str, Any]]:
    path = isojax.folder / "runs" / name / "cells" / "8x4-s0" / "records.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_engine_of_ones_own(isojax: Any) -> None:
    """It samples all rollouts of training; the numbers are those of isojax's own, one update after
    the other."""
    Path(isojax.folder, "counting.py").write_text(ENGINE)
    isojax.swept(*WORDS, "name=own", "run.rollouts=counting")
    isojax.swept(*WORDS, "name=local", "run.on_update=save_rollouts")
    own, local = rows(isojax, "own"), rows(isojax, "local")
    assert own[1:] == local[1:]
    assert own[0]["cell_hash"] != local[0]["cell_hash"], (
        "runs of two engines are not fitted together"
    )
    asked = Path(isojax.folder, "asked.txt").read_text().splitlines()
    assert asked == ["publish in 8x4-s0 from 0", "8 4"] * own[-1]["M"]

    saved = isojax.folder / "runs" / "local" / "cells" / "8x4-s0" / "rollouts.jsonl"
    rollouts = [json.loads(line) for line in saved.read_text().splitlines()]
    assert len(rollouts) == local[-1]["rollouts"] and rollouts[-1]["C"] == local[-1]["rollouts"]
    means = [r["reward"] for r in rollouts if r["update"] <= local[2]["M"]]
    assert abs(sum(means) / len(means) - local[2]["train"]["reward"]) < 1e-6


def test_what_an_engine_of_ones_own_cannot_do(isojax: Any) -> None:
    Path(isojax.folder, "counting.py").write_text(ENGINE)
    Path(isojax.folder, "shapeless.py").write_text(
        ENGINE.replace("return self.engine.compile(params)", "self.engine.compile(params)")
    )
    Path(isojax.folder, "a_hook.py").write_text(
        "from isojax.train.update_hooks import update_hook\n@update_hook\ndef look(report): ...\n"
    )
    for words, expected in (
        (("run.rollouts=a_hook",), "has the decorator @update_hook; expected a function with @ro"),
        (("run.rollouts=counted",), "Did you mean 'counting'?"),
        (("run.rollouts=server",), "run.server.url"),
        (
            ("run.rollouts=counting", "cell.rl.max_staleness=1"),
            "isojax's own engine alone samples ahead",
        ),
        (("run.rollouts=counting", "run.cells_at_once=2"), "run.cells_at_once=1"),
        (("run.rollouts=shapeless", "run.cells_at_once=1"), "`return self.setup.rollout_shapes`"),
    ):
        refused = isojax.quick("isojax.launch", "tiny.yaml", "name=refused", *words)
        assert (
            refused.returncode == 2
            and expected in refused.stderr
            and "Traceback" not in refused.stderr
        )
