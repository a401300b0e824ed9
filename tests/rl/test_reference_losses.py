"""The loops of reference_losses.py against TRL's and verl's own code, whose numbers
make_loss_references.py wrote, and by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rl import reference_losses as loops
from tests.rl.reference_losses import Clip, Response

PEERS: dict[str, Any] = json.loads((Path(__file__).parent / "loss_references.json").read_text())
BATCH = PEERS["batch"]
NUMBERS, GROUPS, T = BATCH["numbers"], BATCH["groups"], BATCH["T"]
CLIP = Clip(NUMBERS["low"], NUMBERS["high"])
EVERY = [True] * len(GROUPS)


def ragged(name: str) -> list[Response]:
    return [np.array(row) for row in BATCH[name]]


LOGPS, SAMPLER, BASE = ragged("logps"), ragged("sampler"), ragged("base")
ADVANTAGES = [np.full(len(row), a) for row, a in zip(LOGPS, BATCH["advantages"], strict=True)]
PER_TOKEN = ragged("token_advantages")


def check(theirs: dict[str, Any], f: Any, at: list[Response]) -> None:
    """A value and its gradient, which is ours by central differences: good to 1e-8."""
    assert f(at) == pytest.approx(theirs["loss"], rel=1e-7)
    for ours, expected in zip(loops.slope(f, at), theirs["gradient"], strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-8)


def policy_term(loss: str, mean: str, advantages: list[Response], *tis: Any) -> Any:
    """The aggregated loss as a function of the log-probabilities, those under stop-gradient kept
    where they were."""

    def f(logps: list[Response]) -> float:
        rows = zip(logps, LOGPS, SAMPLER, advantages, strict=True)
        if tis:
            values = [loops.corrected(loops.LOSSES[loss], *row, CLIP, *tis) for row in rows]
        else:
            values = [loops.LOSSES[loss](*row, CLIP) for row in rows]
        return loops.aggregate(mean, values, GROUPS, EVERY, T)

    return f


def penalty(kind: str, mean: str) -> Any:
    return lambda logps: loops.aggregate(
        mean, [loops.kl(kind, x, b) for x, b in zip(logps, BASE, strict=True)], GROUPS, EVERY, T
    )


TRL, VERL = PEERS["trl"]["losses"], PEERS["verl"]["losses"]
PLAIN = [
    "grpo sequence",
    "grpo token",
    "grpo constant",
    "dapo token",
    "gspo sequence",
    "gspo token",
    "cispo token",
]


@pytest.mark.parametrize("name", PLAIN)
def test_losses_equal_trl(name: str) -> None:
    loss, mean = name.split()
    check(TRL[name], policy_term(loss, mean, ADVANTAGES), LOGPS)


@pytest.mark.parametrize("name", [name for name in TRL | VERL if "tis" in name])
def test_truncated_importance_sampling_equals_trl_and_verl(name: str) -> None:
    """verl where GSPO has a token's weights: TRL's spreads them over the response."""
    loss, mean, _, level, mode = name.split()
    check(
        (TRL | VERL)[name], policy_term(loss, mean, ADVANTAGES, level, mode, NUMBERS["cap"]), LOGPS
    )


def test_rloo_equals_trl_where_the_ratio_is_1() -> None:
    """TRL's is a loss a response, exp of the summed log ratio: in value A a response, in gradient
    the sum of ours over its tokens.
    """
    expected = TRL["rloo at ratio 1"]
    rows = [(x, x, a) for x, a in zip(LOGPS, ADVANTAGES, strict=True)]

    def f(logps: list[Response]) -> float:
        values = [
            loops.rloo(moved, x, x, a, CLIP) for moved, (x, _, a) in zip(logps, rows, strict=True)
        ]
        return T * loops.aggregate("constant", values, GROUPS, EVERY, T)

    assert expected["loss"] == pytest.approx(-np.mean(BATCH["advantages"]), rel=1e-12)
    for ours, theirs in zip(loops.slope(f, LOGPS), expected["gradient"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("mean", ["token", "sequence"])
def test_kl_and_entropy_join_the_loss_as_in_trl(mean: str) -> None:
    of_policy, of_kl = policy_term("grpo", mean, ADVANTAGES), penalty("k3", mean)
    check(
        TRL[f"grpo {mean} k3"], lambda logps: of_policy(logps) + NUMBERS["kl"] * of_kl(logps), LOGPS
    )
    if mean == "token":
        bonus = NUMBERS["entropy"] * loops.aggregate(mean, ragged("entropies"), GROUPS, EVERY, T)
        check(
            TRL["grpo token k3 entropy"],
            lambda logps: of_policy(logps) + NUMBERS["kl"] * of_kl(logps) - bonus,
            LOGPS,
        )


@pytest.mark.parametrize("name", ["ppo token", "ppo sequence", "gspo sequence", "cispo token"])
def test_losses_equal_verl(name: str) -> None:
    loss, mean = name.split()
    check(VERL[name], policy_term(loss, mean, PER_TOKEN if loss == "ppo" else ADVANTAGES), LOGPS)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_equals_verl(kind: str) -> None:
    check(VERL[f"{kind} token"], penalty(kind, "token"), LOGPS)


def test_value_loss_equals_verl() -> None:
    def f(values: list[Response]) -> float:
        rows = zip(values, ragged("values"), PER_TOKEN, strict=True)
        return loops.aggregate(
            "token",
            [loops.value_loss(*row, NUMBERS["value_clip"]) for row in rows],
            GROUPS,
            EVERY,
            T,
        )

    check(VERL["value token"], f, ragged("values_now"))


def test_gae_equals_verl() -> None:
    """verl whitens what GAE gives; its returns are not whitened."""
    pairs = [
        loops.gae(r, values, NUMBERS["gamma"], NUMBERS["lambda"])
        for r, values in zip(BATCH["rewards"], ragged("values"), strict=True)
    ]
    whitened = loops.whiten([advantages for advantages, _ in pairs])
    for (_, returns), white, theirs, theirs_white in zip(
        pairs, whitened, PEERS["verl"]["gae returns"], PEERS["verl"]["gae whitened"], strict=True
    ):
        np.testing.assert_allclose(returns, theirs, rtol=1e-9)
        np.testing.assert_allclose(white, theirs_white, rtol=1e-7)


def test_advantages_equal_trl_and_verl() -> None:
    rewards = BATCH["rewards"]
    for peer, epsilon in (("trl", 1e-4), ("verl", 1e-6)):
        np.testing.assert_allclose(
            loops.group(rewards, GROUPS, epsilon), PEERS[peer]["group"], rtol=1e-12
        )
        np.testing.assert_allclose(loops.centred(rewards, GROUPS), PEERS[peer]["mean"], rtol=1e-12)
        np.testing.assert_allclose(
            loops.leave_one_out(rewards, GROUPS),
            PEERS[peer]["leave_one_out"],
            rtol=1e-12,
            atol=1e-15,
        )
    # verl whitens the centred rewards of one-token responses, sqrt(var + 1e-8): ours adds 1e-6 to
    # the standard deviation, about .37.
    np.testing.assert_allclose(loops.batch(rewards, GROUPS), PEERS["verl"]["batch"], rtol=4e-6)
    per_token = [np.full(len(row), r) for row, r in zip(LOGPS, rewards, strict=True)]
    for ours, theirs in zip(loops.whiten(per_token), PEERS["verl"]["whiten"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7)


def test_entropy_equals_trl_and_verl() -> None:
    for peer in ("trl", "verl"):
        np.testing.assert_allclose(
            loops.entropy(np.array(BATCH["logits"])), PEERS[peer]["entropy"], rtol=1e-12
        )


def test_the_batch_has_what_the_losses_differ_in() -> None:
    """Ratios clipped above and below, weights beyond the cap, of tokens and of responses, a group
    of one reward, lengths from 1 to T.
    """
    ratios = np.exp(np.concatenate(LOGPS) - np.concatenate(SAMPLER))
    full = np.array([np.exp(sum(a) - sum(b)) for a, b in zip(LOGPS, SAMPLER, strict=True)])
    means = np.array([np.exp(np.mean(a - b)) for a, b in zip(LOGPS, SAMPLER, strict=True)])
    for seen in (ratios, means):
        assert (seen < 1 - CLIP.low).sum() >= 2
        assert (seen > 1 + CLIP.high).any()
    assert (ratios > NUMBERS["cap"]).sum() >= 10
    assert (full > NUMBERS["cap"]).sum() >= 5
    assert sum(loops.zero_variance(BATCH["rewards"], GROUPS)) == BATCH["n"]
    assert {len(row) for row in LOGPS} >= {1, T}


def test_aggregation_by_hand() -> None:
    """No peer has the prompt mean, nor leaves responses out: two problems of two responses, T =
    4."""
    values = [
        np.array([1.0]),
        np.array([2.0, 4.0, 6.0]),
        np.array([8.0, 8.0]),
        np.array([3.0, 3.0]),
    ]
    groups = [0, 0, 1, 1]
    expected = {
        "token": (35 / 8, 22 / 4),
        "sequence": ((1 + 4 + 8 + 3) / 4, (8 + 3) / 2),
        "prompt": ((13 / 4 + 22 / 4) / 2, 22 / 4),
        "constant": (35 / 16, 22 / 8),
    }
    for kind, (full, second) in expected.items():
        assert loops.aggregate(kind, values, groups, [True] * 4, 4) == pytest.approx(full)
        assert loops.aggregate(
            kind, values, groups, [False, False, True, True], 4
        ) == pytest.approx(second)
        assert loops.aggregate(kind, values, groups, [False] * 4, 4) == 0
