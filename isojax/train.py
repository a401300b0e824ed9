"""One run, from top to bottom: the file a research fork copies.

    base policy -> (take B_p problems, sample n rollouts each, verify, advantages, gradient, AdamW) x M -> records.jsonl

Where it departs from GRPO as published (DeepSeekMath, arXiv:2402.03300): one update a batch, so on-policy; the loss is a mean over all
response tokens of the batch; the learning rate grows with sqrt(B); KL (k3, in the loss) and entropy only where the recipe sets them.
Evaluations fall at the first update that reaches each value of one grid of C, the same for every (B_p, n).
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from isojax import registry
from isojax.base import Base
from isojax.checkpoint import Checkpoints, Position
from isojax.config import CellConfig, Config, SweepConfig
from isojax.evaluate import Evaluator, average
from isojax.models.decoder import Decoder
from isojax.records import Ledger
from isojax.rl.step import UPDATES_A_CALL, State, build_init, build_train, coefficients
from isojax.sampling.sampler import Problems, make_geometry
from isojax.sharding import replicated, shard_count
from isojax.tasks.base import DeviceTask, Encoded, build_task
from isojax.tasks.data import batches
from isojax.types import Cell, EvalPoint, Problem

SAMPLES_SHOWN = 4
COMPILING = threading.Lock()  # cells run side by side; compiling the large program twice at once only doubles its memory


@dataclass(frozen=True)
class Progress:
    """What a live display shows of a cell."""

    cell: Cell
    rollouts: int
    reward: float | None


class Programs:
    """The compiled programs of a sweep on one mesh; every cell of the sweep runs through the same ones."""

    def __init__(self, cell: CellConfig, sweep: SweepConfig, pairs: list[tuple[int, int]], mesh: Mesh):
        """`pairs`: every (B_p, n) of the sweep; `sweep` with its slots and microbatch chosen."""
        assert sweep.slots and sweep.microbatch and sweep.prompts, "the planner chooses them"
        self.mesh = mesh
        task = build_task(cell)
        assert task.on_device is True, "only verifiers on device, so far"
        self.task: DeviceTask = task
        self.encode(cell, self.task.problems(cell.data.candidates, np.random.default_rng(0)))  # refuses what does not fit, before any work
        self.decoder: Decoder = registry.load("models", cell.model.family, "build").build(cell.model, self.task.vocab)
        sampling = cell.sampling
        lengths = sampling.prompt_length, sampling.response_length
        self.geometry = make_geometry(pairs, shard_count(mesh), sweep.slots, sweep.microbatch, *lengths, sweep.prompts)
        self.evaluator = Evaluator(
            self.decoder, self.task, mesh, cell.data.validation, cell.eval.samples, self.geometry, sampling.temperature
        )
        self.init = build_init(self.decoder, mesh)
        self.train = build_train(cell, self.decoder, self.task, self.geometry, mesh)
        self.numbers = coefficients(cell.rl)

    def encode(self, cell: CellConfig, problems: list[Problem]) -> Encoded:
        """Problems as host arrays."""
        return self.task.encode(problems, cell.sampling.prompt_length, cell.sampling.response_length)


def run_cell(
    programs: Programs, config: Config, base: Base, cell: Cell, folder: Path, cell_hash: str, report: Callable[[Progress], None]
) -> None:
    """Train one cell up to the sweep's budget and record it in `folder`; goes on from the folder's checkpoint where there is one.

    Raises:
        FloatingPointError: the loss or the gradient stopped being finite; it is recorded, and what was recorded before stays.
    """
    last = config.cell.eval.grid(config.sweep.budget)[-1]
    grid = config.cell.eval.grid(
        reached(last, cell.B) * cell.B
    )  # with what the last update reaches beyond: labels owe nothing to the budget
    ledger = Ledger(folder, cell, cell_hash)
    if finished(ledger, grid):
        return
    mesh = programs.mesh
    base_params = jax.device_put(base.params, programs.decoder.shardings(mesh))
    table = jax.device_put(Problems(*programs.encode(config.cell, base.training)), replicated(mesh))
    validation = programs.encode(config.cell, base.validation)
    with Checkpoints(folder / "checkpoint") as checkpoints:
        state, position = programs.init(base_params), Position(0, -1, 0)
        state, position = checkpoints.restore(state) or (state, position)
        if position.evaluation >= 0 and grid[position.evaluation] not in ledger.targets:  # the ledger lost a line that the state is past
            checkpoints.clear()
            state, position = programs.init(base_params), Position(0, -1, 0)
        report(Progress(cell, position.M * cell.B, None))
        order = batches(len(base.training), cell.B_p, cell.seed, first=position.M)

        def updates(state: State, count: int) -> tuple[State, dict[str, float]]:
            """`count` updates in one call: the next problems of the order, and the sums of their metrics."""
            index = np.zeros((UPDATES_A_CALL, programs.geometry.problem_rows), np.int32)
            for i in range(count):
                index[i, : cell.B_p] = next(order)
            scalars = (np.int32(count), np.int32(cell.B_p), np.int32(cell.n), np.int32(cell.seed))
            state, metrics = programs.train(state, base_params, table, index, *scalars, programs.numbers)
            return state, {k: float(v) for k, v in metrics.items()}

        with COMPILING:
            state, _ = updates(state, 0)  # compiles, where this is the first cell of its mesh: the clock starts after that
        clock = saved = time.monotonic()
        for evaluation, target in enumerate(grid):
            goal = reached(target, cell.B)
            beyond = evaluation + 1 < len(grid) and reached(grid[evaluation + 1], cell.B) == goal
            if evaluation <= position.evaluation or beyond:
                continue  # done before, or answered by the same update as the next value of the grid
            sums: dict[str, float] = {}
            M = position.M
            while M < goal:
                count = min(UPDATES_A_CALL, goal - M)
                state, metrics = updates(state, count)
                sums = {k: sums.get(k, 0.0) + v for k, v in metrics.items()}
                M += count
                report(Progress(cell, M * cell.B, None))
            if bad := round(sums.get("not_finite", 0.0)):
                reason = f"loss or gradient not finite in {bad} of the updates {position.M + 1} to {M}; lower cell.rl.learning_rate"
                ledger.fail(M, reason)
                raise FloatingPointError(reason)
            counts, answers = programs.evaluator.counts(state.params, validation, cell.seed, evaluation)
            done = M - position.M
            position = Position(M, evaluation, position.tokens + round(sums.pop("tokens", 0.0)))
            point = EvalPoint(
                target=target,
                M=M,
                rollouts=M * cell.B,
                tokens=position.tokens,
                metrics={f"avg@{config.cell.eval.samples}": average(counts, config.cell.eval.samples)},
                counts=tuple(int(c) for c in counts),
                samples=config.cell.eval.samples,
                train={k: v / done for k, v in sums.items()},
            )
            now = time.monotonic()
            if target not in ledger.targets:
                write_samples(folder / "samples.txt", programs.task, base.validation, answers, point)
            ledger.append(point, seconds=now - clock, devices=mesh.size)
            clock = now
            report(Progress(cell, point.rollouts, next(iter(point.metrics.values()))))
            if now - saved >= config.run.checkpoint_seconds or target == grid[-1]:
                checkpoints.save(state, position)
                saved = now


def reached(target: int, B: int) -> int:
    """Updates of B rollouts until C >= target."""
    return -(-target // B)


def finished(ledger: Ledger, grid: list[int]) -> bool:
    """Whether a cell has been recorded up to the last value of the grid (an update that reaches several stands under the largest)."""
    return bool(ledger.targets) and ledger.targets[-1] >= grid[-1]


def write_samples(path: Path, task: DeviceTask, problems: list[Problem], answers: np.ndarray, point: EvalPoint) -> None:
    """A few rollouts that a person can read, once an evaluation."""
    head = f"C = {point.rollouts} rollouts, M = {point.M}, " + ", ".join(f"{k} = {v:.3f}" for k, v in point.metrics.items()) + "\n"
    if path.exists() and head in path.read_text():
        return
    with path.open("a") as f:
        f.write(head)
        for problem, tokens in zip(problems[:SAMPLES_SHOWN], answers, strict=False):
            text = task.decode(tokens)
            verdict = "right" if text == problem.answer and task.eos in tokens else f"wrong, the answer is {problem.answer}"
            f.write(f"    {problem.prompt}{text}    {verdict}\n")


if __name__ == "__main__":
    from isojax.cli import main_train

    main_train()
