"""`--metric` end to end: best and worst under verl's names, pass@k, extra sets of problems, with
files next to fit.json.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from isojax.cli import app
from isojax.cli.commands import report_command
from isojax.core.estimators import summarize_rewards
from isojax.core.nouns import Cell, EvalPoint, RewardSums, RunRecord
from isojax.runs.ledger import Ledger, read_runs
from isojax.train.evaluate import EvalCounts, eval_metrics
from tests.scaling.documents import document
from tests.scaling.synthetic import world

Isojax = Callable[..., tuple[int, str, str]]
QUICK = ("--replicates", "40", "--json")


@pytest.fixture
def isojax(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Isojax:
    """Run a command where runs/both has a main set and an extra one, hard; runs/hard has the latter
    as its main set.

    (exit code, standard output, standard error).
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    main, hard = (
        world(seeds=1, n=(2, 8), problems=count, ratio=1.6, seed=seed).runs
        for seed, count in ((0, 50), (1, 30))
    )
    for ours, other in zip(main, hard, strict=True):
        write(Path("runs/hard"), other, other)
        write(Path("runs/both"), ours, other)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["isojax", *words])
        with pytest.raises(SystemExit) as e:
            app.main()
        assert isinstance(e.value.code, int)
        out, err = capsys.readouterr()
        return e.value.code, out, err

    return run


def summarize(counts: RewardSums) -> dict[str, float]:
    rewards = (np.arange(4) < np.array(counts)[:, None]).astype(np.float32)
    return summarize_rewards(rewards, np.array(counts))


def write(sweep: Path, ours: RunRecord, other: RunRecord) -> None:
    """A cell of `sweep` with the counts of `ours`, and those of `other` as the extra set hard; with
    metrics as training records them.
    """
    ledger = Ledger(sweep / "cells" / ours.cell.name, ours.cell, "x")
    for a, b in zip(ours.points, other.points, strict=True):
        metrics = summarize(a.counts) | {
            f"hard/{name}": value for name, value in summarize(b.counts).items()
        }
        ledger.append(
            dataclasses.replace(b, counts=a.counts, metrics=metrics, extra={"hard": b.counts}),
            seconds=1.0,
            devices=1,
        )


@pytest.mark.slow
def test_a_fit_of_an_extra_set_is_the_fit_of_that_set_alone(isojax: Isojax) -> None:
    """Curves, intervals with other problems drawn again, and paired leads: all from the extra set's
    own right answers.
    """
    code, out, err = isojax("fit", "runs/both", "--metric", "hard/avg@4", *QUICK)
    assert code == 0, err
    extra, single = json.loads(out), json.loads(isojax("fit", "runs/hard", *QUICK)[1])
    assert extra["intervals"]["problems"] == 30 and any(
        s["lead"] is not None for s in extra["joint"]["segments"]
    )
    assert extra.pop("metric") == "hard/avg@4" and single.pop("metric") == "avg@4"
    assert extra == single
    assert json.loads(Path("runs/both/fit-hard-avg@4.json").read_text())["metric"] == "hard/avg@4"
    assert (
        json.loads(isojax("fit", "runs/both", *QUICK)[1])["metric"] == "avg@4"
    )  # the main set's, where none is asked for


@pytest.mark.slow
def test_metrics_that_follow_from_counts_are_fitted(isojax: Isojax) -> None:
    """pass@4 is best@4 by another name; verl's is the mean over problems of 1 - (1 - c/4)^4. Files
    have no slash in their names.
    """
    result = {}
    for metric in ("best@4", "pass@4", "verl/best@4", "hard/verl/worst@2"):
        code, out, err = isojax("fit", "runs/both", "--metric", metric, *QUICK)
        assert code == 0, err
        result[metric] = json.loads(out)
        assert result[metric]["metric"] == metric and result[metric]["intervals"]["problems"] == (
            30 if "hard" in metric else 50
        )
    assert result["pass@4"] == result["best@4"] | {"metric": "pass@4"}
    runs = read_runs([Path("runs/both")])
    base = [np.mean(1 - (1 - np.array(run.points[0].counts) / 4) ** 4) for run in runs]
    assert result["verl/best@4"]["base_reward"] == pytest.approx(np.mean(base), abs=1e-9)
    base = [np.mean((np.array(run.points[0].extra["hard"]) / 4) ** 2) for run in runs]
    assert result["hard/verl/worst@2"]["base_reward"] == pytest.approx(np.mean(base), abs=1e-9)
    assert sorted(p.name for p in Path("runs/both").glob("fit*.json")) == [
        "fit-best@4.json", "fit-hard-verl-worst@2.json", "fit-pass@4.json", "fit-verl-best@4.json",
    ]  # fmt: skip


@pytest.mark.slow
def test_sweeps_are_compared_by_an_extra_set(isojax: Isojax) -> None:
    code, out, err = isojax(
        "compare", "runs/both", "runs/hard", "--metric", "hard/best@2", "--json"
    )
    assert code == 0, err
    result = json.loads(out)
    assert result["metric"] == "hard/best@2"
    # one set, evaluated alike in both
    assert result["sweeps"][1]["difference"]["value"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("metric", ["pass@8", "verl/best@8", "hard/avg@8", "esay/avg@4"])
def test_what_counts_do_not_give_is_refused_with_its_place(isojax: Isojax, metric: str) -> None:
    code, _, err = isojax("fit", "runs/both", "--metric", metric)
    assert code == 2 and len(err.splitlines()) == 1
    says = (
        f"records.jsonl, line 2 (C = 0) has no metric '{metric}'; "
        "expected one of those it has: avg@4, best@4, hard/avg@4"
    )
    assert says in err
    assert "for k <= 4 from its counts, after hard/ for an extra set" in err
    assert not list(Path("runs/both").glob("fit*"))


def test_an_extra_set_of_another_size_is_refused(isojax: Isojax) -> None:
    path = next(Path("runs/both/cells").iterdir()) / "records.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[3]["extra"]["hard"], rows[3]["metrics"]["hard/avg@4"] = [1, 2], 3 / 8
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = isojax("fit", "runs/both", "--metric", "hard/avg@1")
    assert code == 2 and "right answers of 2 problems of the set 'hard'" in err and "of 30;" in err


def test_the_report_shows_extra_sets_before_other_recorded_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of four extra sets with three metrics each, all four means are among the six that are
    shown."""
    requested: list[str] = []

    def fitted(
        runs: list[RunRecord], metric: str, compute: str, options: object, what: str
    ) -> dict[str, str]:
        requested.append(metric)
        return {"metric": metric}

    monkeypatch.setattr(report_command, "fit_runs", fitted)
    metrics = {
        f"{name}{kind}@4": 0.5
        for name in ("", "d/", "c/", "b/", "a/")
        for kind in ("worst", "best", "avg")
    }
    run = RunRecord(Cell(16, 4, 0), (EvalPoint(0, 0, 0, 0, metrics, (2, 2), 4),))
    report_command.other_fits([run], document())
    assert requested == [
        "avg@4",
        "best@4",
        "worst@4",
        "a/avg@4",
        "b/avg@4",
        "c/avg@4",
        "d/avg@4",
        "a/best@4",
        "a/worst@4",
    ]


def test_the_report_fits_no_metric_that_is_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    """What every evaluation of a run records, of the main set and of a further one: rewards alone
    are fitted."""
    requested: list[str] = []
    monkeypatch.setattr(
        report_command, "fit_runs", lambda runs, metric, *_: requested.append(metric)
    )
    counts = EvalCounts(
        rewards=np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]),
        parsed=5,
        ended=6,
        failures=Counter(timeout=1),
        first_responses=[],
        interrupted=2,
        turns=11,
    )
    recorded = eval_metrics({"": counts, "hard": counts})
    assert {
        "parsed_fraction",
        "truncated",
        "verifier_failures",
        "hard/parsed_fraction",
        "hard/truncated",
        "hard/verifier_failures",
        "interrupted",
        "turns",
    } < set(recorded)
    run = RunRecord(Cell(16, 4, 0), (EvalPoint(0, 0, 0, 0, recorded, (2, 1), 4),))
    report_command.other_fits([run], document())
    assert requested == ["avg@4", "best@4", "worst@4", "hard/avg@4", "hard/best@4", "hard/worst@4"]
