"""A sweep whose evaluations will not make a curve is refused before it runs, by the rule of the fit
that follows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isojax.cli.commands.launch_command import launch
from isojax.core.config import CellConfig, Config, EvalConfig, SweepConfig, load_config
from isojax.core.errors import InputError
from isojax.core.nouns import EvalPoint, RunRecord
from isojax.launch.evaluation_checks import check_evaluations
from isojax.launch.planner import plan_cells
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.fit import fit
from tests.refusals import refused


def make_config(
    budget: int, n: tuple[int, ...] = (4,), seeds: int = 1, start: float = 100, ratio: float = 2
) -> Config:
    cell = CellConfig(eval=EvalConfig(start=start, ratio=ratio))
    return Config(cell=cell, sweep=SweepConfig(B_p=(16,), n=n, seeds=seeds, budget=budget))


def runs_of(config: Config) -> list[RunRecord]:
    """What the cells would record, with rewards that rise."""
    runs = []
    for cell in plan_cells(config.sweep):
        target_by_C = {
            cell.rollouts_to_reach(t): t
            for t in config.cell.eval.evaluation_targets(config.sweep.budget)
        }
        points = [
            EvalPoint(target, C // cell.B, C, 0, {"avg@4": 0.2 + 0.1 * i})
            for i, (C, target) in enumerate(target_by_C.items())
        ]
        runs.append(RunRecord(cell, tuple(points), cell.name))
    return runs


@pytest.mark.parametrize(
    "config",
    [
        make_config(399),  # 100, 200
        make_config(400),  # 100, 200, 400: three points in all
        make_config(800),
        make_config(400, n=(4, 8)),
        make_config(199, seeds=3),  # one evaluation of each seed
        make_config(399, seeds=2),
        make_config(1024, n=(64,)),  # one update reaches all
        make_config(1024, n=(2, 64)),
    ],
)
def test_the_plan_and_the_fit_agree(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        result = fit(runs_of(config), options=FitOptions(replicates=0))
    except InputError:
        with refused() as refusal:
            check_evaluations(config)
        message = str(refusal.value)
    else:
        check_evaluations(config)
        message = capsys.readouterr().err
        unfitted = {(c.B_p, c.n) for c in plan_cells(config.sweep)} - {c.key for c in result.curves}
        assert all(f"{B_p}x{n}" in message for B_p, n in unfitted)
        assert bool(unfitted) == message.startswith("warning: not every run will have enough")
    words = {key: value for key, value in re.findall(r"([a-z.]+)=([0-9.]*[0-9])", message)}
    evaluation, budget = config.cell.eval, config.sweep.budget
    if message:  # the values that it names work
        longer = make_config(int(words["sweep.budget"]), config.sweep.n, config.sweep.seeds)
        assert len(fit(runs_of(longer), options=FitOptions(replicates=0)).curves) == len(
            config.sweep.n
        )
    if "cell.eval.start" in words:
        start, ratio = int(words["cell.eval.start"]), float(words["cell.eval.ratio"])
        assert (start, ratio) != (evaluation.start, evaluation.ratio)
        denser = make_config(budget, config.sweep.n, config.sweep.seeds, start, ratio)
        assert len(fit(runs_of(denser), options=FitOptions(replicates=0)).curves) == len(
            config.sweep.n
        )


def test_launch_refuses_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with refused():
        launch(
            ["quickstart", "sweep.n=[8]", "sweep.B_p=[64]", "sweep.seeds=1", "sweep.budget=1300"]
        )
    with refused():
        launch(
            [
                "quickstart",
                "sweep.n=[8]",
                "sweep.B_p=[64]",
                "sweep.seeds=3",
                "cell.eval.start=9000",
                "sweep.budget=1300",
            ]
        )
    assert not list(tmp_path.iterdir())


def test_presets_are_not_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("quickstart", "hard", "gsm8k", "smollm2_cpu"):
        check_evaluations(load_config(name))
    assert not capsys.readouterr().err
