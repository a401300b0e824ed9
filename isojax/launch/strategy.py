"""In which order a sweep's rollouts are spent.

All cells to the budget, or where n*(C) is least certain, or as `isojax spend` chooses; and
schedules that a config takes from the fit of a sweep, made explicit before anything runs.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from isojax.core.atomic_files import write_text
from isojax.core.config import Config
from isojax.core.errors import DeadStart, InputError, RunFailed
from isojax.core.nouns import Cell, RunRecord
from isojax.core.schedule import FittedSchedule, Stage, parse_schedule, schedule_text
from isojax.core.user_code import describe_exception, failed_plugin
from isojax.launch.display import print_line
from isojax.launch.spend_rounds import legs_to_train, spend_policy
from isojax.launch.sweep_status import SUMMARY_FILE
from isojax.runs.ledger import read_run, recorded_points
from isojax.scaling.adaptive import AdaptivePolicy
from isojax.scaling.allocate.curve_ensemble import load_rollout_ensemble
from isojax.scaling.allocate.growing_n import best_n_stages
from isojax.scaling.result import read_fit_file


class CellTarget(NamedTuple):
    """A cell, that is one run of the sweep, that is to be trained up to C rollouts."""

    cell: Cell
    C: int
    stages: tuple[Stage, ...] = ()  # those so far, where `isojax spend` chooses them; else ()

    @property
    def cell_so_far(self) -> Cell:
        return self.cell.with_stages(self.stages) if self.stages else self.cell

    def rollouts(self, config: Config) -> int:
        """C after the update that reaches the last evaluation up to the target."""
        return self.cell_so_far.rollouts_to_reach(config.run_targets(self.C)[-1])


def training_rounds(
    config: Config, cells: Sequence[Cell], folder: Path, failures: Sequence[tuple[Cell, Exception]]
) -> Iterator[list[CellTarget]]:
    """What is to be trained at the same time, list after list.

    The caller trains a list before it asks for the next one, and adds each cell that failed, with
    its error, to `failures`: the next list is chosen by what the ledgers and `failures` hold. A
    grid has one list; the adaptive strategy and `isojax spend` end when they have nothing to add.
    """
    sweep = config.sweep
    if sweep.strategy == "grid":
        yield [CellTarget(cell, sweep.budget) for cell in cells]
    elif sweep.strategy == "spend":
        yield from _spend_rounds(config, cells, folder, failures)
    else:
        yield from _adaptive_rounds(config, cells, folder, failures)


def _spend_rounds(
    config: Config, cells: Sequence[Cell], folder: Path, failures: Sequence[tuple[Cell, Exception]]
) -> Iterator[list[CellTarget]]:
    """The legs of `isojax spend` to train, round after round; arguments as of `training_rounds`.

    They end after a failure, unless a run has diverged, which its ledger says.
    """

    # Captures cells and folder. Without `failures`: the ledger alone says whether a run diverged.
    def recorded_runs() -> list[RunRecord]:
        return _recorded_runs(cells, folder, ())

    for spending, legs in legs_to_train(config, cells, folder, recorded_runs):
        yield [CellTarget(leg.cell, leg.C_end, spending.stages(leg.cell)) for leg in legs]

        # A run that diverged has ended, and the policy chooses without it. Of any other failure,
        # the cause may be gone when --resume goes on with these legs.
        diverged = {run.cell for run in recorded_runs() if run.failure_reason}
        if any(cell not in diverged for cell, _ in failures):
            return


def _adaptive_rounds(
    config: Config, cells: Sequence[Cell], folder: Path, failures: Sequence[tuple[Cell, Exception]]
) -> Iterator[list[CellTarget]]:
    """The targets of the adaptive strategy, round after round; then frontier.json is written.

    Arguments as of `training_rounds`.
    """
    policy = adaptive_policy(config, cells)
    while next_targets := policy.next_round(_recorded_runs(cells, folder, failures)):
        yield [CellTarget(*target) for target in next_targets]

    summary = policy.summary(_recorded_runs(cells, folder, failures))
    # A ledger need not say why a cell failed.
    failed = {cell.name: _describe_failure(error) for cell, error in failures}
    write_text(folder / SUMMARY_FILE, json.dumps(summary | {"failed": failed}, indent=1) + "\n")
    spent = f"{summary['spent']:,} rollouts spent of the {summary['grid']:,} of the whole grid"
    print_line(f"frontier: {spent}, {summary['saved']:.0%} saved ({folder / SUMMARY_FILE})")


def resolve_schedules(config: Config) -> Config:
    """The config with every schedule that needs a fit, n*(a C), written as explicit stages.

    The folder of a run keeps them, whatever becomes of the fit. InputError where a fit cannot be
    read or used.
    """
    sweep = config.sweep
    schedules = {
        name: _resolve_schedule(name, text, sweep.budget) for name, text in sweep.schedules.items()
    }
    return config.with_settings(sweep={"schedules": schedules})


def _resolve_schedule(name: str, text: str, budget: int) -> str:
    """A schedule of sweep.schedules as a config writes it, with explicit stages up to `budget`."""
    schedule = parse_schedule(text)
    if not isinstance(schedule, FittedSchedule):
        return text
    path = Path(schedule.run)
    fit_file = path / "fit.json" if path.is_dir() else path
    try:
        ensemble = load_rollout_ensemble(read_fit_file(fit_file))
        return schedule_text(best_n_stages(ensemble, schedule.B_p, schedule.ahead, float(budget)))
    except InputError as e:
        advice = "The config.yaml of a run that has begun has its stages."
        raise e.within(f"sweep.schedules.{name}").with_fix(advice) from e


def check(config: Config, cells: Sequence[Cell]) -> None:
    """InputError where the sweep's strategy contradicts other settings.

    That is where the adaptive strategy or `isojax spend` has too few evaluations or rollouts, a
    grid is given sweep.total_rollouts, or an asynchronous run is to change its n.
    """
    sweep = config.sweep
    is_spend = sweep.strategy == "spend"
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

    if is_spend:
        spend_policy(config, cells)  # made to raise what is wrong with it
    elif sweep.strategy == "adaptive":
        if sweep.schedules:
            raise InputError(
                where="sweep.strategy",
                found="given adaptive, which chooses among fixed n, with sweep.schedules",
                expected="no sweep.schedules with it",
            )
        adaptive_policy(config, cells)
    elif sweep.total_rollouts is not None:
        raise InputError(
            where="sweep.total_rollouts",
            found=(
                f"given {sweep.total_rollouts} with sweep.strategy=grid, "
                "which spends sweep.budget on each run"
            ),
            expected="sweep.strategy=adaptive, or sweep.budget alone",
        )


def adaptive_policy(config: Config, cells: Sequence[Cell]) -> AdaptivePolicy:
    """What chooses the cells to train next; InputError where evaluations are too few."""
    targets = config.cell.eval.evaluation_targets(config.sweep.budget)
    return AdaptivePolicy(
        cells, targets, config.sweep.total_rollouts, f"avg@{config.cell.eval.samples}"
    )


def _recorded_runs(
    cells: Sequence[Cell], folder: Path, failures: Sequence[tuple[Cell, Exception]]
) -> list[RunRecord]:
    """What the ledgers hold of these cells, with the reason where one failed.

    Cells that have neither an evaluation nor a reason are left out.
    """
    failure_reasons = {cell: _describe_failure(error) for cell, error in failures}
    runs = []
    for cell in cells:
        cell_folder = folder / "cells" / cell.name
        has_evaluation = bool(recorded_points(cell_folder).points)  # else `read_run` refuses it
        run = read_run(cell_folder) if has_evaluation else RunRecord(cell, ())
        run = replace(run, failure_reason=failure_reasons.get(cell, run.failure_reason))
        if run.points or run.failure_reason:
            runs.append(run)
    return runs


def _describe_failure(error: Exception) -> str:
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

    errors = [f"{cell.name}: {_describe_failure(error)}" for cell, error in failures]
    if num_cells == 1:
        raise RunFailed(errors[0])
    summary = f"{len(failures)} of {num_cells} runs failed; what was recorded is in {folder}."
    raise RunFailed(summary, *errors)
