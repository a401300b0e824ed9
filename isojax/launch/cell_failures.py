"""The error that a sweep ends with where cells have failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isojax.core.errors import InputError, RunFailed
from isojax.core.nouns import Cell


def raise_cell_failures(failures: Sequence[tuple[Cell, Exception]], num_cells: int, folder: Path) -> None:
    """Raise one error for all cells that failed; none where none has.

    Args:
        failures: the cells that failed, with their errors.
        num_cells: of the sweep.
        folder: the sweep's.

    Raises:
        InputError: every cell failed by a mistake in what was given.
        RunFailed: some cells failed, or all by an error of another kind.
    """
    if not failures:
        return
    if len(failures) == num_cells and all(isinstance(error, InputError) for _, error in failures):
        raise InputError(" ".join(dict.fromkeys(str(error) for _, error in failures)))
    errors = [f"{cell.name}: {error}" for cell, error in failures]
    if num_cells == 1:
        raise RunFailed(errors[0])
    summary = f"{len(failures)} of {num_cells} cells failed; the others are recorded in {folder}."
    raise RunFailed("\n  ".join([summary, *errors]))
