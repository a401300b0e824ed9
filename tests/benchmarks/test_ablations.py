"""The ablations' script: what it makes of runs, what its experiments are, and a tiny one from end
to end."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

from isojax.core.config import load_config
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.launch.planner import plan_cells
from isojax.rl.recipe_checks import check_algorithm

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not part of this copy", allow_module_level=True)

TINY = (
    *(
        f"cell.model.{key}={value}"
        for key, value in {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "mlp": 64}.items()
    ),
    *(
        "cell.base.steps=40",
        "cell.base.batch=64",
        "cell.data.candidates=300",
        "cell.data.validation=40",
        "cell.data.difficulty=[0.0,1.0]",
    ),
    *(
        "sweep.B_p=[8]",
        "sweep.n=[4]",
        "sweep.budget=300",
        "cell.eval.start=64",
        "cell.eval.ratio=1.5",
    ),
)


@pytest.fixture
def ablations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("ablations")


def run(cell: Cell, rewards: list[float], entropy: list[float]) -> RunRecord:
    """A run with an evaluation every 10 rollouts; the base policy's has no training behind it."""
    trained = [{}, *({"entropy": e} for e in entropy)]
    return RunRecord(
        cell,
        tuple(
            EvalPoint(10 * i, i, 10 * i, 0, {"avg@4": r}, train=trained[i])
            for i, r in enumerate(rewards)
        ),
    )


def test_what_becomes_of_an_arm(ablations: ModuleType) -> None:
    """The last quarter of five evaluations are two: .5 and .7 of one seed, .6 and .6 of the other;
    bases .1 and .2."""
    runs = [
        run(Cell(8, 4, 0), [0.1, 0.2, 0.3, 0.8, 0.5, 0.7], [0.5] * 4 + [0.3]),
        run(Cell(8, 4, 1), [0.2] * 4 + [0.6, 0.6], [0.5] * 5),
    ]
    line = ablations.line_of(
        ablations.Arm("mine"), runs, ["8x4-s1: it broke", "8x8-s0: of another"]
    )
    assert (line["B_p"], line["n"], line["seeds"], line["C"], line["metric"]) == (
        8,
        4,
        2,
        50,
        "avg@4",
    )
    assert (line["base"], line["final"]) == pytest.approx((0.15, 0.6))
    assert (
        line["gains"] == pytest.approx([0.5, 0.4])
        and line["min_gain"] == pytest.approx(0.4)
        and line["fall"] == pytest.approx(0.1)
    )
    assert (
        line["se"] == pytest.approx(0.0)
        and line["entropy"] == pytest.approx(0.4)
        and line["kl"] is None
    )
    assert line["flags"] == ["8x4-s1: it broke"]
    assert line["curve"][0] == pytest.approx([0, 0.15, math.sqrt(0.005)]) and line["curve"][-1][
        :2
    ] == pytest.approx([50, 0.65])
    assert line["series"]["entropy"] == [
        pytest.approx(x) for x in [[10, 0.5], [20, 0.5], [30, 0.5], [40, 0.5], [50, 0.4]]
    ]


def test_the_experiments_are_sweeps_that_can_run(ablations: ModuleType, tmp_path: Path) -> None:
    """Every arm's settings are allowed and its folder is its own; Hard is the choice of problems of
    configs/hard.yaml.
    """
    hard = load_config("hard").cell.data
    for experiment in ablations.EXPERIMENTS.values():
        folders = [arm.folder for arm in experiment.arms]
        assert len(set(folders)) == len(folders)
        for arm in experiment.arms:
            config = ablations.config_of(arm, tmp_path, 3, None)
            cells = plan_cells(config.sweep)
            check_algorithm(config.cell.rl, cells)
            assert {cell.seed for cell in cells} == {0, 1, 2} and {cell.B_p for cell in cells} == {
                32
            }
            data = config.cell.data
            assert ((data.candidates, data.difficulty) == (hard.candidates, hard.difficulty)) == (
                arm.panel == "Hard"
            )


def test_the_best_n_at_each_budget(ablations: ModuleType) -> None:
    """n = 4 is evaluated at 10, 100 and 1000, so at 10^1.5 half way between .2 and .4 in log; at
    1000 n = 16 leads by .2, of which the standard error is sqrt(2) .2 / sqrt(4) = .141: not
    distinguishable from n = 4."""
    curves = {
        4: [[0, 0.1, 0.0], [10, 0.2, 0.0], [100, 0.4, 0.0], [1000, 0.5, 0.2]],
        16: [[0, 0.1, 0.0], [10**1.5, 0.1, 0.0], [1000, 0.7, 0.2]],
    }
    lines = [
        {"panel": "Easy", "arm": "PPO", "n": n, "seeds": 4, "curve": curve}
        for n, curve in curves.items()
    ]
    (result,) = ablations.best_n(lines)
    first, last = result["best_n"]
    assert (first["C"], first["n"], first["near"]) == (31, 4, [4]) and first[
        "rewards"
    ] == pytest.approx({"4": 0.3, "16": 0.1})
    assert (last["C"], last["n"], last["near"]) == (1000, 16, [4, 16])


def test_a_tiny_experiment_from_end_to_end(
    ablations: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two arms of one program share a base policy; the lines follow from the ledgers; resumed,
    nothing runs again."""
    arms = (
        ablations.Arm("slow", (), ("cell.rl.learning_rate=1e-6",)),
        ablations.Arm("fast", (), ("cell.rl.learning_rate=1e-2",), "a panel"),
    )
    monkeypatch.setattr(
        ablations, "EXPERIMENTS", {"tiny": ablations.Experiment("tiny", arms, ("entropy", "kl"))}
    )
    monkeypatch.setattr(ablations, "SCALE", TINY)
    monkeypatch.setattr(ablations, "EVALUATIONS", ("cell.eval.panel=0",))

    def script(*words: str) -> int:
        monkeypatch.setattr(
            sys,
            "argv",
            ["ablations.py", "tiny", "--seeds", "2", "--dir", str(tmp_path / "out"), *words],
        )
        return ablations.main()

    assert script() == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    folder = tmp_path / "out/tiny"
    assert [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()] == lines
    assert (folder / "tiny.png").read_bytes()[:4] == b"\x89PNG"
    assert [(line["arm"], line["n"], line["seeds"]) for line in lines] == [
        ("slow", 4, 2),
        ("fast", 4, 2),
    ]
    assert (
        len({(folder / arm.folder / "base/params.safetensors").read_bytes() for arm in arms}) == 1
    )
    for line, arm in zip(lines, arms, strict=True):
        paths = [folder / arm.folder / f"cells/8x4-s{seed}/records.jsonl" for seed in (0, 1)]
        rewards = [
            [json.loads(text)["metrics"]["avg@4"] for text in path.read_text().splitlines()[1:]]
            for path in paths
        ]
        last = math.ceil((len(rewards[0]) - 1) / 4)
        advantages = [sum(specific[-last:]) / last - specific[0] for specific in rewards]
        assert line["gains"] == pytest.approx(advantages) and line["min_gain"] == pytest.approx(
            min(advantages)
        )

    before = {path: path.stat().st_mtime_ns for path in folder.rglob("records.jsonl")}
    assert (
        script() == 2
        and "holds runs already; go on with them by --resume" in capsys.readouterr().err
    )
    assert (
        script("--arms", "quick") == 2
        and "expected some of ['slow', 'a-panel-fast']" in capsys.readouterr().err
    )
    assert script("--resume", "--arms", "fast") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines[1:]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("records.jsonl")} == before
