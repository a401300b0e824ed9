"""A folder of logs: which there are, those that cannot be used, and runs that were resumed."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest

from isojax.core.nouns import Cell, RunRecord
from isojax.runs import importers
from isojax.runs.logs.find_logs import detect_format
from isojax.runs.logs.import_logs import read_logs
from isojax.scaling.fit import fit_all_runs
from tests.refusals import refused
from tests.runs.importers.conftest import FIXTURES
from tests.runs.importers.make_fixtures import EVERY, STEPS, accuracy
from tests.scaling.synthetic import world

RESUMED = FIXTURES / "wandb_resumed"


@pytest.mark.parametrize(
    ("name", "log_format"),
    [
        ("runs.csv", "csv"),
        ("verl", "verl"),
        ("verl/n8.jsonl", "verl"),
        ("wandb", "wandb"),
        ("wandb/own/run-own.wandb", "wandb"),
        ("tensorboard", "tensorboard"),
        ("trl", "trl"),
        ("trl/checkpoint-6/trainer_state.json", "trl"),
    ],
)
def test_formats_are_detected(name, log_format):
    assert detect_format([FIXTURES / name]) == log_format


def test_formats_that_cannot_be_recognised(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing\n")
    with refused():
        detect_format([tmp_path])
    with refused(where="formats of the logs"):
        detect_format([FIXTURES / "runs.csv", FIXTURES / "verl"])


FORMAT_OF_A_FORK = """
from isojax.core.tabular import DataRow
from isojax.runs.importers import importer
from isojax.runs.logs.log_table import LogTable

def is_mine(log):
    return "MY TRAINER" in log.head

FIELDS = {"step": ("s",), "reward": ("r",), "n": ("g",), "B_p": ("p",)}

@importer(fields=FIELDS, detect=is_mine, example="EXAMPLE")
def read(path):
    lines = path.read_text().splitlines()[1:]
    rows = [dict(zip("srgp", line.split(","))) for line in lines]
    rows = [DataRow(str(path), f"line {i}", row) for i, row in enumerate(rows, 2)]
    return [LogTable(str(path), tuple(rows))]
"""
MY_LOG = "MY TRAINER,,,\n0,.25,8,4\n2,.5,8,4\n"  # a CSV too, but for its first line


@pytest.mark.parametrize("place", ["the working directory", "isojax's folder"])
@pytest.mark.parametrize("as_folder", [False, True])
def test_a_format_of_a_forks_own_file_is_detected(tmp_path, monkeypatch, place, as_folder):
    name = f"mine_{place == 'the working directory':d}{as_folder:d}"
    (tmp_path / "code").mkdir()
    (tmp_path / "logs").mkdir()
    (tmp_path / "code" / f"{name}.py").write_text(FORMAT_OF_A_FORK)
    # beside it: an importer that says nothing of how it is detected, and a file that has none
    (tmp_path / "code" / "undetected.py").write_text(
        FORMAT_OF_A_FORK.replace("detect=is_mine, ", "")
    )
    (tmp_path / "code" / "script.py").write_text("raise SystemExit('not to be imported')\n")
    (tmp_path / "logs" / "a.csv").write_text(MY_LOG)
    if place == "the working directory":
        monkeypatch.chdir(tmp_path / "code")
    else:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(importers, "__path__", [*importers.__path__, str(tmp_path / "code")])
        folders = importers.__spec__.submodule_search_locations
        monkeypatch.setattr(
            importers.__spec__, "submodule_search_locations", [*folders, str(tmp_path / "code")]
        )
        (tmp_path / "code" / "script.py").unlink()

    path = tmp_path / "logs" if as_folder else tmp_path / "logs" / "a.csv"
    assert detect_format([path]) == name
    (run,) = read_logs([path], None, {}).runs
    assert run.cell == Cell(4, 8, 0)
    assert [(point.M, point.metrics["r"]) for point in run.points] == [(0, 0.25), (2, 0.5)]


def test_an_importer_imports_no_other():
    """So that a format is one file; what several of them know is in runs/logs/."""
    for file in Path(importers.__path__[0]).glob("*.py"):
        names = re.findall(r"^(?:from|import) isojax\.runs\.importers(.*)", file.read_text(), re.M)
        assert names in ([], [" import importer"]), file


def test_a_folder_of_files_without_those_that_cannot_be_used(tmp_path):
    for n in (4, 8):
        (tmp_path / f"n{n}.jsonl").write_text(
            "".join(json.dumps({"step": i, "reward": 0.1 * i, "B_p": 2}) + "\n" for i in range(4))
        )
    (tmp_path / "n16.jsonl").write_text("")
    (tmp_path / "n32.jsonl").write_text('{"step": 0, "rew')
    (tmp_path / "notes.txt").write_text("not a log\n")
    result = read_logs([tmp_path], "jsonl", {"n": "n{}"})
    assert [run.cell for run in result.runs] == [Cell(2, 4, 0), Cell(2, 8, 0)]
    assert [text.split(",")[0].split(": ")[0] for text in result.skipped] == [
        str(tmp_path / "n16.jsonl"),
        str(tmp_path / "n32.jsonl"),
    ]
    # named by the user, it is refused
    with refused(where="n16.jsonl"):
        read_logs([tmp_path / "n4.jsonl", tmp_path / "n16.jsonl"], "jsonl", {"n": "n{}"})


def test_a_log_of_a_folder_whose_numbers_cannot_be_used_is_skipped(tmp_path):
    for n, factor in {4: 0.1, 8: 42, 16: 0.05}.items():
        rows = [{"step": i, "reward": factor * i, "B_p": 2, "seed": 0} for i in range(4)]
        (tmp_path / f"n{n}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "n16b.jsonl").write_text(
        '{"step": 3, "reward": 0.1, "B_p": 2}\n{"step": 2, "reward": 0.1, "B_p": 2}\n'
    )
    result = read_logs([tmp_path], "jsonl", {"n": "n{}"})
    assert [run.cell for run in result.runs] == [Cell(2, 4, 0), Cell(2, 16, 0)]
    out_of_range, falling = result.skipped
    assert out_of_range.startswith(
        f"{tmp_path / 'n8.jsonl'}, line 2: reward: given 42; expected a number in [0, 1]"
    )
    assert falling.startswith(f"{tmp_path / 'n16b.jsonl'}, line 2: step falls from 3")
    assert "numbered" not in str(result.notes)  # the run of n16b.jsonl takes no seed
    # named by the user, it is refused
    with refused(where="n8.jsonl, line 2: reward"):
        read_logs([tmp_path / "n4.jsonl", tmp_path / "n8.jsonl"], "jsonl", {"n": "n{}"})
    for name in ("n4", "n16"):
        (tmp_path / f"{name}.jsonl").unlink()
    with refused(where="n8.jsonl, line 2: reward"):
        read_logs([tmp_path], "jsonl", {"n": "n{}"})
    (tmp_path / "n16b.jsonl").unlink()
    # the only one of its folder
    with refused(where="n8.jsonl, line 2: reward"):
        read_logs([tmp_path], "jsonl", {"n": "n{}"})


def test_a_mistake_in_all_logs_is_refused(tmp_path):
    for n in (4, 8):
        (tmp_path / f"n{n}.jsonl").write_text('{"step": 0, "reward": 0.1}\n')
    with refused(where="n4.jsonl"):
        read_logs([tmp_path], "jsonl", {"n": "n{}", "reward": "solved"})


def test_wandb_a_run_that_broke_off_and_was_resumed_is_one_run():
    result = read_logs([RESUMED], None, {"n": "n{}", "reward": "val/acc"})
    assert [run.cell for run in result.runs] == [Cell(16, 8, 0), Cell(16, 16, 0)]
    for run in result.runs:
        expected = {step: accuracy(run.cell.n, step) for step in range(0, STEPS + 1, EVERY)}
        assert {p.M: p.metrics["val/acc"] for p in run.points} == pytest.approx(expected, abs=1e-9)
    (note,) = result.notes
    assert (
        note.startswith("cut-n8 was resumed (")
        and "2 rows of steps that were repeated count once" in note
    )
    (skipped,) = result.skipped
    assert "nothingn4.wandb: no step" in skipped


def as_csv(runs: list[RunRecord], resumed: bool) -> str:
    """The runs' evaluations; `resumed`: the run of n = 4 broke off after 9 of them, .02 too high in
    the last three, which it repeats.
    """
    lines = ["run,n,B_p,seed,step,rollouts,avg@4"]
    for run in runs:
        name = f"n{run.cell.n}-s{run.cell.seed}"
        rows = [(p.M, p.rollouts, p.metrics["avg@4"]) for p in run.points]
        if resumed and run.cell.n == 4:
            rows = [*rows[:6], *((M, C, reward + 0.02) for M, C, reward in rows[6:9]), *rows[6:]]
        cell = run.cell
        lines += [
            f"{name},{cell.n},{cell.B_p},{cell.seed},{M},{C},{reward!r}" for M, C, reward in rows
        ]
    return "\n".join(lines)


def test_a_resumed_world_gives_the_same_law(tmp_path: Path):
    runs, fits = world(n=(4, 16), seeds=1, problems=60, budget=8000).runs, []
    for resumed in (False, True):
        log = tmp_path / f"{resumed}.csv"
        log.write_text(as_csv(runs, resumed))
        result = read_logs([log], "csv", {}, resumed=resumed)
        assert bool(result.notes) == resumed
        fits.append(fit_all_runs(result.runs, "avg@4").model_dump(exclude={"runs"}))
    assert fits[0] == fits[1]
    with refused(where="True.csv, line 11"):
        read_logs([tmp_path / "True.csv"], "csv", {})


@pytest.mark.parametrize(("n", "runs"), [(4, [(4, 3)]), (8, [(4, 2), (8, 2)])])
def test_logs_of_one_name_are_one_run_on_request_unless_settings_differ(tmp_path, n, runs):
    (tmp_path / "a.csv").write_text("run,step,reward,n,B_p\nx,0,.1,4,2\nx,1,.2,4,2\n")
    (tmp_path / "b.csv").write_text(f"run,step,reward,n,B_p\nx,1,.3,{n},2\nx,2,.4,{n},2\n")
    result = read_logs([tmp_path], "csv", {}, resumed=True)
    assert [(run.cell.n, len(run.points)) for run in result.runs] == runs
    assert result.runs[-1].points[-2].metrics == {"reward": 0.3}


def test_logs_of_one_id_with_other_settings_are_refused(tmp_path, monkeypatch):
    """As W&B's, by a format of one's own."""
    (tmp_path / "of_one_id.py").write_text(OF_ONE_ID)
    monkeypatch.chdir(tmp_path)
    for n in (4, 8):
        (tmp_path / f"{n}.log").write_text("")
    with refused(where="8.log, line 1"):
        read_logs([tmp_path / "4.log", tmp_path / "8.log"], "of_one_id", {})


OF_ONE_ID = """
from isojax.core.tabular import DataRow
from isojax.runs.importers import importer
from isojax.runs.logs.log_table import LEDGER_FIELDS, LogTable

@importer(fields=LEDGER_FIELDS)
def read(path):
    row = DataRow(str(path), "line 1", {"step": 0, "reward": 0.5, "n": int(path.stem), "B_p": 2})
    return [LogTable(str(path), (row,), run_id="x")]
"""


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (
            "a.csv",
            "step,reward\n1,0.5\xe9\n".encode("latin-1"),
        ),
        ("a.csv", b""),
        ("a.csv.gz", b"\x1f\x8b torn"),
        ("a.jsonl", b"\0\1\2\n"),
    ],
)
def test_of_a_damaged_log_without_a_format_the_damage_is_said(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with refused():
        read_logs([tmp_path / name], None, {})


def test_a_header_that_a_later_part_writes_again_is_no_row(tmp_path: Path):
    (tmp_path / "a.csv").write_text("step,val/acc\n0,0.1\n10,0.2\nstep, val/acc\n10,0.2\n20,0.3\n")
    maps = {"reward": "val/acc", "n": "8", "B_p": "4"}
    (run,) = read_logs([tmp_path / "a.csv"], "csv", maps, resumed=True).runs
    assert [point.M for point in run.points] == [0, 10, 20]


def test_a_run_that_repeats_its_last_step_alone(tmp_path: Path):
    """Its training row follows the evaluation of the same step, with which it has nothing in
    common."""
    rows = ["0,.1,", "1,,.5", "1,.2,", "2,,.5", "2,.3,", "2,,.6", "2,.4,", "3,.5,"]
    (tmp_path / "a.csv").write_text("\n".join(["step,reward,train_reward", *rows, ""]))
    (run,) = read_logs([tmp_path / "a.csv"], "csv", {"n": "8", "B_p": "4"}, resumed=True).runs
    assert [(p.M, p.metrics["reward"], p.train.get("reward")) for p in run.points] == [
        (0, 0.1, None), (1, 0.2, 0.5), (2, 0.4, 0.6), (3, 0.5, None)
    ]  # fmt: skip


PART = "step,val/acc\n{}\n"


def parts_of(folder: Path, **steps: range) -> Path:
    """A CSV for each name, with the evaluations at its steps."""
    for name, numbers in steps.items():
        rows = "\n".join(f"{step},{0.1 + 0.001 * step:.3f}" for step in numbers)
        (folder / f"{name}.csv").write_text(PART.format(rows))
    return folder


def test_a_later_part_that_leaves_nothing_of_the_run_is_refused(tmp_path: Path):
    """Two seeds, or a file with the newest row first: each would replace all before it."""
    maps = {"reward": "val/acc", "n": "8", "B_p": "4", "seed": "0"}
    parts_of(tmp_path, newest_first=range(50, -1, -10))
    with refused(where="newest_first.csv, line 3"):
        read_logs([tmp_path], "csv", maps, resumed=True)
    parts_of(tmp_path, newest_first=range(0, 60, 10), other_seed=range(0, 80, 10))
    with refused(where="other_seed.csv, line 2"):
        read_logs([tmp_path], "csv", maps, resumed=True)


@pytest.mark.parametrize("runs", [2, 3])
def test_rows_of_runs_that_alternate_are_no_parts_of_one(tmp_path: Path, runs: int):
    """Seeds or benchmarks, step by step; but a run may have failed once at its first step, and go
    on."""
    maps = {"reward": "val/acc", "n": "8", "B_p": "4"}
    rows = [
        f"{step},{0.1 + 0.01 * step + 0.02 * run:.3f}" for step in range(5) for run in range(runs)
    ]
    (tmp_path / "a.csv").write_text(PART.format("\n".join(rows)))
    with refused(where="a.csv"):
        read_logs([tmp_path], "csv", maps, resumed=True)
    # the others begin later
    (tmp_path / "a.csv").write_text(PART.format("\n".join([rows[0], *rows[runs:]])))
    with refused(where="a.csv"):
        read_logs([tmp_path], "csv", maps, resumed=True)
    (tmp_path / "a.csv").write_text(
        PART.format("\n".join([rows[0], *rows[::runs][:3], *rows[::runs][2:]]))
    )
    (run,) = read_logs([tmp_path], "csv", maps, resumed=True).runs
    assert [point.M for point in run.points] == list(range(5))


def test_parts_without_a_name_are_joined_by_their_seed_in_the_order_of_their_steps(tmp_path: Path):
    parts_of(tmp_path, **{"slurm-99999": range(0, 60, 10), "slurm-100000": range(50, 110, 10)})
    maps = {"reward": "val/acc", "n": "8", "B_p": "4", "seed": "0"}
    (run,) = read_logs([tmp_path], "csv", maps, resumed=True).runs
    assert [point.M for point in run.points] == list(range(0, 110, 10))


def test_a_log_comes_before_those_whose_names_go_on_after_its_own(tmp_path: Path):
    """A hyphen sorts before a dot; where logs are named in the other order, it is said what to
    do."""
    parts_of(tmp_path, **{"n8": range(0, 60, 10), "n8-resumed": range(50, 110, 10)})
    maps = {"reward": "val/acc", "n": "8", "B_p": "4", "seed": "0"}
    (run,) = read_logs([tmp_path], "csv", maps, resumed=True).runs
    assert [point.M for point in run.points] == list(range(0, 110, 10))
    with refused(where="n8.csv, line 2"):
        read_logs([tmp_path / "n8-resumed.csv", tmp_path / "n8.csv"], "csv", maps, resumed=True)


def test_which_files_of_a_folder_are_logs(tmp_path: Path):
    """Capital endings too; copies that a notebook keeps in hidden folders are none."""
    parts_of(tmp_path, a=range(0, 60, 10)).joinpath("a.csv").rename(tmp_path / "A.CSV")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "A-checkpoint.csv").write_text(
        (tmp_path / "A.CSV").read_text()
    )
    maps = {"reward": "val/acc", "n": "8", "B_p": "4"}
    result = read_logs([tmp_path], "csv", maps)
    assert [run.source for run in result.runs] == [
        str(tmp_path / "A.CSV") + ", line 2"
    ] and not result.skipped
    with zipfile.ZipFile(tmp_path / "b.csv.zip", "w") as archive:
        archive.writestr("b.csv", (tmp_path / "A.CSV").read_text())
    assert "b.csv.zip: expected text in UTF-8" in str(read_logs([tmp_path], "csv", maps).skipped)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_of_rows_is_read_like_lines(tmp_path: Path, indent: int | None):
    """As pandas writes it with orient="records"."""
    file = tmp_path / "records.json"
    file.write_text(
        json.dumps(
            [{"step": i, "reward": 0.1 * i, "n": 8, "B_p": 4} for i in range(3)], indent=indent
        )
    )
    (run,) = read_logs([file], None, {}).runs
    assert [(p.rollouts, p.metrics["reward"]) for p in run.points] == [
        (0, 0.0),
        (32, 0.1),
        (64, 0.2),
    ]
    file.write_text('[{"step": 0, "reward": 0.1}, {"step": 1, "reward": "?"}]')
    with refused(where="records.json, entry 2: reward"):
        read_logs([file], None, {"n": "8", "B_p": "4"})
    file.write_text('[{"step": 0, "reward": 0.1}, 7]')
    with refused(where="records.json, line 2"):
        read_logs([file], None, {"n": "8", "B_p": "4"})


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("as_list", [True, False])
def test_the_log_history_of_transformers_in_a_file_of_any_name(
    tmp_path: Path, as_list: bool, indent: int | None
):
    history = [
        {"epoch": 0.1 * i, "eval_reward": 0.1 * i, "eval_runtime": 9.0, "step": i} for i in range(3)
    ]
    file = tmp_path / "run.json"
    file.write_text(json.dumps(history if as_list else {"log_history": history}, indent=indent))
    for log_format in (None, "trl"):
        (run,) = read_logs([file], log_format, {"n": "8", "B_p": "4"}).runs
        assert [(p.M, p.metrics["eval_reward"]) for p in run.points] == [
            (0, 0.0),
            (1, 0.1),
            (2, 0.2),
        ]
