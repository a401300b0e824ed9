"""One training problem as a bandit (paper's Appendix H): a tabular softmax policy under policy gradient with n samples
an update.

Each of K arms is one possible response, drawn with pi = softmax(theta); reward r is 1 with the arm's mean, else 0. One
update:

    theta += learning_rate * 1/n sum_i A_i (e_{a_i} - pi)        a_1 .. a_n drawn from pi

whose expectation is the exact gradient pi * (means - pi . means), whatever n. A_i is r_i (baseline "none": the update
that Appendix H argues from, with Mei et al. 2023, "Stochastic Gradient Succeeds for Bandits", arXiv:2402.17235, for n =
1; its covariance falls as 1/n) or r_i minus the mean of the other n - 1 rewards ("leave_one_out", RLOO's: the same
expectation, another noise).

All repetitions run together (vmap), one update after the other on the device; a program is compiled for each n. Logits
are float32, and
steps shrink as 1/t: measured on the exact gradient, rounding costs .01% of the suboptimality after 1e4 updates, .6%
after 1e5 and 9% after 1e6. Hence MAX_UPDATES.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from numpy.typing import NDArray

from isojax.core.errors import InputError

MAX_UPDATES = 100_000


@dataclass(frozen=True)
class Bandit:
    """A problem and the policy that first meets it.

    means: float[K], the arms' mean rewards, in [0, 1]. logits: float[K], before training.
    """

    means: NDArray[np.float64]
    logits: NDArray[np.float64]


def one_right_arm(arms: int, p: float, noise: float = 0.0) -> Bandit:
    """Arm 0 is right, the others wrong; the first policy gives it p (pass@1) and the others equal shares.

    noise: how often the verifier errs: the right arm's mean is 1 - noise, the others' noise.

    Raises:
        InputError: fewer than 2 arms, p outside (0, 1), noise outside [0, .5).
    """
    if arms < 2:
        raise InputError(f"{arms} arms are given; expected at least 2, a right one and a wrong one.")
    if not 0 < p < 1:
        raise InputError(
            f"p = {p:g} is given; expected a pass@1 between 0 and 1, both excluded: at 0 or 1 no gradient is left."
        )
    if not 0 <= noise < 0.5:
        raise InputError(
            f"noise = {noise:g} is given; expected at least 0 and less than .5: from there on the right arm is not the best one."
        )
    means, logits = np.full(arms, noise), np.zeros(arms)
    means[0], logits[0] = 1 - noise, np.log(p * (arms - 1) / (1 - p))
    return Bandit(means, logits)


def suboptimality(theta: Float[Array, " K"], means: Float[Array, " K"]) -> Float[Array, ""]:
    """The best arm's mean minus the policy's expected reward, exactly; a sum of terms >= 0, so that small values keep
    their digits.
    """
    return jnp.sum(jax.nn.softmax(theta) * (means.max() - means))


def exact_gradient(theta: Float[Array, " K"], means: Float[Array, " K"]) -> Float[Array, " K"]:
    """d(expected reward) / d(theta) = pi * (means - pi . means): n without end."""
    pi = jax.nn.softmax(theta)
    return pi * (means - pi @ means)


def sampled_gradient(
    theta: Float[Array, " K"], means: Float[Array, " K"], key: Key[Array, ""], n: int, baseline: str = "none"
) -> Float[Array, " K"]:
    """1/n sum_i A_i (e_{a_i} - pi) over n draws of an arm and its reward."""
    pi = jax.nn.softmax(theta)
    right, drawn = _draw(pi, means, key, n)
    weight = ADVANTAGES[baseline](right, drawn, n)
    return (weight - weight.sum() * pi) / n


def _draw(
    pi: Float[Array, " K"], means: Float[Array, " K"], key: Key[Array, ""], n: int
) -> tuple[Float[Array, " K"], Float[Array, " K"]]:
    """How often each arm was drawn with reward 1, and how often in all. Nothing else of the n samples enters an update.

    One uniform a sample falls into one of 2 K cells, an arm with its reward; counting those below each edge needs no
    sort and no scatter.
    """
    edges = jnp.cumsum(jnp.concatenate([pi * means, pi * (1 - means)]))[:-1]
    below = (jax.random.uniform(key, (n,))[None, :] < edges[:, None]).sum(1)
    counts = jnp.diff(below, prepend=0, append=n).astype(pi.dtype)
    right, wrong = jnp.split(counts, 2)
    return right, right + wrong


def _reward(right: Float[Array, " K"], drawn: Float[Array, " K"], n: int) -> Float[Array, " K"]:
    return right


def _leave_one_out(right: Float[Array, " K"], drawn: Float[Array, " K"], n: int) -> Float[Array, " K"]:
    """With S right in all, A_i = r_i - (S - r_i) / (n - 1) = (n r_i - S) / (n - 1)."""
    return (n * right - right.sum() * drawn) / (n - 1)


# baseline -> the sum of A_i over each arm's draws, from the counts of `_draw`
ADVANTAGES: dict[str, Callable[[Float[Array, " K"], Float[Array, " K"], int], Float[Array, " K"]]] = {
    "none": _reward,
    "leave_one_out": _leave_one_out,
}


@partial(jax.jit, static_argnames=("n", "baseline"))
def _advance(
    theta: Float[Array, "R K"],
    keys: Key[Array, " R"],
    first: Int[Array, ""],
    last: Int[Array, ""],
    means: Float[Array, " K"],
    learning_rate: Float[Array, ""],
    n: int | None,
    baseline: str,
) -> tuple[Float[Array, "R K"], Float[Array, " R"]]:
    """Updates first, ..., last - 1 of R repetitions; the logits and the suboptimality after them."""

    def update(theta: Float[Array, " K"], key: Key[Array, ""], t: Int[Array, ""]) -> Float[Array, " K"]:
        if n is None:
            return theta + learning_rate * exact_gradient(theta, means)
        return theta + learning_rate * sampled_gradient(theta, means, jax.random.fold_in(key, t), n, baseline)

    theta = jax.lax.fori_loop(first, last, lambda t, theta: jax.vmap(update, (0, 0, None))(theta, keys, t), theta)
    return theta, jax.vmap(suboptimality, (0, None))(theta, means)


def simulate(
    bandit: Bandit,
    n: int | None,
    at: Sequence[int],
    learning_rate: float,
    repetitions: int,
    seed: int,
    baseline: str = "none",
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """(t, suboptimality float[repetitions]) after each number of updates t in `at` (rising, all > 0), as the simulation
    gets there.

    n: samples an update; None for the exact gradient, where all repetitions are alike. Draws depend on (seed, n,
    repetition, update) alone: more updates or repetitions leave those before them as they are.

    Raises:
        InputError: leave_one_out with n = 1, or an unknown baseline.
    """
    if baseline not in ADVANTAGES:
        raise InputError(f"baseline {baseline!r} is given; expected one of {', '.join(ADVANTAGES)}.")
    if baseline == "leave_one_out" and n == 1:
        raise InputError(
            "leave_one_out needs another sample to compare with: n = 1 is given, expected n of at least 2, or baseline none."
        )
    key = jax.random.fold_in(jax.random.key(seed), n or 0)
    keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(repetitions))
    means = jnp.asarray(bandit.means, jnp.float32)
    theta = jnp.tile(jnp.asarray(bandit.logits, jnp.float32)[None, :], (repetitions, 1))
    done = 0
    for t in at:
        theta, values = _advance(
            theta, keys, jnp.int32(done), jnp.int32(t), means, jnp.float32(learning_rate), n, baseline
        )
        done = t
        yield t, np.asarray(values, np.float64)
