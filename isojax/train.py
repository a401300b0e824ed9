"""One run, from top to bottom: the file a research fork copies.

    base policy -> (take B_p problems, sample n rollouts each, verify, advantages, gradient, AdamW) x M -> records.jsonl

Where it departs from GRPO as published (DeepSeekMath, arXiv:2402.03300): one update a batch, so on-policy; the loss is a mean over all
response tokens of the batch; the learning rate grows with sqrt(B); KL (k3, in the loss) and entropy only where the recipe sets them.
Evaluations fall at the first update that reaches each value of one grid of C, the same for every (B_p, n).
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from isojax import registry
from isojax.base import Base, encode
from isojax.checkpoint import Checkpoints, Position
from isojax.config import PANEL, CellConfig, Config, SweepConfig
from isojax.estimators import summary
from isojax.evaluate import Counts, Evaluator, ProblemSet
from isojax.models.decoder import Decoder, Options, Params
from isojax.problems import short_answer
from isojax.records import Ledger
from isojax.rl.hosted import build_hosted_train
from isojax.rl.objective import MAX
from isojax.rl.pipeline import Pipeline, PipelinePrograms
from isojax.rl.step import EXTRA, RIGHT, TAUGHT, UPDATES_A_CALL, State, build_init, build_train, coefficients
from isojax.sampling.batch import Problems, make_geometry
from isojax.sharding import MeshShape, replicated, shard_count
from isojax.tasks.base import Task, on_device, unfinished
from isojax.tasks.data import Order
from isojax.types import Cell, EvalPoint, InputError, Problem

SAMPLES_SHOWN = 4
COUNTED = "verifier_"  # metrics of training that are counts, summed over the updates between two points; of the others, the mean
LABELLED_AT_ONCE = 64  # problems of a language model: as many as a kill may cost
COMPILING = threading.Lock()  # cells run side by side; compiling the large program twice at once only doubles its memory


@dataclass(frozen=True)
class Progress:
    """What a live display shows of a cell."""

    cell: Cell
    rollouts: int
    reward: float | None


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
        self.init = build_init(self.decoder, mesh, cell.rl.critic is not None)
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
    base_params = base.params(programs.decoder, mesh)
    reference = base_params if config.cell.rl.kl > 0 or config.cell.rl.measure_kl else {}  # what the KL is measured against
    table = jax.device_put(Problems(*programs.problem_set(base.training).arrays), replicated(mesh))
    validation = programs.problem_set(base.validation)
    extra = {name: programs.problem_set(problems) for name, problems in further_sets(base, config).items()}
    with Checkpoints(folder / "checkpoint") as checkpoints, ExitStack() as running:
        state, position = programs.init(base_params), Position(0, -1, 0)
        del base_params  # a large policy is held once more only where something reads it
        state, position = checkpoints.restore(state) or (state, position)
        if position.evaluation >= 0 and grid[position.evaluation] not in ledger.targets:  # the ledger lost a line that the state is past
            checkpoints.clear()
            state, position = programs.init(base.params(programs.decoder, mesh)), Position(0, -1, 0)
        report(Progress(cell, position.M * cell.B, None))
        drop_above = config.cell.rl.no_positive_resampling
        order = Order(len(base.training), cell.B_p, cell.seed, position.M, drop_above, position.order)

        def tell(index: np.ndarray, right: np.ndarray) -> dict[str, float]:
            """Which problems were solved decides, where that is asked for, what later epochs leave out."""
            order.record(index, right, cell.n)
            return {"dropped": order.dropped}

        record = None if drop_above is None else tell

        def updates(state: State, count: int) -> tuple[State, dict[str, float]]:
            """`count` updates in one call: the next problems of the order, and the sums of their metrics."""
            chosen = np.array([next(order) for _ in range(count)], np.int32).reshape(count, cell.B_p)
            state, metrics, right = programs.updates(state, reference, table, base.training, chosen, count, cell)
            told = {} if record is None else record(chosen.reshape(-1), right[chosen.reshape(-1)])
            return state, metrics | {name: count * value for name, value in told.items()}

        if programs.pipeline is not None:
            arrays = Problems(*programs.problem_set(base.training).arrays)
            given = cell, reference, table, arrays, base.training, order, programs.numbers, position.M, record
            updates = running.enter_context(Pipeline(programs.pipeline, *given)).updates

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
                count = min(programs.updates_a_call, goal - M)
                if drop_above is not None and programs.pipeline is None:
                    count = min(count, order.left_in_epoch)
                state, metrics = updates(state, count)
                sums = add_up(sums, metrics)
                M += count
                report(Progress(cell, M * cell.B, None))
            if bad := round(sums.get("not_finite", 0.0)):
                reason = f"loss or gradient not finite in {bad} of the updates {position.M + 1} to {M}; lower cell.rl.learning_rate"
                ledger.fail(M, reason)
                raise FloatingPointError(reason)
            found = programs.evaluator.counts(state.params, validation, cell.seed, evaluation)
            further = {
                name: programs.evaluator.counts(state.params, chosen, cell.seed, evaluation, stream=EXTRA + i)
                for i, (name, chosen) in enumerate(extra.items())
            }
            done = M - position.M
            position = Position(M, evaluation, position.tokens + round(sums.pop("tokens", 0.0)), order.save())
            point = EvalPoint(
                target=target,
                M=M,
                rollouts=M * cell.B,
                tokens=position.tokens,
                metrics=metrics_of(found, {name: c for name, c in further.items() if name != PANEL}, config.cell.eval.samples),
                counts=tuple(int(c) for c in found.right),
                samples=config.cell.eval.samples,
                train=means(sums, done),
                extra={name: tuple(int(c) for c in counts.right) for name, counts in further.items()},
            )
            now = time.monotonic()
            if target not in ledger.targets:
                write_samples(folder / "samples.txt", programs.task, base.validation, found, point)
            ledger.append(point, seconds=now - clock, devices=programs.devices)
            clock = now
            report(Progress(cell, point.rollouts, next(iter(point.metrics.values()))))
            if now - saved >= config.run.checkpoint_seconds or target == grid[-1]:
                checkpoints.save(state, position)
                saved = now


def add_up(sums: dict[str, float], more: dict[str, float]) -> dict[str, float]:
    """Metrics of updates and of those that followed, some of which have metrics that others have not."""
    return sums | {k: max(sums.get(k, 0.0), v) if k.startswith(MAX) else sums.get(k, 0.0) + v for k, v in more.items()}


def means(sums: dict[str, float], updates: int) -> dict[str, float]:
    """What sums over the updates of an interval come to: means, but for the verifier's failures, which stay sums, and maxima.

    Where groups that teach nothing are not computed, `entropy` and its like are means over the tokens of those that teach, whose share
    of all is `taught`; where none did, there are none.
    """
    told = {k: v if k.startswith((COUNTED, MAX)) else v / updates for k, v in sums.items() if not k.startswith(TAUGHT)}
    weighted = {k.removeprefix(TAUGHT): v for k, v in sums.items() if k.startswith(TAUGHT)}
    return told | ({k: v / sums["taught"] for k, v in weighted.items()} if weighted and sums["taught"] > 0 else {})


def reached(target: int, B: int) -> int:
    """Updates of B rollouts until C >= target."""
    return -(-target // B)


def finished(ledger: Ledger, grid: list[int]) -> bool:
    """Whether a cell has been recorded up to the last value of the grid (an update that reaches several stands under the largest)."""
    return bool(ledger.targets) and ledger.targets[-1] >= grid[-1]


def further_sets(base: Base, config: Config) -> dict[str, list[Problem]]:
    """What is evaluated beside the validation set, by name; the panel last, a random choice of the training problems."""
    size = config.cell.eval.panel
    order = np.random.default_rng([config.cell.data.seed, 5]).permutation(len(base.training))
    return base.extra | ({PANEL: [base.training[i] for i in sorted(order[:size])]} if size else {})


def metrics_of(found: Counts, extra: dict[str, Counts], samples: int) -> dict[str, float]:
    """The metrics of an evaluation: of the validation set under their own names, of each further set below its name.

    answered: the share of rollouts that hold an answer in the right form, right or wrong; truncated: that met no stop;
    verifier_failures: checks that did not come to an end (counted as wrong). interrupted: told to come to an end, where that is done.
    """
    metrics: dict[str, float] = {}
    for prefix, counts in {"": found, **{f"{name}/": c for name, c in extra.items()}}.items():
        rollouts = samples * len(counts.right)
        metrics |= {prefix + k: v for k, v in summary(counts.right, samples).items()}
        metrics |= {f"{prefix}answered": counts.answered / rollouts, f"{prefix}truncated": 1 - counts.ended / rollouts}
        metrics[f"{prefix}verifier_failures"] = float(unfinished(counts.failures))
        if counts.interrupted is not None:
            metrics[f"{prefix}interrupted"] = counts.interrupted / rollouts
    return metrics


def write_samples(path: Path, task: Task, problems: list[Problem], found: Counts, point: EvalPoint) -> None:
    """A few rollouts that a person can read, once an evaluation."""
    head = f"C = {point.rollouts} rollouts, M = {point.M}, " + ", ".join(f"{k} = {v:.3f}" for k, v in point.metrics.items()) + "\n"
    if path.exists() and head in path.read_text():
        return
    with path.open("a") as f:
        f.write(head)
        for problem, tokens, reward in zip(problems[:SAMPLES_SHOWN], found.tokens, found.first, strict=False):
            verdict = "right" if reward == 1 else f"wrong, the answer is {short_answer(problem)}"
            f.write(f"    {problem.prompt}{task.decode(tokens)}    {verdict}\n")


if __name__ == "__main__":
    from isojax.cli import main_train

    main_train()
