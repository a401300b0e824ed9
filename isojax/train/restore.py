"""A cell's state at its start: from its newest usable checkpoint, or from the base policy."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import jax
import numpy as np

from isojax.core.config import Config
from isojax.core.nouns import Cell
from isojax.distributed.sharding import replicated
from isojax.models.transformer import Params
from isojax.rl.optimizer import TrainState
from isojax.rl.rollout_source import CellProblems, RolloutSource
from isojax.sampling.batch import ProblemArrays
from isojax.tasks.epochs import EpochOrder
from isojax.train.base_policy import BasePolicy
from isojax.train.checkpoint import Checkpoints, CorruptCheckpoint, RunCursor
from isojax.train.programs import SweepPrograms


@dataclass(frozen=True)
class CellState:
    """All that training continues from.

    Attributes:
        state: the arrays that an update changes.
        cursor: updates and evaluations done.
        base_params: the base policy, which the KL is measured against; {} where nothing reads it.
        problem_order: which problems the next batches have.
        source: the cell's rollouts.
    """

    cell: Cell
    state: TrainState
    cursor: RunCursor
    base_params: Params
    problem_order: EpochOrder
    source: RolloutSource


@contextmanager
def open_cell(
    programs: SweepPrograms,
    config: Config,
    base_policy: BasePolicy,
    cell: Cell,
    checkpoints: Checkpoints,
    is_recorded: Callable[[int], bool],
) -> Iterator[CellState]:
    """The cell's state, with all programs compiled; its RolloutSource ends with the context.

    is_recorded: whether the ledger has an evaluation. A checkpoint after one that it lacks is of no use.
    """
    programs.compile(len(base_policy.training))
    while True:
        restored = _restore(programs, config, base_policy, cell, checkpoints, is_recorded)
        try:
            if restored.cursor.pending:
                M = restored.cursor.M
                restored.source.restore(
                    restored.cursor.pending,
                    restore_arrays=lambda template, M=M: checkpoints.restore_pending(M, template),
                    params=restored.state.params,
                )
        except CorruptCheckpoint:  # the one before it is taken
            restored.source.close()
            continue
        try:
            yield restored
        finally:
            restored.source.close()
        return


def _restore(
    programs: SweepPrograms,
    config: Config,
    base_policy: BasePolicy,
    cell: Cell,
    checkpoints: Checkpoints,
    is_recorded: Callable[[int], bool],
) -> CellState:
    """The newest checkpoint's state, or that of the base policy; rollouts in progress are not restored yet."""
    rl = config.cell.rl
    saved = _newest_checkpoint(programs, checkpoints, is_recorded)
    measures_kl = rl.kl > 0 or rl.measure_kl
    base_params = base_policy.load_params(programs.decoder, programs.mesh) if measures_kl or saved is None else {}
    state, cursor = saved or (programs.init(base_params), RunCursor(M=0, evaluation=-1, tokens=0))
    if int(state.consecutive_nonfinite) >= rl.max_consecutive_nonfinite:  # the run broke off here, and is to continue
        zero = jax.device_put(np.int32(0), replicated(programs.mesh))
        state = state._replace(consecutive_nonfinite=zero)
    cursor = _without_unusable_rollouts(programs, cell, cursor)
    batches_begun = cursor.pending["next_batch"] - cursor.M if cursor.pending else 0
    problem_order = EpochOrder(
        len(base_policy.training),
        cell.B_p,
        cell.seed,
        first_update=cursor.M,
        drop_above=rl.no_positive_resampling,
        saved_state=cursor.order,
        batches_drawn=batches_begun,
    )
    host_table = ProblemArrays(*programs.tokenize(base_policy.training).arrays)
    source = programs.open_rollouts(
        CellProblems(
            cell=cell,
            problems=base_policy.training,
            host_table=host_table,
            problem_table=jax.device_put(host_table, replicated(programs.mesh)),
            problem_order=problem_order,
            first_update=cursor.M,
        )
    )
    # A large policy is held once more only where something reads it.
    return CellState(cell, state, cursor, base_params if measures_kl else {}, problem_order, source)


def _newest_checkpoint(
    programs: SweepPrograms, checkpoints: Checkpoints, is_recorded: Callable[[int], bool]
) -> tuple[TrainState, RunCursor] | None:
    """The newest checkpoint whose evaluations the ledger has."""
    saved = checkpoints.restore(programs.state_shapes)
    while saved is not None and saved[1].evaluation >= 0 and not is_recorded(saved[1].evaluation):
        checkpoints.drop(saved[1].M, "the ledger lacks an evaluation before it")
        saved = checkpoints.restore(programs.state_shapes)
    return saved


def _without_unusable_rollouts(programs: SweepPrograms, cell: Cell, cursor: RunCursor) -> RunCursor:
    """The cursor; without rollouts in progress where they were sampled on another mesh."""
    if cursor.pending is None or programs.rollouts.can_restore(cursor.pending):
        return cursor
    print(
        f"warning: {cell.name}: rollouts in progress were sampled on another mesh; they are sampled again",
        file=sys.stderr,
    )
    return replace(cursor, pending=None)
