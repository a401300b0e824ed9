"""PPO's critic against verl and the loops of reference_losses.py: advantages, returns, and the
clipped loss of values with its gradient. (The gradient in the parameters:
test_recipe_gradients.py.)"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from isojax.rl.advantages import RewardedBatch
from isojax.rl.advantages.gae import gae
from isojax.rl.critic import CriticInputs, CriticObjective, generalised_advantages
from isojax.rl.objective import Coefficients, Microbatch, UpdateInputs
from tests.device import DECODER, quick_jit
from tests.rl import reference_losses as loops

PEERS = json.loads((Path(__file__).parent / "loss_references.json").read_text())
GIVEN, VERL = PEERS["batch"], PEERS["verl"]
T, NUMBERS = GIVEN["T"], GIVEN["numbers"]
LENGTHS = np.array([len(row) for row in GIVEN["values"]])
MASK = np.arange(T) < LENGTHS[:, None]


def padded(rows: list[list[float]], fill: float = 50.0) -> np.ndarray:
    """[rows T]; nonsense where no token is."""
    out = np.full(MASK.shape, fill, np.float32)
    out[MASK] = np.concatenate(rows)
    return out


def coefficients_of(**changes: float) -> Coefficients:
    return Coefficients(**{name: np.float32(changes.get(name, 0)) for name in Coefficients._fields})


@quick_jit
def estimate(rewards: Any, values: Any, mask: Any, gamma: Any, gae_lambda: Any) -> tuple[Any, Any]:
    """(advantages by the plug-in `gae`, returns), f32[rows T]."""
    token_advantages, returns = generalised_advantages(rewards, values, mask, gamma, gae_lambda)
    rows = np.zeros(len(mask), np.int32)
    batch = RewardedBatch(rewards, mask.sum(-1), rows, mask.any(-1), np.int32(1), 1)
    return gae(batch._replace(token_advantages=token_advantages, token_mask=mask)), returns


def test_advantages_and_returns_equal_verl() -> None:
    inputs = np.float32(GIVEN["rewards"]), padded(GIVEN["values"]), MASK
    advantages, returns = estimate(*inputs, NUMBERS["gamma"], NUMBERS["lambda"])
    for got, wanted in ((advantages, VERL["gae whitened"]), (returns, VERL["gae returns"])):
        np.testing.assert_allclose(got, padded(wanted, 0), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.0), (0.97, 0.9), (0.0, 0.5)])
def test_advantages_and_returns_equal_the_loops(gamma: float, lam: float) -> None:
    rng = np.random.default_rng(0)
    values = [rng.normal(size=k) for k in LENGTHS]
    rewards = rng.normal(size=len(LENGTHS))
    pairs = [loops.gae(float(r), v, gamma, lam) for r, v in zip(rewards, values, strict=True)]
    advantages, returns = estimate(rewards.astype(np.float32), padded(values), MASK, gamma, lam)  # type: ignore[arg-type]
    for got, wanted in (
        (advantages, loops.whiten([a for a, _ in pairs])),
        (returns, [r for _, r in pairs]),
    ):
        np.testing.assert_allclose(got, padded(wanted, 0), rtol=2e-5, atol=5e-6)  # type: ignore[arg-type]


def test_by_hand() -> None:
    """Two tokens, values .5 and .25, reward 1, gamma .5, lambda .5: deltas .5 * .25 - .5 = -.375
    and .75; A = -.375 + .25 * .75.
    """
    advantages, returns = loops.gae(1.0, np.array([0.5, 0.25]), 0.5, 0.5)
    assert advantages.tolist() == [-0.1875, 0.75]
    assert returns.tolist() == [0.3125, 1.0]


class FixedValues(CriticObjective):
    """Its values are its parameters."""

    def values(self, params: Any, prefix: Any, problems: Any, rows: Microbatch) -> Any:
        return params["values"]


def test_the_clipped_loss_equals_verl() -> None:
    """Values that moved less and more than the clip since the rollouts; a mean over tokens."""
    now, before, returns = (
        padded(GIVEN[name], fill)
        for name, fill in (("values_now", 50.0), ("values", 50.0), ("token_advantages", -9.0))
    )
    moved = np.abs(now - before)[MASK]
    assert (moved > NUMBERS["value_clip"]).sum() >= 10
    assert (moved < NUMBERS["value_clip"]).sum() >= 10
    specific = CriticInputs(before, returns, np.full(len(MASK), 1 / MASK.sum(), np.float32))  # type: ignore[arg-type]
    rows = Microbatch(np.zeros(0), MASK, specific, np.zeros(0), np.zeros(0))  # type: ignore[arg-type]
    fixed = UpdateInputs({}, {}, (), coefficients_of(critic_clip=NUMBERS["value_clip"]))  # type: ignore[arg-type]

    @quick_jit
    def value_and_slope(values: Any) -> Any:
        return jax.value_and_grad(
            lambda x: FixedValues(DECODER)({"values": x}, {}, None, fixed, rows), has_aux=True
        )(values)

    (value, metrics), slope = value_and_slope(now)
    wanted = VERL["losses"]["value token"]
    assert float(value) == pytest.approx(wanted["loss"], rel=1e-6)
    assert float(metrics["loss"]) == pytest.approx(wanted["loss"], rel=1e-6)
    np.testing.assert_allclose(slope, padded(wanted["gradient"], 0), rtol=1e-5, atol=1e-8)
    kept = np.clip(now, before - NUMBERS["value_clip"], before + NUMBERS["value_clip"])
    is_clipped = (kept - returns) ** 2 > (now - returns) ** 2
    sums = {"error": (now - returns) ** 2, "value": now, "clip_fraction": is_clipped}
    for name, of_tokens in sums.items():
        assert float(metrics[name]) == pytest.approx(of_tokens[MASK].sum(), rel=1e-5), name


def test_responses_of_several_shards_are_estimated_alike() -> None:
    """Arrays [S rows T] as well as [rows T]; with tokens between that the policy did not draw."""
    rng = np.random.default_rng(3)
    rewards, values = rng.normal(size=6), rng.normal(size=(6, 7))
    mask = rng.random((6, 7)) < 0.6
    of_responses = quick_jit(generalised_advantages)
    flat = of_responses(*map(np.float32, (rewards, values)), mask, 0.9, 0.8)
    drawn = [values[i][mask[i]] for i in range(6)]
    pairs = [loops.gae(float(r), v, 0.9, 0.8) for r, v in zip(rewards, drawn, strict=True)]
    by_shard = of_responses(
        *(np.float32(x).reshape(2, 3, *x.shape[1:]) for x in (rewards, values)),
        mask.reshape(2, 3, 7),
        0.9,
        0.8,
    )
    for which in (0, 1):
        expected = np.zeros((6, 7))
        expected[mask] = np.concatenate([pair[which] for pair in pairs])
        np.testing.assert_allclose(flat[which], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(by_shard[which].reshape(6, 7), expected, rtol=1e-5, atol=1e-6)
