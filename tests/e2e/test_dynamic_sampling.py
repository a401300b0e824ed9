"""Dynamic sampling on the command line: C is what a hook counts, and a run killed and resumed is
the unbroken one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

# 48 training problems are 6 batches an epoch, and groups of the tiny task are often of equal
# rewards
WORDS = (
    "train",
    "tiny.yaml",
    "cell.data.size=48",
    "cell.rl.dynamic_sampling=4",
    "sweep.n=[4]",
    "sweep.seeds=1",
    "run.on_update=count_rollouts",
)
LINES = 5
HOOK = """
import json
from isojax.train.update_hooks import update_hook

@update_hook
def count(report):
    assert len(report.responses) == len(report.logps) == len(report.rewards) == 32
    assert all(len(tokens) == len(logps) for tokens, logps in zip(report.responses, report.logps))
    groups = report.rewards.reshape(8, 4)
    row = {"M": report.M, "C": report.C, "sampled": report.sampled,
           "ids": [p.id for p in report.problems],
           "equal": int((groups.min(1) == groups.max(1)).sum()),
           "rewards": report.rewards.tolist(), "metrics": dict(report.metrics)}
    with open(report.folder / "counted.jsonl", "a") as file:
        file.write(json.dumps(row) + "\\n")
"""


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_counted_killed_and_resumed(isojax: Any) -> None:
    Path(isojax.folder, "count_rollouts.py").write_text(HOOK)
    isojax.swept(*WORDS, "name=whole")
    folder = isojax.folder / "runs" / "whole" / "cells" / "8x4-s0"
    points = [row for row in rows(folder / "records.jsonl") if row["kind"] == "eval"]
    counted = rows(folder / "counted.jsonl")

    # Every update is reported once, and C is the sum of what each sampled.
    assert [row["M"] for row in counted] == list(range(1, points[-1]["M"] + 1))
    C = 0
    for row in counted:
        C += row["sampled"]
        batches = row["sampled"] // 32
        assert (
            row["C"] == C
            and row["sampled"] == 32 * row["metrics"]["sampled_batches"] == 32 * batches
        )
        # Batches are sampled until no group is of equal rewards, or there are four.
        assert batches == 4 or row["equal"] == 0
        assert row["metrics"]["equal_groups"] == row["equal"] / 8
    by_update = {row["M"]: row["C"] for row in counted}
    assert [p["rollouts"] for p in points[1:]] == [by_update[p["M"]] for p in points[1:]]
    assert all(p["rollouts"] >= p["target"] for p in points)
    assert points[-1]["rollouts"] > 32 * points[-1]["M"], "no group was replaced"

    # A recommendation for the C of this run is its own M; one batch an update would say more.
    last = points[-1]
    words = ("recommend", "runs/whole", "--budget", str(last["rollouts"]), "--json")
    answer = json.loads(isojax.quick(*words, "--write", "next.yaml", "--for", "verl").stdout)
    assert (answer["B_p"], answer["n"], answer["M"], answer["C"]) == (
        8,
        4,
        last["M"],
        last["rollouts"],
    )
    assert answer["batches"] == last["rollouts"] / (32 * last["M"]) > 1
    verl = yaml.safe_load(Path(isojax.folder, "next.yaml").read_text())
    assert (
        verl["trainer"]["total_training_steps"] == last["M"]
        and verl["algorithm"]["filter_groups"]["enable"]
    )

    process = isojax.fork(*WORDS, "name=killed", "run.checkpoint_seconds=0")
    last = time.monotonic() + 200
    path = isojax.folder / "runs" / "killed" / "cells" / "8x4-s0" / "records.jsonl"
    try:
        while not path.exists() or path.read_bytes().count(b"\n") < LINES:
            assert process.poll() is None and time.monotonic() < last, process.communicate()
            time.sleep(0.002)
    finally:
        process.kill()
        process.communicate()
    assert LINES <= path.read_bytes().count(b"\n") < len(points) + 1, (
        "the cell was finished before the kill"
    )
    isojax.swept(*WORDS, "name=killed", "--resume")
    assert path.read_bytes() == (folder / "records.jsonl").read_bytes()


def test_a_hook_is_refused_before_any_work(isojax: Any) -> None:
    for text, expected in (
        ("def hook(report):\n    pass\n", "no function with the decorator @update_hook"),
        (
            (
                "from isojax.train.update_hooks import update_hook\n@update_hook\ndef hook():\n    "
                "pass\n"
            ),
            "one argument",
        ),
    ):
        Path(isojax.folder, "bad_hook.py").write_text(text)
        refused = isojax.quick(
            "isojax.launch", "tiny.yaml", "run.on_update=bad_hook", "name=refused"
        )
        assert (
            refused.returncode == 2
            and expected in refused.stderr
            and "Traceback" not in refused.stderr
        )
        Path(isojax.folder, "bad_hook.py").unlink()
