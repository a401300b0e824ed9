"""When n grows by the gradient's signal, against gradients whose share of signal is known."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isojax.core.nouns import Cell
from isojax.core.schedule import Stage
from isojax.rl.metric import mean
from isojax.rl.optimizer import adam
from isojax.rl.train_step import gradient_signal
from isojax.train.growth import CHECK_EVERY, MIN_UPDATES, GradientSignal, growth_state, next_stage


@pytest.mark.parametrize("share", [0.0, 0.02, 0.2])
def test_the_share_of_signal_of_gradients(share: float) -> None:
    """Gradients of a constant direction and noise of another 1 - share of their square."""
    rng, size, count = np.random.default_rng(0), 400, 1500
    direction = np.zeros(size)
    direction[0] = np.sqrt(share)
    moments = adam().init({"w": jnp.zeros(size)})
    assert isinstance(moments, optax.ScaleByAdamState)
    signal = square = 0.0
    for _ in range(count):
        gradient = {"w": jnp.asarray(direction + rng.normal(0, np.sqrt((1 - share) / size), size))}
        norm = optax.tree.norm(gradient)
        found = gradient_signal(gradient, norm, moments, max_grad_norm=1.0)
        signal, square = signal + float(found["grad_signal"].sum), square + float(found["grad_square"].sum)
        _, moments = adam().update({"w": gradient["w"] * jnp.minimum(1.0, 1.0 / norm)}, moments)
    assert signal / square == pytest.approx(share, abs=0.006)


def faded_at(growth: GradientSignal, signal: Callable[[int], float], last: int = 4000) -> int | None:
    """After how many updates n grows, of a signal of so much after so many updates; None where it does not."""
    for update in range(CHECK_EVERY, last, CHECK_EVERY):
        growth.add({"grad_signal": mean(CHECK_EVERY * signal(update))}, CHECK_EVERY)
        if growth.has_faded:
            return update
    return None


def test_n_grows_when_the_signal_is_a_quarter_of_its_largest_and_not_before() -> None:
    assert faded_at(GradientSignal(), lambda update: 0.1 if update <= 200 else 0.03) is None
    fell = faded_at(GradientSignal(), lambda update: 0.1 if update <= 200 else 0.0)
    assert fell is not None and 2 * 200 <= fell <= 4 * 200  # the average is over the last half
    assert faded_at(GradientSignal(), lambda _: -0.01) == MIN_UPDATES  # none at all: as soon as that is known
    assert faded_at(GradientSignal(), lambda update: update / 1000) is None


def test_a_stage_lasts_until_C_has_doubled() -> None:
    assert faded_at(GradientSignal(earlier=400), lambda _: -0.01) == 400
    assert faded_at(GradientSignal(earlier=10), lambda _: -0.01) == MIN_UPDATES


def test_what_a_checkpoint_holds() -> None:
    growth = GradientSignal(earlier=4)
    growth.add({"grad_signal": mean(-1.0)}, 3)
    assert growth.signal == pytest.approx(-1 / 3) and growth.updates_to_check() == CHECK_EVERY - 3
    cell = Cell(8, 2, 0, "auto", (Stage(0, 8, 2),), 16)
    saved = growth_state(cell, growth)
    assert saved and saved["stages"] == [[0, 8, 2]] and GradientSignal(**saved["signal"]) == growth
    assert growth_state(Cell(8, 2, 0), growth) is None


def test_the_next_stage_begins_where_the_run_is() -> None:
    cell, growth = next_stage(Cell(8, 2, 0, "auto", (Stage(0, 8, 2),), 16), 160)
    assert cell.stages == (Stage(0, 8, 2), Stage(160, 8, 4)) and cell.span_at(10)[2:] == (8, 4)
    assert cell.rollouts_after(11) == 192 and cell.name == "auto-s0" and growth == GradientSignal(earlier=5)
