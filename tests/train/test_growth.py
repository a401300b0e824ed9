"""When n grows by the gradient's signal, against gradients whose share of signal is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isojax.core.nouns import Cell
from isojax.core.schedule import Stage
from isojax.rl.metric import Metrics, mean
from isojax.rl.optimizer import ADAM
from isojax.rl.train_step import gradient_signal
from isojax.train.checkpoint import RunCursor, RunSpan
from isojax.train.growth import CHECK_EVERY, GradientSignal, choose_n, growth_state, next_stage
from isojax.train.restore import begin_span, count_rollouts
from tests.device import quick_jit


@pytest.mark.parametrize("share", [0.0, 0.02, 0.2])
def test_the_share_of_signal_of_gradients(share: float) -> None:
    """Gradients of a constant direction and noise of another 1 - share of their square."""
    rng, size, count = np.random.default_rng(0), 400, 1500
    direction = np.zeros(size)
    direction[0] = np.sqrt(share)
    moments = ADAM.init({"w": jnp.zeros(size)})
    assert isinstance(moments, optax.ScaleByAdamState)

    @quick_jit
    def update(gradient: Any, moments: Any) -> Any:
        norm = optax.tree.norm(gradient)
        found = gradient_signal(gradient, norm, moments, max_grad_norm=1.0)
        clipped = {"w": gradient["w"] * jnp.minimum(1.0, 1.0 / norm)}
        return {name: x.sum for name, x in found.items()}, ADAM.update(clipped, moments)[1]

    signal = square = 0.0
    for _ in range(count):
        noise = rng.normal(0, np.sqrt((1 - share) / size), size)
        found, moments = update({"w": np.float32(direction + noise)}, moments)
        signal = signal + float(found["grad_signal"])
        square = square + float(found["grad_square"])
        assert found["grad_signal_square"] == pytest.approx(float(found["grad_signal"]) ** 2)
    assert signal / square == pytest.approx(share, abs=0.006)


def metrics_of(signals: Sequence[float] | np.ndarray, zero_variance: float = 0.5) -> Metrics:
    """Of one update for each of these signals."""
    count, values = float(len(signals)), np.asarray(signals)
    found = {
        "grad_signal": values,
        "grad_signal_square": values**2,
        "zero_variance": np.full(len(signals), zero_variance),
    }
    return {name: mean(float(one.mean()), count) for name, one in found.items()}


def faded_at(
    growth: GradientSignal,
    signal: Callable[[int], float],
    noise: float = 1.0,
    zero_variance: float = 0.5,
    B_p: int = 32,
) -> int | None:
    """After how many updates of B_p problems n grows, of a signal of so much after so many updates,
    plus and minus the noise in turns; None where it does not in 4,000."""
    for update in range(CHECK_EVERY, 4000, CHECK_EVERY):
        signals = signal(update) + noise * (-1.0) ** np.arange(CHECK_EVERY)
        growth.add(metrics_of(signals, zero_variance), CHECK_EVERY, B_p)
        if growth.has_faded(B_p):
            return update
    return None


def test_n_grows_when_the_signal_is_not_clearly_positive() -> None:
    """Half of 32 groups have variance: 256 of them are in 16 updates, where two standard errors of
    a mean are 1 / 2."""
    assert (
        faded_at(GradientSignal(), lambda _: 0.6) is None
        and faded_at(GradientSignal(), lambda _: 0.03, 0.05) is None
    )
    # as soon as that is known
    assert [faded_at(GradientSignal(), lambda _, s=s: s) for s in (0.1, 0.4)] == [16, 16]
    fell = faded_at(GradientSignal(), lambda update: 0.6 if update <= 200 else 0.0)
    assert fell is not None and 1.5 * 200 <= fell <= 3 * 200  # the average is over the last half


def test_n_grows_early_when_the_signal_is_clearly_negative() -> None:
    """Two standard errors of a mean over 8 updates are 1 / 1.4, over 16 they are 1 / 2."""
    found = [
        faded_at(GradientSignal(), lambda _, s=s: -s, zero_variance=0.69) for s in (0.8, 0.6, 0.1)
    ]
    # 256 groups have variance in 26 updates; then less than clearly positive suffices
    assert found == [8, 16, 32]
    # there is no gradient
    assert faded_at(GradientSignal(), lambda _: 0.0, 0.0, zero_variance=1.0) is None
    assert faded_at(GradientSignal(earlier=40), lambda _: -0.8) == 40  # nor before C has doubled
    sizes = {
        B_p: faded_at(GradientSignal(), lambda _: -0.9, zero_variance=0.69, B_p=B_p)
        for B_p in (1, 8, 512)
    }
    assert sizes == {1: 256, 8: 32, 512: 8}  # nor before 256 groups of any kind


def test_groups_without_variance_say_nothing_of_the_signal() -> None:
    """Of 32 groups an update, 10 have variance: 256 of them are in 26 updates."""
    assert faded_at(GradientSignal(), lambda _: 0.0, zero_variance=0.69) == 32
    lucky_later = faded_at(
        GradientSignal(), lambda update: 0.0 if update <= 8 else 0.8, zero_variance=0.69
    )
    assert lucky_later is None


def test_n_stays_where_most_groups_of_twice_its_size_would_have_no_variance() -> None:
    """Without regard to the signal; over the last half of the rollouts, as for the signal."""
    assert faded_at(GradientSignal(), lambda _: -0.9, zero_variance=0.71) is None
    growth = GradientSignal()
    growth.add(metrics_of([0.0] * 400, 0.9), 400, 32)
    assert faded_at(growth, lambda _: 0.0, zero_variance=0.5) in range(100, 300)


def test_the_standard_error_of_the_signal() -> None:
    """Of one update, from 3,000 with independent noise in calls of 4: of those of the last half."""
    growth, rng = GradientSignal(), np.random.default_rng(0)
    for noise in rng.normal(0, 3, (750, 4)):
        growth.add(metrics_of(0.5 + noise), 4, 32)
    assert growth.signal_square - growth.signal**2 == pytest.approx(9, rel=0.1)
    assert growth.signal == pytest.approx(0.5, abs=0.2)


def test_a_stage_lasts_until_C_has_tripled() -> None:
    assert faded_at(GradientSignal(earlier=400), lambda _: 0.0) == 800
    assert faded_at(GradientSignal(earlier=12), lambda _: 0.0) == 24
    # twice suffices where it is clearly negative
    assert faded_at(GradientSignal(earlier=400), lambda _: -0.5) == 400


def test_what_a_checkpoint_holds() -> None:
    growth = GradientSignal(earlier=4)
    growth.add(metrics_of([-0.5, -0.3, -0.2]), 3, 8)
    assert growth.signal == pytest.approx(-1 / 3) and growth.updates_to_check() == CHECK_EVERY - 3
    cell = Cell(8, 2, 0, "auto", (Stage(0, 8, 2),), 16)
    saved = growth_state(cell, growth)
    assert saved and saved["stages"] == [[0, 8, 2]] and GradientSignal(**saved["signal"]) == growth
    assert growth_state(Cell(8, 2, 0), growth) is None


def test_n_doubles_up_to_the_largest() -> None:
    first, doubled = Stage(0, 32, 2), Stage(4000, 32, 4)
    cell = Cell(32, 2, 0, "auto", (first,), 8)
    faded = GradientSignal(earlier=0, updates=400, groups=4000.0, mixed=0.4, signal_square=1.0)
    assert [
        choose_n(cell.with_stages(stages), faded) for stages in ((first,), (first, doubled))
    ] == [4, 8]
    assert choose_n(cell, GradientSignal()) == 2 == choose_n(cell, replace(faded, mixed=0.29))
    assert [
        choose_n(cell, replace(faded, earlier=200, updates=updates)) for updates in (392, 400)
    ] == [2, 4]
    assert choose_n(cell.with_stages((first, doubled, Stage(9000, 32, 8))), faded) == 8


def test_the_next_stage_begins_where_the_run_is() -> None:
    cell, growth = next_stage(Cell(8, 2, 0, "auto", (Stage(0, 8, 2),), 16), 160, 4)
    assert cell.stages == (Stage(0, 8, 2), Stage(160, 8, 4)) and cell.span_at(10)[2:] == (8, 4)
    assert (
        cell.rollouts_after(11) == 192
        and cell.name == "auto-s0"
        and growth == GradientSignal(earlier=5)
    )


STAGED = Cell(8, 2, 0, "grow", (Stage(0, 8, 2), Stage(100, 8, 4), Stage(290, 16, 4)))


def test_a_checkpoint_that_does_not_count_rollouts_is_counted_once() -> None:
    """As versions before 0.2 saved it: 7 updates of 16, which pass C = 100, then 6 of 32, which
    pass 290, then 64."""
    saved = RunCursor(M=15, evaluation=2, tokens=0)
    counted = begin_span(count_rollouts(saved, STAGED), STAGED)
    assert (counted.rollouts, counted.batches) == (7 * 16 + 6 * 32 + 2 * 64, 15)
    assert counted.spans == (
        RunSpan(0, 0, 0, 8, 2),
        RunSpan(7, 112, 7, 8, 4),
        RunSpan(13, 304, 13, 16, 4),
    )
    assert count_rollouts(counted, STAGED) is counted and begin_span(counted, STAGED) is counted
    at_a_switch = begin_span(count_rollouts(RunCursor(M=7, evaluation=1, tokens=0), STAGED), STAGED)
    assert at_a_switch.spans == (RunSpan(0, 0, 0, 8, 2), RunSpan(7, 112, 7, 8, 4))


def test_a_span_begins_where_the_counted_rollouts_are() -> None:
    """Updates that took three batches each pass C = 100 after three."""
    cursor = begin_span(count_rollouts(RunCursor(M=0, evaluation=0, tokens=0), STAGED), STAGED)
    assert cursor.spans == (RunSpan(0, 0, 0, 8, 2),)
    cursor = begin_span(replace(cursor, M=3, rollouts=144, batches=9), STAGED)
    assert cursor.spans[1:] == (RunSpan(3, 144, 9, 8, 4),)
