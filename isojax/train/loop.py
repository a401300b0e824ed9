"""One run, from top to bottom: the file a research fork copies.

    base policy -> (take B_p problems, sample n rollouts each, verify, advantages, gradient, AdamW) x M -> records.jsonl

Where it departs from GRPO as published (DeepSeekMath, arXiv:2402.03300): one update a batch, so on-policy; the loss is
a mean over all response tokens of the batch; the learning rate grows with sqrt(B); KL (k3, in the loss) and entropy
only where the recipe sets them. Evaluations fall at the first update that reaches each value of one grid of C, the same
for every (B_p, n).
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from isojax.core import preemption, registry
from isojax.core.config import PANEL, CellConfig, Config, SweepConfig
from isojax.core.errors import InputError
from isojax.core.memory_pages import release_freed_memory
from isojax.core.nouns import Cell, CellProgress, EvalPoint, Problem
from isojax.distributed import multiprocess
from isojax.distributed.mesh_spec import MeshShape
from isojax.distributed.sharding import replicated, shard_count
from isojax.models.transformer import ComputeOptions, Decoder, Params
from isojax.rl.async_rl.async_rollouts import Pipeline, PipelinePrograms
from isojax.rl.host_verified import build_host_verified_train
from isojax.rl.train_step import (
    CORRECT,
    EXTRA_STREAM,
    MAX_UPDATES_PER_CALL,
    TrainState,
    build_init_state,
    build_train,
    make_coefficients,
    train_state_shardings,
)
from isojax.runs.ledger import Ledger
from isojax.runs.loggers import CellLoggers
from isojax.sampling.batch import ProblemArrays, make_sampler_shapes
from isojax.tasks.epochs import EpochOrder
from isojax.tasks.protocol import Task, is_on_device
from isojax.train.base_policy import BasePolicy, encode_problems
from isojax.train.checkpoint import Checkpoints, CorruptCheckpoint, RunCursor, has_checkpoint
from isojax.train.evaluate import Evaluator, TokenizedProblems
from isojax.train.metrics import accumulate_metrics, eval_metrics, extra_eval_sets, interval_metrics, write_samples

LABEL_BATCH = 64  # problems of a language model: as many as a kill may cost
COMPILE_LOCK = (
    threading.Lock()
)  # cells run side by side: those that share programs wait for the first, others would double its memory


class Programs:
    """The compiled programs of a sweep on one mesh; every cell of the sweep runs through the same ones."""

    def __init__(
        self,
        cell: CellConfig,
        sweep: SweepConfig,
        pairs: list[tuple[int, int]],
        mesh: Mesh,
        task: Task,
        sampler_mesh: Mesh | MeshShape | None = None,
    ):
        """`pairs`: every (B_p, n) of the sweep; `sweep` with its slots and microbatch chosen; `task` may serve several
        meshes. A pipeline samples on `sampler` where it is given (rl/async_rl/async_rollouts.py)."""
        assert sweep.decode_slots and sweep.microbatch and sweep.prefill_batch, "the planner chooses them"
        self.mesh, self.task, self.cell = mesh, task, cell
        self.device_count = mesh.size + (
            0
            if sampler_mesh is None
            else sampler_mesh.devices
            if isinstance(sampler_mesh, MeshShape)
            else sampler_mesh.size
        )
        if cell.model.vocab is not None and cell.model.vocab < task.vocab:
            raise InputError(
                f"cell.model.vocab = {cell.model.vocab} is less than the {task.vocab} tokens of {cell.task}; leave it out, or raise it."
            )
        decoder: Decoder = registry.load("models.families", cell.model.family, "build").build(
            cell.model, cell.model.vocab or task.vocab
        )
        precision = cell.precision.for_platform(mesh.devices.flat[0].platform)
        attention = sweep.decode_attention or "plain", sweep.forward_attention or "plain"
        self.decoder = decoder.with_options(ComputeOptions(precision.compute, precision.cache, *attention, sweep.remat))
        sampling, data = cell.sampling, cell.data
        lengths = sampling.prompt_length, sampling.response_length
        self.geometry = make_sampler_shapes(
            pairs,
            shard_count(mesh),
            sweep.decode_slots,
            sweep.microbatch,
            *lengths,
            sweep.prefill_batch,
            sweep.slots_per_prefix or 1,
        )

        def evaluator(problems: int, samples: int) -> Evaluator:
            return Evaluator(self.decoder, task, mesh, problems, samples, self.geometry, sampling)

        self.evaluator = evaluator(data.validation, cell.eval.samples)
        # A language model reads its prompts once to be labelled; a task on device keeps the draws that its labels have
        # always had.
        self.labeller = self.evaluator if is_on_device(task) else evaluator(LABEL_BATCH, max(1, data.attempts))
        with_critic = cell.rl.critic is not None
        self.init = build_init_state(self.decoder, mesh, with_critic)
        shapes, shardings = (
            jax.eval_shape(self.init, self.decoder.shapes()),
            train_state_shardings(self.decoder, mesh, with_critic),
        )
        self.abstract_state: TrainState = jax.tree.map(
            lambda x, on: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on), shapes, shardings
        )
        self.pipeline: PipelinePrograms | None = None
        if cell.rl.max_staleness is not None:
            programs = cell, self.decoder, task, self.geometry, pairs, mesh, sampler_mesh
            self.pipeline, self.updates_per_call = (
                PipelinePrograms(*programs),
                MAX_UPDATES_PER_CALL if is_on_device(task) else 1,
            )
        elif is_on_device(task):
            self.train, self.updates_per_call = (
                build_train(cell, self.decoder, task, self.geometry, mesh),
                MAX_UPDATES_PER_CALL,
            )
        else:
            self.train, self.updates_per_call = (
                build_host_verified_train(cell, self.decoder, task, self.geometry, mesh),
                1,
            )
        self.hparams = make_coefficients(cell.rl)

    def close(self) -> None:
        """Ends what runs beside this process."""
        if self.pipeline is not None:
            self.pipeline.close()

    def problem_set(self, problems: list[Problem]) -> TokenizedProblems:
        """Problems with their host arrays."""
        return TokenizedProblems(problems, encode_problems(self.task, self.cell, problems))

    def run_updates(
        self,
        state: TrainState,
        reference_params: Params,
        problem_table: ProblemArrays,
        problems: list[Problem],
        batches: np.ndarray,
        count: int,
        cell: Cell,
    ) -> tuple[TrainState, dict[str, float], np.ndarray]:
        """`count` updates, on the problems whose rows in the table are batches i32[count B_p]; the sums of their
        metrics, and where solved problems are left out, the sum of the rewards of each problem of the table (else
        nothing)."""
        index = np.zeros((self.updates_per_call, self.geometry.problem_rows), np.int32)
        index[:count, : cell.B_p] = batches
        traced_scalars = (np.int32(count), np.int32(cell.B_p), np.int32(cell.n), np.int32(cell.seed))
        host_problems = () if is_on_device(self.task) else (problems,)
        state, metrics = self.train(
            state, reference_params, problem_table, *host_problems, index, *traced_scalars, self.hparams
        )
        reward_sums = np.asarray(metrics.pop(CORRECT, ()))
        return state, {k: float(v) for k, v in metrics.items()}, reward_sums


def run_cell(
    programs: Programs,
    config: Config,
    base_policy: BasePolicy,
    cell: Cell,
    folder: Path,
    cell_hash: str,
    report: Callable[[CellProgress], None],
) -> None:
    """Train one cell up to the sweep's budget and record it in `folder`; goes on from the folder's checkpoint where
    there is one.

    Raises:
        FloatingPointError: loss or gradient were not finite in `cell.rl.max_consecutive_nonfinite` updates in a row; it
        is recorded, and the state before
            them is saved.
        Stopped: the process was told to end; the state is saved.
    """
    last_target = config.cell.eval.evaluation_targets(config.sweep.budget)[-1]
    eval_grid = config.cell.eval.evaluation_targets(
        updates_to_reach(last_target, cell.B) * cell.B
    )  # with what the last update reaches beyond: labels owe nothing to the budget
    ledger = Ledger(folder, cell, cell_hash) if multiprocess.is_primary() else None
    recorded_targets = multiprocess.broadcast(ledger.targets if ledger else [])
    eval_updates = [updates_to_reach(target, cell.B) for target in eval_grid]
    if is_finished(recorded_targets, eval_grid) and multiprocess.run_on_primary(
        lambda: has_checkpoint(folder / "checkpoint", eval_updates[-1])
    ):
        return  # a kill may have come between the last point and the last state
    with Checkpoints(folder / "checkpoint", config.run.keep_checkpoints) as checkpoints, ExitStack() as contexts:
        if ledger:
            contexts.enter_context(CellLoggers(ledger, cell, config))
        trainer = CellTrainer(programs, config, base_policy, cell, ledger, checkpoints, eval_grid, report)
        contexts.enter_context(
            trainer.prepared(missing_from_ledger=lambda evaluation: eval_grid[evaluation] not in recorded_targets)
        )
        for evaluation, (target, updates) in enumerate(zip(eval_grid, eval_updates, strict=True)):
            if evaluation <= trainer.cursor.evaluation or updates in eval_updates[evaluation + 1 :]:
                continue  # done before, or answered by the same update as the next value of the grid
            trainer.train_to(updates)
            trainer.evaluate(evaluation, target)
        trainer.save()


class CellTrainer:
    """One cell at work: what is fixed, and where it stands."""

    def __init__(
        self,
        programs: Programs,
        config: Config,
        base_policy: BasePolicy,
        cell: Cell,
        ledger: Ledger | None,
        checkpoints: Checkpoints,
        eval_grid: list[int],
        report: Callable[[CellProgress], None],
    ):
        """`ledger`: None in a process that does not write it."""
        self.programs, self.config, self.base_policy, self.cell = programs, config, base_policy, cell
        self.ledger, self.checkpoints, self.eval_grid, self.report = ledger, checkpoints, eval_grid, report
        self.problem_table = jax.device_put(
            ProblemArrays(*programs.problem_set(base_policy.training).arrays), replicated(programs.mesh)
        )
        self.validation = programs.problem_set(base_policy.validation)
        self.extra_sets = {
            name: programs.problem_set(problems) for name, problems in extra_eval_sets(base_policy, config).items()
        }

    @contextmanager
    def prepared(self, missing_from_ledger: Callable[[int], bool]) -> Iterator[None]:
        """The state restored or begun, all programs compiled. `lost`: whether the ledger lacks an evaluation that the
        state is past.
        """
        while True:
            with ExitStack() as contexts:
                try:
                    self._prepare(missing_from_ledger, contexts)
                except CorruptCheckpoint:
                    continue
                self.last_point_at = self.last_saved_at = time.monotonic()
                yield
                return

    def _prepare(self, missing_from_ledger: Callable[[int], bool], contexts: ExitStack) -> None:
        """What `begun` does, from the newest checkpoint; raises Damaged where that turns out to be of no use."""
        rl, programs, cell = self.config.cell.rl, self.programs, self.cell
        restored = self.checkpoints.restore(programs.abstract_state)
        while restored is not None and restored[1].evaluation >= 0 and missing_from_ledger(restored[1].evaluation):
            self.checkpoints.drop(restored[1].M, "the ledger lacks an evaluation before it")
            restored = self.checkpoints.restore(programs.abstract_state)
        measures_kl = rl.kl > 0 or rl.measure_kl
        base_params = (
            self.base_policy.load_params(programs.decoder, programs.mesh) if measures_kl or restored is None else {}
        )
        self.reference_params = base_params if measures_kl else {}  # what the KL is measured against
        self.state, self.cursor = restored or (programs.init(base_params), RunCursor(0, -1, 0))
        del base_params, restored  # a large policy is held once more only where something reads it
        if (
            int(self.state.consecutive_nonfinite) >= rl.max_consecutive_nonfinite
        ):  # it broke off there, and is asked to go on
            self.state = self.state._replace(
                consecutive_nonfinite=jax.device_put(np.int32(0), replicated(programs.mesh))
            )
        self.report(CellProgress(cell, self.cursor.M * cell.B, None))
        pending, M = self._resumable_rollouts(), self.cursor.M
        batches_drawn = pending["begun"] - M if pending else 0
        problem_count = len(self.base_policy.training)
        problem_order = self.problem_order = EpochOrder(
            problem_count, cell.B_p, cell.seed, M, rl.no_positive_resampling, self.cursor.order, batches_drawn
        )
        self.pipeline: Pipeline | None = None
        if programs.pipeline is not None:
            host_table = ProblemArrays(*programs.problem_set(self.base_policy.training).arrays)
            record_rewards = None if rl.no_positive_resampling is None else self._record_rewards
            pipeline_inputs = (
                cell,
                self.reference_params,
                self.problem_table,
                host_table,
                self.base_policy.training,
                problem_order,
                programs.hparams,
                M,
                record_rewards,
            )
            self.pipeline = contexts.enter_context(Pipeline(programs.pipeline, *pipeline_inputs))
        with COMPILE_LOCK:
            self._run_updates(
                0
            )  # compiles, where this is the first cell of these programs: the clock starts after that
            release_freed_memory()
        if self.pipeline is not None and pending:
            self.pipeline.restore(pending, lambda like: self.checkpoints.restore_pending(M, like), self.state.params)

    def _resumable_rollouts(self) -> dict[str, Any] | None:
        """What the host knew of rollouts under way, where a pipeline as it was goes on with them; elsewhere they are
        sampled anew.
        """
        pending, pipeline = self.cursor.pending, self.programs.pipeline
        if pending is None or (
            pipeline is not None and not pipeline.disaggregated and pipeline.sampler_shards == pending["shards"]
        ):
            return pending
        print(
            f"warning: {self.cell.name}: rollouts that were under way are sampled anew, on another mesh",
            file=sys.stderr,
        )
        return None

    def _record_rewards(self, index: np.ndarray, reward_sums: np.ndarray) -> dict[str, float]:
        """Which problems were solved decides, where that is asked for, what later epochs leave out."""
        self.problem_order.record_rewards(index, reward_sums, self.cell.n)
        return {"dropped": self.problem_order.dropped_fraction}

    def _run_updates(self, count: int) -> dict[str, float]:
        """`count` updates in one call, on the next problems of the order; the sums of their metrics."""
        if self.pipeline is not None:
            self.state, metrics = self.pipeline.run_updates(self.state, count)
            return metrics
        cell, programs = self.cell, self.programs
        index = np.array([next(self.problem_order) for _ in range(count)], np.int32).reshape(count, cell.B_p)
        self.state, metrics, reward_sums = programs.run_updates(
            self.state, self.reference_params, self.problem_table, self.base_policy.training, index, count, cell
        )
        if self.config.cell.rl.no_positive_resampling is None:
            return metrics
        order_metrics = self._record_rewards(index.reshape(-1), reward_sums[index.reshape(-1)])
        return metrics | {name: count * value for name, value in order_metrics.items()}

    def train_to(self, target_updates: int) -> None:
        """Updates until there are `goal`; saves the state where it is time to, or where the process is told to end."""
        rl = self.config.cell.rl
        while self.cursor.M < target_updates:
            count = min(self.programs.updates_per_call, target_updates - self.cursor.M)
            if rl.no_positive_resampling is not None and self.pipeline is None:
                # A call must not end before its last update, whose problems are recorded
                count = min(
                    count,
                    self.problem_order.batches_left_in_epoch,
                    rl.max_consecutive_nonfinite - int(self.state.consecutive_nonfinite),
                )
            metrics = self._run_updates(count)
            M = self.cursor.M + count
            if (
                metrics.get("nonfinite_update")
                and (skipped := int(self.state.consecutive_nonfinite)) >= rl.max_consecutive_nonfinite
            ):
                M = int(self.state.step)
                self._advance_cursor(M, metrics)
                self._fail_nonfinite(M, skipped)
            self._advance_cursor(M, metrics)
            self.report(CellProgress(self.cell, M * self.cell.B, None))
            host_requests = multiprocess.allgather(
                (preemption.requested(), self._checkpoint_due)
            )  # clocks and signals differ between hosts
            stop, due = any(stop for stop, _ in host_requests), host_requests[0][1]
            if stop or (due and M < target_updates):
                self.save()
            if stop:
                raise preemption.Preempted(f"told to end after update {M}")

    def _advance_cursor(self, M: int, metrics: dict[str, float]) -> None:
        """Stands after update M, with these metrics since the last call."""
        self.cursor = replace(
            self.cursor, M=M, sums=accumulate_metrics(self.cursor.sums, metrics), order=self.problem_order.state_dict()
        )

    def _fail_nonfinite(self, M: int, consecutive_nonfinite: int) -> None:
        reason = (
            f"loss or gradient not finite in the updates {M - consecutive_nonfinite + 1} to {M}, {consecutive_nonfinite} in a row; the policy before them is saved. "
            "Lower cell.rl.learning_rate"
        )
        self.save()
        self.checkpoints.wait()
        if self.ledger:
            self.ledger.record_failure(M, reason)
        raise FloatingPointError(reason)

    @property
    def _checkpoint_due(self) -> bool:
        return time.monotonic() - self.last_saved_at >= self.config.run.checkpoint_seconds

    def save(self) -> None:
        """The state as it is."""
        meta, pending = self.pipeline.save() if self.pipeline is not None else (None, None)
        self.checkpoints.save(self.state, replace(self.cursor, pending=meta), pending)
        self.last_saved_at = time.monotonic()

    def evaluate(self, evaluation: int, target: int) -> None:
        """Evaluates the policy and records the point."""
        programs, config, cell = self.programs, self.config, self.cell
        validation_counts = programs.evaluator.count_correct(self.state.params, self.validation, cell.seed, evaluation)
        extra_counts = {
            name: programs.evaluator.count_correct(
                self.state.params, chosen, cell.seed, evaluation, stream=EXTRA_STREAM + i
            )
            for i, (name, chosen) in enumerate(self.extra_sets.items())
        }
        M, metric_sums, last_evaluation = self.cursor.M, self.cursor.sums, self.cursor.evaluation
        updates_since = M - (updates_to_reach(self.eval_grid[last_evaluation], cell.B) if last_evaluation >= 0 else 0)
        tokens = self.cursor.tokens + round(metric_sums.get("tokens", 0.0))
        self.cursor = RunCursor(M, evaluation, tokens, self.problem_order.state_dict())
        point = EvalPoint(
            target=target,
            M=M,
            rollouts=M * cell.B,
            tokens=tokens,
            metrics=eval_metrics(
                validation_counts,
                {name: c for name, c in extra_counts.items() if name != PANEL},
                config.cell.eval.samples,
            ),
            counts=tuple(int(c) for c in validation_counts.correct),
            samples=config.cell.eval.samples,
            train=interval_metrics({k: v for k, v in metric_sums.items() if k != "tokens"}, updates_since),
            extra={name: tuple(int(c) for c in counts.correct) for name, counts in extra_counts.items()},
        )
        now = time.monotonic()
        if self.ledger:
            if target not in self.ledger.targets:
                write_samples(
                    self.ledger.folder / "samples.txt",
                    programs.task,
                    self.base_policy.validation,
                    validation_counts,
                    point,
                )
            self.ledger.append(point, seconds=now - self.last_point_at, devices=programs.device_count)
        self.last_point_at = now
        self.report(CellProgress(cell, point.rollouts, next(iter(point.metrics.values()))))
        if multiprocess.broadcast(self._checkpoint_due):
            self.save()


def updates_to_reach(target: int, B: int) -> int:
    """Updates of B rollouts until C >= target."""
    return -(-target // B)


def is_finished(recorded_targets: list[int], eval_grid: list[int]) -> bool:
    """Whether a cell has been recorded up to the last value of the grid (an update that reaches several stands under
    the largest).
    """
    return bool(recorded_targets) and recorded_targets[-1] >= eval_grid[-1]
