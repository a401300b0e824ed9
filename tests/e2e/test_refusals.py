"""What cannot be used ends with exit code 2 and one clear message, before any work, with nothing
written or changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

# Whole commands; the conditions have fast tests in their rooms.
pytestmark = [pytest.mark.slow, pytest.mark.seconds(20)]

SETTINGS = {
    "unknown key": (["cell.rl.learnin_rate=1"], ["learnin_rate", "cell.rl.learning_rate"]),
    "wrong type": (["sweep.budget=many"], ["sweep.budget", "'many'", "integer"]),
    "over B_max": (["sweep.n=[2,16]"], ["8 x 16 = 128", "B_max = 64"]),
    "mesh too large": (["--mesh", "data=4,tensor=4"], ["data=4,tensor=4", "16 devices"]),
    "mesh of an unknown axis": (["--mesh", "rows=1"], ["'rows'"]),
    "what a CPU cannot compile": (
        ["--mesh", "sequence=2", "cell.precision.compute=bfloat16"],
        ["sequence=2", "float32"],
    ),
    "unknown loss": (["cell.rl.loss=gpro"], ["'gpro'", "grpo"]),
    "unknown logger": (["run.loggers=[tensorbord]"], ["'tensorbord'", "tensorboard, wandb"]),
    "unknown task": (["cell.task=sums"], ["'sums'", "solvers"]),
    "a module that is no task": (["cell.task=data"], ["'data'", "solvers"]),
    "unknown model": (["cell.model.family=lama"], ["'lama'", "tiny"]),
    "a model that cannot be": (["cell.model.kv_heads=3"], ["kv_heads"]),
    "an odd head": (["cell.model.head_dim=15"], ["head_dim"]),
    "no room for any response": (["cell.sampling.response_length=1"], ["response_length"]),
    "no room for the longest response": (["cell.sampling.response_length=3"], ["response_length"]),
    "no room for a prompt": (["cell.sampling.prompt_length=5"], ["prompt_length"]),
    "budget below the first evaluation": (
        ["sweep.budget=60"],
        ["sweep.budget", "cell.eval.start = 64"],
    ),
    "budget below one update": (["sweep.budget=30"], ["budget"]),
    "more problems than there can be": (
        ["cell.data.candidates=100", "sweep.B_p=[64]", "sweep.n=[2]"],
        ["B_p"],
    ),
    "no such config": (["missing.yaml"], ["missing.yaml"]),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_a_setting_that_cannot_be_used(isojax: Any, case: str) -> None:
    words, saying = SETTINGS[case]
    config = [] if words[0].endswith(".yaml") else ["tiny.yaml"]
    isojax.refused("isojax.launch", *config, *words, saying=saying)


@pytest.mark.parametrize(
    "case",
    ["unknown loss", "unknown task", "no room for the longest response", "a model that cannot be"],
)
def test_a_dry_run_checks_it_too(isojax: Any, case: str) -> None:
    isojax.refused(
        "isojax.launch", "tiny.yaml", "--dry-run", *SETTINGS[case][0], saying=SETTINGS[case][1]
    )


@pytest.fixture(scope="module")
def used(whole: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with the finished sweep, without its checkpoints; no test here changes it."""
    location = type(whole)(tmp_path_factory.mktemp("used") / "work", whole.nursery)
    shutil.copytree(whole.run(), location.run(), ignore=shutil.ignore_patterns("checkpoint"))
    return location


CHANGES = {
    "no --resume": ([], ["--resume", "name="]),
    "another recipe": (["--resume", "cell.rl.kl=0.1"], ["cell.rl.kl", "0.02", "0.1"]),
    "another seed": (["--resume", "sweep.seed=1"], ["sweep.seed"]),
    "an n less": (["--resume", "sweep.n=[2]"], ["sweep.n"]),
    "less budget": (["--resume", "sweep.budget=1000"], ["sweep.budget"]),
    "other slots": (["--resume", "sweep.decode_slots=8"], ["sweep.decode_slots"]),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_run_that_is_there_is_kept(used: Any, case: str) -> None:
    words, saying = CHANGES[case]
    used.refused("isojax.launch", "tiny.yaml", *words, saying=saying)


def test_a_folder_of_something_else_is_kept(isojax: Any) -> None:
    (isojax.run()).mkdir(parents=True)
    (isojax.run() / "thesis.txt").write_text("all of it")
    isojax.refused("isojax.launch", "tiny.yaml", "--resume", saying=["runs/tiny", "config.yaml"])


@pytest.fixture
def ledgers(whole: Any, isojax: Any) -> Any:
    """A folder with the finished sweep's ledgers alone."""
    shutil.copytree(
        whole.run(),
        isojax.run(),
        ignore=shutil.ignore_patterns("checkpoint", "base", "figures", "report.html", "fit.json"),
    )
    return isojax


def damage(ledger: Path, kind: str) -> None:
    """Damage a ledger."""
    lines = ledger.read_bytes().splitlines(keepends=True)
    if kind == "not text":
        ledger.write_bytes(bytes(range(256)) * 8)
    elif kind == "a folder":
        ledger.unlink()
        ledger.mkdir()
    elif kind == "no complete point":
        ledger.write_bytes(lines[0])
    elif kind == "nothing":
        ledger.write_bytes(b"")
    elif kind == "broken in the middle":
        ledger.write_bytes(b"".join([*lines[:4], lines[4][:30] + b"\n", *lines[5:]]))
    elif kind == "no metrics":
        ledger.write_bytes(b"".join([*lines[:4], b'{"kind": "eval", "target": 5}\n', *lines[5:]]))


@pytest.mark.parametrize(
    "kind",
    ["not text", "a folder", "no complete point", "nothing", "broken in the middle", "no metrics"],
)
def test_fit_refuses_a_damaged_ledger(ledgers: Any, kind: str) -> None:
    damage(ledgers.run() / "cells" / "8x2-s1" / "records.jsonl", kind)
    ledgers.refused("fit", "runs/tiny", "--json", saying=["8x2-s1"])


def test_fit_refuses_where_nothing_is(isojax: Any) -> None:
    isojax.refused("fit", "runs/tiny", saying=["runs/tiny"])


def test_fit_leaves_out_a_torn_last_line_and_says_so(ledgers: Any, whole: Any) -> None:
    ledger: Path = ledgers.run() / "cells" / "8x2-s1" / "records.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-30])
    torn = ledger.read_bytes()
    done = ledgers.quick_ok("fit", "runs/tiny", "--json")
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1 and "8x2-s1" in warnings[0] and "torn" in warnings[0]
    document = json.loads(done.stdout)
    assert ledger.read_bytes() == torn  # reading mends nothing

    ledger.write_bytes(torn[: torn.rindex(b"\n") + 1])  # and what is fitted is the rest
    done = ledgers.quick_ok("fit", "runs/tiny", "--json")
    assert json.loads(done.stdout) == document and not done.stderr.startswith("warning")
