"""One run, from top to bottom: the file a research fork copies.

    base policy -> (take B_p problems, sample n rollouts each, verify, advantages, gradient, AdamW) x M -> records.jsonl

Where it departs from GRPO as published (DeepSeekMath, arXiv:2402.03300): one update a batch, so on-policy; the loss is a mean over all
response tokens of the batch; the learning rate grows with sqrt(B); KL (k3, in the loss) and entropy only where the recipe sets them.
Evaluations fall at the first update that reaches each value of one grid of C, the same for every (B_p, n).
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

from isojax import hosts, registry, stopping
from isojax.base import Base, encode
from isojax.checkpoint import Checkpoints, Damaged, Position, is_saved
from isojax.config import PANEL, CellConfig, Config, SweepConfig
from isojax.evaluate import Evaluator, ProblemSet
from isojax.huge_pages import give_back
from isojax.loggers import Following
from isojax.meshes import MeshShape
from isojax.models.decoder import Decoder, Options, Params
from isojax.records import Ledger
from isojax.rl.hosted import build_hosted_train
from isojax.rl.pipeline import Pipeline, PipelinePrograms
from isojax.rl.step import EXTRA, RIGHT, UPDATES_A_CALL, State, build_init, build_train, coefficients, state_shardings
from isojax.sampling.batch import Problems, make_geometry
from isojax.sharding import replicated, shard_count
from isojax.tasks.base import Task, on_device
from isojax.tasks.data import Order
from isojax.told import add_up, further_sets, means, metrics_of, write_samples
from isojax.types import Cell, EvalPoint, InputError, Problem, Progress

LABELLED_AT_ONCE = 64  # problems of a language model: as many as a kill may cost
COMPILING = threading.Lock()  # cells run side by side: those that share programs wait for the first, others would double its memory


class Programs:
    """The compiled programs of a sweep on one mesh; every cell of the sweep runs through the same ones."""

    def __init__(
        self,
        cell: CellConfig,
        sweep: SweepConfig,
        pairs: list[tuple[int, int]],
        mesh: Mesh,
        task: Task,
        sampler: Mesh | MeshShape | None = None,
    ):
        """`pairs`: every (B_p, n) of the sweep; `sweep` with its slots and microbatch chosen; `task` may serve several meshes. A pipeline
        samples on `sampler` where it is given (rl/pipeline.py)."""
        assert sweep.slots and sweep.microbatch and sweep.prompts, "the planner chooses them"
        self.mesh, self.task, self.cell = mesh, task, cell
        self.devices = mesh.size + (0 if sampler is None else sampler.devices if isinstance(sampler, MeshShape) else sampler.size)
        if cell.model.vocab is not None and cell.model.vocab < task.vocab:
            raise InputError(
                f"cell.model.vocab = {cell.model.vocab} is less than the {task.vocab} tokens of {cell.task}; leave it out, or raise it."
            )
        decoder: Decoder = registry.load("models", cell.model.family, "build").build(cell.model, cell.model.vocab or task.vocab)
        precision = cell.precision.on(mesh.devices.flat[0].platform)
        attention = sweep.decode_attention or "plain", sweep.score_attention or "plain"
        self.decoder = decoder.computed(Options(precision.compute, precision.cache, *attention, sweep.remat))
        sampling, data = cell.sampling, cell.data
        lengths = sampling.prompt_length, sampling.response_length
        self.geometry = make_geometry(
            pairs, shard_count(mesh), sweep.slots, sweep.microbatch, *lengths, sweep.prompts, sweep.lane_width or 1
        )

        def evaluator(problems: int, samples: int) -> Evaluator:
            return Evaluator(self.decoder, task, mesh, problems, samples, self.geometry, sampling)

        self.evaluator = evaluator(data.validation, cell.eval.samples)
        # A language model reads its prompts once to be labelled; a task on device keeps the draws that its labels have always had.
        self.labeller = self.evaluator if on_device(task) else evaluator(LABELLED_AT_ONCE, max(1, data.attempts))
        with_critic = cell.rl.critic is not None
        self.init = build_init(self.decoder, mesh, with_critic)
        shapes, lies = jax.eval_shape(self.init, self.decoder.shapes()), state_shardings(self.decoder, mesh, with_critic)
        self.like: State = jax.tree.map(lambda x, on: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on), shapes, lies)
        self.pipeline: PipelinePrograms | None = None
        if cell.rl.pipeline is not None:
            programs = cell, self.decoder, task, self.geometry, pairs, mesh, sampler
            self.pipeline, self.updates_a_call = PipelinePrograms(*programs), UPDATES_A_CALL if on_device(task) else 1
        elif on_device(task):
            self.train, self.updates_a_call = build_train(cell, self.decoder, task, self.geometry, mesh), UPDATES_A_CALL
        else:
            self.train, self.updates_a_call = build_hosted_train(cell, self.decoder, task, self.geometry, mesh), 1
        self.numbers = coefficients(cell.rl)

    def close(self) -> None:
        """Ends what runs beside this process."""
        if self.pipeline is not None:
            self.pipeline.close()

    def problem_set(self, problems: list[Problem]) -> ProblemSet:
        """Problems with their host arrays."""
        return ProblemSet(problems, encode(self.task, self.cell, problems))

    def updates(
        self, state: State, base: Params, table: Problems, problems: list[Problem], batches: np.ndarray, count: int, cell: Cell
    ) -> tuple[State, dict[str, float], np.ndarray]:
        """`count` updates, on the problems whose rows in the table are batches i32[count B_p]; the sums of their metrics, and where solved
        problems are left out, the sum of the rewards of each problem of the table (else nothing)."""
        index = np.zeros((self.updates_a_call, self.geometry.problem_rows), np.int32)
        index[:count, : cell.B_p] = batches
        scalars = (np.int32(count), np.int32(cell.B_p), np.int32(cell.n), np.int32(cell.seed))
        text = () if on_device(self.task) else (problems,)
        state, metrics = self.train(state, base, table, *text, index, *scalars, self.numbers)
        right = np.asarray(metrics.pop(RIGHT, ()))
        return state, {k: float(v) for k, v in metrics.items()}, right


def run_cell(
    programs: Programs, config: Config, base: Base, cell: Cell, folder: Path, cell_hash: str, report: Callable[[Progress], None]
) -> None:
    """Train one cell up to the sweep's budget and record it in `folder`; goes on from the folder's checkpoint where there is one.

    Raises:
        FloatingPointError: loss or gradient were not finite in `cell.rl.max_skipped` updates in a row; it is recorded, and the state before
            them is saved.
        Stopped: the process was told to end; the state is saved.
    """
    last = config.cell.eval.grid(config.sweep.budget)[-1]
    grid = config.cell.eval.grid(
        reached(last, cell.B) * cell.B
    )  # with what the last update reaches beyond: labels owe nothing to the budget
    ledger = Ledger(folder, cell, cell_hash) if hosts.writes() else None
    targets = hosts.first(ledger.targets if ledger else [])
    goals = [reached(target, cell.B) for target in grid]
    if finished(targets, grid) and hosts.by_first(lambda: is_saved(folder / "checkpoint", goals[-1])):
        return  # a kill may have come between the last point and the last state
    with Checkpoints(folder / "checkpoint", config.run.keep_checkpoints) as checkpoints, ExitStack() as running:
        if ledger:
            running.enter_context(Following(ledger, cell, config))
        run = Run(programs, config, base, cell, ledger, checkpoints, grid, report)
        running.enter_context(run.begun(lost=lambda evaluation: grid[evaluation] not in targets))
        for evaluation, (target, goal) in enumerate(zip(grid, goals, strict=True)):
            if evaluation <= run.position.evaluation or goal in goals[evaluation + 1 :]:
                continue  # done before, or answered by the same update as the next value of the grid
            run.train_to(goal)
            run.evaluate(evaluation, target)
        run.save()


class Run:
    """One cell at work: what is fixed, and where it stands."""

    def __init__(
        self,
        programs: Programs,
        config: Config,
        base: Base,
        cell: Cell,
        ledger: Ledger | None,
        checkpoints: Checkpoints,
        grid: list[int],
        report: Callable[[Progress], None],
    ):
        """`ledger`: None in a process that does not write it."""
        self.programs, self.config, self.base, self.cell = programs, config, base, cell
        self.ledger, self.checkpoints, self.grid, self.report = ledger, checkpoints, grid, report
        self.table = jax.device_put(Problems(*programs.problem_set(base.training).arrays), replicated(programs.mesh))
        self.validation = programs.problem_set(base.validation)
        self.extra = {name: programs.problem_set(problems) for name, problems in further_sets(base, config).items()}

    @contextmanager
    def begun(self, lost: Callable[[int], bool]) -> Iterator[None]:
        """The state restored or begun, all programs compiled. `lost`: whether the ledger lacks an evaluation that the state is past."""
        while True:
            with ExitStack() as running:
                try:
                    self._begin(lost, running)
                except Damaged:
                    continue
                self.clock = self.saved = time.monotonic()
                yield
                return

    def _begin(self, lost: Callable[[int], bool], running: ExitStack) -> None:
        """What `begun` does, from the newest checkpoint; raises Damaged where that turns out to be of no use."""
        rl, programs, cell = self.config.cell.rl, self.programs, self.cell
        restored = self.checkpoints.restore(programs.like)
        while restored is not None and restored[1].evaluation >= 0 and lost(restored[1].evaluation):
            self.checkpoints.drop(restored[1].M, "the ledger lacks an evaluation before it")
            restored = self.checkpoints.restore(programs.like)
        measures_kl = rl.kl > 0 or rl.measure_kl
        base_params = self.base.params(programs.decoder, programs.mesh) if measures_kl or restored is None else {}
        self.reference = base_params if measures_kl else {}  # what the KL is measured against
        self.state, self.position = restored or (programs.init(base_params), Position(0, -1, 0))
        del base_params, restored  # a large policy is held once more only where something reads it
        if int(self.state.skipped) >= rl.max_skipped:  # it broke off there, and is asked to go on
            self.state = self.state._replace(skipped=jax.device_put(np.int32(0), replicated(programs.mesh)))
        self.report(Progress(cell, self.position.M * cell.B, None))
        pending, M = self._pending(), self.position.M
        drawn = pending["begun"] - M if pending else 0
        problems = len(self.base.training)
        order = self.order = Order(problems, cell.B_p, cell.seed, M, rl.no_positive_resampling, self.position.order, drawn)
        self.pipeline: Pipeline | None = None
        if programs.pipeline is not None:
            arrays = Problems(*programs.problem_set(self.base.training).arrays)
            record = None if rl.no_positive_resampling is None else self._tell
            given = cell, self.reference, self.table, arrays, self.base.training, order, programs.numbers, M, record
            self.pipeline = running.enter_context(Pipeline(programs.pipeline, *given))
        with COMPILING:
            self._updates(0)  # compiles, where this is the first cell of these programs: the clock starts after that
            give_back()
        if self.pipeline is not None and pending:
            self.pipeline.restore(pending, lambda like: self.checkpoints.pending(M, like), self.state.params)

    def _pending(self) -> dict[str, Any] | None:
        """What the host knew of rollouts under way, where a pipeline as it was goes on with them; elsewhere they are sampled anew."""
        pending, pipeline = self.position.pending, self.programs.pipeline
        if pending is None or (pipeline is not None and not pipeline.apart and pipeline.shards == pending["shards"]):
            return pending
        print(f"warning: {self.cell.name}: rollouts that were under way are sampled anew, on another mesh", file=sys.stderr)
        return None

    def _tell(self, index: np.ndarray, right: np.ndarray) -> dict[str, float]:
        """Which problems were solved decides, where that is asked for, what later epochs leave out."""
        self.order.record(index, right, self.cell.n)
        return {"dropped": self.order.dropped}

    def _updates(self, count: int) -> dict[str, float]:
        """`count` updates in one call, on the next problems of the order; the sums of their metrics."""
        if self.pipeline is not None:
            self.state, metrics = self.pipeline.updates(self.state, count)
            return metrics
        cell, programs = self.cell, self.programs
        chosen = np.array([next(self.order) for _ in range(count)], np.int32).reshape(count, cell.B_p)
        self.state, metrics, right = programs.updates(self.state, self.reference, self.table, self.base.training, chosen, count, cell)
        if self.config.cell.rl.no_positive_resampling is None:
            return metrics
        told = self._tell(chosen.reshape(-1), right[chosen.reshape(-1)])
        return metrics | {name: count * value for name, value in told.items()}

    def train_to(self, goal: int) -> None:
        """Updates until there are `goal`; saves the state where it is time to, or where the process is told to end."""
        rl = self.config.cell.rl
        while self.position.M < goal:
            count = min(self.programs.updates_a_call, goal - self.position.M)
            if rl.no_positive_resampling is not None and self.pipeline is None:
                # A call must not end before its last update, whose problems are recorded
                count = min(count, self.order.left_in_epoch, rl.max_skipped - int(self.state.skipped))
            metrics = self._updates(count)
            M = self.position.M + count
            if metrics.get("not_finite") and (skipped := int(self.state.skipped)) >= rl.max_skipped:
                M = int(self.state.step)
                self._place(M, metrics)
                self._break_off(M, skipped)
            self._place(M, metrics)
            self.report(Progress(self.cell, M * self.cell.B, None))
            told = hosts.everyone((stopping.asked(), self._due))  # clocks and signals differ between hosts
            stop, due = any(stop for stop, _ in told), told[0][1]
            if stop or (due and M < goal):
                self.save()
            if stop:
                raise stopping.Stopped(f"told to end after update {M}")

    def _place(self, M: int, metrics: dict[str, float]) -> None:
        """Stands after update M, with these metrics since the last call."""
        self.position = replace(self.position, M=M, sums=add_up(self.position.sums, metrics), order=self.order.save())

    def _break_off(self, M: int, skipped: int) -> None:
        reason = (
            f"loss or gradient not finite in the updates {M - skipped + 1} to {M}, {skipped} in a row; the policy before them is saved. "
            "Lower cell.rl.learning_rate"
        )
        self.save()
        self.checkpoints.wait()
        if self.ledger:
            self.ledger.fail(M, reason)
        raise FloatingPointError(reason)

    @property
    def _due(self) -> bool:
        return time.monotonic() - self.saved >= self.config.run.checkpoint_seconds

    def save(self) -> None:
        """The state as it is."""
        meta, pending = self.pipeline.save() if self.pipeline is not None else (None, None)
        self.checkpoints.save(self.state, replace(self.position, pending=meta), pending)
        self.saved = time.monotonic()

    def evaluate(self, evaluation: int, target: int) -> None:
        """Evaluates the policy and records the point."""
        programs, config, cell = self.programs, self.config, self.cell
        found = programs.evaluator.counts(self.state.params, self.validation, cell.seed, evaluation)
        further = {
            name: programs.evaluator.counts(self.state.params, chosen, cell.seed, evaluation, stream=EXTRA + i)
            for i, (name, chosen) in enumerate(self.extra.items())
        }
        M, sums, before = self.position.M, self.position.sums, self.position.evaluation
        done = M - (reached(self.grid[before], cell.B) if before >= 0 else 0)
        tokens = self.position.tokens + round(sums.get("tokens", 0.0))
        self.position = Position(M, evaluation, tokens, self.order.save())
        point = EvalPoint(
            target=target,
            M=M,
            rollouts=M * cell.B,
            tokens=tokens,
            metrics=metrics_of(found, {name: c for name, c in further.items() if name != PANEL}, config.cell.eval.samples),
            counts=tuple(int(c) for c in found.right),
            samples=config.cell.eval.samples,
            train=means({k: v for k, v in sums.items() if k != "tokens"}, done),
            extra={name: tuple(int(c) for c in counts.right) for name, counts in further.items()},
        )
        now = time.monotonic()
        if self.ledger:
            if target not in self.ledger.targets:
                write_samples(self.ledger.folder / "samples.txt", programs.task, self.base.validation, found, point)
            self.ledger.append(point, seconds=now - self.clock, devices=programs.devices)
        self.clock = now
        self.report(Progress(cell, point.rollouts, next(iter(point.metrics.values()))))
        if hosts.first(self._due):
            self.save()


def reached(target: int, B: int) -> int:
    """Updates of B rollouts until C >= target."""
    return -(-target // B)


def finished(targets: list[int], grid: list[int]) -> bool:
    """Whether a cell has been recorded up to the last value of the grid (an update that reaches several stands under the largest)."""
    return bool(targets) and targets[-1] >= grid[-1]


if __name__ == "__main__":
    from isojax.cli import main_train

    main_train()
