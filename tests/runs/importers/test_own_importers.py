"""Importers that users write: what is refused of them, and what is noted."""

from __future__ import annotations

from pathlib import Path

import pytest

from isojax.runs.logs.import_logs import ImportedRuns, read_logs
from tests.refusals import refused

IMPORTER = """\
from isojax.core.tabular import DataRow
from isojax.runs.importers import importer
from isojax.runs.logs.log_table import LogTable


@importer(
    fields={"step": ("update",), "reward": ("acc",), "n": ("G",), "B_p": ("prompts",)},
    detect=lambda log: log.content[:1] == ("mine",),
)
def read(path):
    lines = path.read_text().splitlines()[1:]
    values = [dict(cell.split("=") for cell in line.split()) for line in lines]
    rows = [DataRow(str(path), f"line {i}", row) for i, row in enumerate(values, 2)]
    return [LogTable(str(path), rows)]
"""
ROWS = ("update=0 acc=0.1", "update=8 acc=0.2", "update=16 acc=0.3")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _import(folder: Path, *rows: str, log_format: str | None = None) -> ImportedRuns:
    log = folder / "run.log"
    log.write_text("mine\n" + "".join(f"{row} G=4 prompts=16\n" for row in rows))
    return read_logs([log], log_format, {})


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        ("None", "returned NoneType"),
        ("LogTable(str(path), rows)", "returned LogTable"),
        ("values", "a list with dict in it"),
        ("[LogTable(str(path), values)]", "a LogTable with a row {'update': '0'"),
    ],
)
def test_what_is_no_list_of_tables_is_refused(folder: Path, returned: str, found: str) -> None:
    text = IMPORTER.replace("[LogTable(str(path), rows)]", returned)
    (folder / "mine.py").write_text(text)
    with refused(where=f"{folder}/mine.py:6", found=found, expected="DataRow"):
        _import(folder, *ROWS)


@pytest.mark.parametrize(
    ("before", "after", "found", "fix"),
    [
        ('"reward"', '"rewrad"', "fields has 'rewrad'", "Did you mean 'reward'?"),
        ('("acc",)', '"acc"', "fields['reward'] = 'acc'", "write ('acc',)"),
        ('("acc",)', "(7,)", "fields['reward'] = (7,)", ""),
    ],
)
def test_fields_are_checked_where_they_are_written(
    folder: Path, before: str, after: str, found: str, fix: str
) -> None:
    (folder / "mine.py").write_text(IMPORTER.replace(before, after))
    with refused(where="mine.py:6: @importer", found=found, fix=fix):
        _import(folder, *ROWS, log_format="mine")


def test_rows_without_the_reward_are_counted(folder: Path) -> None:
    (folder / "mine.py").write_text(IMPORTER)
    imported = _import(folder, *ROWS, "update=24", "update=32")
    assert len(imported.runs[0].points) == 3
    (note,) = imported.notes
    assert note.endswith("run.log: 2 rows have update, but no acc, and are left out")


def test_a_reward_that_is_nan_is_named_once(folder: Path) -> None:
    (folder / "mine.py").write_text(IMPORTER)
    imported = _import(folder, *ROWS, "update=24 acc=nan", "update=32 acc=0.4")
    assert len(imported.runs[0].points) == 4 and imported.notes == ()
    (skipped,) = imported.skipped
    assert skipped.endswith("line 5: reward (column acc) is nan")


def test_one_with_the_name_of_isojaxs_own_is_not_ignored(folder: Path) -> None:
    (folder / "trl.py").write_text(IMPORTER)
    for log_format in ("trl", None):
        with refused(where=f"{folder}/trl.py", found="has @importer and the name", fix="my_trl"):
            _import(folder, *ROWS, log_format=log_format)
    (folder / "trl.py").rename(folder / "my_trl.py")
    assert _import(folder, *ROWS).runs
