"""The strategy of a sweep (`sweep.strategy`), and the rounds of runs that it has trained."""

from collections.abc import Sequence
from pathlib import Path

from isojax.core.atomic_files import write_text
from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.launch.cell_failures import describe_failure
from isojax.launch.checked_strategy import make_checked
from isojax.launch.display import print_line
from isojax.launch.recorded_rounds import RecordedRounds
from isojax.launch.rounds import Round, Rounds, Stop
from isojax.launch.strategies import CellStrategy, CellTarget, SweepHistory, strategy


def training_rounds(
    config: Config, cells: Sequence[Cell], folder: Path, failures: Sequence[tuple[Cell, Exception]]
) -> Rounds[CellTarget, SweepHistory]:
    """What is to be trained at the same time, round after round.

    The caller trains a round before it asks for the next one, and adds each cell that failed, with
    its error, to `failures`: the strategy answers by what the ledgers and `failures` hold.
    """

    # Both capture `folder`; `read_history` also `cells` and `failures`.
    def read_history(rounds: int) -> SweepHistory:
        reasons = {cell: describe_failure(error) for cell, error in failures}
        return SweepHistory(cells, folder, rounds, reasons)

    def write_and_print(answer: Round[CellTarget] | Stop) -> None:
        for name, text in answer.files.items():
            write_text(folder / name, text)
        if answer.message:
            print_line(answer.message)

    return Rounds(make_strategy(config, cells), read_history, write_and_print)


def check(config: Config, cells: Sequence[Cell]) -> None:
    """InputError where the sweep's strategy contradicts other settings.

    That is for whatever the strategy itself refuses, and where an asynchronous run is to change
    its n.
    """
    is_spend = config.sweep.trains_one_policy
    max_staleness = config.cell.rl.max_staleness
    n_changes = is_spend or any(cell.n_max for cell in cells)
    if max_staleness is not None and n_changes:
        changed_by = "isojax spend" if is_spend else "a schedule by gradient"
        raise InputError(
            where="cell.rl.max_staleness",
            found=(
                f"given {max_staleness}, which begins batches before the update "
                "that may change their n"
            ),
            expected=f"null with {changed_by}",
        )
    make_strategy(config, cells)


def make_strategy(config: Config, cells: Sequence[Cell]) -> CellStrategy:
    """The strategy that sweep.strategy names, for these cells.

    InputError where there is none of that name, or it does not suit the config.
    """
    try:
        plugin = strategy.load(config.sweep.strategy)
    except InputError as e:
        raise e.within("sweep.strategy") from e

    made: CellStrategy = (
        plugin(config, cells) if plugin.is_own else make_checked(plugin, config, cells)
    )
    return RecordedRounds(made, config) if plugin.traits.records_rounds else made
