"""`isojax clean`: which checkpoints it removes, and of which runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from isojax.runs.storage import exclusive_lock
from tests.cli.conftest import Isojax
from tests.cli.test_status import CELLS, sweep

DONE, HALF, BROKEN, _ = (cell.name for cell in CELLS)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A sweep with one run done, one half done and one that broke off, each with checkpoints of 1
    KiB."""
    folder = sweep(tmp_path / "runs" / "little")
    for run in (DONE, HALF, BROKEN):
        for update in (8, 16, 32):
            state = folder / "cells" / run / "checkpoint" / str(update) / "state"
            state.mkdir(parents=True)
            (state / "arrays").write_bytes(bytes(1024))
    return folder


def checkpoints(folder: Path) -> dict[str, list[str]]:
    return {
        run: sorted(path.name for path in (folder / "cells" / run).glob("checkpoint/*"))
        for run in (DONE, HALF, BROKEN)
    }


def test_runs_that_are_done_keep_their_newest(isojax: Isojax, runs: Path) -> None:
    code, out, _ = isojax("clean", str(runs), "--yes")

    assert code == 0 and f"{DONE}: under 0.001 GiB (2 older)" in out
    assert checkpoints(runs) == {DONE: ["32"], HALF: ["16", "32", "8"], BROKEN: ["16", "32", "8"]}
    assert (runs / "cells" / DONE / "records.jsonl").exists()

    code, out, _ = isojax("clean", str(runs), "--yes")
    assert code == 0 and "nothing to remove" in out


def test_all_of_them_with_their_folder(isojax: Isojax, runs: Path) -> None:
    """A run that is done and whose checkpoint folder is gone counts as saved; with an empty one it
    would not."""
    assert isojax("clean", str(runs), "--all", "--yes")[0] == 0

    assert not (runs / "cells" / DONE / "checkpoint").exists()
    assert len(checkpoints(runs)[HALF]) == 3


def test_a_dry_run_and_a_no_remove_nothing(
    isojax: Isojax, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = checkpoints(runs)

    code, out, _ = isojax("clean", str(runs), "--dry-run")
    assert code == 0 and "nothing is removed by --dry-run" in out

    monkeypatch.setattr("typer.confirm", lambda question: False)
    code, _, err = isojax("clean", str(runs))
    assert code == 2 and "nothing was removed" in err
    assert checkpoints(runs) == before


def test_what_is_not_cleaned(isojax: Isojax, runs: Path) -> None:
    with exclusive_lock(runs):
        code, _, err = isojax("clean", str(runs), "--yes")
    assert code == 2 and "being written by a run" in err

    code, _, err = isojax("clean", str(runs.parent), "--yes")
    assert code == 2 and "no sweep's folder" in err
