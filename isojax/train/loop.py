"""The story of a run: the file that a research fork copies.

    problems -> rollouts -> rewards -> advantages -> loss and update -> evaluation -> ledger

With the defaults of `cell.rl`, an update on n rollouts of each of B_p problems is:

    reward      R = 1 if the verifier accepts the response, else 0      tasks/verifiers/ or device/
    advantage   A = (R - mean of its problem's n rewards) / their sd    rl/advantages/group.py
    ratio       r = p(token), trainer / p(token), sampler               rl/losses/__init__.py
    loss        L = -min(r A, clip(r, 0.8, 1.2) A), for each token      rl/losses/grpo.py
    the mean of L over all response tokens of the batch                 rl/aggregations/token.py
    AdamW       with a learning rate that grows with sqrt(B_p n)        rl/optimizer.py

How it departs from GRPO as published (DeepSeekMath, arXiv:2402.03300):
- One update per batch of rollouts, so every update is on-policy, unless `cell.rl.max_staleness` is
  above 0.
- The ratio is taken against the sampler's log-probabilities; no further pass computes old ones.
- The loss is a mean over all response tokens of the batch; GRPO averages over the tokens of each
  response first.
- The learning rate grows with the square root of the batch B = B_p n (IsoCompute Playbook, section
  3).
- KL (the k3 estimator, in the loss) and entropy enter only where the recipe sets them.
- Evaluations fall at the first update that reaches each value of one grid of C, the same for every
  (B_p, n). Values that one update reaches together give one evaluation, of the largest.

Where a fork makes its changes:
- which problems a batch has: `EpochOrder` (tasks/epochs.py), made in train/restore.py
- what counts in C: `CellTrainer._advance_cursor`
- how B_p and n change along a run: the cell's schedule (core/schedule.py); `_follow_schedule`
  switches
- who samples: an engine (rl/engines/), named by `run.rollouts`
- when rollouts are sampled: a RolloutSource (rl/rollout_source.py), chosen in train/programs.py
- what else sees each update: a hook (train/update_hooks/), named by `run.on_update`
- the reward: the task's `verify` (tasks/device/) or its verifier (tasks/verifiers/)
- advantage, aggregation, loss: plug-ins named by `cell.rl` (rl/advantages, rl/aggregations,
  rl/losses)
- the loop itself: `run_updates`, in a copy of this file that launch/local/local_runner.py imports
"""

import sys
import time
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from isojax.core import preemption
from isojax.core.config import Config
from isojax.core.config.sweep import DEFAULT_KEPT_CHECKPOINTS
from isojax.core.errors import ServerFailed
from isojax.core.nouns import Cell, EvalPoint
from isojax.distributed import multiprocess
from isojax.distributed.sharding import replicated
from isojax.models.lora import policy_params
from isojax.rl.metric import Metrics, merge, merge_in_float32, values
from isojax.rl.optimizer import TrainState, place_moments
from isojax.rl.rollout_source import SourcedBatch, finish_batch
from isojax.sampling.batch import RolloutBatch, response_logps, response_tokens
from isojax.sampling.layout import Layout
from isojax.train.base_policy import BasePolicy, eval_problem_sets
from isojax.train.checkpoint import Checkpoints, has_checkpoint
from isojax.train.evaluate import VALIDATION_SET, EvalCounts, make_eval_point
from isojax.train.growth import GradientSignal, choose_n, growth_state, next_stage
from isojax.train.outputs import CHECKPOINT_FOLDER, CellOutputs, PointLedger, write_samples
from isojax.train.programs import SweepPrograms
from isojax.train.restore import OpenCell, begin_span, open_cell
from isojax.train.sample_text import mark_context
from isojax.train.save_clock import SaveClock
from isojax.train.start_check import check_start
from isojax.train.update_hooks import UpdateReport, call_hook, load_hook


def make_eval_grid(config: Config, cell: Cell) -> list[int]:
    """The values of C at which a cell is evaluated, rising, such as [0, 500, 1000, 2000].

    They are the shared grid from 0 to the budget, and some beyond it. The last update may overshoot
    the budget and reach one of those; its evaluation has that target, as in a longer run.
    """
    targets = config.run_targets(config.sweep.budget)
    largest_update = max(B_p * n for B_p, n in cell.pairs) * (config.cell.rl.dynamic_sampling or 1)
    further_targets = config.cell.eval.evaluation_targets(targets[-1] + largest_update)
    # `further_targets` are the whole grid, from 0 on: what `targets` has already is left out.
    return targets + [C for C in further_targets if C > targets[-1]]


def is_finished(config: Config, folder: Path, ledger: PointLedger | None) -> bool:
    """Whether a cell is recorded up to its budget, and saved or its checkpoints removed.

    folder: the cell's, such as runs/NAME/cells/32x8-s0. ledger: None in all processes but the
    first. All processes call it, and all get the same answer.
    """
    # Only process 0 has a ledger, and sends the others what it says.
    recorded_targets = multiprocess.broadcast(ledger.targets if ledger else [], list[int])
    last_update = multiprocess.broadcast(ledger.last_update if ledger else 0, int)

    last_target = config.run_targets(config.sweep.budget)[-1]
    if not recorded_targets or recorded_targets[-1] < last_target:
        return False
    # A kill may have come between the last evaluation and the checkpoint after it.
    return multiprocess.run_on_primary(
        lambda: has_checkpoint(folder / CHECKPOINT_FOLDER, last_update), bool
    )


def run_cell(
    programs: SweepPrograms,
    config: Config,
    base_policy: BasePolicy,
    cell: Cell,
    outputs: CellOutputs,
) -> None:
    """Trains one cell up to the last value of its grid of C within `config.sweep.budget`.

    config: the sweep's, but its budget is that of this cell.
    base_policy: of the same sweep, which `programs` are of too.
    outputs: where the run writes; its folder may hold a run that was begun, which goes on.

    Raises:
        DeadStart: no run can learn, by the evaluation at C = 0, which the ledger then lacks.
        FloatingPointError: loss or gradient were not finite in `max_consecutive_nonfinite` updates
            in a row. The ledger records it. Saved is the policy before them; --resume goes on with
            the update after them.
        Preempted: the process was asked to end; the state is saved.
        ServerFailed: the server that samples is gone, or not what it was; the state is saved.
    """
    eval_grid = make_eval_grid(config, cell)
    # The grid begins with these targets, so this is the index in it of the last one to be reached.
    last_index = len(config.run_targets(config.sweep.budget)) - 1
    recorded_targets = multiprocess.broadcast(
        outputs.ledger.targets if outputs.ledger else [], list[int]
    )

    # Captures the grid and what the ledger had at the beginning. A checkpoint is of use only where
    # the ledger has its evaluations: they are never made again.
    def is_recorded(eval_index: int) -> bool:
        return eval_grid[eval_index] in recorded_targets

    checkpoint_folder = outputs.folder / CHECKPOINT_FOLDER
    kept = config.run.keep_checkpoints or DEFAULT_KEPT_CHECKPOINTS
    with (
        Checkpoints(checkpoint_folder, outputs.remote, kept) as checkpoints,
        open_cell(programs, base_policy, cell, checkpoints, is_recorded) as opened,
    ):
        trainer = CellTrainer(programs, config, base_policy, opened, checkpoints, outputs)
        try:
            while trainer.cursor.evaluation < last_index:  # -1 before the first
                next_target = eval_grid[trainer.cursor.evaluation + 1]
                trainer.train_to(next_target)

                # One update may reach several targets: the largest of them is evaluated. `reached`
                # is an index of the grid, at least that of `next_target`.
                reached = bisect_right(eval_grid, trainer.C) - 1
                trainer.evaluate(reached, eval_grid[reached])
        except ServerFailed:
            trainer.save()  # it fails between two updates: nothing is lost
            raise
        trainer.save()  # is_finished looks for it


class _Wish(NamedTuple):
    """What one process of several would do after an update."""

    must_end: bool  # it was asked to
    save_is_due: bool  # by its clock
    must_put_off: bool  # it still writes the checkpoint before, for which no training is to wait


@dataclass
class CellTrainer:
    """A run in training: its state, and what trains, evaluates, saves and records it.

    Every process has one and calls the same methods in the same order. Process 0 alone has a
    ledger.

    Updates are counted in two places: `state.step` on the devices, after each; and `cursor.M` on
    the host, after each call of `run_updates`, which is what checkpoints and the ledger say. Both
    count updates that were skipped, too, because their loss was not finite: their rollouts are
    spent, whatever comes of them."""

    programs: SweepPrograms
    config: Config
    base_policy: BasePolicy
    opened: OpenCell  # its problems and its RolloutSource change where the schedule switches
    checkpoints: Checkpoints
    outputs: CellOutputs

    def __post_init__(self) -> None:
        """Begins where `opened` is, with its state and cursor, which are the trainer's from now on.

        InputError for a hook that cannot be used.
        """
        opened = self.opened
        self.state = opened.state
        self.cursor = opened.cursor
        growth = self.cursor.growth
        self.growth = GradientSignal(**growth["signal"]) if growth else GradientSignal()

        self.hook = load_hook(self.config.run.on_update)
        self.problem_by_id = {problem.id: problem for problem in opened.problems.problems}
        # Whole on every device, so that process 0 can read all rollouts (`_report_update`).
        self.replicate = jax.jit(
            lambda rollouts: rollouts, out_shardings=replicated(self.programs.mesh)
        )
        problem_sets = eval_problem_sets(self.base_policy, self.config.cell)
        self.eval_sets = {
            name: self.programs.tokenize(problems) for name, problems in problem_sets.items()
        }

        # The seconds of a point are those since the point before. `cursor.seconds` of them had gone
        # by when the checkpoint was saved that this run goes on from.
        self.last_point_at = time.monotonic() - self.cursor.seconds
        self.save_clock = SaveClock(self.config.run.checkpoint_seconds)
        self.outputs.on_progress(self.C, None)

    @property
    def cell(self) -> Cell:
        """The cell, with all stages so far; `opened.problems.cell` has the B_p and n of the present
        one."""
        return self.opened.cell

    @property
    def C(self) -> int:
        """The rollouts sampled for training so far."""
        assert self.cursor.rollouts is not None, "open_cell has counted them"
        return self.cursor.rollouts

    @property
    def policy_state(self) -> TrainState:
        """The state, with all of the policy's parameters: those that LoRA does not train are the
        base policy's."""
        return self.state._replace(params=policy_params(self.state.params, self.opened.base_params))

    def train_to(self, target: int) -> None:
        """Makes updates until C reaches `target`, a value of the grid, and may overshoot it.

        Saves the state when that is due, and raises Preempted, after a save, when the process was
        asked to end. FloatingPointError: see `fail`.
        """
        while self.C < target:
            self._follow_schedule()
            # Whole updates, rounded up. With dynamic sampling an update may sample more, and fewer
            # may do; there `updates_per_call` is 1, so that C is looked at after each.
            updates_to_target = -(-(target - self.C) // self.opened.problems.cell.B)
            updates_left = min(self._updates_before_switch(), updates_to_target)
            self.run_updates(min(self.programs.rollout_programs.updates_per_call, updates_left))
            if self.is_failing:
                self.fail()
            self.outputs.on_progress(self.C, None)

            wishes = self._gather_wishes()
            must_end = any(wish.must_end for wish in wishes)  # all end where one is asked to

            # One checkpoint of an M is written (`Checkpoints.save`). At the target, that is the one
            # after the evaluation, which then is not made again. A process that must end has no
            # time for an evaluation: it saves now, and evaluates when it is resumed.
            if must_end or (_save_is_due(wishes) and self.C < target):
                self.save()
            if must_end:
                raise preemption.Preempted(f"asked to end after update {self.cursor.M}")

    def _follow_schedule(self) -> None:
        """Go on with another B_p or n where the schedule changes them, or the gradient's signal
        does. Called between two updates, with no rollouts in progress where they change."""
        is_due = self.opened.problems.end_update == self.cursor.M
        if self.grows_by_gradient:
            n = choose_n(self.cell, self.growth)
            if n != self.opened.problems.cell.n:
                self.opened.cell, self.growth = next_stage(self.cell, self.C, n)
                is_due = True
        if is_due:
            self.cursor = begin_span(self.cursor, self.cell)
            self.opened.switch(self.cursor)

    @property
    def grows_by_gradient(self) -> bool:
        """Whether the gradient decides n (train/growth.py): then a cell has a largest n."""
        return bool(self.cell.n_max)

    def _updates_before_switch(self) -> int:
        """Updates until B_p or n may change; sys.maxsize where they never do."""
        if self.grows_by_gradient:
            return self.growth.updates_to_check()
        switch = self.opened.problems.end_update
        return sys.maxsize if switch is None else switch - self.cursor.M

    def _advance_cursor(self, metrics: Metrics, updates: int, batches: int) -> None:
        """Count `updates` and the `batches` of B_p problems that were sampled for them.

        `metrics` are merged over these updates. What counts in C is decided here: all rollouts of
        all batches.
        """
        cell = self.opened.problems.cell
        problem_order = self.opened.problems.problem_order
        if self.grows_by_gradient:
            self.growth.add(metrics, updates, cell.B_p)
        self.cursor = replace(
            self.cursor,
            M=self.cursor.M + updates,
            rollouts=self.C + batches * cell.B,
            batches=self.cursor.batches + batches,
            sums=merge(self.cursor.sums, metrics),
            order=problem_order.state_dict(),
            pending=None,  # rollouts in progress are known when the state is saved
            growth=growth_state(self.cell, self.growth),
        )

    def run_updates(self, count: int) -> None:
        """Makes `count` updates, or fewer if too many in a row are not finite.

        A batch is of one update, or of several where the update's program samples and verifies
        itself (rl/fused_rollouts.py); every update samples its own rollouts. B_p and n must not
        change within these updates: `train_to` sees to that.
        """
        programs = self.programs
        problems = self.opened.problems
        last_update = self.cursor.M + count
        sums: Metrics = {}
        extra_batches = 0  # of problems, sampled in addition to one for each update
        while int(self.state.step) < last_update and not self.is_failing:
            updates_left = last_update - int(self.state.step)

            # Problems, rollouts and rewards (`RolloutBatch`). Where the update's program makes
            # rollouts and rewards itself, problems alone (`ProblemBatches`, of several updates).
            batch = self.opened.rollout_source.next_batch(self.policy_state, updates_left)

            # Advantages, loss, gradient, AdamW (rl/train_step.py). The state before is donated: its
            # arrays must not be read any more.
            self.state, result = programs.rollout_programs.update(
                self.state, self.opened.base_params, batch.inputs, programs.coefficients
            )

            # Metrics. Where the recipe leaves out solved problems, their order gets the rewards.
            # An asynchronous sampler gets the new policy.
            metrics = finish_batch(batch, result, problems.problem_order, problems.cell.n)
            metrics |= self.opened.rollout_source.finish_update(self.policy_state)

            # In float32, as the fused program adds them: the same bits on both ways.
            sums = merge_in_float32(sums, metrics)
            extra_batches += batch.extra_batches

            if self.hook is not None:
                batches = int(self.state.step) - self.cursor.M + extra_batches
                self._report_update(batch, metrics, C=self.C + batches * problems.cell.B)

        updates = int(self.state.step) - self.cursor.M  # `step` counts skipped ones too
        self._advance_cursor(sums, updates, batches=updates + extra_batches)

    def _report_update(self, batch: SourcedBatch, metrics: Metrics, C: int) -> None:
        """Call the hook, in process 0; the others help to gather the rollouts.

        metrics: of this update alone. C: rollouts so far, with those of this update. A run with a
        hook has its rollouts outside of the update's program, so the batch is a RolloutBatch.
        """
        assert self.hook is not None and isinstance(batch.inputs, RolloutBatch)
        cell = self.opened.problems.cell
        # Rollouts are split over the processes' devices; problems and rewards are whole on each.
        rollouts = batch.inputs.rollouts
        rewards = batch.inputs.rewards
        if multiprocess.is_multiprocess():
            rollouts = self.replicate(rollouts)
        if not multiprocess.is_primary():
            return

        # Rows after the first B_p are padding.
        ids = np.asarray(batch.inputs.problems.ids)[: cell.B_p].tolist()
        layout = Layout(cell.B_p, cell.n, shards=rollouts.tokens.shape[0])
        report = UpdateReport(
            cell=cell,
            folder=self.outputs.folder,
            M=int(self.state.step),
            C=C,
            sampled=(1 + batch.extra_batches) * cell.B,
            problems=[self.problem_by_id[i] for i in ids],
            responses=response_tokens(rollouts, layout),
            logps=response_logps(rollouts, layout),
            rewards=layout.in_order(rewards),
            metrics=values(metrics),
            batch=batch.inputs,
            # A response's ids -> its text, in which what the policy has not written, such as a
            # tool's replies, is marked.
            decode=partial(mark_context, self.programs.task),
        )
        call_hook(self.hook, report)

    def evaluate(self, eval_index: int, target: int) -> None:
        """Evaluates the policy on all problem sets and records the point.

        eval_index: of `target` in the grid of C; draws of rollouts belong to it. DeadStart at
        C = 0 where no run can learn; then nothing is recorded.
        """
        evaluator = self.programs.evaluator
        params = self.policy_state.params
        evaluator.publish(params, self.cursor.M)
        counts_by_set = evaluator.evaluate_sets(params, self.eval_sets, self.cell.seed, eval_index)

        # Before anything is recorded: a run whose verifier is mended then begins anew.
        if self.cursor.M == 0:
            start_report = check_start(
                counts_by_set,
                self.config.cell,
                self.programs.task,
                self.programs.decoder,
                params,
            )
            self.outputs.on_start(start_report)

        # The metrics of the updates that follow begin from none, so `sums` are empty.
        point = make_eval_point(target, self.cursor, counts_by_set, self.config.cell.eval.samples)
        self.cursor = replace(self.cursor, evaluation=eval_index, tokens=point.tokens, sums={})
        self._record(point, counts_by_set[VALIDATION_SET])

        avg_at_k = next(iter(point.metrics.values()))  # of the validation set: it comes first
        self.outputs.on_progress(self.C, avg_at_k)
        if _save_is_due(self._gather_wishes()):
            self.save()

    def _record(self, point: EvalPoint, of_validation: EvalCounts) -> None:
        """Write a point to the ledger, and a few of its rollouts to samples.txt, in process 0.

        `of_validation`: of the validation set, whose rollouts are shown.
        """
        now = time.monotonic()
        ledger = self.outputs.ledger
        if ledger:
            # A resumed run meets points that it has recorded; `append` ignores them.
            if point.target not in ledger.targets:
                write_samples(
                    self.outputs.folder / "samples.txt",
                    self.programs.task,
                    self.base_policy.validation,
                    of_validation,
                    point,
                )
            seconds = now - self.last_point_at
            ledger.append(point, seconds=seconds, devices=self.programs.device_count)
        self.last_point_at = now

    @property
    def is_failing(self) -> bool:
        """Whether so many updates in a row were not finite that the run must end."""
        max_consecutive = self.config.cell.rl.max_consecutive_nonfinite
        return int(self.state.consecutive_nonfinite) >= max_consecutive

    def fail(self) -> None:
        """Saves and records that the run broke off, and raises why: a FloatingPointError."""
        # Skipped updates left the policy as it was, so the state to save is the one before them.
        M, skipped = self.cursor.M, int(self.state.consecutive_nonfinite)
        reason = (
            f"loss or gradient not finite in the updates {M - skipped + 1} to {M}, {skipped} in a "
            "row; the policy before them is saved. Lower cell.rl.learning_rate (under another "
            "name=), or check a loss or advantage of your own"
        )

        self.save()
        self.checkpoints.wait()  # before the ledger says that the policy is saved
        if self.outputs.ledger:
            self.outputs.ledger.record_failure(M, reason)
        raise FloatingPointError(reason)

    def _gather_wishes(self) -> list[_Wish]:
        """What each process would do now, in the order of the processes; all of them call it."""
        must_put_off = self.save_clock.adapts and self.checkpoints.is_writing
        asked_to_end = preemption.REQUESTED.is_set()
        wish = _Wish(asked_to_end, self.save_clock.is_due, must_put_off)
        return multiprocess.allgather(wish, _Wish)

    def save(self) -> None:
        """Save the state, and the rollouts that are in progress, in the background."""
        with self.save_clock.saving():
            in_progress = self.opened.rollout_source.save()
            state = self.state
            if self.programs.moments_on_host:
                # A checkpoint is read with the shardings of the devices
                # (`SweepPrograms.state_shapes`).
                state = place_moments(state, on_host=False)
            seconds = time.monotonic() - self.last_point_at
            cursor = replace(self.cursor, pending=in_progress.meta, seconds=seconds)
            self.checkpoints.save(state, cursor, in_progress.arrays)


def _save_is_due(wishes: list[_Wish]) -> bool:
    """Whether all processes save now: the clock of process 0 says when, and none of them is still
    writing the checkpoint before where training would wait for that."""
    return wishes[0].save_is_due and not any(wish.must_put_off for wish in wishes)
