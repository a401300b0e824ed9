"""Runs, settings and metrics that a name or a folder could confuse: each is read as what it is, or
refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from isojax.core.nouns import Cell
from isojax.core.tabular import DataRow
from isojax.runs.importers import tensorboard, trl
from isojax.runs.logs.column_detection import map_columns
from isojax.runs.logs.import_logs import read_logs
from isojax.runs.logs.log_table import LogTable
from tests.refusals import refused
from tests.runs.importers.conftest import FIXTURES

CSV = "step,acc\n0,0.1\n1,0.2\n2,0.3\n"
STEPS = "step:0 - val-core/x/acc/mean@4:0.1\nstep:1 - val-core/x/acc/mean@4:0.2\n"
TABLE = {"n": "n{}", "B_p": "4", "reward": "acc"}


def write(folder: Path, **texts: str) -> Path:
    folder.mkdir()
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_logs_of_a_folder_are_those_whose_lines_have_its_format(tmp_path):
    """verl's consoles, redirected to files of any name."""
    folder = write(
        tmp_path / "consoles",
        n4__log=STEPS,
        n8__out=STEPS,
        n16__stdout=STEPS,
        n32=STEPS,
        notes__md="four",
    )
    result = read_logs([folder], None, {"n": "n{}", "B_p": "4"})
    assert [run.cell.n for run in result.runs] == [4, 8, 16, 32] and not result.skipped
    folder = write(tmp_path / "tables", n4__csv=CSV, n8__txt=CSV, n16__dat=CSV)
    assert [run.cell.n for run in read_logs([folder], None, TABLE).runs] == [4, 8, 16]
    lines = '{"step": 0, "acc": 0.1}\n{"step": 1, "acc": 0.2}\n'
    folder = write(
        tmp_path / "lines", n4__jsonl=lines, n8__json=lines, n8_summary__json=lines.split("\n")[1]
    )
    assert [run.cell for run in read_logs([folder], None, TABLE).runs] == [
        Cell(4, 4, 0),
        Cell(4, 8, 0),
    ]


@pytest.mark.parametrize(
    ("names", "maps", "cells"),
    [
        # as isojax names its cells
        (("16x4", "8x8"), {"n": "x{}", "B_p": "{}x"}, [Cell(8, 8, 0), Cell(16, 4, 0)]),
        (
            ("16x4-s0", "16x8-s1"),
            {"n": "x{}", "B_p": "{}x", "seed": "s{}"},
            [Cell(16, 4, 0), Cell(16, 8, 1)],
        ),
        (
            ("a_n4_bs16", "a_n8_bs16"),
            {"n": "_n{}_", "B_p": "_bs{}"},
            [Cell(16, 4, 0), Cell(16, 8, 0)],
        ),
        (
            ("a_ngen4_bs16", "a_ngen8_bs16"),
            {"n": "ngen{}", "B_p": "bs{}"},
            [Cell(16, 4, 0), Cell(16, 8, 0)],
        ),
    ],
)
def test_numbers_within_names(tmp_path, names, maps, cells):
    folder = write(tmp_path / "x2", **{f"{name}__csv": CSV for name in names})
    assert [run.cell for run in read_logs([folder], None, {**TABLE, **maps}).runs] == cells


@pytest.mark.parametrize(
    ("name", "text"), [("gen4_bs16", "n{}"), ("grpoN4", "n{}"), ("wide4", "e{}")]
)
def test_a_folders_number_does_not_stand_for_one_that_the_name_has_in_another_word(
    tmp_path, name, text
):
    folder = write(tmp_path / "n2e3", **{f"{name}__csv": CSV})
    with refused(where="--map n"):
        read_logs([folder], None, {**TABLE, "n": text})


def test_a_folders_number_stands_for_logs_without_any(tmp_path):
    (tmp_path / "n8").mkdir()
    folder = write(tmp_path / "n8" / "logs", log__csv=CSV)
    assert read_logs([folder], None, TABLE).runs[0].cell == Cell(4, 8, 0)


def test_the_date_and_host_of_an_event_folder_are_no_setting():
    """torch and transformers name it so: the n01 of Jun01 is no word of the name, and a host n12 is
    no better."""
    rows = (DataRow("", "step 0", {"step": 0, "acc": 0.1}),)
    table = LogTable("gsm8k-n8/runs/Jun01_10-00-00_gpu3", rows)
    assert map_columns(table, TABLE, tensorboard.FIELDS).constants["n"] == 8
    with refused(where="--map n=n{}"):
        map_columns(
            replace(table, source="gsm8k-n8/runs/Nov27_10-00-00_n12"), TABLE, tensorboard.FIELDS
        )


def test_two_kinds_of_logs_in_one_folder_are_refused(tmp_path):
    shutil.copytree(FIXTURES / "trl", tmp_path / "trl")
    shutil.copytree(FIXTURES / "wandb/own", tmp_path / "wandb")
    with refused(where="formats of the logs"):
        read_logs([tmp_path], None, {})


def test_the_long_form_in_capitals(logged):
    text = "Name,Metric,_step,Value\na,val/acc,0,.1\na,train/reward,0,.9\na,val/acc,1,.2\n"
    (run,) = logged("csv", text, "reward=val/acc,step=_step,n=4,B_p=4").runs
    assert [p.metrics for p in run.points] == [{"val/acc": 0.1}, {"val/acc": 0.2}]


def test_all_that_is_missing_is_said_at_once(logged):
    with refused(where="log.csv"):
        logged("csv", "step,foo\n0,a\n1,b\n")


def test_one_metric_of_different_problems_is_refused(logged):
    metrics = [f"val-core/{problems}/acc/mean@4" for problems in ("math", "gsm8k")]
    logs = {f"{i}.jsonl": [{"step": 1, "data": {name: 0.5}}] for i, name in enumerate(metrics)}
    with refused(where="validation metrics"):
        logged("verl", logs, "n=2,B_p=2")


def test_a_set_without_acc_is_a_validation_metric_like_one_with_it(logged):
    """verl calls the metric of problems whose reward function returns a number reward, of others
    acc."""
    rows = [
        {"step": 1, "data": {"val-core/gsm8k/reward/mean@4": 0.5, "val-core/aime/acc/mean@4": 0.1}}
    ]
    with refused(where="log.verl"):
        logged("verl", rows, "n=2,B_p=2")


def test_two_metrics_of_one_name_are_refused(logged):
    """mean@4 is called avg@4, so the second would take the place of the first."""
    rows = [{"step": 1, "data": {"val-core/a/acc/mean@4": 0.1, "val-core/b/acc/mean@4": 0.5}}]
    maps = "n=2,B_p=2,reward=val-core/a/acc/mean@4,"
    with refused(where="log.verl"):
        logged("verl", rows, maps + "avg@4=val-core/b/acc/mean@4")
    (run,) = logged("verl", rows, maps + "metric:b/avg@4=val-core/b/acc/mean@4").runs
    assert run.points[0].metrics == {"avg@4": 0.1, "b/avg@4": 0.5}
    with refused(where="log.csv"):
        logged(
            "csv",
            "step,acc,a,b\n0,0.1,0.2,0.3\n",
            "n=2,B_p=2,reward=acc,train_reward=a,train:reward=b",
        )


def test_runs_of_different_rates_are_named(tmp_path):
    """Their configs are in the logs; they stay runs of one cell, which the note puts in
    question."""
    rollout = "'rollout': {'n': 8}}, 'data': {'train_batch_size': 4}}"
    for rate, steps in (("1e-06", STEPS), ("5e-06", STEPS.replace("0.2", "0.3"))):
        config = f"{{'actor_rollout_ref': {{'actor': {{'optim': {{'lr': {rate}}}}}, {rollout}\n"
        (tmp_path / f"{rate}.log").write_text(config + steps)
    notes = read_logs([tmp_path], None, {}).notes
    assert any(
        "differ in actor_rollout_ref.actor.optim.lr (1e-06, 5e-06)" in note for note in notes
    )


def test_a_command_over_several_lines(tmp_path):
    command = (
        "+ python3 -m verl.trainer.main_ppo \\\n  data.train_batch_size=16 \\\n  "
        "actor_rollout_ref.rollout.n=8\n"
    )
    (tmp_path / "job.log").write_text(command + STEPS)
    assert read_logs([tmp_path / "job.log"], None, {}).runs[0].cell == Cell(16, 8, 0)


def test_iterations_over_one_batch_are_said(tmp_path, monkeypatch):
    shutil.copy(FIXTURES / "trl/checkpoint-6/trainer_state.json", tmp_path)
    arguments = dict.fromkeys(
        ("generation_batch_size", "gradient_accumulation_steps", "steps_per_generation"), 16
    )
    monkeypatch.setattr(
        trl, "_read_arguments", lambda _: {**arguments, "num_generations": 4, "num_iterations": 2}
    )
    result = read_logs([tmp_path], "trl", {})
    assert result.runs[0].cell == Cell(2, 4, 0)
    assert any(
        "num_iterations = 2: B_p counts the new problems per update" in note
        for note in result.notes
    )


KINDS = {
    "split": ["val", "train", "val", "train"],
    "dataset": ["math", "aime", "gsm8k", "math"],
    "is_val": [True, False, True, False],
}


@pytest.mark.parametrize("column", KINDS)
@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_rows_of_several_kinds_are_not_one_curve(logged, column, format):
    """No field is of that column; by themselves, steps and rewards look like those of one run."""
    rows = [
        {"step": i, column: kind, "reward": 0.1 + i / 10} for i, kind in enumerate(KINDS[column])
    ]
    texts = [f"step,{column},reward\n", *(",".join(map(str, row.values())) + "\n" for row in rows)]
    with refused(where="log"):
        logged(format, "".join(texts) if format == "csv" else rows, "n=2,B_p=2")


@pytest.mark.parametrize(
    "texts",
    [
        ["a", "b", "c", "d"],  # a name for each, as of checkpoints
        ["2025-06-14", "2025-06-14", "2025-06-15", "2025-06-16"],
        ["warm-up", "warm-up", "main", "main"],
        ["saved", "", "saved", ""],
        ["a", "a", "a", "a"],
    ],
)
def test_texts_that_do_not_go_to_and_fro_are_no_kinds(logged, texts):
    lines = [f"{i},{text},{0.1 + i / 10}\n" for i, text in enumerate(texts)]
    assert (
        len(logged("csv", "step,phase,reward\n" + "".join(lines), "n=2,B_p=2").runs[0].points) == 4
    )


def test_a_run_may_come_back_to_a_host_that_it_had_left(logged):
    lines = (f"{i},{host},{host != 'a'},{0.1 + i / 10}\n" for i, host in enumerate("aabab"))
    assert (
        len(
            logged("csv", "step,host,is_best,reward\n" + "".join(lines), "n=2,B_p=2").runs[0].points
        )
        == 5
    )


def test_the_kind_of_training_rows_is_no_kind_of_evaluations(logged):
    rows = [{"step": i, "mode": "train", "train_reward": 0.1} for i in range(4)]
    rows += [{"step": i, "mode": "eval", "reward": 0.1 + i / 10} for i in (1, 3)]
    (run,) = logged("jsonl", sorted(rows, key=lambda row: row["step"]), "n=2,B_p=2").runs
    assert [p.M for p in run.points] == [1, 3]


def rows_by_kind(column: str, kinds: tuple[str, str], runs: tuple[str, ...] = ("a",)) -> str:
    rows = [
        f"{run},8,2,{step},{kind},{step / 100 + seed / 10}\n"
        for seed, run in enumerate(runs)
        for kind in kinds
        for step in (0, 5, 10)
    ]
    return f"run,n,B_p,step,{column},reward\n" + "".join(rows)


@pytest.mark.parametrize(
    ("column", "kinds", "first"),
    [
        ("split", ("train", "val"), "val"),
        ("set", ("train", "test"), "test"),
        ("is_eval", ("False", "True"), "True"),
        ("is_train", ("True", "False"), "False"),
        ("dataset", ("gsm8k", "math500"), "gsm8k"),
    ],
)
@pytest.mark.parametrize("runs", [("a",), ("a", "b")])
def test_a_metric_after_another_that_a_column_tells_apart(tmp_path, column, kinds, first, runs):
    """Not "step falls": they are no runs. The rows of one, as the message says, are imported."""
    (tmp_path / "log.csv").write_text(rows_by_kind(column, kinds, runs))
    with refused(where="log.csv, line 2"):
        read_logs([tmp_path / "log.csv"], None, {})
    lines = (tmp_path / "log.csv").read_text().splitlines(keepends=True)
    (tmp_path / "one.csv").write_text(
        "".join(line for i, line in enumerate(lines) if not i or f",{first}," in line)
    )
    assert len(read_logs([tmp_path / "one.csv"], None, {}).runs) == len(runs)


def test_stages_of_a_run_are_no_such_column(tmp_path):
    """A run of two stages, and one that was resumed in its second."""
    rows = [(0, "short"), (5, "short"), (10, "short"), (10, "long"), (15, "long")]
    text = "run,n,B_p,step,stage,reward\n" + "".join(
        f"a,8,2,{step},{stage},.{step + 10}\n" for step, stage in rows
    )
    (tmp_path / "log.csv").write_text(text)
    assert len(read_logs([tmp_path / "log.csv"], None, {}, resumed=True).runs[0].points) == 4
    (tmp_path / "log.csv").write_text(text.replace("a,8,2,10,long,.20\n", ""))
    assert len(read_logs([tmp_path / "log.csv"], None, {}).runs[0].points) == 4
