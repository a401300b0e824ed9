"""CSV in its long and wide forms, and the table beside it that says n, B_p and seed of its runs."""

from __future__ import annotations

import pytest

from isojax.core.nouns import Cell
from isojax.runs.logs.import_logs import read_logs
from isojax.runs.logs.log_table import read_settings
from tests.refusals import refused

WIDE = """\
"Step","gsm8k-n4 - val-core/gsm8k/acc/mean@4","gsm8k-n4 - val-core/gsm8k/acc/mean@4__MIN",\
"gsm8k-n4 - val-core/gsm8k/acc/mean@4__MAX","gsm8k-n16 - val-core/gsm8k/acc/mean@4",\
"gsm8k-n16 - val-core/gsm8k/acc/mean@4__MIN","gsm8k-n16 - val-core/gsm8k/acc/mean@4__MAX"
"0","0.2","0.2","0.2","0.21","0.21","0.21"
"5","0.3","0.3","0.3","","",""
"10","","","","0.4","0.4","0.4"
"15","0.35","0.35","0.35","0.45","0.45","0.45"
"""


def test_the_chart_of_wandb(logged):
    runs = logged("csv", WIDE, "n=n{},B_p=32").runs
    assert [run.cell for run in runs] == [Cell(32, 4, 0), Cell(32, 16, 0)]
    assert [(p.M, p.rollouts, p.metrics["avg@4"]) for p in runs[1].points] == [
        (0, 0, 0.21),
        (10, 10 * 512, 0.4),
        (15, 15 * 512, 0.45),
    ]
    assert [p.metrics["avg@4"] for p in runs[0].points] == [0.2, 0.3, 0.35]


def test_a_chart_of_any_metric_and_of_runs_without_it_in_their_names(logged):
    text = "Step,a-n2,a-n2__MIN,a-n2__MAX\n0,.1,.1,.1\n1,.2,.2,.2\n"
    (run,) = logged("csv", text, "n=n{},B_p=8").runs
    assert run.cell == Cell(8, 2, 0) and [p.metrics for p in run.points] == [
        {"reward": 0.1},
        {"reward": 0.2},
    ]
    (run,) = logged("csv", text.replace("a-n2", "a-n2 - solved"), "n=n{},B_p=8").runs
    assert [p.metrics for p in run.points] == [{"solved": 0.1}, {"solved": 0.2}]


def test_a_chart_without_bounds(logged):
    text = "Step,grpo-n2-s0 - val/acc,grpo-n4-s0 - val/acc\n0,.1,.1\n1,.2,.3\n"
    with_bounds = (
        "Step,grpo-n2-s0 - val/acc,grpo-n2-s0 - val/acc__MIN,grpo-n4-s0 - val/acc\n0,.1,.1,.1\n"
        "1,.2,.2,.3\n"
    )
    assert logged("csv", text, "n=n{},B_p=4").runs == logged("csv", with_bounds, "n=n{},B_p=4").runs


def test_a_chart_over_another_column_has_wandbs_step_too(logged):
    text = (
        "rollouts,n8 - _step,n8 - _step__MIN,n8 - val/acc,n8 - val/acc__MIN\n0,0,0,.2,.2\n"
        "5120,20,20,.3,.3\n"
    )
    (run,) = logged("csv", text, "n=n{},B_p=32").runs
    assert [(p.M, p.rollouts, p.metrics) for p in run.points] == [
        (0, 0, {"val/acc": 0.2}),
        (20, 5120, {"val/acc": 0.3}),
    ]


def test_the_first_line_of_excel_is_no_header(logged):
    (run,) = logged("csv", "sep=;\nstep;n;B_p;reward\n0;8;4;0.1\n1;8;4;0.2\n", "reward=reward").runs
    assert run.cell == Cell(4, 8, 0) and len(run.points) == 2


def test_a_chart_over_time_is_refused(logged):
    with refused(where="log.csv, line 1"):
        logged("csv", WIDE.replace('"Step"', '"Relative Time (Wall)"'), "n=n{},B_p=32")


def test_a_chart_whose_first_column_has_no_name_is_refused(logged):
    """As pandas writes its index."""
    with refused(where="log.csv, line 1"):
        logged("csv", WIDE.replace('"Step"', ""), "n=n{},B_p=32")


def test_copies_in_a_chart_are_named(logged):
    text = "Step,a-n2 - val/acc,b-n2 - val/acc\n0,.1,.1\n1,.2,.2\n"
    with refused(where="log.csv, line 2 (run 'b-n2')"):
        logged("csv", text, "n=n{},B_p=4")


@pytest.mark.parametrize(
    "names", [("run", "metric", "step", "value"), ("run_id", "key", "step", "value")]
)
def test_the_long_form(logged, names):
    values = {"val/acc": (0.1, 0.2, 0.3), "train/reward": (0.15, 0.25, 0.35)}
    rows = [
        (run, metric, 10 * i, value + (run == "qwen-n8-s1") / 100)
        for run in ("qwen-n8-s0", "qwen-n8-s1")
        for metric, numbers in values.items()
        for i, value in enumerate(numbers)
    ]
    rows.sort(key=lambda row: (row[0], row[2]))
    text = "\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)])
    maps = "n=n{},seed=s{},B_p=4,reward=val/acc,train_reward=train/reward"
    runs = logged("csv", text, f"run={names[0]}", maps).runs
    assert [run.cell for run in runs] == [Cell(4, 8, 0), Cell(4, 8, 1)]
    assert [p.metrics["val/acc"] for p in runs[1].points] == pytest.approx([0.11, 0.21, 0.31])
    assert [p.rollouts for p in runs[1].points] == [0, 320, 640] and runs[0].points[1].train[
        "reward"
    ] == 0.25


@pytest.mark.parametrize("resumed", [False, True])
def test_the_long_form_with_one_metric_after_another(tmp_path, resumed):
    """As pandas.melt writes it; its steps fall once, though nothing was resumed."""
    columns = {
        "reward": {5: 0.1, 10: 0.2, 20: 0.3, 30: 0.4},
        "train_reward": {7: 0.5, 15: 0.6, 25: 0.7},
    }
    rows = [
        f"{step},{name},{value}\n"
        for name, column in columns.items()
        for step, value in column.items()
    ]
    (tmp_path / "melted.csv").write_text("step,variable,value\n" + "".join(rows))
    (run,) = read_logs(
        [tmp_path / "melted.csv"], None, {"n": "2", "B_p": "1"}, resumed=resumed
    ).runs
    assert [(p.M, p.metrics["reward"], p.train.get("reward")) for p in run.points] == [
        (5, 0.1, None), (10, 0.2, 0.5), (20, 0.3, 0.6), (30, 0.4, 0.7)
    ]  # fmt: skip
    (tmp_path / "melted.csv").write_text("step,variable,value\n" + "".join(rows + rows[2:4]))
    with refused(where="melted.csv, line 6"):
        read_logs([tmp_path / "melted.csv"], None, {"n": "2", "B_p": "1"})


def test_a_row_of_the_long_form_without_a_metric_is_refused(logged):
    with refused(where="log.csv, line 3"):
        logged("csv", "run,metric,step,value\na,acc,0,.1\na,,1,.2\n", "n=2,B_p=2")


def test_settings_from_a_table(logged, tmp_path):
    table = tmp_path / "settings.csv"
    table.write_text("run,n,B_p,seed\ngsm8k-n4,4,64,3\ngsm8k-n16,16,32,\n")
    (tmp_path / "chart.csv").write_text(WIDE)
    runs = read_logs([tmp_path / "chart.csv"], None, {}, read_settings(table)).runs
    assert [run.cell for run in runs] == [Cell(32, 16, 0), Cell(64, 4, 3)]
    files = {"first.csv": "step,reward\n0,.1\n1,.2\n", "second.csv": "step,reward\n0,.1\n1,.3\n"}
    table.write_text("run,n,B\nfirst,2,8\nsecond.csv,4,8\n")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    runs = read_logs([tmp_path / name for name in files], "csv", {}, read_settings(table)).runs
    assert [run.cell for run in runs] == [Cell(2, 4, 0), Cell(4, 2, 0)]


@pytest.mark.parametrize(
    "text",
    [
        "name,n\na,2\n",
        "run,n,lr\na,2,3\n",
        "run,n\na,2\n,4\n",
        '{"run": "a", "n": 4}\n{"n": 8}\n',
        "run,n\na,2\na,4\n",
        "run,n\ngsm8k-n4,4\nother,8\n",
    ],
)
def test_settings_that_cannot_be_used(tmp_path, text):
    (tmp_path / "settings.csv").write_text(text)
    (tmp_path / "chart.csv").write_text(WIDE)
    with refused():
        read_logs(
            [tmp_path / "chart.csv"], "csv", {"B_p": "2"}, read_settings(tmp_path / "settings.csv")
        )


def test_means_over_runs_or_steps_are_noted(logged):
    """Once for a file, whatever the number of its runs."""
    assert not logged("csv", WIDE, "n=n{},B_p=32").notes
    grouped = WIDE.replace('"0.3","0.3","0.3"', '"0.3","0.28","0.32"').replace(
        '"0.4","0.4","0.4"', '"0.4","0.4","0.5"'
    )
    (note,) = logged("csv", grouped, "n=n{},B_p=32").notes
    assert (
        "means over runs, or over buckets of steps" in note
        and "ungrouped, with full fidelity" in note
    )
