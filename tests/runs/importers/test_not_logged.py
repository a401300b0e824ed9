"""NaN, None and NA in tables that people export: at that step, nothing was logged."""

from __future__ import annotations

import csv
import io
import json
import math
import time

import pytest

from isojax.runs.logs.import_logs import read_logs
from isojax.runs.logs.source_words import SourceChoice
from tests.linear_time import cpu_seconds
from tests.refusals import refused

HEAD = "run,n,B_p,step,reward\n"
WORDS = ("NaN", "nan", "-nan", "None", "NA", "N/A", "null", "NULL", "<NA>", "#N/A", '"NaN"')


def curve(run):
    return [(point.M, point.metrics["reward"]) for point in run.points]


@pytest.mark.parametrize("word", WORDS)
def test_a_step_without_an_evaluation(logged, word):
    text = HEAD + "".join(
        f"a,8,32,{step},{0.1 * step if step % 2 == 0 else word}\n" for step in range(6)
    )
    result = logged("csv", text)
    assert curve(result.runs[0]) == [(0, 0.0), (2, 0.2), (4, 0.4)]
    plain_word = word.strip('"')
    assert [note for note in result.notes if "not logged" in note] == [
        (
            f"{result.runs[0].source.split(',')[0]}: reward is {plain_word} at 3 steps: taken as "
            "not logged there"
        )
    ]
    assert not result.skipped


@pytest.mark.parametrize("value", [math.nan, None, "NaN", "None"])
def test_json_lines(logged, value):
    rows = [
        {"step": step, "lr": 0.5, "reward": 0.1 * step if step % 2 == 0 else value}
        for step in range(5)
    ]
    assert curve(logged("jsonl", rows, "n=8,B_p=32").runs[0]) == [(0, 0.0), (2, 0.2), (4, 0.4)]


@pytest.mark.parametrize("indent", [None, 1])
def test_columns_as_pandas_writes_them_by_default(logged, indent):
    columns = {
        "step": {"0": 1, "1": 2, "5": 3},
        "lr": {"0": 1, "1": 1, "5": 1},
        "reward": {"0": 0.1, "1": None, "5": 0.3},
    }
    (run,) = logged("jsonl", json.dumps(columns, indent=indent), "n=8,B_p=32").runs
    assert curve(run) == [(1, 0.1), (3, 0.3)]
    with refused(where="log.jsonl, entry 2: reward"):
        columns["reward"]["1"] = "x"
        logged("jsonl", json.dumps(columns, indent=indent), "n=8,B_p=32")


@pytest.mark.parametrize("word", ["", "NaN", "None"])
def test_the_history_of_wandb_where_evaluations_are_calls_of_their_own(logged, word):
    """Those have no step; it is that of the call before."""
    text = "_step,train/global_step,train/reward,val/acc\n" + "".join(
        f"{2 * m},{m},0.3,{word}\n{2 * m + 1},{word},{word},{0.1 * m}\n" for m in (1, 2, 3)
    )
    result = logged("csv", text, "reward=val/acc,step=train/global_step,n=8,B_p=4")
    points = result.runs[0].points
    assert [(point.M, point.rollouts, point.metrics["val/acc"]) for point in points] == [
        (1, 32, 0.1),
        (2, 64, 0.2),
        (3, 96, pytest.approx(0.3)),
    ]


def test_a_run_that_may_have_diverged_is_warned_of(logged):
    """Every step was evaluated, and the last ones say NaN."""
    whole = "".join(f"a,8,32,{m},{0.1 * m}\n" for m in range(6))
    diverged = "".join(f"b,8,32,{m},{'NaN' if m > 2 else 0.05 * m}\n" for m in range(6))
    result = logged("csv", HEAD + whole + diverged)
    assert [len(run.points) for run in result.runs] == [6, 3]
    (warning,) = result.skipped
    assert (
        "line 11: reward is NaN from there to the end of the run (3 steps)" in warning
        and "diverged" in warning
    )


def test_training_rows_after_the_last_evaluation_are_no_divergence(logged):
    text = HEAD + "".join(
        f"a,8,32,{m},{0.1 * m / 5 if m % 5 == 0 else 'NaN'}\n" for m in range(1, 14)
    )
    assert not logged("csv", text).skipped


@pytest.mark.parametrize(
    "rows",
    [
        "a,8,32,1,.1\nb,16,32,1,NaN\nb,16,32,2,NaN\n",
        "a,8,32,1,.1\na,8,32,NaN,.2\n",
        "a,8,32,1,.1\na,NaN,32,2,.2\n",
        "a,8,32,1,.1\na,8,NA,2,.2\n",
        "a,8,32,1,.1\na,8,32,2,inf\n",
        "a,8,32,1,.1\na,8,32,2,\n",
        "a,8,32,1,.1\na,8,32,2,n.a\n",
    ],
)
def test_what_is_refused(logged, rows):
    with refused():
        logged("csv", HEAD + rows)


def test_a_further_metric_of_some_evaluations(logged):
    text = "step,reward,ood,kl\n1,.1,NaN,.5\n2,.2,.3,NaN\n"
    (run,) = logged("csv", text, "metric:ood=ood,train:kl=kl,n=8,B_p=32").runs
    assert [dict(point.metrics) for point in run.points] == [
        {"reward": 0.1},
        {"reward": 0.2, "ood": 0.3},
    ]
    assert [dict(point.train) for point in run.points] == [{"kl": 0.5}, {}]
    with refused(where="log.csv, line 2: metric:ood (column ood)"):
        logged("csv", "step,reward,ood\n1,.1,NaN\n2,.2,NaN\n", "metric:ood=ood,n=8,B_p=32")


def test_a_chart_of_runs_with_steps_of_their_own(logged):
    text = "Step,n8 - acc,n16 - acc\n1,.1,NaN\n2,NaN,.2\n3,.3,NaN\n4,NaN,.4\n"
    result = logged("csv", text, "n=n{},B_p=32")
    assert {run.cell.n: [(p.M, p.metrics["acc"]) for p in run.points] for run in result.runs} == {
        8: [(1, 0.1), (3, 0.3)],
        16: [(2, 0.2), (4, 0.4)],
    }
    assert any("4 cells that say NaN are taken as not logged" in note for note in result.notes)


def test_a_trainer_that_wrote_nan_into_its_own_log_is_warned_of(logged):
    rows = [
        {"step": M, "data": {"val-core/x/acc/mean@4": math.nan if M == 2 else 0.1 * M}}
        for M in (1, 2, 3)
    ]
    result = logged("verl", rows, "n=2,B_p=2")
    assert [point.M for point in result.runs[0].points] == [1, 3]
    assert len(result.skipped) == 1 and "is nan" in result.skipped[0]


def test_a_hundred_thousand_rows_take_seconds(logged):
    """At most 10 times what Python's own reader takes: 57 µs a row, as once, were 30 times."""
    rows = (
        f"r{run},{8 * 2 ** (run % 3)},32,{run},{m},{0.2 + m / 4000 + run / 1000:.5f}\n"
        for run in range(50)
        for m in range(2000)
    )
    text = "run,n,B_p,seed,step,reward\n" + "".join(rows)
    reference = cpu_seconds(lambda: list(csv.DictReader(io.StringIO(text))))
    before = time.process_time()
    result = logged("csv", text)
    assert time.process_time() - before < 10 * reference
    assert len(result.runs) == 50 and all(len(run.points) == 2000 for run in result.runs)


@pytest.mark.parametrize("mark", ["-", "missing", "n.a.", "--"])
def test_other_marks_than_those_of_pandas_are_refused_with_what_to_write(logged, mark):
    long_form = f"step,reward\n1,.1\n2,{mark}\n3,.3\n"
    pivot = f"step,n4,n8\n1,.1,.1\n2,{mark},.2\n3,.3,.3\n"
    for text, maps in (
        (long_form, "n=8,B_p=2"),
        (pivot, "reward=*,n=n{},B_p=2"),
    ):
        with refused(where="log.csv, line 3: reward"):
            logged("csv", text, maps)
        points = logged("csv", text.replace(f"2,{mark}", "2,NaN"), maps).runs[0].points
        assert [p.M for p in points] == [1, 3]


def test_a_step_that_is_no_number_is_corrected_or_removed(logged):
    with refused(where="log.csv, line 3: step"):
        logged("csv", "step,reward\n1,.1\nNone,.2\n", "n=8,B_p=2")


def test_a_run_that_is_always_nan_is_left_out_as_the_refusal_says(logged, tmp_path):
    text = "run,n,B_p,step,reward\n" + "".join(
        f"n{n},{n},2,{i},{'NaN' if n == 8 else i / 10}\n" for n in (4, 8) for i in (1, 2, 3)
    )
    with refused():
        logged("csv", text)
    result = read_logs([tmp_path / "log.csv"], None, {}, choice=SourceChoice(leave_out=("n8",)))
    assert [run.cell.n for run in result.runs] == [4]
