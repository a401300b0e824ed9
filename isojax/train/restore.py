"""A cell's state at its start: from its newest usable checkpoint, or from the base policy."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

import jax
import numpy as np

from isojax.core.nouns import Cell, Problem
from isojax.core.terminal import warn
from isojax.distributed.sharding import replicated
from isojax.models.lora import policy_params
from isojax.models.transformer import Params
from isojax.rl.optimizer import TrainState, place_moments
from isojax.rl.rollout_source import CellProblems, RolloutSource
from isojax.sampling.batch import ProblemArrays
from isojax.tasks.epochs import EpochOrder
from isojax.train.base_policy import BasePolicy
from isojax.train.checkpoint import Checkpoints, CorruptCheckpoint, RunCursor, RunSpan
from isojax.train.programs import SweepPrograms

# The i-th B_p of a run (from 0) has its epochs numbered from i EPOCHS_PER_SIZE on. An epoch's
# number seeds its order, so that no order comes twice, as long as no B_p has more epochs than that.
EPOCHS_PER_SIZE = 2**20


@dataclass
class OpenCell:
    """A cell in training, as a run begins or goes on with it.

    `state` and `cursor` are those of the beginning: the trainer has its own from then on.
    """

    programs: SweepPrograms
    cell: Cell  # with the stages of its schedule so far, where the gradient decides them
    state: TrainState
    cursor: RunCursor
    # The base policy's: the KL is measured against them, and LoRA adds to them. {} where neither is
    # so: then `state.params` are all.
    base_params: Params
    problems: CellProblems  # of the present B_p and n
    rollout_source: RolloutSource  # of the problems, as long as B_p and n stay

    def switch(self, cursor: RunCursor) -> None:
        """Go on with the B_p and n of the cursor's newest span (stretch of updates of one size).

        To be called between two updates, and only when no rollout is in progress.
        """
        self.rollout_source.close()
        before = self.problems
        self.problems = next_problems(
            self.programs, before.problems, before.problem_table, self.cell, cursor
        )
        self.rollout_source = self.programs.open_rollouts(self.problems)


@contextmanager
def open_cell(
    programs: SweepPrograms,
    base_policy: BasePolicy,
    cell: Cell,
    checkpoints: Checkpoints,
    is_recorded: Callable[[int], bool],
) -> Iterator[OpenCell]:
    """The cell's state, with all programs compiled; its RolloutSource ends with the context.

    is_recorded: called with the index of an evaluation in the grid of C; whether the ledger has it.
        A checkpoint after an evaluation that the ledger lacks is of no use and is moved aside.
    """
    programs.compile(len(base_policy.training))
    tokens = ProblemArrays(*programs.tokenize(base_policy.training).arrays)
    problem_table = jax.device_put(tokens, replicated(programs.mesh))

    opened = None
    while opened is None:
        # What is damaged is moved aside, and the one before is tried; at last the base policy.
        with suppress(CorruptCheckpoint):
            opened = _open_newest(
                programs, base_policy, cell, problem_table, checkpoints, is_recorded
            )
    try:
        yield opened
    finally:
        opened.rollout_source.close()


def _open_newest(
    programs: SweepPrograms,
    base_policy: BasePolicy,
    cell: Cell,
    problem_table: ProblemArrays,
    checkpoints: Checkpoints,
    is_recorded: Callable[[int], bool],
) -> OpenCell:
    """The cell as the newest checkpoint has it, or at its beginning.

    problem_table: all training problems, on every device of the mesh. is_recorded: see `open_cell`.

    Raises CorruptCheckpoint where the checkpoint's rollouts in progress are damaged; then
    `Checkpoints.restore_pending` has moved it aside, and the next call opens the one before it.
    """
    state, cursor, base_params = _restore_state(programs, base_policy, checkpoints, is_recorded)
    if cursor.pending is not None and not programs.rollout_programs.can_restore(cursor.pending):
        warn(f"{cell.name}: rollouts in progress, of another mesh or grid, are sampled again")
        cursor = replace(cursor, pending=None)

    # A cell whose n the gradient decides has the stages that the checkpoint knows of.
    if cursor.growth is not None:
        cell = cell.with_stages(cursor.growth["stages"])
    cursor = begin_span(count_rollouts(cursor, cell), cell)
    problems = next_problems(programs, base_policy.training, problem_table, cell, cursor)
    source = programs.open_rollouts(problems)

    # The source goes on from the rollouts in progress; its sampler gets the policy as it is now.
    if cursor.pending is not None:
        try:
            source.restore(
                cursor.pending,
                restore_arrays=partial(checkpoints.restore_pending, cursor.M),
                params=policy_params(state.params, base_params),
            )
        except CorruptCheckpoint:
            source.close()
            raise
    return OpenCell(programs, cell, state, cursor, base_params, problems, source)


class RestoredState(NamedTuple):
    """A run's state at its start."""

    state: TrainState  # with Adam's moments in the host's memory, if `sweep.moments_on_host`
    cursor: RunCursor
    base_params: Params  # the base policy's, where the update reads them; else {}


def _restore_state(
    programs: SweepPrograms,
    base_policy: BasePolicy,
    checkpoints: Checkpoints,
    is_recorded: Callable[[int], bool],
) -> RestoredState:
    """The state of the newest checkpoint whose evaluations the ledger has; that of the base policy
    where there is none. is_recorded: see `open_cell`."""
    max_nonfinite = programs.cell_config.rl.max_consecutive_nonfinite
    saved = checkpoints.restore(programs.state_shapes)
    while saved is not None:
        _, cursor = saved
        # -1: saved before the first evaluation, so the ledger needs none.
        if cursor.evaluation < 0 or is_recorded(cursor.evaluation):
            break
        checkpoints.set_aside(cursor.M, "is of no use: the ledger lacks an evaluation before it")
        saved = checkpoints.restore(programs.state_shapes)

    reads_base = programs.reads_base_params
    base_params: Params = {}
    if reads_base or saved is None:
        base_params = base_policy.load_params(programs.decoder.base, programs.mesh)
    if saved is not None:
        state, cursor = saved
    else:
        state = programs.init(base_params)
        cursor = RunCursor(M=0, evaluation=-1, tokens=0)

    # The run broke off here, after too many updates that were not finite, and is to go on: they are
    # counted from 0 again, as it would break off at once otherwise.
    if int(state.consecutive_nonfinite) >= max_nonfinite:
        zero = jax.device_put(np.int32(0), replicated(programs.mesh))
        state = state._replace(consecutive_nonfinite=zero)
    if programs.moments_on_host:
        state = place_moments(state, on_host=True)

    # Parameters that were loaded for `init` alone are dropped.
    frozen_params = programs.frozen_params(base_params) if reads_base else {}
    return RestoredState(state, cursor, frozen_params)


def count_rollouts(cursor: RunCursor, cell: Cell) -> RunCursor:
    """The cursor with its rollouts, batches and spans, which checkpoints of older versions lack.

    They follow from M and the cell's stages: in older versions each update sampled one batch.
    """
    if cursor.rollouts is not None:
        return cursor
    # M, C, batches, B_p, n: after M updates M batches were drawn.
    spans = tuple(RunSpan(s.M, s.C, s.M, s.B_p, s.n) for s, _ in cell.updates_by_span(cursor.M))
    return replace(cursor, rollouts=cell.rollouts_after(cursor.M), batches=cursor.M, spans=spans)


def begin_span(cursor: RunCursor, cell: Cell) -> RunCursor:
    """The cursor, with a new span where B_p or n change after its rollouts; the first has one too.

    Its newest span has the B_p and n of the next update. Its rollouts must be counted.
    """
    assert cursor.rollouts is not None, "a run counts them"
    B_p, n = cell.pair_at(cursor.rollouts)
    if cursor.spans and (B_p, n) == (cursor.spans[-1].B_p, cursor.spans[-1].n):
        return cursor
    span = RunSpan(cursor.M, cursor.rollouts, cursor.batches, B_p, n)
    return replace(cursor, spans=(*cursor.spans, span))


def next_problems(
    programs: SweepPrograms,
    problems: Sequence[Problem],
    problem_table: ProblemArrays,
    cell: Cell,
    cursor: RunCursor,
) -> CellProblems:
    """The problems of a cell, with the B_p and n of the cursor's newest span, and which of them the
    next batches have.

    problems: all training problems; `problem_table` has the same in the same order, as tokens. A
    new B_p begins a new epoch (pass through the problems in a shuffled order); a new n does not.
    """
    assert cursor.rollouts is not None, "a run counts them"
    span = cursor.spans[-1]

    # Batches are counted from where B_p is what it is now: the order of an epoch is by B_p.
    spans_by_B_p = [list(spans) for _, spans in groupby(cursor.spans, lambda s: s.B_p)]
    batches_before = spans_by_B_p[-1][0].batches
    order = EpochOrder(
        len(problems),
        span.B_p,
        cell.seed,
        first_batch=cursor.batches - batches_before,
        first_epoch=EPOCHS_PER_SIZE * (len(spans_by_B_p) - 1),
        # problems with such a share of correct rollouts, or more, are left out; None: none is
        drop_above=programs.cell_config.rl.no_positive_resampling,
        saved_state=cursor.order,
        # Of asynchronous sampling: batches that were drawn for updates after M.
        batches_ahead=cursor.pending["next_batch"] - cursor.M if cursor.pending else 0,
    )

    # The schedule changes B_p or n at a value of C (None: no more), after the first update that
    # reaches it: whole updates, rounded up.
    switch = cell.next_switch(cursor.rollouts)
    end_update = None
    if switch is not None:
        updates_left = -(-(switch - cursor.rollouts) // (span.B_p * span.n))
        end_update = cursor.M + updates_left

    span_cell = Cell(span.B_p, span.n, cell.seed)
    return CellProblems(
        span_cell, problems, problem_table, order, first_update=cursor.M, end_update=end_update
    )
