"""Why cells of a sweep failed, as texts, and as the one error that a sweep ends with."""

from collections.abc import Sequence
from pathlib import Path

from isojax.core.errors import DeadStart, InputError, RunFailed
from isojax.core.nouns import Cell
from isojax.core.user_code import describe_exception, failed_plugin


def describe_failure(error: Exception) -> str:
    """A cell's error as a text: its message, if it is of a kind that isojax raises itself.

    Of any other, its type and place too, and before them the place in the plug-in that failed, if
    one did.
    """
    if isinstance(error, InputError | RunFailed | FloatingPointError | OSError):
        return str(error)
    plugin = failed_plugin(error)
    where = f"the plug-in failed at {plugin}: " if plugin else ""
    return where + describe_exception(error)


def raise_cell_failures(
    failures: Sequence[tuple[Cell, Exception]], num_cells: int, folder: Path
) -> None:
    """Raise one error for all cells that failed; nothing happens where none did.

    A DeadStart as it is; an InputError where all `num_cells` cells failed by one; else RunFailed,
    whose arguments are, for several cells, a summary and then a message for each.
    """
    if not failures:
        return
    for _, error in failures:
        if isinstance(error, DeadStart):
            raise error

    are_input_errors = all(isinstance(error, InputError) for _, error in failures)
    if len(failures) == num_cells and are_input_errors:
        different_messages = dict.fromkeys(str(error) for _, error in failures)
        raise InputError(" ".join(different_messages))

    errors = [f"{cell.name}: {describe_failure(error)}" for cell, error in failures]
    if num_cells == 1:
        raise RunFailed(errors[0])
    summary = f"{len(failures)} of {num_cells} runs failed; what was recorded is in {folder}."
    raise RunFailed(summary, *errors)
