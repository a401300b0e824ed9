"""`isojax watch` as a user meets it: one look, a growing log, JSON, refusals."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from isojax.cli import app
from isojax.cli.commands import watch_command
from isojax.cli.run_end import find_end
from isojax.core.config import load_config, save_config
from isojax.core.nouns import Cell, EvalPoint, Leg, RunRecord, Spending
from isojax.core.schedule import Stage
from isojax.launch.fitted_schedules import resolve_schedules
from isojax.launch.planner import plan_cells
from isojax.launch.strategies.spend import spend_policy
from isojax.runs.ledger import write_run
from isojax.runs.spend_file import write_spending
from isojax.scaling.curves.hill import curve_value
from tests.cli.conftest import write_timed_sweep
from tests.refusals import refused
from tests.scaling.documents import SHAPES, altered, document, hill

HEADER = "B_p,n,step,reward\n"
WATCH = ("watch", "log.csv", "--from", "csv")
Command = Callable[..., tuple[int, str, str]]


def rows(count: int) -> list[str]:
    """Of a run of 16 x 8 rollouts that rises from .2 to .4."""
    noise = np.random.default_rng(1).normal(0, 0.005, count)
    return [
        f"16,8,{M},{curve_value(M, 0.2, 0.4, 1.2, 6.0) + noise[M - 1]:.4f}\n"
        for M in range(1, count + 1)
    ]


@pytest.fixture
def isojax(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """Run a command beside log.csv, a run of 24 updates: (exit code, standard output, standard
    error)."""
    (tmp_path / "log.csv").write_text(HEADER + "".join(rows(24)))
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["isojax", *map(str, words)])
        with pytest.raises(SystemExit) as e:
            app.main()
        return (e.value.code, *capsys.readouterr())  # type: ignore[return-value]

    return run


def test_a_run_that_will_not_reach_its_goal_is_stopped(isojax: Command) -> None:
    code, out, _ = isojax(*WATCH, "--updates", 40, "--goal", 0.6)
    assert (
        code == 0
        and "at C = 5,120 (--updates)" in out
        and "stop: the end is below the goal of 0.6" in out
    )
    code, out, _ = isojax(*WATCH, "--end", 5120, "--stop-below", 0.3, "--json")
    seen = json.loads(out)
    assert (code, seen["advice"], seen["rollouts_left"], seen["C"]) == (0, "go on", 2048, 3072)
    assert seen["interval"][0] <= curve_value(40, 0.2, 0.4, 1.2, 6.0) <= seen["interval"][1]
    assert "cannot tell" in seen["n_advice"]


def test_a_run_that_broke_is_stopped_without_a_forecast(isojax: Command, tmp_path: Path) -> None:
    """Six evaluations at .02, after a rise to .38: the curve, which can only rise, would still
    promise .3."""
    broken = [f"16,8,{M},{0.02 + 0.001 * (M % 2)}\n" for M in range(25, 31)]
    (tmp_path / "log.csv").write_text(HEADER + "".join(rows(24) + broken))
    code, out, _ = isojax(*WATCH, "--updates", 40, "--goal", 0.3)
    assert code == 0 and "stop: the run broke: collapsed" in out and "at C = 5,120" not in out
    seen = json.loads(isojax(*WATCH, "--updates", 40, "--json")[1])
    assert (seen["advice"], seen["interval"], seen["forecast"]) == ("stop", None, None)


def test_one_point_and_a_torn_last_line(isojax: Command, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(HEADER + "16,8,1,0.21\n16,8,2,0.2")
    code, out, _ = isojax(*WATCH, "--json")
    seen = json.loads(out)
    assert (code, seen["C"], seen["measured"], seen["interval"], seen["advice"]) == (
        0,
        128,
        0.21,
        None,
        "go on",
    )
    assert (seen["C_end"], seen["end_source"]) == (256, "2 x the rollouts so far")


def test_a_last_line_without_an_end_is_said_to_be_left_out(isojax: Command, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text((HEADER + "".join(rows(24))).rstrip())
    code, out, err = isojax(*WATCH, "--json")
    assert (code, json.loads(out)["C"]) == (0, 23 * 128)
    assert (
        err.startswith("note: the last line of log.csv has no line end, so it is left out")
        and err.count("\n") == 1
    )


def test_a_nan_of_a_running_log_is_said(isojax: Command, tmp_path: Path) -> None:
    steps = "".join(
        f"step:{i} - val/acc:{'nan' if i > 3 else 0.1 * i} - actor/kl:1\n" for i in range(6)
    )
    (tmp_path / "job.log").write_text(steps)
    code, out, err = isojax("watch", "job.log", "--map", "n=2,B_p=2,reward=val/acc")
    assert code == 0 and out.startswith("C = 12: val/acc 0.300")
    assert "warning: skipped: job.log, line 5: reward (column val/acc) is nan, and at step 5" in err


def test_an_error_in_such_a_log_names_its_own_path(isojax: Command, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(HEADER + "16,8,1,0.21\n16,8,2,7\n16,8,3,0.2")
    code, out, err = isojax(*WATCH)
    assert (code, out) == (2, "") and err.startswith("error: log.csv, line 3: reward: given 7")
    assert tempfile.gettempdir() not in err


def test_n_of_such_a_log_is_that_of_its_path_as_given(
    isojax: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "n4/n8").mkdir(parents=True)
    (tmp_path / "n4/n8/log.csv").write_text("B_p,step,reward\n16,1,0.21\n16,2,0.2")
    monkeypatch.chdir(tmp_path / "n4")
    code, out, err = isojax("watch", "n8/log.csv", "--map", "n=n{}", "--json")
    assert (code, json.loads(out)["C"], err.count("no line end")) == (0, 128, 1)


@pytest.mark.parametrize(
    ("last_line", "C"), [('{"step": 3, "reward": 0.3}', 384), ('{"step": 3, "rewa', 256)]
)
def test_a_whole_last_line_of_json_counts_without_its_end(
    isojax: Command, tmp_path: Path, last_line: str, C: int
) -> None:
    lines = '{"step": 1, "reward": 0.21}\n{"step": 2, "reward": 0.25}\n'
    (tmp_path / "log.jsonl").write_text(lines + last_line)
    code, out, err = isojax(
        "watch", "log.jsonl", "--from", "jsonl", "--map", "n=8,B_p=16", "--json"
    )
    assert (code, json.loads(out)["C"]) == (0, C) and "no line end" not in err


def test_a_cell_of_a_sweep_ends_at_its_last_evaluation_and_its_torn_line_is_left_out(
    isojax: Command, tmp_path: Path
) -> None:
    rewards = [0.2 + 0.2 * M / (M + 6) for M in range(25)]
    points = [EvalPoint(M * 128, M, M * 128, 0, {"avg@4": R}) for M, R in enumerate(rewards)]
    cell = tmp_path / "runs/a/cells/16x8-s0"
    write_run(cell, RunRecord(Cell(16, 8, 0), tuple(points)))
    with (cell / "records.jsonl").open("a") as file:
        file.write('{"kind": "ev')
    # evaluations at 1000, 2000, 4000 and, beyond the budget, 8000
    grid = "cell: {eval: {start: 1000, ratio: 2}}\n"
    (tmp_path / "runs/a/config.yaml").write_text(grid + "sweep: {budget: 6000}\n")
    for path in ("runs/a", cell, cell / "records.jsonl"):
        seen = json.loads(isojax("watch", path, "--json")[1])
        assert (seen["C"], seen["C_end"]) == (3072, 32 * 128)
        assert seen["end_source"] == "the last evaluation within the sweep's budget"
    (tmp_path / "runs/a/config.yaml").write_text(grid + "sweep: {budget: 3999}\n")
    assert "stop: the run has reached its end" in isojax("watch", "runs/a")[1]


def test_a_run_of_spend_ends_where_its_pilot_or_what_the_pilots_left_does(
    isojax: Command, tmp_path: Path
) -> None:
    words = [
        "sweep.strategy=spend",
        "sweep.B_p=[8]",
        "sweep.n=[2,4]",
        "sweep.seeds=1",
        "sweep.budget=6000",
    ]
    config = load_config("quickstart", [*words, "cell.eval.start=64", "cell.eval.ratio=2"])
    folder = tmp_path / "runs/s"
    two, four = sorted(plan_cells(config.sweep))
    for cell in (two, four):
        points = [EvalPoint(8 * cell.n * M, M, 8 * cell.n * M, 0, {"avg@4": 0.2}) for M in range(7)]
        write_run(folder / "cells" / cell.name, RunRecord(cell, tuple(points)))
    save_config(config, folder / "config.yaml")

    def end_of(cell: Cell) -> tuple[float, str, str]:
        seen = json.loads(isojax("watch", folder / "cells" / cell.name, "--json")[1])
        return seen["C_end"], seen["end_source"], seen["n_advice"]

    advice = "isojax spend chooses the n of this run on the way, and may end it earlier"
    C_end = spend_policy(config, [two, four]).pilots()[0].C_end
    for cell in (two, four):  # while the pilots are trained, there is no spend.json
        assert end_of(cell) == (cell.rollouts_to_reach(C_end), "the end of its pilot", advice)
    assert "holds 2 runs, given no --run" in isojax("watch", folder)[2]
    # after updates of 16 and 32 rollouts: 112 and 128
    pilots = (Leg(two, 2, 0, 100), Leg(four, 4, 0, 100))
    legs = (*pilots, Leg(two, 4, 112, 500, 0.3, (0.2, 0.4)))
    write_spending(folder, Spending(6000, "avg@4", legs))
    assert end_of(two) == (6000 - 128, "what the pilots left of the budget", advice)
    assert end_of(four)[:2] == (128, "the end of its pilot")
    # the run that goes on
    assert json.loads(isojax("watch", folder, "--json")[1])["C_end"] == 6000 - 128
    out, err = isojax("watch", folder / "cells" / two.name)[1:]
    assert "(what the pilots left of the budget)" in out or "the next forecast" in out
    assert err == f"note: {advice}\n"
    write_spending(folder, Spending(6000, "avg@4", legs, is_ended=True))
    assert end_of(two)[:2] == (96, "where isojax spend ended it")


def test_a_run_that_raises_n_as_planned_is_not_advised_to(isojax: Command, tmp_path: Path) -> None:
    sweep = write_timed_sweep(tmp_path / "sweep")
    stages = (Stage(0, 16, 4), Stage(50_000, 16, 16))
    points = [
        EvalPoint(64 * M, M, 64 * M, 0, {"avg@4": hill(*SHAPES[16, 4], 64 * M)})
        for M in range(4, 64, 4)
    ]
    write_run(tmp_path / "grow", RunRecord(Cell(16, 4, 0, "grow", stages), tuple(points)))
    seen = json.loads(isojax("watch", "grow", "--end", 100_000, "--sweep", sweep, "--json")[1])
    assert seen["advice"] == "go on" and [option["n"] for option in seen["n_options"]] == [
        4,
        16,
        64,
    ]


def test_updates_of_a_run_whose_n_grows(isojax: Command, tmp_path: Path) -> None:
    stages = (Stage(0, 16, 2), Stage(320, 16, 8))  # 10 updates of 32, then updates of 128
    cell = Cell(16, 2, 0, "growing", stages)
    points = [
        EvalPoint(C, M, C, 0, {"avg@4": 0.2})
        for M in (0, 10, 20, 30)
        for C in [cell.rollouts_after(M)]
    ]
    write_run(tmp_path / "run", RunRecord(cell, tuple(points)))
    assert (
        json.loads(isojax("watch", "run", "--updates", 40, "--json")[1])["C_end"] == 320 + 30 * 128
    )
    # Of a schedule by gradient a ledger has the first stage alone: at the last evaluation, n is 8
    # or more.
    write_run(
        tmp_path / "auto", RunRecord(Cell(16, 2, 0, "auto", stages[:1], n_max=32), tuple(points))
    )
    assert (
        json.loads(isojax("watch", "auto", "--updates", 40, "--json")[1])["C_end"] == 320 + 30 * 128
    )


@pytest.mark.parametrize(
    ("stages", "batches", "end"),
    [((), 2, 10_240), ([(0, 16, 2), (320, 16, 8)], 1, 320 + 30 * 128), ((), 1, 5120)],
)
def test_the_end_in_updates_counts_the_batches_of_a_step_and_the_stages_of_a_schedule(
    stages: list[tuple[int, int, int]], batches: int, end: int
) -> None:
    """Of 40 updates, seen from the 24th; a schedule has 10 of 16 x 2, and then 30 of 16 x 8."""
    cell = Cell(16, 2 if stages else 8, 0).with_stages(map(Stage._make, stages))
    points = [
        EvalPoint(0, M, cell.rollouts_after(M) * batches, 0, {"avg@4": 0.2}) for M in range(25)
    ]
    run = RunRecord(cell, tuple(points))
    assert find_end(run, Path("log"), None, "40") == (end, "--updates")


def test_the_end_in_updates_goes_on_by_the_newest_batches() -> None:
    """12 updates of two batches of 128 rollouts, then 12 of four; the last half of these 9,216
    rollouts, from C = 4,608 on, takes four, and so do 16 updates more."""
    C_after = [256 * min(M, 12) + 512 * max(M - 12, 0) for M in range(25)]
    points = tuple(EvalPoint(C, M, C, 0, {"avg@4": 0.2}) for M, C in enumerate(C_after))
    run = RunRecord(Cell(16, 8, 0), points)
    assert find_end(run, Path("log"), None, "40") == (9216 + 16 * 512, "--updates")


def test_a_log_whose_steps_fall_is_watched_on_request(isojax: Command, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(HEADER + "".join(rows(3) + rows(4)[1:]))
    code, _, err = isojax(*WATCH)
    assert code == 2 and "add --resumed" in err
    assert json.loads(isojax(*WATCH, "--resumed", "--json")[1])["C"] == 512


def test_a_growing_log_is_followed_to_its_end(
    isojax: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = iter([*(rows(26)[24:]), KeyboardInterrupt()])

    def grow(seconds: float) -> None:
        row = next(more)
        if isinstance(row, KeyboardInterrupt):
            raise row
        with (tmp_path / "log.csv").open("a") as file:
            file.write(row)

    monkeypatch.setattr(watch_command.time, "sleep", grow)
    code, out, err = isojax(*WATCH, "--updates", 40, "--follow")
    assert code == 0 and [line[:9] for line in out.splitlines()] == [
        "C = 3,072",
        "C = 3,200",
        "C = 3,328",
    ]
    assert "the run goes on" in err


def test_a_log_that_cannot_be_read_while_it_is_written_is_followed_on(
    isojax: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log.csv"
    texts = iter(["B_p,n\n", "B_p,n\n1\n", "B_p,n\n1\n\n", HEADER + "".join(rows(4))])
    log.write_text(HEADER + "".join(rows(3)))
    monkeypatch.setattr(watch_command.time, "sleep", lambda _: log.write_text(next(texts)))
    code, out, err = isojax(*WATCH, "--end", 512, "--follow")
    assert code == 0 and [line[:7] for line in out.splitlines() if line[:1] == "C"] == [
        "C = 384",
        "C = 512",
    ]
    assert [err.count(words) for words in ("cannot be read as it is now", ": 1 cells")] == [2, 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["watch", "none.csv", "--from", "csv"], "none.csv: no such log"),
        (["watch", "none"], "none: no such run"),
        ([*WATCH, "--end", "0"], "--end: given '0'; expected"),
        ([*WATCH, "--end", "9", "--updates", "9"], "expected one. Leave one out"),
        ([*WATCH, "--goal", "60"], "--goal: given 60; expected"),
        ([*WATCH, "--run", "x"], "holds 1 runs, given --run x; expected one of"),
    ],
)
def test_refusals(isojax: Command, words: list[str], message: str) -> None:
    code, out, err = isojax(*words)
    assert (code, out) == (2, "") and message in err and "Traceback" not in err


def test_what_another_n_would_give_by_a_sweep(isojax: Command, tmp_path: Path) -> None:
    sweep = write_timed_sweep(tmp_path / "sweep")
    lines = [f"16,4,{M},{hill(*SHAPES[16, 4], 64 * M):.4f}\n" for M in range(4, 64, 4)]
    (tmp_path / "log.csv").write_text(HEADER + "".join(lines))
    code, out, err = isojax(*WATCH, "--end", 100_000, "--sweep", sweep)
    assert code == 0 and "raise n: from here on n = 16 ends +0.0" in out and "4 (now)" in out
    assert "96.2 s" in out and "cannot tell" not in err
    seen = json.loads(isojax(*WATCH, "--end", 100_000, "--sweep", sweep, "--json")[1])
    assert seen["advice"] == "raise n" and [option["n"] for option in seen["n_options"]] == [
        4,
        16,
        64,
    ]
    assert seen["n_options"][1]["hours"] == pytest.approx((100_000 - seen["C"]) * 0.001 / 3600)
    seen = json.loads(
        isojax(*WATCH, "--end", 100_000, "--goal", 0.95, "--sweep", sweep, "--json")[1]
    )
    assert seen["advice"] != "raise n"  # no n reaches the goal
    (tmp_path / "log.csv").write_text(HEADER + "".join(rows(24)))
    code, _, err = isojax(*WATCH, "--sweep", sweep)
    assert code == 2 and "B_p x n = 16x8, and the sweep measured 16x4" in err


def test_a_fit_of_tokens_says_nothing_of_a_run_in_rollouts(isojax: Command, tmp_path: Path) -> None:
    path = tmp_path / "fit-tokens.json"
    path.write_text(altered(document(), compute="tokens").model_dump_json())
    code, out, err = isojax(*WATCH, "--sweep", path)
    assert (code, out) == (2, "") and "a fit in tokens; expected compute 'rollouts'" in err
    schedules = {"grow": f"n*(2C) of {path} at B_p=16"}
    with refused(where="sweep.schedules.grow"):
        resolve_schedules(load_config("quickstart").with_settings(sweep={"schedules": schedules}))
