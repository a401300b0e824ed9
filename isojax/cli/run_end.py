"""Where a run that is watched will end, in rollouts."""

import math
from pathlib import Path
from typing import NamedTuple

from isojax.cli.formatting import parse_count
from isojax.core.config.load import load_config
from isojax.core.nouns import RunRecord, Spending
from isojax.core.schedule import Span
from isojax.launch.planner import plan_cells
from isojax.launch.strategies.spend import current_spending
from isojax.scaling.update_counts import UpdateCounts, count_updates

DEFAULT_END = 2  # times the C of the newest evaluation


class RunEnd(NamedTuple):
    """The C at which a run ends, and how that is known, in words."""

    C: float
    source: str


def find_end(run: RunRecord, log: Path, end: str | None, updates: str | None) -> RunEnd:
    """The end of a run: as --end or --updates says, else by the sweep that it belongs to.

    run: with at least one evaluation. log: the path that was given, in which the sweep's config is
    looked for. end, updates: as typed, such as "250000" and "400"; at most one is given. Of a run
    without a sweep it is DEFAULT_END times the rollouts so far.
    """
    if end is not None:
        return RunEnd(float(parse_count(end, "--end")), "--end")
    if updates is not None:
        return RunEnd(_rollouts_at(run, parse_count(updates, "--updates")), "--updates")

    config_path = _sweep_config(log)
    if config_path is not None:
        config = load_config(str(config_path))
        if run.cell.is_of_spend:
            # What `isojax spend` has decided so far; before it has recorded anything, its pilots.
            cells = plan_cells(config.sweep)
            spending = current_spending(config, cells, config_path.parent)
            return _end_of_spend(run, spending)
        # Runs end with their last evaluation, and not at the budget itself: with the update that
        # reaches the largest C at which one is due.
        *_, last_target = config.run_targets(config.sweep.budget)
        C_end = float(run.cell.rollouts_to_reach(last_target))
        return RunEnd(C_end, "the last evaluation within the sweep's budget")

    # At least one update: a run may have no more than its base policy's evaluation.
    C_end = float(max(DEFAULT_END * run.points[-1].rollouts, run.cell.B))
    return RunEnd(C_end, f"{DEFAULT_END} x the rollouts so far")


def _sweep_config(log: Path) -> Path | None:
    """The config.yaml of the sweep that a log is of, or is in; None where it is in no sweep."""
    for folder in (log, *log.resolve().parents[:3]):
        if (folder / "cells").is_dir():
            path = folder / "config.yaml"
            return path if path.exists() else None
    return None


def _end_of_spend(run: RunRecord, spending: Spending) -> RunEnd:
    """Where a run of `isojax spend` ends, as far as that is decided.

    spending: its legs (parts of runs) so far: those of the pilots, whose `expected` is None, and
    then those of `spending.cell`, the run that goes on.
    """
    if spending.is_ended:
        return RunEnd(float(run.points[-1].rollouts), "where isojax spend ended it")

    is_pilot = run.cell != spending.cell or spending.legs[-1].expected is None
    if is_pilot:
        return RunEnd(float(spending.rollouts(run.cell)), "the end of its pilot")

    other_cells = {leg.cell for leg in spending.legs} - {run.cell}
    C_left = spending.budget - sum(map(spending.rollouts, other_cells))
    return RunEnd(float(C_left), "what the pilots left of the budget")


def _rollouts_at(run: RunRecord, M: int) -> float:
    """C after M updates, if the further ones sample as many rollouts as those so far."""
    cell = run.cell
    if cell.schedule:
        span = span_at(run, M)
        return float(span.C + (M - span.M) * span.B)

    # The C and M of its evaluations, where updates sample several batches (dynamic sampling); None
    # where they sample one, or less.
    counted = count_updates(run)
    if counted is not None:
        return float(UpdateCounts.of(cell.B, [counted]).rollouts(M))

    last = run.points[-1]
    planned_C = cell.rollouts_after(last.M)  # B_p n M; 0 before the first update
    # M of a log without steps is rounded, so that C may be off by half an update.
    is_as_planned = abs(last.rollouts - planned_C) <= cell.B / 2
    if is_as_planned or planned_C == 0:
        return float(cell.rollouts_after(M))
    return M / last.M * last.rollouts  # A step of this log is a part of a batch.


def span_at(run: RunRecord, M: int) -> Span:
    """The B_p and n of update M + 1, and the update and the C since which they hold.

    run: with two evaluations or more, if its n is chosen on the way. Its ledger does not say that
    n; then it is the newest one, by the rollouts between the last two evaluations, whatever M is.
    """
    cell = run.cell
    last = run.points[-1]
    is_as_planned = cell.rollouts_after(last.M) == last.rollouts
    if not cell.schedule or is_as_planned:
        return cell.span_at(M)

    before = run.points[-2]
    rollouts_per_update = (last.rollouts - before.rollouts) / (last.M - before.M)
    n = rollouts_per_update / cell.B_p
    if cell.n_max:  # above 0 where the gradient decides when n doubles
        # It may have doubled between the two evaluations. The mean is then below the newest n,
        # which is the next power of two times the first, `cell.n`.
        n = cell.n * 2 ** math.ceil(math.log2(n / cell.n))
    return Span(M=last.M, C=last.rollouts, B_p=cell.B_p, n=round(n))
