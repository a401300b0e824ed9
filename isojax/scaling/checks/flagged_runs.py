"""The runs that run_health flags as broken: left out of a fit unless asked for, and named in its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.runs.ledger import INCLUDE_FLAGGED
from isojax.scaling.checks.run_health import health_flags
from isojax.scaling.checks.stability import StabilityVerdict
from isojax.scaling.result import FitFlag, FitResult, FlaggedRun, RunHealth


def flagged_runs(runs: Sequence[RunRecord]) -> tuple[FlaggedRun, ...]:
    """The flagged ones of the runs, by cell."""
    flags_by_run = [(run, health_flags(run)) for run in sorted(runs, key=lambda r: r.cell)]
    return tuple(
        FlaggedRun(
            B_p=run.cell.B_p,
            n=run.cell.n,
            seed=run.cell.seed,
            points=len(run.points),
            C=run.points[-1].rollouts,
            flags=flags,
        )
        for run, flags in flags_by_run
        if flags
    )


def healthy_runs(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs without a flag, in their order.

    Raises:
        InputError: there are runs, and every one is flagged.
    """
    unflagged_runs = [run for run in runs if not health_flags(run)]
    if runs and not unflagged_runs:
        first = runs[0]
        first_flag = f"{first.source or first.cell.name}: {health_flags(first)[0]}"
        raise InputError(
            f"every run is flagged as broken ({len(runs)}; {first_flag}), expected at least one that is not. Lower "
            f"cell.rl.learning_rate, or fit them with {INCLUDE_FLAGGED}."
        )
    return unflagged_runs


def flag_sentences(health: RunHealth) -> list[str]:
    """A sentence for each flagged run."""
    left_out_text = f"left out of the fit ({INCLUDE_FLAGGED} puts it back)"
    status = left_out_text if health.left_out else "fitted all the same, as asked"
    return [
        f"B_p={run.B_p} n={run.n} seed {run.seed} is {status}: {'; '.join(map(str, run.flags))}" for run in health.runs
    ]


def add_health(fit: FitResult, health: RunHealth) -> FitResult:
    """A fit that names the flagged runs. A B_p is not stable where half the runs of a cell or more were left out, which
    those that are left cannot show."""
    flags = [
        FitFlag(code="flagged_run", severity="warning" if health.left_out else "error", text=text)
        for text in flag_sentences(health)
    ]
    stability = _without_mostly_flagged(fit, health.runs) if health.left_out else fit.stability
    return fit.model_copy(update={"stability": stability, "health": health, "flags": (*flags, *fit.flags)})


def _without_mostly_flagged(fit: FitResult, runs_left_out: Sequence[FlaggedRun]) -> tuple[StabilityVerdict, ...]:
    """The verdicts, unstable where half the runs of a cell or more were left out; the first such run is the reason."""
    left_out_per_cell = Counter((run.B_p, run.n) for run in runs_left_out)
    fitted_per_cell = Counter((run.B_p, run.n) for run in fit.runs)
    reason_by_B_p: dict[int, str] = {}
    for run in runs_left_out:
        cell = run.B_p, run.n
        if left_out_per_cell[cell] >= max(1, fitted_per_cell[cell]):
            reason_by_B_p.setdefault(run.B_p, f"n={run.n} seed {run.seed}: {run.flags[0]}")
    return tuple(
        replace(v, stable=False, reason="; ".join(filter(None, (v.reason, reason_by_B_p[v.B_p]))))
        if v.B_p in reason_by_B_p
        else v
        for v in fit.stability
    )
