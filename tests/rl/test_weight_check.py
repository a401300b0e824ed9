"""A server that goes on with old weights is noticed, whatever its rounding; one that has the new
ones never is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.errors import ServerFailed
from isojax.rl.servers import weight_check
from isojax.rl.servers.dialect import Ask, Completion
from isojax.rl.servers.http_json import ServerOptions
from isojax.rl.servers.weight_check import (
    MIN_MOVE,
    NUM_CONTEXTS,
    NUM_TOKENS,
    WeightCheck,
    build_context_logps,
)
from tests.device import DECODER, MESHES, VOCAB, mesh, placed, policy, quick_jit

RNG = np.random.default_rng(11)
SEQUENCES = [RNG.integers(4, VOCAB, RNG.integers(2, 9)).tolist() for _ in range(NUM_CONTEXTS + 2)]
LENGTH = max(map(len, SEQUENCES))
# What a policy moves along; along random others besides, in the noise of Adam's steps.
DIRECTION = policy(seed=5)


@quick_jit
def next_logits(params: Any, tokens: Any, length: Any) -> Any:
    hidden = DECODER.forward(params, tokens[None], jnp.zeros(1, jnp.int32))
    return DECODER.logits(params, hidden[0, length - 1])


def exact_logps(params: Any, context: Sequence[int], rounding: str = "float32") -> np.ndarray:
    """Of all tokens after a context, with logits rounded, in float64: f64[V]."""
    padded = np.zeros(LENGTH, np.int32)
    padded[: len(context)] = context
    logits = np.asarray(next_logits(params, padded, len(context)))
    logits = logits.astype(rounding).astype(np.float64)
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


class Server:
    """Answers with its own parameters, as `LanguageServer` does."""

    def __init__(self, params: Any, rounding: str = "float32", noise: float = 0.0) -> None:
        self.options = ServerOptions("URL", in_flight=1)
        self.name = "the server URL (fake)"
        self.rounding, self.noise = rounding, noise
        self.version: str | None = None
        self.rng = np.random.default_rng(0)
        self.load(params)

    def load(self, params: Any) -> None:
        self.params = jax.tree.map(
            lambda w: np.asarray(w).astype(self.rounding).astype(np.float32), params
        )

    def complete(self, ask: Ask) -> list[Completion]:
        assert (ask.temperature, ask.top_p, ask.max_tokens, ask.n, ask.with_logps) == (
            1,
            1,
            1,
            1,
            True,
        )
        logps = exact_logps(self.params, ask.prompt, self.rounding)
        logps = logps + self.noise * self.rng.normal(size=VOCAB)
        tops = np.argsort(-logps)[: ask.alternatives]
        alternatives = {int(token): float(logps[token]) for token in tops} | {"a name": -1.0}
        return [Completion("", False, first_alternatives=alternatives, version=self.version)]


def moved(params: Any, step: float) -> Any:
    """Steps of about one size in all weights, as Adam takes them."""

    def move(w: Any, d: Any) -> np.ndarray:
        return np.asarray(w) + np.float32(step) * (np.sign(d) + RNG.normal(size=w.shape)).astype(
            np.float32
        )

    return jax.tree.map(move, params, DIRECTION)


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_check, "WAITS", (0.0, 0.0))


def make_check(server: Any, announces_version: bool = False) -> WeightCheck:
    return WeightCheck(server, DECODER, mesh("data=1"), announces_version)


@pytest.mark.parametrize("mesh_text", ["data=1", *MESHES])
def test_isojax_computes_log_probs_of_tokens_after_contexts(mesh_text: str) -> None:
    """On meshes too, against one context after the other, whole."""
    on = mesh(mesh_text)
    padded = np.zeros((len(SEQUENCES), LENGTH), np.int32)
    for row, tokens in zip(padded, SEQUENCES, strict=True):
        row[: len(tokens)] = tokens
    lengths = np.array(list(map(len, SEQUENCES)), np.int32)
    asked = RNG.integers(0, VOCAB, (len(SEQUENCES), NUM_TOKENS)).astype(np.int32)
    logps = np.asarray(
        build_context_logps(DECODER, on)(placed(policy(), on), padded, lengths, asked)
    )
    expected = [
        exact_logps(policy(), tokens)[ids] for tokens, ids in zip(SEQUENCES, asked, strict=True)
    ]
    np.testing.assert_allclose(logps, expected, rtol=1e-5, atol=1e-5)


def own_move(check: WeightCheck, before: Any, after: Any) -> float:
    difference = check._compute_own(after) - check._compute_own(before)
    return float(np.sqrt(np.mean(np.square(difference))))


@pytest.mark.parametrize(
    ("rounding", "noise", "step"),
    [
        ("float32", 0.0, 1e-6),  # of a learning rate of 1e-6, the smallest that is usual
        ("bfloat16", 0.0, 1e-6),
        ("bfloat16", 0.0, 1e-4),
        ("bfloat16", 0.0, 3e-3),  # each update moves by more than MIN_MOVE
        ("float32", 5e-3, 1e-4),  # of a server whose answers depend on what else it computes
        ("bfloat16", 5e-3, 1e-3),
    ],
)
def test_new_weights_are_no_false_alarm_and_old_ones_are_noticed(
    rounding: str, noise: float, step: float
) -> None:
    params = policy()
    server = Server(params, rounding, noise)
    check = make_check(server)
    check.begin(params, 0, SEQUENCES)
    for update in range(1, 41):
        params = moved(params, step)
        server.load(params)
        check.check(params, update)
    assert len(check.history) <= 41

    kept, update = params, 40  # from here on the server does not load what it is given
    with pytest.raises(ServerFailed) as e:
        for update in range(41, 400):
            params = moved(params, max(step, 1e-4))
            check.check(params, update)
    said = str(e.value)
    if rounding == "float32" and noise == 0:  # at once, whatever the policy has moved by
        assert update == 41
    else:  # as soon as it has moved enough
        assert own_move(check, kept, params) < 4 * MIN_MOVE or update == 41
    if step == 3e-3:
        assert "answers with the weights of update 40, and was given those of update 41" in said
    assert f"of update {update}" in said


def test_a_server_that_is_late_is_asked_again() -> None:
    old, new = policy(), moved(policy(), 3e-3)
    server = Server(old)
    check = make_check(server)
    check.begin(old, 0, SEQUENCES)
    asked = 0
    complete: Callable[[Ask], list[Completion]] = server.complete

    def complete_late(ask: Ask) -> list[Completion]:
        nonlocal asked
        asked += 1
        if asked == NUM_CONTEXTS + 1:
            server.load(new)
        return complete(ask)

    server.complete = complete_late  # type: ignore[method-assign]
    check.check(new, 1)
    assert asked == 2 * NUM_CONTEXTS and check.history[-1].update == 1


def test_weights_of_another_policy_at_the_start() -> None:
    with pytest.raises(
        ServerFailed,
        match=r"does not have the weights of update 30: its log-probs differ .* by [1-9]",
    ):
        make_check(Server(policy(seed=2))).begin(policy(), 30, SEQUENCES)
    make_check(Server(policy(), "bfloat16")).begin(policy(), 30, SEQUENCES)


@pytest.mark.parametrize("announced", [True, False])
def test_the_version_that_a_server_tells(announced: bool) -> None:
    """It is believed where it was told one, and then shows what no log-prob does."""
    server = Server(policy())
    check = make_check(server, announces_version=announced)
    server.version = "0"
    check.begin(policy(), 0, SEQUENCES)
    if announced:
        with pytest.raises(
            ServerFailed, match="weights of update 0, and was given those of update 1"
        ):
            check.check(policy(), 1)
    server.version = "1"
    check.check(policy(), 1)
    assert check.history[-1].update == 1


def test_tokens_that_a_server_does_not_name_any_more() -> None:
    """A token that has left the likeliest five is not compared, whatever it has moved by."""
    check = make_check(Server(policy()))
    check.begin(policy(), 0, SEQUENCES)
    (first,) = check.history
    gone = partial(np.where, np.arange(NUM_TOKENS) < 4)
    logps = weight_check.ProbeLogps(
        1, gone(first.of_server, np.nan), gone(first.own, first.own + 9.0)
    )
    moves = weight_check.measure_moves(logps, first)
    assert (moves.own, moves.of_server) == (0.0, 0.0)


@pytest.mark.parametrize(("rounding", "step"), [("float32", 1e-4), ("bfloat16", 3e-3)])
def test_a_server_that_loads_a_part_of_the_weights(rounding: str, step: float) -> None:
    """All but the output matrix, as vLLM 0.32 does of tied ones on a CPU: its log-probs move, but
    not as they should."""
    params = policy()
    server = Server(params, rounding)
    check = make_check(server)
    check.begin(params, 0, SEQUENCES)
    with pytest.raises(
        ServerFailed, match=r"has not loaded all weights of update \d+: its log"
    ) as e:
        for update in range(1, 60):
            params = moved(params, step)
            server.load(params | {"unembed": policy()["unembed"]})
            check.check(params, update)
    assert "after update 0 by 0.00" in str(e.value)
