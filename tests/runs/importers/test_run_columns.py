"""Tables whose columns are runs, and the files that TensorBoard's page offers for each tag of a
run."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from isojax.core.nouns import Cell
from isojax.runs.logs.import_logs import read_logs
from isojax.runs.logs.log_table import read_settings
from isojax.runs.logs.source_words import SourceChoice
from tests.refusals import refused

PIVOT = "Step,0.6b,14b,8b\n0,.10,.30,.20\n10,.15,,.25\n20,.20,NaN,.30\n30,.25,.60,.35\n"
NAMED = PIVOT.replace("0.6b,14b,8b", "n4-s0,n4-s1,n8-s0")
TABLE = "run,n,B_p\n0.6b,4,16\n14b,8,16\n8b,16,32\n"
TAG_HEADER = "Wall time,Step,Value\n"


def points_of(run) -> list[tuple[int, float]]:
    return [(point.rollouts, point.metrics["reward"]) for point in run.points]


@pytest.mark.parametrize("maps", [{"reward": "*"}, {}])
def test_a_pivot_with_a_table_of_its_runs(tmp_path, maps):
    """C = step x B_p x n; a cell that is empty, or NaN, was not logged."""
    (tmp_path / "pivot.csv").write_text(PIVOT)
    (tmp_path / "settings.csv").write_text(TABLE)
    result = read_logs(
        [tmp_path / "pivot.csv"], None, maps, read_settings(tmp_path / "settings.csv")
    )
    assert [run.cell for run in result.runs] == [Cell(16, 4, 0), Cell(16, 8, 0), Cell(32, 16, 0)]
    assert points_of(result.runs[0]) == [(0, 0.1), (640, 0.15), (1280, 0.2), (1920, 0.25)]
    assert points_of(result.runs[1]) == [(0, 0.3), (3840, 0.6)]
    assert ("are read as runs, as --map 'reward=*' says" in str(result.notes)) == (not maps)


@pytest.mark.parametrize("reward", ["reward=*,", ""])
def test_a_pivot_whose_names_say_n_and_seed(logged, reward):
    runs = logged("csv", NAMED, f"{reward}n=n{{}},seed=s{{}},B_p=16").runs
    assert [run.cell for run in runs] == [Cell(16, 4, 0), Cell(16, 4, 1), Cell(16, 8, 0)]
    assert points_of(runs[2]) == [(0, 0.2), (1280, 0.25), (2560, 0.3), (3840, 0.35)]


def test_a_pattern_around_the_star(logged):
    text = "update,val/acc_n4,val/acc_n8,train/acc_n4,loss\n0,.1,.2,.3,2\n5,.2,.4,.6,1\n"
    runs = logged("csv", text, "reward=val/acc_*,n=n{},B_p=2,step=update").runs
    assert [(run.cell, [p.metrics for p in run.points]) for run in runs] == [
        (Cell(2, 4, 0), [{"val/acc": 0.1}, {"val/acc": 0.2}]),
        (Cell(2, 8, 0), [{"val/acc": 0.2}, {"val/acc": 0.4}]),
    ]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_pivot_of_pandas_or_excel(logged, separator):
    """With an index and an epoch, which are no runs."""
    text = "Unnamed: 0,step,epoch,n4,n8\n0,0,.1,.1,.2\n1,10,.2,.3,.4\n".replace(",", separator)
    assert [run.cell for run in logged("csv", text, "reward=*,n=n{},B_p=2").runs] == [
        Cell(2, 4, 0),
        Cell(2, 8, 0),
    ]


def test_a_first_column_that_counts_updates(logged):
    """As of W&B's charts: by its name, where no known column does."""
    text = "iteration,n4,n8\n0,.1,.1\n5,.2,.3\n"
    for maps in ("n=n{},B_p=2", "reward=*,n=n{},B_p=2"):
        assert [run.points[-1].rollouts for run in logged("csv", text, maps).runs] == [
            5 * 2 * 4,
            5 * 2 * 8,
        ]


@pytest.mark.parametrize(
    ("names", "pattern"),
    [("n=4,n=8", "n={}"), ("G4,G8", "G{}"), ("4,8", "{}"), ("4rollouts,8rollouts", "{}rollouts")],
)
def test_names_of_another_pattern_say_which_to_type(logged, names, pattern):
    """Also where the name of a run is a number that the map has for another field."""
    text = f"step,{names}\n0,.1,.1\n5,.2,.3\n"
    with refused(where="--map n=n{}") as refusal:
        logged("csv", text, "n=n{},B_p=8,reward=*")
    assert str(refusal.value).endswith(f"For this name: --map 'n={pattern}'.")
    assert [run.cell for run in logged("csv", text, f"n={pattern},B_p=8,reward=*").runs] == [
        Cell(8, 4, 0),
        Cell(8, 8, 0),
    ]


def test_lines_of_json_may_be_a_pivot_too(logged):
    rows = [{"step": i, "n4": 0.1 * i, "n8": 0.2 * i} for i in range(3)]
    assert [run.cell.n for run in logged("jsonl", rows, "reward=*,n=n{},B_p=2").runs] == [4, 8]


def test_wandbs_chart_takes_the_star_too(logged):
    text = "Step,n4 - val/acc,n4 - val/acc__MIN,n8 - val/acc\n0,.1,.1,.1\n1,.2,.2,.3\n"
    assert (
        logged("csv", text, "reward=*,n=n{},B_p=4").runs == logged("csv", text, "n=n{},B_p=4").runs
    )


def test_a_format_of_one_run_has_no_columns_of_runs(logged):
    """There, a star is short for the one column that it matches."""
    rows = [
        {"step": i, "data": {"val/n4": 0.1 * i, "val/n8": 0.2 * i, "loss": 1.0}} for i in range(3)
    ]
    with refused(where="log.verl"):
        logged("verl", rows, "reward=val/*,n=8,B_p=4")
    (run,) = logged("verl", rows, "reward=*/n8,n=8,B_p=4").runs
    assert [p.metrics for p in run.points] == [{"val/n8": 0.0}, {"val/n8": 0.2}, {"val/n8": 0.4}]


def test_what_a_pivot_lacks_is_said_with_what_to_type(logged, tmp_path):
    """The advice of each refusal, followed, leads on to the import."""
    with refused(where="log.csv"):
        logged("csv", PIVOT)
    with refused() as e:
        logged("csv", PIVOT, "reward=*")
    command = str(e.value).partition("settings.csv: ")[2].partition(" (or, ")[0]
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert (tmp_path / "settings.csv").read_text() == "run,n,B_p\n0.6b,8,32\n14b,8,32\n8b,8,32\n"
    settings = read_settings(tmp_path / "settings.csv")
    result = read_logs([tmp_path / "log.csv"], None, {"reward": "*"}, settings)
    assert [run.cell.seed for run in result.runs] == [0, 1, 2]
    assert "the names of these differ in 0.6b, 14b, 8b" in str(result.notes)
    with refused(where="log.csv"):
        logged("csv", PIVOT.replace("Step", "when"), "reward=*,n=8,B_p=8,")
    with refused(where="log.csv"):
        logged("csv", PIVOT, "reward=val_*,n=8,B_p=8")


@pytest.mark.parametrize(
    "text",
    [
        "Step;n4;n8\n0;0,0977;0,0961\n10;0,2057;0,259\n",
        'Step,n4,n8\n0,"0,0977","0,0961"\n',
        "Step,n4,n8\n0,9.8%,9.6%\n10,20.6%,25.9%\n",
    ],
)
def test_cells_that_are_no_plain_numbers_are_refused_as_in_any_log(logged, text):
    with refused(where="log.csv, line 2: reward (column n4)"):
        logged("csv", text, "reward=*,n=n{},B_p=32")
    # words are none to anybody
    with refused(where="log.csv"):
        logged("csv", "Step,n4,n8\n0,low,high\n", "reward=*,n=n{},B_p=32")


@pytest.mark.parametrize("header", ["run,0,10,20", "name,step_0,step_10,step_20", ",0,10,20"])
def test_a_table_with_a_row_for_each_run_is_to_be_transposed(logged, header):
    """The rows of the transposed table, which the message says how to make, are imported."""
    text = f"{header}\nn4-s0,.1,.2,.3\nn8-s0,.1,.3,.4\n"
    with refused(where="log.csv") as refusal:
        logged("csv", text, "reward=*,n=n{},seed=s{},B_p=2")
    assert "--map step=" not in str(refusal.value)
    transposed = "step,n4-s0,n8-s0\n0,.1,.1\n10,.2,.3\n20,.3,.4\n"
    runs = logged("csv", transposed, "reward=*,n=n{},seed=s{},B_p=2").runs
    assert [run.points[-1].rollouts for run in runs] == [20 * 2 * 4, 20 * 2 * 8]


def test_numbers_that_name_runs_beside_a_clock_are_no_steps(logged):
    """The step only lacks its name."""
    with refused(where="log.csv"):
        logged("csv", "epoch,4,8\n0,.1,.1\n5,.2,.3\n", "reward=*,n={},B_p=2")


def test_metrics_are_not_taken_for_runs(logged):
    """Without a star, a table of metrics is asked for its reward; with one, a loss beside runs is
    refused."""
    metrics = "step,val/a,val/b,loss\n0,.1,.2,.3\n1,.2,.3,.2\n"
    with refused(where="log.csv") as refusal:
        logged("csv", metrics, "n=8,B_p=8")
    assert "reward=*" not in str(refusal.value)
    with refused(where="B_p = 8, n = 4"):
        logged("csv", NAMED.replace("n8-s0", "loss"), "reward=*,n=4,B_p=8")


def write_tags(folder: Path, values: dict[str, list[float]]) -> Path:
    folder.mkdir()
    for name, series in values.items():
        rows = [f"{1.7e9 + 60 * i},{10 * i},{value}\n" for i, value in enumerate(series)]
        (folder / f"{name}.csv").write_text(TAG_HEADER + "".join(rows))
    return folder


TAGS = {
    "run-n8-s0-tag-val_acc": [0.1, 0.2, 0.3],
    "run-n8-s0-tag-train_acc": [0.4, 0.5, 0.6],
    "run-n8-s0-tag-loss": [0.9, 0.8, 0.7],
    "run-n8-s1-tag-val_acc": [0.15, 0.25, 0.35],
    "run-n8-s1-tag-train_acc": [0.45, 0.55, 0.65],
}


@pytest.mark.parametrize("tag", ["val/acc", "val_acc"])
def test_tags_of_one_run_are_one_log(tmp_path, tag):
    folder = write_tags(tmp_path / "tags", TAGS)
    maps = {"n": "n{}", "seed": "s{}", "B_p": "4", "reward": tag, "train_reward": "train/acc"}
    for paths in ([folder], sorted(folder.iterdir())):
        runs = read_logs(paths, None, maps).runs
        assert [run.cell for run in runs] == [Cell(4, 8, 0), Cell(4, 8, 1)]
        assert [(p.M, p.metrics[tag], p.train["reward"]) for p in runs[0].points] == [
            (0, 0.1, 0.4), (10, 0.2, 0.5), (20, 0.3, 0.6)
        ]  # fmt: skip


def test_a_run_is_not_left_out_by_the_name_of_a_tag(tmp_path):
    folder = write_tags(tmp_path / "tags", TAGS)
    maps = {"n": "n{}", "seed": "s{}", "B_p": "4", "reward": "val/acc"}
    for choice in (SourceChoice(leave_out=("train",)), SourceChoice(only=("s1",))):
        seeds = [run.cell.seed for run in read_logs([folder], None, maps, choice=choice).runs]
        assert seeds == ([1] if choice.only else [0, 1])


def test_which_tag_is_asked(tmp_path):
    folder = write_tags(tmp_path / "tags", TAGS)
    with refused(where="run-n8-s0-tag-*.csv"):
        read_logs([folder], None, {"n": "n{}", "B_p": "4"})


def test_runs_of_train_and_validation_in_tag_files_are_refused(tmp_path):
    """A tag of one name, in the runs n8/train and n8/validation."""
    names = [f"run-n8_{kind}-tag-epoch_acc" for kind in ("train", "validation")]
    folder = write_tags(tmp_path / "tags", {name: [0.1, 0.2, 0.3] for name in names})
    with refused(where="B_p = 4, n = 8"):
        read_logs([folder], None, {"n": "n{}", "B_p": "4"})


def test_files_that_are_only_named_like_tags_are_read_by_themselves(tmp_path):
    for seed in (0, 1):
        (tmp_path / f"run-n8-tag-{seed}.csv").write_text(f"step,acc\n0,.1\n1,.{seed + 2}\n")
    runs = read_logs([tmp_path], None, {"n": "n{}", "B_p": "4", "reward": "acc"}).runs
    assert [run.cell.seed for run in runs] == [0, 1]


SUMMARIES = "Step,n4,n8,mean,best\n0,.10,.30,.20,.30\n10,.15,.35,.25,.35\n20,.2,.4,.3,.4\n"


def test_columns_that_are_no_runs_are_left_out(logged, tmp_path):
    """By the options that the refusal shows; nothing is asked of them then, be it their n or a row
    of the table."""
    with refused(where="log.csv"):
        logged("csv", SUMMARIES, "reward=*,n=n{},B_p=16")
    settings = {"n4": {"n": "4", "B_p": "16"}, "n8": {"n": "8", "B_p": "16"}}
    for choice in (SourceChoice(leave_out=("mean", "best")), SourceChoice(only=("n4", "n8"))):
        for maps, table in (
            ({"reward": "*", "n": "n{}", "B_p": "16"}, None),
            ({"reward": "*"}, settings),
        ):
            result = read_logs([tmp_path / "log.csv"], None, maps, table, choice=choice)
            assert [run.cell.n for run in result.runs] == [4, 8]
            assert result.notes == ("2 logs or runs are left out, as --only and --leave-out say",)


def test_runs_of_the_long_form_that_are_left_out_need_no_settings(tmp_path):
    """A run called mean, without n, among the rows of others."""
    (tmp_path / "long.csv").write_text(
        "run,n,B_p,step,reward\nn4,4,2,0,.1\nmean,,,0,.1\nn4,4,2,5,.2\nmean,,,5,.2\n"
    )
    with refused(where="long.csv, line 3: n"):
        read_logs([tmp_path / "long.csv"], None, {})
    for maps in ({}, {"n": "n{}", "B_p": "2"}):
        result = read_logs(
            [tmp_path / "long.csv"], None, maps, choice=SourceChoice(leave_out=("mean",))
        )
        assert [(run.cell.n, len(run.points)) for run in result.runs] == [(4, 2)]
        assert "1 log or run is left out, as --only and --leave-out say" in result.notes


def test_what_a_star_does_not_read_is_noted(logged):
    text = "step,index,n4,n8,n16,commit\n0,0,.1,.2,,a1\n1,1,.2,.3,,a1\n"
    result = logged("csv", text, "reward=*,n=n{},B_p=2")
    assert [run.cell.n for run in result.runs] == [4, 8]
    leaves_out = "leaves out index (an index or a time), n16 (no value), commit (no number)"
    assert any(note.endswith(f"--map reward=* {leaves_out}") for note in result.notes)
    assert logged("csv", "step,n4,n8\n0,.1,.2\n1,.2,.3\n", "reward=*,n=n{},B_p=2").notes == ()


def test_a_run_without_a_value_in_a_chart_is_noted(logged):
    result = logged("csv", "Step,n4 - acc,n8 - acc\n0,.1,\n1,.2,\n", "n=n{},B_p=2")
    assert len(result.runs) == 1 and any(
        note.endswith("without n8, which has no value") for note in result.notes
    )


def test_rows_of_the_table_that_no_run_has_are_noted(logged, tmp_path):
    settings = {
        name: {"n": n, "B_p": "16"}
        for name, n in (("0.6b", "4"), ("14b", "8"), ("8b", "8"), ("32b", "8"))
    }
    (tmp_path / "log.csv").write_text(PIVOT)
    notes = read_logs([tmp_path / "log.csv"], None, {"reward": "*"}, settings).notes
    assert "--settings: no run, or none with a value, is called 32b" in notes


@pytest.mark.parametrize("mark", [" ", ":"])
def test_columns_that_another_mark_divides_are_refused(logged, mark):
    with refused(where="log.csv, line 1"):
        logged("csv", f"step{mark}n{mark}reward\n0{mark}4{mark}.1\n")


def test_what_a_message_says_to_type_is_quoted_for_the_shell(logged):
    text = "Unnamed: 0,n4 (a),n8 (b)\n0,.1,.1\n5,.2,.3\n"
    with refused(where="log.csv") as refusal:
        logged("csv", text, "reward=*,n=n{},B_p=2")
    option = re.search(r"as --map (.*)\. The columns", str(refusal.value))[1]
    assert [
        run.cell.n for run in logged("csv", text, "reward=*,n=n{},B_p=2", *shlex.split(option)).runs
    ] == [4, 8]


def test_a_run_is_left_out_by_its_whole_name_where_others_have_it_too(tmp_path):
    """The option as the message says, in a file whose name has the word, and beside a run that
    begins alike."""
    (tmp_path / "by_mean.csv").write_text(
        "step,n4,n4 mean x,mean,n8\n0,.1,.1,.2,.1\n5,.2,.3,.4,.3\n"
    )
    maps = {"reward": "*", "n": "n{}", "B_p": "2"}
    with refused(where="by_mean.csv") as refusal:
        read_logs([tmp_path / "by_mean.csv"], None, maps)
    (pattern,) = shlex.split(re.search(r"--leave-out (\S+)\.$", str(refusal.value))[1])
    choice = SourceChoice(leave_out=(pattern,))
    assert [
        run.cell.n for run in read_logs([tmp_path / "by_mean.csv"], None, maps, choice=choice).runs
    ] == [4, 4, 8]
