"""The compiled update: against a plain program, loops that equal single calls, seeds that repeat,
one program for a sweep, and its text on eight devices.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import CellConfig, RLConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.rl.fused_rollouts import ProblemBatches, build_fused_update
from isojax.rl.objective import make_coefficients
from isojax.rl.optimizer import TrainState, build_init_state
from isojax.rl.train_step import TrainStep
from isojax.sampling.batch import ProblemArrays
from isojax.sampling.logits import rollout_keys, uniforms
from tests.device import (
    CONFIG,
    DECODER,
    EOS,
    MESHES,
    P,
    Parity,
    T,
    log_softmax,
    mesh,
    placed,
    policy,
    quick_jit,
    random_problems,
    response_logits,
)
from tests.hlo import check_separate, collectives

pytestmark = pytest.mark.seconds(11)

CELLS = [(16, 2), (13, 7), (2, 16)]
RL = RLConfig(entropy=0.001, learning_rate=2e-2, warmup=3, max_consecutive_nonfinite=2)
CELL = CellConfig(model=CONFIG, rl=RL)
U = 64
TABLE = random_problems(40, seed=5)


class Faulty(Parity):
    """Its rewards are no numbers for a problem whose answer begins with 1: none of TABLE."""

    def verify(self, answers: Any, tokens: Any, mask: Any) -> Any:
        return jnp.where(answers[..., 0] == 1, jnp.nan, super().verify(answers, tokens, mask))


class Trainer:
    """`build_fused_update` on a mesh, from the same policy each time."""

    def __init__(self, axes: str = "auto", slots: int = 6):
        self.mesh = mesh(axes)
        self.sampler_shapes = SamplerShapes(CELLS, shard_count(self.mesh), slots, 8, P, T)
        self.program = build_fused_update(CELL, DECODER, Faulty(), self.sampler_shapes, self.mesh)
        self.init = build_init_state(DECODER, self.mesh)
        self.base = placed(policy(), self.mesh)

    def fresh(self) -> TrainState:
        return self.init(self.base)

    def index(self, B_p: int, seed: int = 0) -> np.ndarray:
        """Problems of U updates; what pads them is another problem."""
        rng = np.random.default_rng(seed)
        index = np.full((U, self.sampler_shapes.problem_rows), 39, np.int32)
        for row in index:
            row[:B_p] = rng.permutation(39)[:B_p]
        return index

    def args(
        self, state: TrainState, index: np.ndarray, count: int, B_p: int, n: int, seed: int = 0
    ):
        batches = ProblemBatches(
            TABLE,
            index,
            num_updates=np.int32(count),
            B_p=np.int32(B_p),
            n=np.int32(n),
            seed=np.int32(seed),
        )
        return state, self.base, batches, make_coefficients(CELL.rl)

    def __call__(self, *args, **kwargs):
        state, result = self.program(*self.args(*args, **kwargs))
        return state, {k: float(metric.sum) for k, metric in result.metrics.items()}


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return Trainer()


def equal(one: TrainState, two: TrainState) -> bool:
    return all(
        jax.tree.leaves(
            jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), one, two)
        )
    )


@pytest.mark.parametrize(("B_p", "n"), CELLS)
def test_a_loop_equals_single_calls_bit_for_bit(trainer: Trainer, B_p: int, n: int) -> None:
    index = trainer.index(B_p)
    looped, sums = trainer(trainer.fresh(), index, 3, B_p, n)
    state, single = trainer.fresh(), dict.fromkeys(sums, 0.0)
    for i in range(3):
        state, metrics = trainer(state, np.roll(index, -i, 0), 1, B_p, n)
        added = {k: float(np.float32(single[k]) + np.float32(v)) for k, v in metrics.items()}
        single = {
            k: max(single[k], metrics[k]) if k.endswith("_max") else v for k, v in added.items()
        }
    assert equal(looped, state)
    assert sums == single
    assert int(state.step) == 3
    assert trainer.program._cache_size() == 1  # for every cell so far


def test_one_program_serves_every_cell(trainer: Trainer) -> None:
    ends = [trainer(trainer.fresh(), trainer.index(B_p), 2, B_p, n)[1] for B_p, n in CELLS]
    assert trainer.program._cache_size() == 1
    for (B_p, n), sums in zip(CELLS, ends, strict=True):
        assert 2 * B_p * n <= sums["tokens"] <= 2 * B_p * n * T
        # rewards are 0 or 1: a whole number of right answers
        assert sums["reward"] * B_p * n == pytest.approx(round(sums["reward"] * B_p * n), abs=1e-3)


def test_a_seed_repeats_and_another_does_not(trainer: Trainer) -> None:
    one, two, other = (
        trainer(trainer.fresh(), trainer.index(13), 3, 13, 7, seed=seed) for seed in (1, 1, 2)
    )
    assert equal(one[0], two[0]) and one[1] == two[1]
    assert one[1]["tokens"] != other[1]["tokens"] and not equal(one[0], other[0])


def test_no_update_changes_nothing(trainer: Trainer) -> None:
    state, sums = trainer(trainer.fresh(), trainer.index(13), 0, 13, 7)
    assert equal(state, trainer.fresh())
    assert set(sums.values()) == {0.0}


def test_the_order_of_a_batch_and_what_pads_it_change_nothing_but_rounding(
    trainer: Trainer,
) -> None:
    index = trainer.index(13)
    mixed = index.copy()
    mixed[:, :13] = index[:, :13][:, np.random.default_rng(0).permutation(13)]
    mixed[:, 13:] = 7
    one, two = (trainer(trainer.fresh(), i, 1, 13, 7) for i in (index, mixed))
    assert one[1]["tokens"] == two[1]["tokens"] and one[1]["reward"] == two[1]["reward"]
    for a, b in zip(
        jax.tree.leaves(one[0].moments.mu), jax.tree.leaves(two[0].moments.mu), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(np.abs(a).max()))


def test_training_teaches(trainer: Trainer) -> None:
    """Parity of the first token is easy: 64 updates take the reward above .9."""
    index = trainer.index(16)
    state, first = trainer(trainer.fresh(), index, 1, 16, 2)
    state, _ = trainer(state, index, U, 16, 2)
    state, last = trainer(state, index, 8, 16, 2)
    assert first["reward"] < 0.75
    assert last["reward"] / 8 > 0.9
    assert last["nonfinite_update"] == 0


class PlainBatch(NamedTuple):
    """B rollouts of n to a problem, drawn and rewarded by NumPy; rows beyond them are empty."""

    problems: ProblemArrays
    group: np.ndarray  # [rows]
    tokens: np.ndarray  # [rows T]
    mask: np.ndarray  # [rows T]
    rewards: np.ndarray  # [B]
    advantages: np.ndarray  # [rows]


def sample_plainly(index: np.ndarray, B_p: int, n: int, rows: int) -> PlainBatch:
    """The first update's rollouts: whole sequences, one position after the other, by the inverse of
    the distribution function at each token's uniform number."""
    B = B_p * n
    problems = ProblemArrays(*(np.asarray(x)[index[0, :B_p]] for x in TABLE))
    group, rollout = (np.resize(x, rows) for x in np.divmod(np.arange(B), n))
    update_key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), 0)
    ids = jnp.asarray(problems.ids[group])
    keys = rollout_keys(update_key, ids, jnp.asarray(rollout, jnp.int32))

    tokens = np.zeros((rows, T), np.int32)
    for t in range(T):
        x = response_logits(np, policy(), problems, group, tokens)[:, t].astype(np.float64)
        edges = np.exp(x - x.max(-1, keepdims=True)).cumsum(-1)
        uniform = np.asarray(uniforms(keys, jnp.full(rows, t, jnp.int32)), np.float64)
        tokens[:, t] = (edges <= uniform[:, None] * edges[:, -1:]).sum(-1)

    ended_before = np.cumsum(tokens == EOS, 1) - (tokens == EOS) > 0
    mask = ~ended_before & (np.arange(rows) < B)[:, None]
    rewards = (tokens[:B, 0] % 2 == 0).astype(np.float64)
    groups = rewards.reshape(B_p, n)
    centered = groups - groups.mean(1, keepdims=True)
    advantages = np.zeros(rows, np.float32)
    advantages[:B] = (centered / (groups.std(1, ddof=1, keepdims=True) + 1e-6)).reshape(-1)
    return PlainBatch(problems, group, tokens, mask, rewards, advantages)


@quick_jit
@partial(jax.grad, has_aux=True)
def plain_gradient(params: Any, batch: PlainBatch) -> tuple[Any, dict[str, Any]]:
    """The policy gradient and the entropy bonus as one writes them down, means over tokens."""
    log_p = log_softmax(
        jnp, response_logits(jnp, params, batch.problems, batch.group, batch.tokens)
    )
    logps = jnp.take_along_axis(log_p, batch.tokens[..., None], -1)[..., 0]
    entropy = -(jnp.exp(log_p) * log_p).sum(-1)
    ratio = jnp.exp(logps - jax.lax.stop_gradient(logps))
    loss = -ratio * batch.advantages[:, None] - CELL.rl.entropy * entropy
    means = {
        name: (x * batch.mask).sum() / batch.mask.sum()
        for name, x in (("loss", loss), ("entropy", entropy))
    }
    return means["loss"], means


@pytest.mark.parametrize(("B_p", "n"), CELLS)
def test_an_update_equals_a_plain_program(trainer: Trainer, B_p: int, n: int) -> None:
    """Rollouts, rewards, metrics, gradient and the step of AdamW."""
    rows = max(B_p * n for B_p, n in CELLS)  # one shape of the plain program for all cells
    index = trainer.index(B_p)
    batch = sample_plainly(index, B_p, n, rows)
    padding = rows - B_p
    problems = ProblemArrays(
        *(np.pad(x, ((0, padding), *((0, 0),) * (x.ndim - 1))) for x in batch.problems)
    )
    gradient, means = plain_gradient(policy(), batch._replace(problems=problems))
    norm = np.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(gradient)))

    state, metrics = trainer(trainer.fresh(), index, 1, B_p, n)

    lengths = batch.mask.sum(1)[: B_p * n]
    stopped = ((batch.tokens == EOS) & batch.mask).any(1)[: B_p * n]
    is_level = np.ptp(batch.rewards.reshape(B_p, n), axis=1) == 0
    assert metrics["tokens"] == lengths.sum()
    assert metrics["reward"] == pytest.approx(batch.rewards.mean(), rel=1e-6)
    assert metrics["response_length"] == pytest.approx(lengths.mean(), rel=1e-6)
    assert metrics["truncated"] == pytest.approx(1 - stopped.mean(), rel=1e-6)
    assert metrics["zero_variance"] == pytest.approx(is_level.mean(), rel=1e-6)
    assert metrics["loss"] == pytest.approx(float(means["loss"]), rel=1e-4, abs=1e-6)
    assert metrics["entropy"] == pytest.approx(float(means["entropy"]), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["sampler_logp_gap"] < 1e-5 and metrics["clip_fraction"] == 0

    # Adam's first moment after one step is a tenth of the clipped gradient, and the step its sign.
    scale = min(1.0, CELL.rl.max_grad_norm / norm)
    lr = 2e-2 * np.sqrt(B_p * n / CELL.rl.lr_reference_batch) / 3
    for expected, moment, before, after in zip(
        *map(jax.tree.leaves, (gradient, state.moments.mu, policy(), state.params)), strict=True
    ):
        got = np.asarray(moment) * 10
        np.testing.assert_allclose(
            got, scale * expected, atol=1e-4 * scale * np.abs(expected).max()
        )
        step = -lr * got / (np.abs(got) + 1e-8)
        np.testing.assert_allclose(np.asarray(after) - before, step, atol=0.01 * lr)


def test_updates_that_are_not_finite_are_skipped_and_counted(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates 1 and 3 to 5 have a problem without a reward. Parameters and moments stay, bit for
    bit, and so many in a row end the loop.
    """
    monkeypatch.setitem(
        globals(),
        "TABLE",
        TABLE._replace(answers=(np.arange(40) == 38).astype(np.int32)[:, None].repeat(T, 1)),
    )
    index = trainer.index(13)
    index[index == 38] = 37
    index[[1, 3, 4, 5], 0] = 38
    ends = {count: trainer(trainer.fresh(), index, count, 13, 7) for count in (1, 2, 3, 6)}
    (one, _), (two, sums), (three, _), (last, all_sums) = ends.values()
    assert equal(
        one._replace(step=0, consecutive_nonfinite=0), two._replace(step=0, consecutive_nonfinite=0)
    ) and not equal(two, three)
    assert [int(state.step) for state, _ in ends.values()] == [1, 2, 3, 5]  # the sixth is not begun
    assert [int(state.consecutive_nonfinite) for state, _ in ends.values()] == [0, 1, 0, 2]
    assert [result["nonfinite_update"] for _, result in ends.values()] == [0, 1, 1, 3]
    assert equal(
        three._replace(step=0, consecutive_nonfinite=0),
        last._replace(step=0, consecutive_nonfinite=0),
    )
    assert sums["grad_norm"] == ends[1][1]["grad_norm"] and np.isfinite(all_sums["loss"])


def test_an_update_is_traced_once(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing is most of a start whose programs were compiled before."""
    traced, update = [], TrainStep.update
    monkeypatch.setattr(TrainStep, "update", lambda *args: (traced.append(1), update(*args))[1])
    program = build_fused_update(CELL, DECODER, Parity(), trainer.sampler_shapes, trainer.mesh)
    program.trace(*trainer.args(trainer.fresh(), trainer.index(2), 1, 2, 16))
    assert len(traced) == 1


def test_an_update_on_eight_devices(trainer: Trainer) -> None:
    """The one program of data=4,tensor=2 does what one device does, and gathers neither cache nor
    prefixes nor weights in its loops.
    """
    many = Trainer(MESHES[0])
    program = many.program.lower(*many.args(many.fresh(), many.index(2), 1, 2, 16)).compile()
    for B_p, n in CELLS:
        (one, a), (two, b) = (
            f(*t.args(t.fresh(), t.index(B_p), 1, B_p, n))
            for t, f in ((trainer, trainer.program), (many, program))
        )
        for name in ("tokens", "reward"):  # the same rollouts
            assert float(a.metrics[name].sum) == float(b.metrics[name].sum)
        for name in ("loss", "entropy", "grad_norm", "response_length"):
            expected = pytest.approx(float(a.metrics[name].sum), rel=1e-3, abs=1e-5)
            assert float(b.metrics[name].sum) == expected, name
        for x, y in zip(
            jax.tree.leaves(one.moments.mu), jax.tree.leaves(two.moments.mu), strict=True
        ):
            np.testing.assert_allclose(x, y, atol=1e-5 * float(np.abs(x).max()))

    hlo = program.as_text()
    sampler_shapes = many.sampler_shapes
    check_separate(hlo, P + T, sampler_shapes.slots, sampler_shapes.slots)
    check_separate(
        hlo,
        P,
        sampler_shapes.prefix_entries,
        max(sampler_shapes.prefix_entries, sampler_shapes.slots, sampler_shapes.microbatch),
    )
    result = collectives(hlo)
    # One step's distribution is the most that the sampler gathers. In the update each device
    # normalizes a part of the tokens of a block's prompts and of a microbatch; products need the
    # hidden states of all.
    rows = (sampler_shapes.prefill_batch, P), (sampler_shapes.microbatch, T - 1)
    hidden = {f"f32[{b},{t},{DECODER.config.width}]" for b, t in rows}
    gathered = {(c.result, c.depth) for c in result if c.kind != "all-reduce"}
    assert {result for result, _ in gathered} >= hidden
    assert {(result, depth) for result, depth in gathered if result not in hidden} == {
        (f"f32[{sampler_shapes.slots},{DECODER.vocab}]", 3)
    }
    # in the sampler's and the gradient's loops only tensor's pairs meet, and once per chunk all
    # shards: is any still at work?
    wide = [
        c.result
        for c in result
        if c.depth >= 2 and not all(max(group) - min(group) == 1 for group in c.groups)
    ]
    assert wide == ["s32[]"]
