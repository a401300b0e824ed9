"""The benchmarks that nothing else runs, each at a size that takes a second: they run to their end,
and their figures that follow from the arguments are those worked out by hand."""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isojax.core.config import load_config
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.core.schedule import Stage
from isojax.models.hf.hf_load import check_weights, resolve_model
from isojax.runs.ledger import Ledger, write_run
from tests.scaling.synthetic import world
from tests.scaling.synthetic_curves import Hill

pytestmark = [pytest.mark.slow, pytest.mark.seconds(70)]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not part of this copy", allow_module_level=True)


class Scripts:
    """Scripts of benchmarks/, run in this process; it keeps its cores, whatever they pin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch, self.capsys = monkeypatch, capsys
        monkeypatch.syspath_prepend(BENCHMARKS)
        monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: None)

    def __call__(self, name: str, *words: object, **constants: object) -> list[dict[str, Any]]:
        """What a script prints, its constants replaced."""
        script = importlib.import_module(name)
        for key, value in constants.items():
            assert hasattr(script, key)
            self.patch.setattr(script, key, value)
        self.patch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        assert script.main() in (None, 0)
        return [json.loads(line) for line in self.capsys.readouterr().out.splitlines()]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Scripts:
    return Scripts(monkeypatch, capsys)


def test_sweep_overhead(scripts: Scripts) -> None:
    """Of a sweep of 4 x 2 and 4 x 4, its smallest and largest cell, in one program."""
    shape = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "head_dim": 16, "mlp": 64}
    settings = [f"cell.model.{key}={value}" for key, value in shape.items()]
    sweep = ("sweep.B_p=[4]", "sweep.n=[2,4]", "sweep.B_max=16", "sweep.seeds=1", "sweep.budget=64")
    (line,) = scripts(
        "sweep_overhead", "quickstart", *settings, *sweep, "--rollouts", 16, "--repeats", 1
    )
    assert line["programs"] == 1 and set(line["microseconds_per_rollout"]) == {"4x2", "4x4"} == set(
        line["spread"]
    )
    small, large = (line["microseconds_per_rollout"][cell] for cell in ("4x2", "4x4"))
    assert line["ratio"] == pytest.approx(small / large, rel=0.01) and small > 0
    assert set(line["spread"].values()) == {0}  # one repeat


def test_gsm8k_verifier(scripts: Scripts, tmp_path: Path) -> None:
    """18 has 7 changes in each of 7 forms; 5, of one digit, has no digits to swap and none to leave
    out: 1 + 7 right and 49 or 35 wrong answers.
    """
    rows = [{"question": "?", "answer": f"So it is.\n#### {number}"} for number in (18, 5)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (line,) = scripts("gsm8k_verifier", tmp_path / "test.jsonl", "--workers", 1)
    assert (line["problems"], line["checks"], line["mistakes"]) == (2, 8 + 49 + 8 + 35, 0)
    assert (
        line["as_they_should"]["right_gold"] == "2 of 2"
        and line["as_they_should"]["wrong_swapped_boxed"] == "1 of 1"
    )


def test_math_verifiers(scripts: Scripts, tmp_path: Path) -> None:
    """math-verify takes the second pair for 4; accuracy_reward refuses the third, in which nothing
    is LaTeX."""
    rows = [r"4 \boxed{4} 1", r"4 \boxed{4_7} 0", "4 <answer>4</answer> 1"]
    (tmp_path / "pairs.tsv").write_text(
        "".join(row.replace(" ", "\t") + "\tkind\n" for row in rows)
    )
    own, math_verify, trl = scripts("math_verifiers", tmp_path / "pairs.tsv")
    assert (own["wrong_accepted"], own["right_refused"], own["right_pairs"]) == (0, 0, 2)
    assert math_verify["wrong_accepted"] == 1 and trl["right_refused"] == 1


def test_fit_speed(scripts: Scripts) -> None:
    """6 cells by 2 seeds, of 1 + 20 evaluations each."""
    sizes = {"N": (4, 8, 16), "B_P": (16, 32), "EVALUATIONS": 20, "BUDGETS": 10}
    (line,) = scripts("fit_speed", "--replicates", 2, "--problems", 8, **sizes)
    assert (line["runs"], line["replicates"]) == (12, 2)
    assert line["evaluations"] == 12 * 21


def test_fit_speed_of_a_log(scripts: Scripts) -> None:
    """5 cells with up to 30 evaluations, evenly spaced in C, in which B_p n = 1,024 has fewer."""
    (line,) = scripts("fit_speed", "--log", "5x30", "--replicates", 2, LOG_BUDGET=20_000)
    assert (line["runs"], line["evaluations"]) == (5, 30 + 30 + 30 + 30 + 21)
    assert line["seconds"] > 0 and line["peak_mb"] > 50


def test_quote_coverage(scripts: Scripts) -> None:
    """A case of each n of a world, in the order of what is quoted."""
    cases = scripts("quote_coverage", "--worlds", 1, "--replicates", 60)
    assert [case["n"] for case in cases] == sorted({case["n"] for case in cases}) and len(cases) > 1
    for case in cases:
        assert case["never"] == (case["paid"] is None) and 0 <= case["p_never"] <= 1


SHARES = ("A", "R_first", "R_middle", "R_last")


def test_curve_coverage(scripts: Scripts) -> None:
    """One curve of each of two kinds: every share is that of one curve."""
    noise = importlib.import_module("curve_coverage").Noise
    kinds = {"white": noise(0.0, 1, 0.0), "2 seeds": noise(0.0, 2, 0.01)}
    lines = scripts("curve_coverage", "--curves", 1, "--kinds", "own", POINTS=(30,), KINDS=kinds)
    assert [line["kind"] for line in lines] == ["white, 30 points", "2 seeds, 30 points"]
    assert all(line["curves"] == 1 and all(line[k] in (0, 1) for k in SHARES) for line in lines)


def test_adaptive(scripts: Scripts) -> None:
    """One world, one seed: the whole grid takes all of its rollouts, the policy at most half."""
    words = ("--kinds", "hill", "--worlds", 1, "--seeds", "1")
    (line,) = scripts("adaptive", *words, EVALUATIONS=14, REPLICATES=20)
    assert line["all"] == line["hill, 1 seeds"] and line["all"]["worlds"] == 1
    assert line["all"]["grid"]["rollouts"] == 1 and 0.3 < line["all"]["frontier"]["rollouts"] <= 0.5
    assert all(
        0 <= line["all"][name]["n_right"] <= 1 for name in ("frontier", "grid", "half_budget")
    )


def test_cost(scripts: Scripts) -> None:
    small = partial(importlib.import_module("cost").Sizes, model=2, V=256, P=8)
    (line,) = scripts("cost", "--factors", "T", "--values", 1, "--repeats", 1, Sizes=small)
    assert line["values"] == [16] and line["rollouts"][0] > 0 and line["update"][0] > 0


def test_cut_sweep(scripts: Scripts, tmp_path: Path) -> None:
    """n = 8 is .3 above n = 2 at the end, so a fit of the first half of the rollouts recommends it.
    Each evaluation takes .5 s, and a rollout .1 ms."""
    runs = world(
        seeds=1,
        n=(2, 8),
        problems=200,
        ratio=1.4,
        budget=64_000,
        curve=lambda B_p, n: Hill(0.2, n / 10, 1.0, 8e3),
    )
    for run in runs.runs:
        ledger = Ledger(tmp_path / "cells" / run.cell.name, run.cell, "x")
        for before, point in pairwise((run.points[0], *run.points)):
            ledger.append(point, seconds=0.5 + 1e-4 * (point.rollouts - before.rollouts), devices=1)
    (line,) = scripts("cut_sweep", tmp_path, "--at", 32_000, "--replicates", 40)
    C = [p.rollouts for run in runs.runs for p in run.points]
    assert line["hidden"] == sum(c > 32_000 for c in C) > 2 and line["inside"] > 0.5
    assert (line["n"], line["regret"]) == (8, 0.0) and line["measured"]["8"] - line["measured"][
        "2"
    ] > 0.3
    assert (
        abs(line["mean_error"]) <= line["mean_absolute_error"] < 0.05
        and abs(line["time_error"]) < 0.05
    )


def test_watch_replay(scripts: Scripts, tmp_path: Path) -> None:
    """A run of a file that is flat at .3: no goal below it stops it, and every goal above it
    does."""
    noise = np.random.default_rng(0).normal(0, 0.002, 40)
    lines = [f"a,{100 * (i + 1)},{0.3 + noise[i]:.4f}" for i in range(40)]
    (tmp_path / "runs.csv").write_text("\n".join(["run,rollouts,reward", *lines]))
    (line,) = scripts("watch_replay", "--file", tmp_path / "runs.csv", GOAL_STEPS=(-0.1, 0.3))
    assert (line["runs"], line["forecast"], line["false_stops"], line["right_stops"]) == (
        1,
        1,
        0,
        1,
    )
    assert 0 < line["saved"] < 0.5 and abs(line["lost"]) < 0.01
    assert [goal["stopped"] for goal in line["goals"]] == [0, 1]


def test_small_lm(scripts: Scripts, tmp_path: Path) -> None:
    """A model that isojax loads, problems whose answers follow the rule, and a config that it
    plans."""
    scripts("small_lm", tmp_path / "lm", "--steps", 0)
    config = load_config(str(tmp_path / "lm" / "text.yaml"), [])
    model = resolve_model(config.cell.model)
    check_weights(model)
    assert (model.family, model.layers, model.width) == ("llama", 3, 64)
    files = [tmp_path / "lm" / f"{name}.jsonl" for name in ("training", "validation")]
    sets = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    answers = {problem["prompt"]: problem["answer"] for problems in sets for problem in problems}
    assert (*map(len, sets), len(answers)) == (8000, 2000, 10000)
    assert [answers[f"{a} ? {b} ="] for a, b in ((4, 9), (9, 4), (8, 3), (3, 8))] == [
        "13",
        "4",
        "5",
        "8",
    ]


def test_growing_n(scripts: Scripts, tmp_path: Path) -> None:
    """A schedule that is better than the best fixed n by .1 from the third evaluation on."""
    rng, targets = np.random.default_rng(0), [100 * 2**k for k in range(8)]
    stages = (Stage(0, 4, 2), Stage(400, 4, 4))
    rates = {Cell(4, 2, 0): lambda k: 0.2 + 0.03 * k, Cell(4, 4, 0): lambda k: 0.1 + 0.05 * k}
    rates |= {
        Cell(4, 2, s, "grow", stages): lambda k: max(0.2 + 0.03 * k, 0.1 + 0.05 * k) + 0.1
        for s in (0, 1)
    }
    for cell, rate in rates.items():
        counts = [tuple(rng.binomial(4, rate(k), 500).tolist()) for k in range(8)]
        points = [
            EvalPoint(C, C // 8, C, 0, {"avg@4": sum(c) / 2000}, c, 4)
            for C, c in zip(targets, counts, strict=True)
        ]
        write_run(tmp_path / "run" / "cells" / cell.name, RunRecord(cell, tuple(points)))
    (line,) = scripts("growing_n", tmp_path / "run", RESAMPLES=50)
    assert (
        line["schedule"] == "grow"
        and line["middle"] == pytest.approx(0.1, abs=0.02)
        and line["z"] > 3
    )
    assert (
        line["best_fixed"]["400"] == "4x2"
        and line["best_fixed"]["12800"] == "4x4"
        and line["to_90"][0] > 1
    )


def test_switch_kills(scripts: Scripts, tmp_path: Path) -> None:
    """n doubles after C = 40: one kill comes just after that evaluation. A ledger that is not the
    same is named."""
    script = importlib.import_module("switch_kills")
    sizes = [(0, 0), (16, 2), (40, 5), (72, 7), (104, 9)]  # C and M: B = 8 up to C = 40, then 16
    points = tuple(EvalPoint(C, M, C, 0, {"avg@4": 0.5}) for C, M in sizes)
    cell = Cell(4, 2, 0, "grow", (Stage(0, 4, 2), Stage(40, 4, 4)))
    for name, count in (("whole", 5), ("same", 5), ("shorter", 4)):
        write_run(tmp_path / name / "run" / "cells" / cell.name, RunRecord(cell, points[:count]))
    instants = script.kill_instants(tmp_path / "whole", 3, random.Random(0))
    assert (
        len(instants) == 3
        and instants == sorted(instants)
        and {C for C, _ in instants} <= {16, 40, 72, 104}
    )
    assert any(C == 40 and seconds <= 0.1 for C, seconds in instants)
    assert script.differences(tmp_path / "whole", tmp_path / "same") == []
    (difference,) = script.differences(tmp_path / "whole", tmp_path / "shorter")
    assert difference == f"run/cells/{cell.name}/records.jsonl"


def test_peer_death(scripts: Scripts) -> None:
    """Of three processes, one is killed, or its watchdog: those that are left end within three
    seconds, and say how to go on. JAX alone aborts them, and says nothing of that."""
    killed, unwatched = scripts("peer_death", "--events", "killed,watchdog killed", "--lost", 1)
    assert set(killed["left"]) == {"0", "2"} and set(unwatched["left"]) == {"0", "1", "2"}
    for line in (killed, unwatched):
        assert all(
            end["code"] == 75 and end["seconds"] < 3 and end["advice"]
            for end in line["left"].values()
        ), line

    (alone,) = scripts(
        "peer_death", "--by", "heartbeat", "--heartbeat", 2, "--events", "killed", "--lost", 0
    )
    assert all(
        end["code"] == -signal.SIGABRT and not end["advice"] for end in alone["left"].values()
    ), alone


@pytest.mark.nightly
def test_fuzz(scripts: Scripts) -> None:
    """An attempt of each kind: no traceback, and 0 or 2 for an exit code. Every command of the CLI
    is among them."""
    inputs = importlib.import_module("fuzz_inputs")
    words = inputs.words_by_command("", inputs.random.Random(0))
    assert (
        set(words)
        == inputs.cli_commands()
        >= {"watch", "spend", "quote", "model export", "records check"}
    )
    options = ["--attempts", str(len(inputs.KINDS)), "--seed", "a test", "--workers", "1"]
    command = [sys.executable, str(BENCHMARKS / "fuzz.py"), *options]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout[-3000:] + completed.stderr[-3000:]
    line = json.loads(completed.stdout.splitlines()[-1])
    assert (line["attempts"], line["failures"]) == (len(inputs.KINDS), 0)
