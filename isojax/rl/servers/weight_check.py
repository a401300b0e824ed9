"""Whether a server answers with the weights that it was given last.

A server may accept new weights and go on with the old ones: of another folder, of a replica that
got no announcement, or because it caches files. So a probe is asked after each publication: a few
contexts, out of the first rollouts, and the log-probs of five tokens after each. isojax computes
the same log-probs itself.

Two differences are compared, since the newest former update from which isojax's own log-probs have
moved by MIN_MOVE: by how much its own have moved, and by how much the server's have. With the new
weights both are about the same; with the old ones the server's have stayed. Why this raises no
false alarm:
- A server's own rounding, in bfloat16 or of quantised weights, is in both of its answers, and
  cancels.
- What does not cancel only adds to the server's difference, which then looks larger, never smaller.
- Where logits are rounded to bfloat16, they change in steps of 1/16 or 1/8. A move of 0.02 in each
  of 80 log-probs takes some of them, 13 or more on average, over a step: all stay with a
  probability below 1e-5.
- Where the policy has hardly moved, as after one update with a learning rate of 1e-6, nothing is
  compared until later updates have moved it far enough. A server that keeps its weights is noticed
  then.

A server may also load a part of the weights: vLLM 0.32 on a CPU keeps the output matrix of a model
whose matrices are tied. Then it differs from isojax more and more. Its rounding, which the first
answers show, does not grow so: that is old weights where the median difference is GAP_GROWTH times
the first one, and MIN_PART of the policy's own move. Medians, because rounding may send a token to
other experts, which changes a few log-probs by much."""

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from isojax.core.errors import ServerFailed
from isojax.distributed.sharding import Program, replicated
from isojax.models.transformer import Decoder, Params
from isojax.rl.servers.dialect import Ask
from isojax.rl.servers.language_server import LanguageServer
from isojax.sampling.logits import log_probs

# Of the probe
NUM_CONTEXTS = 16
NUM_TOKENS = 5  # after each context
MAX_CONTEXT = 256  # tokens: the last ones of a prompt and a half of its response
# By how much isojax's own log-probs have to move before they are compared with the server's
MIN_MOVE = 0.02  # nats, root mean square
# A gap shows old weights where it is so many times the first one, and such a part of the own move.
GAP_GROWTH = 5.0
MIN_PART = 0.1
MIN_GROWN_GAP = 2e-3  # nats: below it, float32 may round so on another day
# The first answers have none before them. They are of another policy where they are off by more
# than any rounding.
MAX_FIRST_GAP = 0.5  # nats, root mean square
MIN_GAP_LOGP = -7.0  # of less likely tokens, a quantised server's log-probs may be off by as much
# seconds, before the server is asked again: it may still be loading
WAITS = (0.0, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Probe:
    """What the server is asked after each publication."""

    contexts: list[list[int]]
    tokens: np.ndarray  # i32[contexts, NUM_TOKENS], those that the server has named first


@dataclass(frozen=True)
class ProbeLogps:
    """Log-probs of the probe's tokens after an update, f32[contexts, NUM_TOKENS]."""

    update: int
    of_server: np.ndarray  # NaN where the server has given none
    own: np.ndarray

    @property
    def gap(self) -> float:
        """By how much the server's differ, in nats, at the median."""
        return median_size(self.of_server - self.own)


@dataclass(frozen=True)
class Moves:
    """By how much log-probs have moved between two updates, in nats, root mean square."""

    own: float
    of_server: float

    @property
    def server_stayed(self) -> bool:
        return self.of_server < self.own / 2


@dataclass(frozen=True)
class OneToken:
    """What a server says of the token after a context."""

    logps: dict[int, float]  # of the likeliest
    version: str | None  # of the weights, where it tells one


class WeightCheck:
    """Whether one server, which gives log-probs, has the weights that it was given last.

    `begin` must be called once, before `check`; until then `probe` and `first` are None.
    """

    def __init__(
        self, server: LanguageServer, decoder: Decoder, mesh: Mesh, announces_version: bool
    ) -> None:
        """announces_version: whether the server gets the number of the update as a version, which
        its answers may have again."""
        self.server, self.announces_version = server, announces_version
        self.compute_logps = build_context_logps(decoder, mesh)
        self.probe: Probe | None = None
        # Oldest first, from the one that was compared last. Updates before it are of no use any
        # more.
        self.history: list[ProbeLogps] = []
        self.first: ProbeLogps | None = None

    def begin(self, params: Params, update: int, sequences: Sequence[Sequence[int]]) -> None:
        """Make the probe of these sequences, and compare the server's log-probs with `params`.

        sequences: tokens of prompts with parts of their responses, sampled after `update` updates;
        the first NUM_CONTEXTS are used. params: the policy's after `update`. Raises ServerFailed
        where the log-probs differ by more than rounding.
        """
        contexts = [list(tokens[-MAX_CONTEXT:]) for tokens in sequences[:NUM_CONTEXTS]]
        answers = self._ask(contexts)

        # Fewer tokens may be named; a token 0 in the place of one has no log-prob, or its own.
        tokens = np.zeros((len(contexts), NUM_TOKENS), np.int32)
        for row, answer in zip(tokens, answers, strict=True):
            named = list(answer.logps)[:NUM_TOKENS]
            row[: len(named)] = named
        self.probe = Probe(contexts, tokens)

        # Unlikely tokens are left out: a quantised server's log-probs of them may be off by as much
        # as those of an old policy.
        logps = ProbeLogps(update, self._look_up(answers), self._compute_own(params))
        likely = np.where(logps.of_server > MIN_GAP_LOGP, logps.of_server, math.nan)
        gap = root_mean_square(likely - logps.own)
        if gap > MAX_FIRST_GAP:
            raise self._failed(
                f"does not have the weights of update {update}: its log-probs differ from isojax's "
                f"by {gap:.2f}, and {MAX_FIRST_GAP} is too much for rounding"
            )
        self.first = logps
        self.history = [logps]

    def check(self, params: Params, update: int) -> None:
        """Raise ServerFailed where the server still answers with former weights after all waits.

        params: the policy's after `update` updates, which the server was given last.
        """
        assert self.probe is not None, "`begin` makes it"
        own = self._compute_own(params)
        problem = ""
        for wait in WAITS:
            time.sleep(wait)
            answers = self._ask(self.probe.contexts)
            logps = ProbeLogps(update, self._look_up(answers), own)
            problem = (
                self._find_old_version(answers, update)
                or self._find_old_weights(logps)
                or self._find_old_part(logps)
            )
            if not problem:
                self._remember(logps)
                return
        raise self._failed(problem)

    def _remember(self, logps: ProbeLogps) -> None:
        """Adds the newest answers, and forgets those before the ones that they were compared with:
        later ones are farther from these."""
        former = self._find_former(logps)
        start = 0 if former is None else self.history.index(former)
        self.history = [*self.history[start:], logps]

    def _find_old_version(self, answers: Sequence[OneToken], update: int) -> str:
        """What is wrong with the version that the server tells, for a message; "" where nothing is.

        A server that gives no version, or was given none, has nothing wrong.
        """
        if not self.announces_version:
            return ""
        other_versions = [one.version for one in answers if one.version not in (None, str(update))]
        if not other_versions:
            return ""
        return (
            f"says that it answers with the weights of update {other_versions[0]}, and was given "
            f"those of update {update}"
        )

    def _find_old_weights(self, logps: ProbeLogps) -> str:
        """What shows that the server has former weights, for a message; "" where nothing does.

        Nothing does where it has the new ones, or the policy has not moved enough to tell.
        """
        # The newest answers before, since which the policy has moved by MIN_MOVE or more; or None.
        former = self._find_former(logps)
        if former is None:
            return ""
        moves = measure_moves(logps, former)
        if not moves.server_stayed:
            return ""
        return (
            f"answers with the weights of update {former.update}, and was given those of update "
            f"{logps.update}: since then isojax's log-probs have moved by {moves.own:.3f}, and the "
            f"server's by {moves.of_server:.3f}"
        )

    def _find_old_part(self, logps: ProbeLogps) -> str:
        """What shows that a part of the weights is old; empty where nothing does."""
        assert self.first is not None, "`begin` has asked for it"
        gap, first_gap = logps.gap, self.first.gap
        own_move = median_size(logps.own - self.first.own)
        if gap <= max(GAP_GROWTH * first_gap, MIN_PART * own_move, MIN_GROWN_GAP):
            return ""
        return (
            f"has not loaded all weights of update {logps.update}: its log-probs differ from "
            f"isojax's by {gap:.4f}, after update {self.first.update} by {first_gap:.4f}"
        )

    def _find_former(self, logps: ProbeLogps) -> ProbeLogps | None:
        """The newest answers from which the policy has moved far enough."""
        for former in reversed(self.history):
            if measure_moves(logps, former).own >= MIN_MOVE:
                return former
        return None

    def _failed(self, problem: str) -> ServerFailed:
        return ServerFailed(
            f"{self.server.name} {problem}. Check that run.server.update makes it load all "
            "weights, that it reads the folder run.server.weights, and that one server alone "
            "answers at this URL; then go on by --resume."
        )

    def _ask(self, contexts: Sequence[Sequence[int]]) -> list[OneToken]:
        """What the server says of the token after each context, in several requests at a time."""
        num_threads = min(len(contexts), self.server.options.in_flight)
        with ThreadPoolExecutor(num_threads, "probe") as threads:
            completions = list(threads.map(self.server.complete, map(_ask_one_token, contexts)))
        return [OneToken(_by_token(one.first_alternatives), one.version) for (one,) in completions]

    def _look_up(self, answers: Sequence[OneToken]) -> np.ndarray:
        """The server's log-probs of the probe's tokens, f32[contexts, NUM_TOKENS]; NaN where it has
        given none."""
        assert self.probe is not None
        logps = np.full(self.probe.tokens.shape, math.nan, np.float32)
        for row, answer, tokens in zip(logps, answers, self.probe.tokens.tolist(), strict=True):
            row[:] = [answer.logps.get(token, math.nan) for token in tokens]
        return np.where(np.isfinite(logps), logps, math.nan)

    def _compute_own(self, params: Params) -> np.ndarray:
        """isojax's own log-probs of the same, by these parameters."""
        assert self.probe is not None
        lengths = np.array([len(context) for context in self.probe.contexts], np.int32)
        padded = np.zeros((len(lengths), lengths.max()), np.int32)
        for row, context in zip(padded, self.probe.contexts, strict=True):
            row[: len(context)] = context
        return np.asarray(self.compute_logps(params, padded, lengths, self.probe.tokens))


def build_context_logps(decoder: Decoder, mesh: Mesh) -> Program:
    """Build `logps(params, contexts i32[c L], lengths i32[c], tokens i32[c k]) -> f32[c k]`.

    Log-probabilities of k tokens after each of c contexts, padded on the right, at temperature 1.
    """
    plain = decoder.with_options(decoder.options._replace(forward_attention="plain"))

    def logps(params: Params, contexts: Array, lengths: Array, tokens: Array) -> Array:
        weights = plain.cast_params(params)
        last_hidden = plain.prefill(weights, contexts, lengths).last_hidden
        log_p = log_probs(plain.logits(weights, last_hidden), temperature=1.0)
        return jnp.take_along_axis(log_p, tokens, -1)

    return Program(jax.jit(logps, out_shardings=replicated(mesh)))


def measure_moves(after: ProbeLogps, before: ProbeLogps) -> Moves:
    """How far log-probs have moved from `before` to `after`: isojax's own, and the server's.

    Over the tokens for which the server gave one both times; 0 where there are none.
    """
    of_server = after.of_server - before.of_server
    own = np.where(np.isfinite(of_server), after.own - before.own, math.nan)
    return Moves(root_mean_square(own), root_mean_square(of_server))


def root_mean_square(x: np.ndarray) -> float:
    """The root mean square of the entries that are numbers, not NaN; 0 where none is."""
    numbers = x[np.isfinite(x)].astype(np.float64)
    return float(np.sqrt(np.mean(numbers**2))) if numbers.size else 0.0


def median_size(x: np.ndarray) -> float:
    """The median of the absolute values of the entries that are numbers; 0 where none is."""
    numbers = np.abs(x[np.isfinite(x)])
    return float(np.median(numbers)) if numbers.size else 0.0


def _by_token(alternatives: Mapping[int | str, float]) -> dict[int, float]:
    """Those that have a token id; a server may give the text of others."""
    return {token: logp for token, logp in alternatives.items() if isinstance(token, int)}


def _ask_one_token(context: Sequence[int]) -> Ask:
    """A request for one token after a context, with log-probs of NUM_TOKENS likely ones.

    At temperature 1, where log-probs before temperature and after it are the same. The server must
    be one that takes prompts as tokens: there is no text.
    """
    return Ask(
        prompt=context,
        prompt_text="",
        n=1,
        seed=0,
        temperature=1.0,
        top_p=1.0,
        max_tokens=1,
        stop_tokens=(),
        stop_strings=(),
        with_logps=True,
        alternatives=NUM_TOKENS,
    )
