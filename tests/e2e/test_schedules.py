"""Runs whose n changes along C, from the command line: the same bits as fixed ones where nothing
changes, and after any kill; what a fit and the other commands say of them."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import tiny_lm

pytestmark = [pytest.mark.slow, pytest.mark.seconds(60)]

ONLY = ("sweep.B_p=[]", "sweep.n=[]", "sweep.seeds=1", "sweep.budget=1200", "sweep.B_max=128")
GROW = "{grow: '8x2, 8x4 from 200, 16x4 from 400, 16x8 from 700'}"


def points(isojax: Any, cell: str, name: str = "tiny") -> list[dict[str, Any]]:
    """The evaluations of a ledger."""
    lines = (isojax.run(name) / "cells" / cell / "records.jsonl").read_text().splitlines()[1:]
    return [json.loads(line) for line in lines]


def check_equal(points: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    """To the bit, but for the last digits of means over updates, which a switch adds up in two
    parts."""
    assert len(points) == len(others) > 5
    for a, b in zip(points, others, strict=True):
        assert a.pop("train") == pytest.approx(b.pop("train"), rel=1e-5, abs=1e-7) and a == b


def train(isojax: Any, *words: str, **options: Any) -> Any:
    return isojax.swept("isojax.train", "tiny.yaml", *ONLY, *words, **options)


def test_a_schedule_that_changes_nothing_leaves_the_bits_of_a_fixed_run(isojax: Any) -> None:
    """By an asynchronous sampler, and without solved problems; the text task below has neither."""
    settings = (
        "cell.rl.no_positive_resampling=0.9",
        "cell.rl.max_staleness=0",
        "sweep.seeds=1",
        "sweep.budget=400",
    )
    same = "sweep.schedules={same: '8x4, 8x4 from 100, 8x4 from 250'}"
    train(isojax, "name=same", same, *settings)
    isojax.swept("isojax.train", "tiny.yaml", "name=fixed", "sweep.n=[4]", *settings)
    check_equal(points(isojax, "same-s0", "same"), points(isojax, "8x4-s0", "fixed"))


def test_kills_around_switches_leave_the_same_bits(isojax: Any) -> None:
    """Killed at two evaluations next to a switch, with a checkpoint after every call.

    Asynchronous; the run by gradient below is not, and leaves out solved problems too."""
    schedule = f"sweep.schedules={GROW}"
    words = (
        schedule,
        "run.checkpoint_seconds=0",
        "cell.rl.no_positive_resampling=0.9",
        "cell.rl.max_staleness=2",
    )
    train(isojax, "name=whole", *words)
    whole = (isojax.run("whole") / "cells" / "grow-s0" / "records.jsonl").read_bytes()
    ledger: Path = isojax.run() / "cells" / "grow-s0" / "records.jsonl"
    for lines in (6, 7):
        process = isojax.fork("isojax.train", "tiny.yaml", *ONLY, *words, "--resume", report=False)
        while process.poll() is None and not (
            ledger.exists() and ledger.read_bytes().count(b"\n") >= lines
        ):
            time.sleep(0.005)
        process.kill()
        process.wait()
    train(isojax, *words, "--resume")
    assert ledger.read_bytes() == whole
    header = json.loads(whole.splitlines()[0])
    assert header["schedule"] == "grow" and header["stages"] == [
        [0, 8, 2],
        [200, 8, 4],
        [400, 16, 4],
        [700, 16, 8],
    ]
    rollouts = [json.loads(line)["rollouts"] for line in whole.splitlines()[1:]]
    assert all(C % 16 == 0 for C in rollouts) and rollouts[-1] > 900


@pytest.mark.nightly
def test_a_schedule_by_gradient_grows_and_leaves_the_same_bits_after_a_kill(isojax: Any) -> None:
    """With a rate and a KL term so high that the steps of n = 2 undo each other."""
    words = (
        "sweep.schedules={auto: '32x2 to 32x8 by gradient'}",
        "run.checkpoint_seconds=0",
        "sweep.budget=3000",
    )
    words += (
        "cell.rl.no_positive_resampling=0.9",
        "cell.rl.kl=1.0",
        "cell.rl.learning_rate=5.0e-2",
    )
    words += ("sweep.B_max=256", "cell.base.steps=400", "cell.data.difficulty=[0.2,0.8]")
    train(isojax, "name=whole", *words)
    whole = points(isojax, "auto-s0", "whole")
    sizes = [(b["rollouts"] - a["rollouts"]) / (b["M"] - a["M"]) for a, b in pairwise(whole)]
    assert sizes == sorted(sizes) and sizes[0] == 64 and 128 in sizes and sizes[-1] == 256
    ledger: Path = isojax.run() / "cells" / "auto-s0" / "records.jsonl"
    process = isojax.fork("isojax.train", "tiny.yaml", *ONLY, *words, report=False)
    while process.poll() is None and not (
        ledger.exists() and ledger.read_bytes().count(b"\n") >= 9  # n has grown, and grows again
    ):
        time.sleep(0.005)
    process.kill()
    process.wait()
    train(isojax, *words, "--resume")
    assert points(isojax, "auto-s0") == whole
    assert "done before" in train(isojax, *words, "--resume").stderr
    (sweep,) = json.loads(isojax.quick_ok("status", "runs/tiny", "--json").stdout)["sweeps"]
    assert [cell["state"] for cell in sweep["cells"]] == ["done"]
    refused = ("cell.rl.max_staleness=1", "name=other")
    isojax.refused(
        "isojax.train",
        "tiny.yaml",
        *ONLY,
        *words,
        *refused,
        saying=["expected null with a schedule by"],
    )


def test_a_sweep_of_fixed_and_growing_n(isojax: Any) -> None:
    isojax.swept(
        "isojax.launch",
        "tiny.yaml",
        f"sweep.schedules={GROW}",
        "sweep.seeds=1",
        "sweep.B_max=128",
        fit=True,
    )
    assert sorted(isojax.ledgers()) == ["8x2-s0", "8x4-s0", "grow-s0"]
    fit = json.loads((isojax.run() / "fit.json").read_text())
    (row,) = fit["schedules"]
    assert (
        row["name"] == "grow"
        and row["seeds"] == [0]
        and row["interval"][0] < row["gain"] < row["interval"][1]
    )
    assert {(run["B_p"], run["n"]) for run in fit["runs"]} == {(8, 2), (8, 4)}
    before = (isojax.run() / "fit.json").read_bytes()
    isojax.quick_ok("recommend", "runs/tiny", "--budget", "2000")
    assert (isojax.run() / "fit.json").read_bytes() == before  # the fit is of these ledgers
    assert "n along a run against the best fixed n" in isojax.quick_ok("fit", "runs/tiny").stdout
    isojax.quick_ok("report", "runs/tiny")
    (sweep,) = json.loads(isojax.quick_ok("status", "runs/tiny", "--json").stdout)["sweeps"]
    assert {cell["name"]: cell["state"] for cell in sweep["cells"]}["grow-s0"] == "done"
    checked = json.loads(isojax.quick_ok("records", "check", "runs/tiny", "--json").stdout)
    assert [cell["schedule"] for cell in checked["cells"]].count(None) == 2


def test_a_resumed_run_keeps_the_stages_that_a_fit_gave_it(isojax: Any, whole: Any) -> None:
    """Where the fit has changed or is lost, the folder's config.yaml goes on, and other words are
    refused."""
    fit = isojax.folder / "fits" / "fit.json"
    fit.parent.mkdir()
    fit.write_bytes((whole.run() / "fit.json").read_bytes())
    words = (
        "isojax.train",
        "tiny.yaml",
        *ONLY,
        "sweep.schedules={grow: 'n*(2C) of fits at B_p=8'}",
        "name=fitted",
        "sweep.budget=300",
    )
    isojax.quick_ok(*words, report=False)
    config, before = isojax.run("fitted") / "config.yaml", isojax.ledgers("fitted")
    (stages,) = [line.strip() for line in config.read_text().splitlines() if "grow:" in line]
    other = (
        *words[:-3],
        "sweep.schedules={grow: '8x64'}",
        "sweep.B_max=1024",
        "name=fitted",
        "--resume",
    )
    goes_on = "To go on as it was: isojax launch runs/fitted/config.yaml --resume"
    isojax.refused(
        *other, saying=[f"this run has '{stages.removeprefix('grow: ')}', given '8x64'", goes_on]
    )
    fit.unlink()
    isojax.refused(
        *words, "--resume", saying=["The config.yaml of a run that has begun has its stages"]
    )
    isojax.quick_ok(
        "isojax.train", "runs/fitted/config.yaml", "sweep.budget=500", "--resume", report=False
    )
    after = isojax.ledgers("fitted")
    assert all(
        after[cell].startswith(ledger) and after[cell] != ledger for cell, ledger in before.items()
    )
    assert stages in config.read_text()


def test_a_text_task_goes_through_switches(isojax: Any) -> None:
    """Rollouts of a hosted sampler, graded on the host: a schedule that changes nothing, and one
    that grows."""
    tiny_lm.make_model(isojax.folder / "models" / "smollm2-135m")
    (isojax.folder / "stand_in").mkdir()
    (isojax.folder / "stand_in" / "coin.py").write_text(tiny_lm.COIN)
    (isojax.folder / "sums.yaml").write_text(
        tiny_lm.CONFIG.format(name="sums", task="addition", attempts=0, data="")
    )
    schedules = "sweep.schedules={same: '4x4, 4x4 from 64', grow: '4x2, 4x4 from 16, 4x8 from 40'}"
    words = (
        "sums.yaml",
        "sweep.budget=130",
        "cell.eval.start=16",
        "sweep.B_p=[4]",
        "sweep.n=[4]",
        schedules,
    )
    isojax.swept("isojax.launch", *words)
    check_equal(points(isojax, "same-s0", "sums"), points(isojax, "4x4-s0", "sums"))
    assert [row["rollouts"] for row in points(isojax, "grow-s0", "sums")][:5] == [0, 16, 32, 48, 80]


def test_what_is_refused(isojax: Any) -> None:
    for text, saying in (
        ("{grow: '8x2 then 8x4'}", "expected one such as"),
        ("{8x2: '8x2'}", "a schedule's name that is no cell's"),
        # but of a pilot of `isojax spend`
        ("{from-n2: '8x2'}", "a schedule's name that is no cell's"),
        # no folder may be named so
        (f"{{{'g' * 101}: '8x2'}}", "at most 100. Rename the schedule 'ggg"),
        ("{grow: '8x2, 8x64 from 100'}", "B_p x n is over sweep.B_max"),
    ):
        isojax.refused("isojax.launch", "tiny.yaml", f"sweep.schedules={text}", saying=[saying])
    words = ("sweep.schedules={grow: '8x2'}", "sweep.strategy=adaptive")
    isojax.refused("isojax.launch", "tiny.yaml", *words, saying=["expected no sweep.schedules"])
