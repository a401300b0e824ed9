"""A cell's state at its start: from its newest usable checkpoint, or from the base policy."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import jax
import numpy as np

from isojax.core.nouns import Cell
from isojax.core.terminal import warn
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
    """All that training continues from."""

    cell: Cell
    state: TrainState
    cursor: RunCursor
    base_params: Params  # which the KL is measured against; {} where nothing reads them
    problem_order: EpochOrder
    rollout_source: RolloutSource


@contextmanager
def open_cell(
    programs: SweepPrograms,
    base_policy: BasePolicy,
    cell: Cell,
    checkpoints: Checkpoints,
    is_recorded: Callable[[int], bool],
) -> Iterator[CellState]:
    """The cell's state, with all programs compiled; its RolloutSource ends with the context. A checkpoint after an
    evaluation that the ledger lacks (`is_recorded`) is of no use."""
    programs.compile(len(base_policy.training))
    restored = None
    while restored is None:
        state, cursor, base_params = _restore_state(programs, base_policy, checkpoints, is_recorded)
        if cursor.pending is not None and not programs.rollout_programs.can_restore(cursor.pending):
            warn(f"{cell.name}: rollouts in progress, of another mesh, are sampled again")
            cursor = replace(cursor, pending=None)
        problem_order, source = _open_rollouts(programs, base_policy, cell, cursor)
        restored = CellState(cell, state, cursor, base_params, problem_order, source)
        if cursor.pending is not None:
            try:
                source.restore(
                    cursor.pending,
                    restore_arrays=lambda template, M=cursor.M: checkpoints.restore_pending(M, template),
                    params=state.params,
                )
            except CorruptCheckpoint:  # the one before it is taken
                source.close()
                restored = None
    with closing(restored.rollout_source):
        yield restored


def _restore_state(
    programs: SweepPrograms, base_policy: BasePolicy, checkpoints: Checkpoints, is_recorded: Callable[[int], bool]
) -> tuple[TrainState, RunCursor, Params]:
    """State and cursor of the newest checkpoint whose evaluations the ledger has, or of the base policy; and the base
    policy's parameters where the update reads them."""
    rl = programs.cell_config.rl
    while saved := checkpoints.restore(programs.state_shapes):
        state, cursor = saved
        if cursor.evaluation < 0 or is_recorded(cursor.evaluation):
            break
        checkpoints.set_aside(cursor.M, "is of no use: the ledger lacks an evaluation before it")
    measures_kl = rl.kl > 0 or rl.measure_kl
    base_params = base_policy.load_params(programs.decoder, programs.mesh) if measures_kl or saved is None else {}
    state, cursor = saved or (programs.init(base_params), RunCursor(M=0, evaluation=-1, tokens=0))
    if int(state.consecutive_nonfinite) >= rl.max_consecutive_nonfinite:  # the run broke off here, and is to continue
        zero = jax.device_put(np.int32(0), replicated(programs.mesh))
        state = state._replace(consecutive_nonfinite=zero)
    return state, cursor, base_params if measures_kl else {}  # a large policy is held once more only where it is read


def _open_rollouts(
    programs: SweepPrograms, base_policy: BasePolicy, cell: Cell, cursor: RunCursor
) -> tuple[EpochOrder, RolloutSource]:
    """Which problems the next batches have, and the source of their rollouts."""
    problem_order = EpochOrder(
        len(base_policy.training),
        cell.B_p,
        cell.seed,
        first_update=cursor.M,
        drop_above=programs.cell_config.rl.no_positive_resampling,
        saved_state=cursor.order,
        batches_drawn=cursor.pending["next_batch"] - cursor.M if cursor.pending else 0,
    )
    host_table = ProblemArrays(*programs.tokenize(base_policy.training).arrays)
    problems = CellProblems(
        cell=cell,
        problems=base_policy.training,
        host_table=host_table,
        problem_table=jax.device_put(host_table, replicated(programs.mesh)),
        problem_order=problem_order,
        first_update=cursor.M,
    )
    return problem_order, programs.open_rollouts(problems)
