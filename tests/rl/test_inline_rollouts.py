"""An update whose verifier runs on the host equals the one whose verifier runs on device, on the
same task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any, ClassVar, Literal

import jax
import numpy as np
import pytest

from isojax.core.config import CellConfig, RLConfig, SamplingConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Cell, Problem
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import replicated, shapes_with_shardings, shard_count
from isojax.rl.engines import EngineSetup
from isojax.rl.engines.local import local_engine
from isojax.rl.fused_rollouts import ProblemBatches, build_fused_update
from isojax.rl.inline_rollouts import InlinePrograms, InlineRollouts
from isojax.rl.metric import Metrics, merge_in_float32
from isojax.rl.objective import make_coefficients
from isojax.rl.optimizer import TrainState, build_init_state, train_state_shapes
from isojax.rl.rollout_source import CellProblems, RolloutSource, UpdateShapes, finish_batch
from isojax.rl.train_step import TrainStep, UpdateResult
from isojax.sampling.batch import TRAIN_STREAM, ProblemArrays, gather_problems, problem_shapes
from isojax.sampling.engine import build_sampler
from isojax.tasks.protocol import Grades
from tests.compiler import AS_USERS_DO, SAME_BITS
from tests.device import (
    CONFIG,
    DECODER,
    MESHES,
    P,
    Parity,
    T,
    compile_with,
    gather,
    mesh,
    placed,
    policy,
    random_problems,
    shapes_of,
)
from tests.refusals import refused

pytestmark = pytest.mark.slow

B_p, n, UPDATES, COUNT, SEED = 5, 7, 3, 11, 17
TABLE = random_problems(COUNT, seed=4)
PROBLEMS = [Problem(int(i), f"{i:03d}", "even") for i in TABLE.ids]
PLAIN = RLConfig(kl=0.1, learning_rate=2e-2, lr_reference_batch=35, warmup=2)
# that leaves out solved problems, so that an update says what each problem's rollouts came to
RL = PLAIN.with_settings(no_positive_resampling=0.9)


class Spoken(Parity):
    """The same text task: a response is the word `even` or `odd`, and the answer is `even`.
    Remembers what it was shown, and of which problem, in the order in which it was."""

    on_device: ClassVar[Literal[False]] = False

    def __init__(self, failing: Sequence[int] = (), refused: int = -1) -> None:
        self.failing, self.refused = failing, refused
        self.shown: list[list[int]] = []
        self.graded: list[int] = []

    def decode(self, tokens: np.ndarray) -> str:
        self.shown.append(tokens.tolist())
        return super().decode(tokens)

    def grade_tokens(self, problems: Sequence[Problem], responses: Sequence[np.ndarray]) -> Grades:
        texts = [self.decode(tokens) for tokens in responses]
        if self.refused in (p.id for p in problems):
            raise InputError(f"problem {self.refused} cannot be judged")
        right = np.array(
            [text == p.answer for p, text in zip(problems, texts, strict=True)], np.float32
        )
        lost = np.array([p.id in self.failing for p in problems], bool)
        self.graded += [p.id for p in problems]
        return Grades(
            np.where(lost, 0, right).astype(np.float32),
            ~lost,
            {"timeout": int(lost.sum())} if lost.any() else {},
        )


@cache
def index() -> np.ndarray:
    """The problems of each update: COUNT in an order, of which B_p at a time count."""
    rows = np.zeros((UPDATES, B_p + 4), np.int32)
    for i in range(UPDATES):
        rows[i, :B_p] = np.random.default_rng(i).permutation(COUNT)[:B_p]
    return rows


class FixedOrder:
    """In the place of an EpochOrder: these batches i[updates B_p], and the rewards that are
    recorded."""

    def __init__(self, batches: np.ndarray, drop_above: float | None = None) -> None:
        self.batches = iter(batches)
        self.drop_above = drop_above
        self.B_p = batches.shape[1]
        self.dropped_fraction, self.reward_sums = 0.0, np.zeros(COUNT, np.float32)

    def __next__(self) -> np.ndarray:
        return next(self.batches)

    def record_rewards(self, problem_index: np.ndarray, reward_sums: np.ndarray, n: int) -> None:
        np.add.at(self.reward_sums, problem_index, reward_sums)


def train_on(
    source: RolloutSource,
    update: Callable[..., Any],
    state: TrainState,
    base: Any,
    coefficients: Any,
    order: Any,
    updates: int,
) -> tuple[TrainState, Metrics]:
    """`updates` updates on the batches of a source, as the training loop does them; the sums of
    their metrics."""
    sums: Metrics = {}
    done = 0
    while done < updates:
        batch = source.next_batch(state, updates - done)
        state, result = update(state, base, batch.inputs, coefficients)
        metrics = finish_batch(batch, result, order, source.problems.cell.n)  # pyright: ignore[reportAttributeAccessIssue]
        sums = merge_in_float32(sums, metrics | source.finish_update(state))
        done += len(batch.problem_index) // order.B_p
    return state, sums


class Twin:
    """The two trainers on one mesh, from one state; each is compiled once, and the one of
    host-verified tasks once per task."""

    def __init__(self, axes: str, rl: RLConfig = RL) -> None:
        self.mesh = mesh(axes)
        self.sampler_shapes = SamplerShapes([(B_p, n)], shard_count(self.mesh), 12, 8, P, T)
        assert self.sampler_shapes.problem_rows == B_p + 4
        self.cell = CellConfig(
            model=CONFIG,
            sampling=SamplingConfig(prompt_length=P, response_length=T, temperature=0.8),
            rl=rl,
        )
        self.base = placed(policy(1), self.mesh)
        self.init = build_init_state(DECODER, self.mesh)
        self.coefficients = make_coefficients(rl)
        self.programs_by_task: dict[Parity, InlinePrograms] = {}

    def start(self) -> TrainState:
        return self.init(placed(policy(), self.mesh))

    def table(self) -> ProblemArrays:
        return ProblemArrays(*(jax.numpy.asarray(x) for x in TABLE))

    @cached_property
    def trainer(self) -> Any:
        return build_fused_update(self.cell, DECODER, Parity(), self.sampler_shapes, self.mesh)

    def batches(self, count: int = UPDATES) -> ProblemBatches:
        scalars = {"num_updates": count, "B_p": B_p, "n": n, "seed": SEED}
        return ProblemBatches(
            self.table(), index(), **{name: np.int32(x) for name, x in scalars.items()}
        )

    def on_device(self, count: int = UPDATES) -> tuple[TrainState, UpdateResult]:
        return self.trainer(self.start(), self.base, self.batches(count), self.coefficients)

    def first_responses(self) -> list[list[int]]:
        """Of the first update, out of a sampler of its own, in the order of the rollouts."""
        sample = jax.jit(
            build_sampler(DECODER, self.sampler_shapes, self.mesh, self.cell.sampling, Parity.stops)
        )
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), TRAIN_STREAM), 0)
        rollouts = sample(
            self.start().params,
            gather_problems(self.table(), index()[0]),
            np.int32(B_p),
            np.int32(n),
            key,
        )
        tokens, mask = (
            gather(self.sampler_shapes, B_p * n, x) for x in (rollouts.tokens, rollouts.mask)
        )
        return [row[remaining].tolist() for row, remaining in zip(tokens, mask, strict=True)]

    def programs(self, task: Any) -> InlinePrograms:
        if task not in self.programs_by_task:
            setup = EngineSetup(DECODER, task, self.sampler_shapes, self.mesh, self.cell.sampling)
            self.programs_by_task[task] = InlinePrograms(
                self.cell, DECODER, task, self.sampler_shapes, self.mesh, local_engine(setup)
            )
        return self.programs_by_task[task]

    def inline(
        self, task: Parity, count: int = UPDATES, order: FixedOrder | None = None
    ) -> tuple[TrainState, dict[str, float]]:
        programs, order = self.programs(task), order or FixedOrder(index()[:, :B_p])
        source = InlineRollouts(programs, self.problems(Cell(B_p, n, SEED), order))
        state, sums = train_on(
            source, programs.update, self.start(), self.base, self.coefficients, order, count
        )
        return state, {name: metric.sum for name, metric in sums.items()}

    def problems(self, cell: Cell, order: Any) -> CellProblems:
        return CellProblems(cell, PROBLEMS, self.table(), order, first_update=0)

    def shapes(self) -> UpdateShapes:
        return UpdateShapes(
            state=train_state_shapes(DECODER, self.mesh),
            base_params=shapes_of(self.base),
            problem_table=problem_shapes(self.sampler_shapes, self.mesh, COUNT, answer_length=0),
            coefficients=shapes_with_shardings(self.coefficients, replicated(self.mesh)),
        )


twin_of = cache(Twin)


def sums_of(result: UpdateResult) -> dict[str, float]:
    return {name: float(metric.sum) for name, metric in result.metrics.items()}


@pytest.fixture
def same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the twins that tests share. Not for a test that compiles in another way: of two calls of
    `compile_with` the first would win."""
    compile_with(SAME_BITS, monkeypatch)


@pytest.mark.parametrize(("axes", "options"), [("auto", SAME_BITS), (MESHES[0], AS_USERS_DO)])
def test_the_host_verified_update_equals_the_update_on_device(
    axes: str, options: dict[str, int | bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three updates, on a mesh compiled as users do: the first one's tokens bit for bit, its
    gradient and parameters to rounding, and all metrics; text is judged for its own problem."""
    compile_with(options, monkeypatch)
    twin, here = Twin(axes, PLAIN), Spoken()
    once, on_device = twin.inline(here, count=1)[0], twin.on_device(count=1)[0]
    for one, two in zip(
        *map(
            jax.tree.leaves,
            ((once.params, once.moments.mu), (on_device.params, on_device.moments.mu)),
        ),
        strict=True,
    ):
        assert np.linalg.norm(np.asarray(one) - np.asarray(two)) <= 1e-6 * np.linalg.norm(two)
    here.shown.clear()
    here.graded.clear()
    on_host, output = twin.inline(here)
    device, result = twin.on_device()
    known = sums_of(result)
    shown = here.shown
    requested = [[int(TABLE.ids[q]) for q in update[:B_p] for _ in range(n)] for update in index()]
    first = list(zip(here.graded, shown, strict=True))[: B_p * n]
    assert (
        sorted(first) == sorted(zip(requested[0], twin.first_responses(), strict=True))
        and len({tuple(row) for row in shown}) > 20
    )
    assert [sorted(here.graded[i * B_p * n :][: B_p * n]) for i in range(UPDATES)] == [
        sorted(ids) for ids in requested
    ]
    assert output["tokens"] == known["tokens"] == sum(map(len, shown))
    for one, two, start in zip(
        *map(jax.tree.leaves, (on_host.params, device.params, policy())), strict=True
    ):
        assert np.linalg.norm(np.asarray(one) - np.asarray(two)) <= 1e-6 * np.linalg.norm(two)
        # the updates did something
        assert np.linalg.norm(np.asarray(two) - start) > 1e-3 * np.linalg.norm(start)
    assert int(on_host.step) == int(device.step) == UPDATES
    assert set(output) - set(known) == {"parsed_fraction", "verifier_failures"}
    assert (output["parsed_fraction"], output["verifier_failures"]) == (UPDATES, 0)
    for name, value in known.items():
        assert output[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
    right = np.mean([row[0] % 2 == 0 for row in shown])
    assert output["reward"] / UPDATES == pytest.approx(float(right), rel=1e-6) and 0.1 < right < 0.9


@pytest.mark.usefixtures("same_bits")
@pytest.mark.parametrize("axes", ["auto", MESHES[0]])
def test_both_say_what_each_problems_rollouts_came_to(axes: str) -> None:
    twin, here = twin_of(axes), Spoken()
    order = FixedOrder(index()[:, :B_p], drop_above=0.9)
    _, output = twin.inline(here, order=order)
    _, result = twin.on_device()
    assert output["dropped"] >= 0

    expected = np.zeros(COUNT)
    location = {int(i): row for row, i in enumerate(TABLE.ids)}
    for problem, tokens in zip(here.graded, here.shown, strict=True):
        expected[location[problem]] += tokens[0] % 2 == 0
    np.testing.assert_array_equal(order.reward_sums, expected)
    np.testing.assert_array_equal(result.reward_sums, expected)
    assert len(set(expected)) > 3


@pytest.mark.usefixtures("same_bits")
def test_a_task_of_the_device_trains_inline_as_in_the_fused_program() -> None:
    """By three programs that sample, verify and train, and by one that does all of it: the same
    rollouts, and parameters to rounding, as XLA fuses the update in other ways."""
    twin = twin_of("auto")
    (inline, output), (device, result) = twin.inline(Parity()), twin.on_device()
    known = sums_of(result)
    for one, two in zip(*map(jax.tree.leaves, (inline.params, device.params)), strict=True):
        assert np.linalg.norm(np.asarray(one) - np.asarray(two)) <= 1e-6 * np.linalg.norm(two)
    assert output.keys() == known.keys() and output["tokens"] == known["tokens"]
    for name, value in known.items():
        assert output[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name


@pytest.mark.usefixtures("same_bits")
def test_nothing_is_compiled_after_compile(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which traces the update once and runs nothing. Then two cells with other B_p, n, seed and
    problems train."""
    traced, update = [], TrainStep.update
    monkeypatch.setattr(TrainStep, "update", lambda *args: (traced.append(1), update(*args))[1])
    twin, task = Twin("auto"), Spoken()
    programs, start = twin.programs(task), twin.start()
    # as a text task has them
    table = twin.table()._replace(answers=jax.numpy.zeros((COUNT, 0), "int32"))
    programs.compile(twin.shapes())
    assert len(traced) == 1 and task.shown == [] == task.graded
    with jax.log_compiles(), caplog.at_level("WARNING"):
        for cell in (Cell(3, 4, 1), Cell(B_p, 2, SEED)):
            order = FixedOrder(index()[::-1, : cell.B_p])
            source = InlineRollouts(
                programs, CellProblems(cell, PROBLEMS, table, order, first_update=0)
            )
            start, metrics = train_on(
                source, programs.update, start, twin.base, twin.coefficients, order, 2
            )
            assert metrics["tokens"].sum > 16
        assert not [r for r in caplog.messages if "XLA compilation" in r]
        jax.jit(lambda x: x + SEED)(np.float32(1))
    assert [r for r in caplog.messages if "XLA compilation" in r]  # they are seen
    assert len(traced) == 1


@pytest.mark.usefixtures("same_bits")
def test_failed_checks_are_counted_and_what_the_verifier_raises_ends_the_update() -> None:
    """The checks of the first two problems never end. Their rollouts count as wrong, and are
    counted by kind. Of a problem of the second batch the check raises: from its thread, before
    anything is learnt."""
    lost = [int(i) for i in TABLE.ids[:2]]
    selected, later = ([int(TABLE.ids[q]) for q in batch[:B_p]] for batch in index()[:2])
    refused_id = next(i for i in later if i not in selected)
    twin, task = Twin("auto"), Spoken(failing=lost, refused=refused_id)
    _, metrics = twin.inline(task, count=1)
    failed = n * sum(i in lost for i in selected)
    assert failed and metrics["verifier_failures"] == metrics["verifier_timeout"] == failed
    assert metrics["parsed_fraction"] == pytest.approx(1 - failed / (B_p * n))
    right = sum(
        row[0] % 2 == 0 for row, i in zip(task.shown, task.graded, strict=True) if i not in lost
    )
    assert metrics["reward"] == pytest.approx(right / (B_p * n), rel=1e-6)

    with refused():
        twin.inline(task)
    assert refused_id not in task.graded
