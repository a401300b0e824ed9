"""`isojax spend`: one budget on one policy, from the command line; the same bits after any kill,
and on Ray."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command_line import Isojax, Nursery

pytestmark = [pytest.mark.slow, pytest.mark.seconds(50)]

WORDS = ("spend", "tiny.yaml", "sweep.n=[2,4,8]", "run.checkpoint_seconds=0")
BUDGET = ("--budget", "6000")


def ledgers(run: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in run.glob("cells/*/records.jsonl")}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Isojax:
    """Where the budget has been spent without a break, in runs/whole; to be read only."""
    location = Isojax(tmp_path_factory.mktemp("spent") / "work", nursery)
    location.said = location.quick_ok(*WORDS, *BUDGET, "name=whole").stdout
    return location


def test_a_budget_is_spent_and_kills_leave_the_same_bits(isojax: Any, unbroken: Isojax) -> None:
    run: Path = unbroken.run("whole")
    spending, whole = json.loads((run / "spend.json").read_text()), ledgers(run)
    pilots = [leg for leg in spending["legs"] if leg["expected"] is None]
    assert sorted(whole) == [f"from-n{leg['n']}-s0" for leg in pilots] and len(pilots) == 2
    last = {name: json.loads(text.splitlines()[-1]) for name, text in whole.items()}
    spent = sum(point["rollouts"] for point in last.values())
    assert 5900 < spent <= 6000 and sum(leg["C_end"] for leg in pilots) <= 600
    policy = spending["legs"][-1]["cell"]["schedule"] + "-s0"
    assert last[policy]["target"] == last[policy]["rollouts"] == spending["legs"][-1]["C_end"]
    assert [forecast["n"] for forecast in spending["fixed"]] == [2, 4, 8]
    page = (run / "spend.html").read_text()
    for text in (
        f"{spent:,} of 6,000 rollouts were spent",
        f"It reached avg@8 = {last[policy]['metrics']['avg@8']:.3f}",
    ):
        assert text in unbroken.said and text in page
    (sweep,) = json.loads(unbroken.quick_ok("status", "runs/whole", "--json").stdout)["sweeps"]
    states = {cell["name"]: cell["state"] for cell in sweep["cells"]}
    # nothing is left of the budget for n = 8
    assert states == {"from-n2-s0": "done", "from-n4-s0": "done"}
    assert sweep["rollouts"] == sweep["budget"] == spent

    command = (*WORDS, *BUDGET, "--resume")
    # A session that a time limit ends in a pilot, then kills.
    in_time = isojax.quick(*command, "run.time_limit=8h", time_limit_at=f"{policy} at 2")
    assert in_time.returncode == 143 and "(run.time_limit)" in in_time.stderr.splitlines()[-1]
    assert not (isojax.run("tiny-spend") / "spend.html").exists()
    ledger = isojax.run("tiny-spend") / "cells" / policy / "records.jsonl"
    for lines in (2, 4, 8):  # in a pilot, after the pilots, and on the way
        process = isojax.fork(*command)
        while process.poll() is None and not (
            ledger.exists() and ledger.read_bytes().count(b"\n") >= lines
        ):
            time.sleep(0.005)
        process.kill()
        process.wait()
    isojax.quick_ok(*command)
    assert ledgers(isojax.run("tiny-spend")) == whole
    assert json.loads((isojax.run("tiny-spend") / "spend.json").read_text()) == spending
    isojax.quick_ok(
        "spend", "tiny.yaml", "sweep.n=[2,4,8]", "--resume"
    )  # the budget that it began with; nothing is left
    assert ledgers(isojax.run("tiny-spend")) == whole
    for changed in (("sweep.n=[2,4]", *BUDGET), ("sweep.n=[2,4,8]", "--budget", "7000")):
        isojax.refused(
            "spend", "tiny.yaml", *changed, "--resume", saying=["expected the same value"]
        )


def test_what_is_refused(isojax: Any) -> None:
    for words, saying in (
        ((), "no budget given; expected one in rollouts"),
        (("--budget", "5usd"), "is money"),
        (("--budget", "100"), "to choose n by"),
        ((*BUDGET, "cell.rl.max_staleness=1"), "expected null with isojax spend"),
    ):
        isojax.refused(*WORDS, *words, saying=[saying])
    isojax.refused(
        "isojax.launch",
        "tiny.yaml",
        "sweep.strategy=spend",
        saying=["expected `isojax spend CONFIG`"],
    )


def test_a_budget_in_time_and_pilots_side_by_side_on_ray(isojax: Any, unbroken: Isojax) -> None:
    timed = isojax.quick_ok(*WORDS, "--budget", "2s", "--dry-run")
    assert (
        "2s are estimated to suffice for" in timed.stdout
        and "at most, with the slowest n" in timed.stderr
    )
    isojax.quick_ok(*WORDS, *BUDGET, "--ray", "local", "name=onray")
    assert ledgers(isojax.run("onray")) == ledgers(unbroken.run("whole"))
    status = json.loads((isojax.run("onray") / "status.json").read_text())
    assert {cell["attempts"] for name, cell in status["cells"].items() if name != "from-n8-s0"} > {
        1
    }
