"""The search for the learning rate's anchor: where it looks, what it takes, and one small search
from end to end."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from isojax.cli import app
from isojax.cli.commands.lr_search_command import print_search, read_rates
from isojax.cli.formatting import to_json_value
from isojax.core import machine
from isojax.core.config import Config, load_config
from isojax.core.errors import RunFailed
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.core.preemption import Preempted
from isojax.launch import lr_search
from isojax.launch.lr_search import (
    RateResult,
    SearchPlan,
    choose_batch_shape,
    default_budget,
    default_rates,
    describe_search,
    rate_name,
    score_curve,
    select_rate,
)
from tests.refusals import refused

TINY = """\
name: tiny
cell:
  model: {layers: 1, width: 32, heads: 2, kv_heads: 2, head_dim: 16, mlp: 64}
  base: {steps: 60, batch: 128}
  data: {candidates: 600, validation: 40, difficulty: [0.0, 1.0]}
  rl: {kl: 0.02, entropy: 0.001, learning_rate: 1.0e-2}
  eval: {samples: 8, start: 64, ratio: 1.4, panel: 5}
sweep: {B_p: [8], n: [2, 4], B_max: 64, seeds: 2, budget: 2500}
run: {cells_at_once: 1}
"""


def test_five_rates_in_steps_of_root_ten() -> None:
    assert default_rates(1e-3) == [1e-4, 3.2e-4, 1e-3, 3.2e-3, 1e-2]
    assert [rate_name(rate) for rate in default_rates(1e-3)] == [
        "1e-4",
        "3.2e-4",
        "1e-3",
        "3.2e-3",
        "1e-2",
    ]
    assert rate_name(1.5) == "1.5e0" and rate_name(1.25e-4) == "1.25e-4"
    assert default_rates(2.5e-6) == [2.5e-7, 7.9e-7, 2.5e-6, 7.9e-6, 2.5e-5]


def test_rates_as_typed() -> None:
    assert read_rates("3e-4, 1e-4") == [1e-4, 3e-4]
    for text in ("", "a", "1e-4,1e-4", "1e-3,1.0001e-3", "0", "-1e-3", "nan", "inf", "1e-3,"):
        with refused(where="--rates"):
            read_rates(text)


def quickstart(*overrides: str) -> Config:
    return load_config("quickstart", overrides)


def test_the_batch_nearest_to_the_anchors_in_log() -> None:
    """32 x 32 and 64 x 16 make 1024; 300 is between 256 and 512, nearer to 256 in log."""
    assert choose_batch_shape(quickstart()) == (64, 16)
    assert choose_batch_shape(quickstart("cell.rl.lr_reference_batch=300")) == (64, 4)
    assert choose_batch_shape(quickstart("sweep.B_p=[32]")) == (32, 32)
    assert choose_batch_shape(quickstart("sweep.n=[4]")) == (64, 4)
    assert choose_batch_shape(quickstart("sweep.B_p=[16]", "sweep.n=[2]")) == (16, 2)
    with refused():
        choose_batch_shape(quickstart("sweep.B_p=[4096]"))


def test_the_budget_gets_past_the_warm_up_and_has_four_evaluations() -> None:
    assert default_budget(quickstart("sweep.budget=1000000"), 1024) == 100_000  # a tenth
    # of 13 900 the first 10 240 would warm up
    assert default_budget(quickstart(), 1024) == 30 * 1024
    config = quickstart("cell.rl.warmup=1", "sweep.budget=2048")
    budget = default_budget(config, 1024)
    updates = {
        math.ceil(target / 1024) for target in config.cell.eval.evaluation_targets(budget)[1:]
    }
    assert (
        len(updates)
        >= 4
        > len(
            {
                math.ceil(t / 1024)
                for t in config.cell.eval.evaluation_targets(int(budget / config.cell.eval.ratio))[
                    1:
                ]
            }
        )
    )


def test_a_rate_is_a_sweep_of_one_batch_at_the_anchor() -> None:
    plan = SearchPlan(
        [3.2e-4], B_p=64, n=16, B=1024, budget=5000, seeds=2, folder="runs/quickstart-lr"
    )
    config = plan.rate_config(quickstart(), 3.2e-4)
    assert (config.name, config.run.dir) == ("3.2e-4", "runs/quickstart-lr")
    assert (config.cell.rl.learning_rate, config.cell.rl.lr_reference_batch) == (3.2e-4, 1024)
    assert (config.sweep.B_p, config.sweep.n, config.sweep.seeds, config.sweep.budget) == (
        (64,),
        (16,),
        2,
        5000,
    )
    assert config.cell.model_copy(update={"rl": None}) == quickstart().cell.model_copy(
        update={"rl": None}
    )


def test_a_rate_of_an_adaptive_sweep_runs_to_its_end() -> None:
    plan = SearchPlan(
        [3.2e-4], B_p=64, n=16, B=1024, budget=5000, seeds=2, folder="runs/quickstart-lr"
    )
    config = plan.rate_config(
        quickstart("sweep.strategy=adaptive", "sweep.total_rollouts=50000"), 3.2e-4
    )
    assert (config.sweep.strategy, config.sweep.total_rollouts, config.sweep.budget) == (
        "grid",
        None,
        5000,
    )


@pytest.mark.parametrize(
    ("error", "flags"),
    [
        (RunFailed("8x2-s0: not finite"), ("8x2-s0: not finite",)),
        (
            RunFailed("2 of 2 runs failed", "8x2-s0: not finite", "8x2-s1: full"),
            ("8x2-s0: not finite", "8x2-s1: full"),
        ),
    ],
)
def test_a_rate_whose_runs_failed_is_flagged(
    tmp_path: Path, error: RunFailed, flags: tuple[str, ...]
) -> None:
    """With one seed the error is of that run; of several, the first words count them."""

    def fail(*_: object) -> None:
        raise error

    config = quickstart(f"run.dir={tmp_path}", "name=rate")
    result = lr_search.run_rate(config, tmp_path / "rate", False, fail)
    assert (result.rate, result.scores, result.flags) == (config.cell.rl.learning_rate, (), flags)


def test_a_time_limit_ends_the_search_and_is_no_flag_of_a_rate(tmp_path: Path) -> None:
    """Every rate's sweep has the limit, which counts from the start of the search."""
    config = quickstart(f"run.dir={tmp_path}", "run.time_limit=8h")
    plan = SearchPlan([1e-4, 1e-3], B_p=8, n=2, B=16, budget=64, seeds=1, folder=str(tmp_path))
    limits = []

    def end(config: Config, *_: object) -> None:
        limits.append(config.run.time_limit)
        raise Preempted("asked to end")

    def evaluate(rate: float) -> RateResult:
        rate_config = plan.rate_config(config, rate)
        return lr_search.run_rate(rate_config, tmp_path / "1e-4", False, end)

    with pytest.raises(Preempted):
        lr_search.search_rates(plan.rates, evaluate, extend=False)
    assert limits == ["8h"]


def test_the_score_is_the_mean_of_the_last_quarter_without_the_base_policy() -> None:
    assert score_curve(
        [(0, 0.1), (10, 0.2), (20, 0.3), (30, 0.4), (40, 0.5), (50, 0.6)]
    ) == pytest.approx(0.55)  # 2 of 5
    assert score_curve([(0, 0.1), (10, 0.2)]) == pytest.approx(0.2)


def on_a_hill(
    top: float, out_above: float = math.inf
) -> tuple[list[float], Callable[[float], RateResult]]:
    """Reward falls off with the distance from `top` in log; rates above `out_above` collapse.
    Returns the rates run, and what runs one.
    """
    ran: list[float] = []

    def run(rate: float) -> RateResult:
        ran.append(rate)
        reward = 0.6 - 0.1 * abs(math.log10(rate / top))
        return RateResult(
            rate,
            (reward - 0.001, reward + 0.001),
            flags=("8x2-s0: collapsed",) if rate > out_above else (),
        )

    return ran, run


@pytest.mark.parametrize(
    ("top", "more"),
    [
        (1e-3, []),
        (3e-3, []),
        (1e-2, [3.2e-2]),
        (1.0, [3.2e-2, 1e-1]),
        (1e-4, [3.2e-5]),
        (1e-9, [3.2e-5, 1e-5]),
    ],
)
def test_the_grid_follows_the_best_beyond_its_ends_at_most_twice(
    top: float, more: list[float]
) -> None:
    ran, run = on_a_hill(top)
    result = lr_search.search_rates(default_rates(1e-3), run, extend=True)
    assert ran == [*default_rates(1e-3), *more] and len(result.results) == 5 + len(more)
    assert [o.rate for o in result.results] == sorted(ran)
    at_an_end = any("search beyond it" in text for text in describe_search(result))
    assert at_an_end == (top in (1.0, 1e-9))  # there the best is still at an end


def test_given_rates_are_all_that_run() -> None:
    ran, run = on_a_hill(1.0)
    result = lr_search.search_rates([1e-4, 1e-3], run, extend=False)
    assert (
        ran == [1e-4, 1e-3] and result.recommended is not None and result.recommended.rate == 1e-3
    )
    assert (
        "the best rate is the highest that was tried: search beyond it (--rates)"
        in describe_search(result)
    )


def test_a_rate_that_breaks_is_out_however_well_it_scores() -> None:
    ran, run = on_a_hill(1e-2, out_above=1e-3)
    result = lr_search.search_rates(default_rates(1e-3), run, extend=True)
    assert ran == default_rates(1e-3)  # the best that is left, 1e-3, is inside
    assert result.best is not None and result.best.rate == 1e-3
    assert describe_search(result)[:2] == [
        "3.2e-3 is out: 8x2-s0: collapsed",
        "1e-2 is out: 8x2-s0: collapsed",
    ]


def test_where_all_break_lower_rates_are_tried_and_then_it_is_said() -> None:
    ran, run = on_a_hill(1e-2, out_above=0.0)
    result = lr_search.search_rates([1e-3, 1e-2], run, extend=True)
    assert ran == [1e-3, 1e-2, 3.2e-4, 1e-4] and result.best is None and result.recommended is None
    assert describe_search(result)[-1].startswith("every rate is out")


def outcomes(*scores: Sequence[float]) -> tuple[RateResult, ...]:
    return tuple(RateResult(10.0 ** (i - 4), tuple(s)) for i, s in enumerate(scores))


def test_rates_within_a_standard_error_go_to_the_lowest() -> None:
    """Seeds differ by .02 (variance 2e-4): a mean of two has an error of .01, a difference of two
    such .01414."""
    result = select_rate(outcomes((0.40, 0.42), (0.478, 0.498), (0.49, 0.51), (0.45, 0.47)))
    assert result.standard_error == pytest.approx(0.01)
    assert result.best is not None and result.recommended is not None
    # .500 and .488, while .46 is further away
    assert (result.best.rate, result.recommended.rate) == (1e-2, 1e-3)
    assert (
        "1e-2 is best, and within a standard error of the difference: 1e-3; the lowest of them "
        "is taken, 1e-3"
    ) in describe_search(result)
    clear = select_rate(outcomes((0.40, 0.42), (0.465, 0.485), (0.49, 0.51), (0.45, 0.47)))
    assert clear.recommended is clear.best and not any(
        "standard error" in text for text in describe_search(clear)
    )


def test_one_seed_takes_the_best_and_says_that_luck_is_unknown() -> None:
    result = select_rate(outcomes((0.40,), (0.48,), (0.479,)))
    assert (
        result.standard_error is None
        and result.recommended is not None
        and result.recommended.rate == 1e-3
    )
    assert any("one seed" in text for text in describe_search(result))


def test_what_becomes_of_runs() -> None:
    """Scores are means over the last quarter; a run that broke off is named once."""

    def run(seed: int, end: float, failed: str = "") -> RunRecord:
        points = [EvalPoint(10 * i, i, 10 * i, 0, {"avg@4": end * i / 2}) for i in range(3)]
        return RunRecord(Cell(8, 2, seed), tuple(points), failure_reason=failed)

    result = lr_search.score_runs(1e-3, [run(0, 0.4), run(1, 0.6)])
    assert result.scores == (0.4, 0.6) and result.reward == pytest.approx(0.5) and not result.flags
    broken = lr_search.score_runs(
        1e-3, [run(0, 0.4), run(1, 0.6, "not finite")], ["8x2-s1: not finite"]
    )
    assert broken.flags == ("8x2-s1: not finite",)


def test_a_rate_whose_run_failed_for_lack_of_memory_or_disk_is_not_out() -> None:
    def run(seed: int, failed: str = "") -> RunRecord:
        points = [EvalPoint(10 * i, i, 10 * i, 0, {"avg@4": 0.1 * i}) for i in range(3)]
        return RunRecord(Cell(8, 2, seed), tuple(points), failure_reason=failed)

    full = "8x2-s1: [Errno 28] No space left on device"
    failed = lr_search.score_runs(1e-3, [run(0), run(1)], [full])
    assert failed.flags == failed.failed == (full,) and not failed.is_out
    both = lr_search.score_runs(1e-2, [run(0, "not finite"), run(1)], ["8x2-s0: not finite", full])
    assert both.flags == ("8x2-s0: not finite", full) and both.failed == (full,) and both.is_out
    good = lr_search.score_runs(1e-4, [run(0), run(1)])
    result = select_rate((good, failed, both))
    assert result.recommended is good
    assert describe_search(result)[:3] == [
        f"1e-3 failed: {full}",
        f"1e-2 is out: 8x2-s0: not finite; {full}",
        "a rate that failed is not judged: correct what failed, and go on by --resume",
    ]
    # Where nothing could be judged, lower rates are no remedy.
    ran: list[float] = []

    def fail(rate: float) -> RateResult:
        ran.append(rate)
        return lr_search.score_runs(rate, [], [full])

    result = lr_search.search_rates([1e-4, 1e-3], fail, extend=True)
    assert ran == [1e-4, 1e-3] and result.best is None
    assert not any("lower ones" in sentence for sentence in describe_search(result))


def test_the_table_says_which_rates_failed(capsys: pytest.CaptureFixture[str]) -> None:
    config = quickstart()
    plan = SearchPlan(
        [1e-4, 1e-3, 1e-2], B_p=64, n=16, B=1024, budget=5000, seeds=1, folder="runs/quickstart-lr"
    )
    results = (
        RateResult(1e-4, (0.3,)), RateResult(1e-3, (0.4,), ("8x2-s0: out of memory",),
            ("8x2-s0: out of memory",)),
        RateResult(1e-2, (0.2,), ("8x2-s0: collapsed",)),
    )  # fmt: skip
    print_search(to_json_value(select_rate(results).to_json(config, plan)), False)
    marks = [
        line.split("│")[-2].strip()
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("│")
    ]
    assert marks == ["taken", "failed", "out"]


def isojax(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["isojax", *words])
    with pytest.raises(SystemExit) as e:
        app.main()
    return e.value.code


@pytest.mark.slow
def test_a_search_from_end_to_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rates of two seeds: ledgers as of any sweep, one base policy, the panel next to the
    validation set, resumed without new work.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(machine.TUNABLES_VARIABLE, "")  # pytest must not start itself again
    (tmp_path / "tiny.yaml").write_text(TINY)
    search = ("lr-search", "tiny.yaml", "--rates", "1e-5,1e-2", "--budget", "300", "--json")
    assert isojax(monkeypatch, *search, "--dry-run") == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["B_p"], planned["n"], planned["B"], planned["rates"]) == (
        8,
        4,
        32,
        [1e-5, 1e-2],
    )
    assert not (tmp_path / "runs").exists()

    assert isojax(monkeypatch, *search) == 0
    result, folder = json.loads(capsys.readouterr().out), tmp_path / "runs/tiny-lr"
    assert result == json.loads((folder / "lr_search.json").read_text())
    assert sorted(p.name for p in folder.glob("*/cells/*")) == [
        "8x4-s0",
        "8x4-s0",
        "8x4-s1",
        "8x4-s1",
    ]
    bases = [(folder / rate / "base/params.safetensors").read_bytes() for rate in ("1e-5", "1e-2")]
    assert bases[0] == bases[1]
    for row, rate in zip(result["rates"], ("1e-5", "1e-2"), strict=True):
        runs = [
            [json.loads(line) for line in p.read_text().splitlines()[1:]]
            for p in sorted(folder.glob(f"{rate}/cells/*/records.jsonl"))
        ]
        last = [
            [p["metrics"]["avg@8"] for p in run[1:]][-math.ceil((len(run) - 1) / 4) :]
            for run in runs
        ]
        assert row["reward"] == pytest.approx(sum(sum(x) / len(x) for x in last) / 2)
        assert all(
            len(p["extra"]["panel"]) == 5 and not any("panel" in name for name in p["metrics"])
            for run in runs
            for p in run
        )
    assert result["lr_reference_batch"] == 32 and result["learning_rate"] in (1e-5, 1e-2)

    before = {p: p.stat().st_mtime_ns for p in folder.rglob("records.jsonl")}
    assert isojax(monkeypatch, *search) == 2
    assert "holds a search already. Go on with it by --resume" in capsys.readouterr().err
    assert isojax(monkeypatch, *search[:-1], "--resume") == 0
    output = capsys.readouterr().out
    assert (
        f"cell.rl.learning_rate={rate_name(result['learning_rate'])} cell.rl.lr_reference_batch=32"
        in output
    )
    assert json.loads((folder / "lr_search.json").read_text()) == result
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("records.jsonl")} == before
