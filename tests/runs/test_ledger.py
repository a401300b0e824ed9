"""The ledger: append, resume, and what is refused with its place."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from isojax.core.config import config_hash, load_config, save_config
from isojax.core.nouns import Cell, EvalPoint, Leg, Spending
from isojax.runs.ledger import RECORDS_FILE, TIMING_FILE, Ledger, read_run, read_runs
from isojax.runs.spend_file import SPEND_FILE, read_spending, write_spending
from tests.refusals import refused

CELL = Cell(16, 4, 0)


def point(target: int, rollouts: int | None = None) -> EvalPoint:
    C = target if rollouts is None else rollouts
    return EvalPoint(
        target, C // CELL.B, C, 5 * C, {"avg@2": 0.25 + C / 10_000}, (), 2, {"entropy": 1.5}
    )


def cell_folder(
    root: Path, cell: Cell = CELL, targets: tuple[int, ...] = (0, 64, 128), cell_hash: str = "abc"
) -> Path:
    folder = root / "cells" / cell.name
    ledger = Ledger(folder, cell, cell_hash)
    for target in targets:
        ledger.append(point(target), seconds=36.0, devices=2)
    return folder


def warnings_of(folder: Path) -> tuple[list[int], list[str]]:
    warnings: list[str] = []
    return [p.target for p in read_run(folder, warnings.append).points], warnings


def test_what_was_appended_reads_back(tmp_path: Path) -> None:
    run = read_run(cell_folder(tmp_path))
    assert run.cell == CELL and run.cell_hash == "abc"
    assert run.points == (point(0), point(64), point(128))
    assert run.device_hours == pytest.approx((0.02, 0.04, 0.06))  # 36 s x 2 devices a point


def test_right_answers_of_extra_sets_are_kept_and_may_be_absent(tmp_path: Path) -> None:
    folder = cell_folder(tmp_path, targets=(0,))
    path = folder / RECORDS_FILE
    old = json.loads(path.read_text().splitlines()[1])
    del old["extra"]  # as an earlier isojax wrote it
    path.write_text(path.read_text().splitlines()[0] + "\n" + json.dumps(old) + "\n")
    new = dataclasses.replace(point(64), extra={"hard": (0, 2), "ood": (1,)})
    Ledger(folder, CELL, "abc").append(new, seconds=1.0, devices=1)
    assert read_run(folder).points == (point(0), new)
    row = json.loads(path.read_text().splitlines()[2])
    assert row["extra"] == {"hard": [0, 2], "ood": [1]}
    path.write_text(path.read_text().replace('{"hard": [0, 2], "ood": [1]}', "[0, 2]"))
    with refused(where="records.jsonl, line 3"):
        read_run(folder)


def test_appending_a_target_twice_writes_it_once(tmp_path: Path) -> None:
    folder = cell_folder(tmp_path)
    before = (folder / RECORDS_FILE).read_bytes(), (folder / TIMING_FILE).read_bytes()
    again = Ledger(folder, CELL, "abc")
    assert again.targets == [0, 64, 128]
    again.append(point(64), seconds=1.0, devices=1)
    assert before == ((folder / RECORDS_FILE).read_bytes(), (folder / TIMING_FILE).read_bytes())
    again.append(point(256), seconds=1.0, devices=1)
    assert [p.target for p in read_run(folder).points] == [0, 64, 128, 256]


def test_every_torn_last_line_loses_that_line_alone(tmp_path: Path) -> None:
    folder = cell_folder(tmp_path)
    path = folder / RECORDS_FILE
    full = path.read_bytes()
    start = full.rstrip(b"\n").rindex(b"\n") + 1
    for cut in range(start, len(full) + 1):
        path.write_bytes(full[:cut])
        targets, warnings = warnings_of(folder)
        complete = cut == len(full)
        assert targets == ([0, 64, 128] if complete else [0, 64])
        assert len(warnings) == (0 if complete or cut == start else 1)
        ledger = Ledger(folder, CELL, "abc")
        ledger.append(point(128), seconds=36.0, devices=2)
        assert path.read_bytes() == full


def test_a_torn_header_starts_the_ledger_again(tmp_path: Path) -> None:
    folder = cell_folder(tmp_path, targets=())
    full = (folder / RECORDS_FILE).read_bytes()
    (folder / RECORDS_FILE).write_bytes(full[:20])
    with refused(where="records.jsonl"):
        read_run(folder)
    Ledger(folder, CELL, "abc")
    assert (folder / RECORDS_FILE).read_bytes() == full


@pytest.mark.parametrize("broken", [b'{"kind": "ev', b"", b"[1, 2]", b'{"target": 3}', b"\xff\xfe"])
def test_a_broken_middle_line_is_refused_with_its_place(tmp_path: Path, broken: bytes) -> None:
    folder = cell_folder(tmp_path)
    lines = (folder / RECORDS_FILE).read_bytes().split(b"\n")
    lines[2] = broken
    (folder / RECORDS_FILE).write_bytes(b"\n".join(lines))
    with refused(where="records.jsonl, line 3"):
        read_run(folder)
    with refused(where="records.jsonl, line 3"):
        Ledger(folder, CELL, "abc")
    assert (folder / RECORDS_FILE).read_bytes() == b"\n".join(lines)


def test_a_point_that_lacks_a_field_is_refused_with_its_place(tmp_path: Path) -> None:
    folder = cell_folder(tmp_path)
    with (folder / RECORDS_FILE).open("a") as f:
        f.write(json.dumps({"kind": "eval", "target": 256}) + "\n")
    with refused(where="records.jsonl, line 5"):
        read_run(folder)


def test_falling_rollouts_are_refused_with_their_place(tmp_path: Path) -> None:
    folder = cell_folder(tmp_path)
    Ledger(folder, CELL, "abc").append(point(256, rollouts=100), seconds=1.0, devices=1)
    with refused(where="records.jsonl, line 5"):
        read_run(folder)


@pytest.mark.parametrize(
    ("cell", "cell_hash"), [(Cell(16, 4, 1), "abc"), (Cell(8, 8, 0), "abc"), (CELL, "abd")]
)
def test_another_runs_ledger_is_refused_and_kept(
    tmp_path: Path, cell: Cell, cell_hash: str
) -> None:
    folder = cell_folder(tmp_path)
    before = (folder / RECORDS_FILE).read_bytes()
    with refused(where="records.jsonl"):
        Ledger(folder, cell, cell_hash)
    assert (folder / RECORDS_FILE).read_bytes() == before


def test_a_run_of_spend_has_a_field_that_older_ledgers_have_in_a_name(tmp_path: Path) -> None:
    cell = Cell.of_spend(16, 4)
    folder = cell_folder(tmp_path, cell, targets=(0,))
    path = folder / RECORDS_FILE
    header = json.loads(path.read_text().splitlines()[0])
    assert header.pop("is_of_spend") is True and read_run(folder).cell == cell

    rest = path.read_text().partition("\n")[2]
    path.write_text(json.dumps(header) + "\n" + rest)  # as an earlier isojax wrote it
    assert read_run(folder).cell == cell
    Ledger(folder, cell, "abc").append(point(64), seconds=1.0, devices=1)
    assert [p.target for p in read_run(folder).points] == [0, 64]

    path.write_text(json.dumps({**header, "is_of_spend": 1}) + "\n" + rest)
    with refused():
        read_run(folder)


def test_spending_is_read_back_and_its_cells_do_not_say_whose_they_are(tmp_path: Path) -> None:
    cell = Cell.of_spend(16, 4)
    spending = Spending(600, "avg@2", (Leg(cell, 4, 0, 64), Leg(cell, 4, 64, 600, 0.5, (0.4, 0.6))))
    write_spending(tmp_path, spending)
    legs = json.loads((tmp_path / SPEND_FILE).read_text())["legs"]
    assert list(legs[0]["cell"]) == ["B_p", "n", "seed", "schedule", "stages", "n_max"]
    assert read_spending(tmp_path) == spending


def test_no_point_no_file_no_folder(tmp_path: Path) -> None:
    with refused(where="records.jsonl"):
        read_run(cell_folder(tmp_path, targets=()))
    with refused():
        read_runs([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with refused():
        read_runs([tmp_path / "empty"])


def test_a_missing_clock_leaves_device_hours_empty(tmp_path: Path) -> None:
    folder = cell_folder(tmp_path)
    lines = (folder / TIMING_FILE).read_text().splitlines(keepends=True)
    (folder / TIMING_FILE).write_text(lines[0] + lines[2])
    assert read_run(folder).device_hours == ()


def test_cells_are_found_below_a_sweep_and_sorted(tmp_path: Path) -> None:
    cells = [Cell(16, 8, 0), Cell(16, 4, 1), Cell(16, 4, 0)]
    for cell in cells:
        cell_folder(tmp_path, cell)
    assert [run.cell for run in read_runs([tmp_path])] == sorted(cells)
    assert [run.cell for run in read_runs([tmp_path / "cells" / "16x8-s0" / RECORDS_FILE])] == [
        Cell(16, 8, 0)
    ]


def test_two_ledgers_of_one_cell_and_mixed_settings_are_refused(tmp_path: Path) -> None:
    cell_folder(tmp_path / "a")
    cell_folder(tmp_path / "b")
    with refused():
        read_runs([tmp_path / "a", tmp_path / "b"])
    cell_folder(tmp_path / "c", Cell(16, 8, 0), cell_hash="other")
    with refused():
        read_runs([tmp_path / "a", tmp_path / "c"])


def test_the_settings_that_differ_are_named(tmp_path: Path) -> None:
    """By the config.yaml of their sweeps, where these are those of the runs."""

    def sweep(name: str, cell: Cell, *words: str) -> Path:
        config = load_config("quickstart", words)
        engines = (config.run.rollouts, config.run.evaluations)
        folder = tmp_path / name
        cell_folder(folder, cell, cell_hash=config_hash(config.cell, *engines))
        save_config(config, folder / "config.yaml")
        return folder

    plain = sweep("plain", CELL)
    slower = sweep("slower", Cell(16, 8, 0), "cell.rl.learning_rate=1e-5")
    with refused():
        read_runs([plain, slower])

    by_server = ("run.rollouts=server", "run.server.url=http://host", "run.eval_server=http://host")
    served = sweep("served", Cell(16, 16, 0), *by_server)
    with refused():
        read_runs([plain, served])

    # A config that was edited later is not the runs'.
    save_config(load_config("quickstart", ["cell.rl.kl=0.1"]), slower / "config.yaml")
    with refused():
        read_runs([plain, slower])
