"""When n grows by the gradient's signal, against gradients whose share of signal is known."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isojax.core.nouns import Cell
from isojax.core.schedule import Stage
from isojax.rl.metric import mean
from isojax.rl.optimizer import adam
from isojax.rl.train_step import gradient_signal
from isojax.train.growth import CHECK_EVERY, UPDATES, GradientSignal, read_growth, with_next_stage


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


def test_n_grows_when_the_gradients_no_longer_agree_and_not_before() -> None:
    growth, decided_at = GradientSignal(), []
    for update in range(CHECK_EVERY, 400, CHECK_EVERY):
        growth.add({"grad_signal": mean(CHECK_EVERY * (0.1 if update <= 200 else -0.1))}, CHECK_EVERY)
        decided_at += [update] * growth.has_vanished
    expected = 200 + UPDATES * np.log(2)  # the decayed sums of before and after are equal
    assert decided_at[0] == pytest.approx(expected, abs=CHECK_EVERY)
    early = GradientSignal()
    early.add({"grad_signal": mean(-1.0)}, 8)
    assert not early.has_vanished and early.updates_to_check() == CHECK_EVERY  # too few updates
    assert read_growth({"stages": [], "signal": vars(early)}) == early and read_growth(None) == GradientSignal()


def test_the_next_stage_begins_where_the_run_is() -> None:
    cell = with_next_stage(Cell(8, 2, 0, "auto", (Stage(0, 8, 2),), 16), 160)
    assert cell.stages == (Stage(0, 8, 2), Stage(160, 8, 4)) and cell.span_at(10)[2:] == (8, 4)
    assert cell.rollouts_after(11) == 192 and cell.name == "auto-s0"
