"""One training problem simulated: does a budget C = n t buy more with more samples per update (n)
or more updates (t)?

    python benchmarks/bandit.py --out bandit

The problem is a bandit (IsoCompute Playbook, arXiv:2603.12151, Appendix H): K responses, the arms,
one of them right; the policy is pi = softmax(theta) over K logits of its own. One update draws n
arms a_i with rewards r_i and takes

    theta += learning_rate * 1/n sum_i A_i (e_{a_i} - pi)

whose expectation is the exact gradient pi * (means - pi . means), whatever n. A_i is r_i (baseline
"none", the update of Mei et al. 2023, arXiv:2402.17235) or r_i minus the mean of the other n - 1
rewards ("leave_one_out").

Appendix H bounds the suboptimality after t updates, the best arm's mean less the policy's expected
reward, by A / (n t) + B / t: a slope of -1 in t whatever n. The slope can be read off a simulation,
A and B cannot. Logits are float32, and steps shrink as 1/t: rounding costs .01% of the
suboptimality after 1e4 updates, 9% after 1e6.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from matplotlib.figure import Figure
from numpy.typing import NDArray

from isojax.report.canvas import DPI, INK, LAW_COLOUR, n_palette, render_figure, style_axes

Values = NDArray[np.float64]
BASELINES = ("none", "leave_one_out")
MIN_UPDATES, MAX_UPDATES = 100, 100_000
GRID_POINTS = 60
LAST_DECADE = 10.0  # the slope is that of t > updates / LAST_DECADE
TIE_SE = 2.0  # two n closer than this many standard errors are tied
Z90 = 1.645


@dataclass(frozen=True)
class Curve:
    """Suboptimality of one n after t updates, its slope in log-log, the share of repetitions lost
    to wrong arms."""

    n: int
    t: list[int]
    mean: list[float]
    se: list[float]
    slope: float
    slope_se: float
    lost: float


def one_right_arm(arms: int, p: float, noise: float = 0.0) -> tuple[Values, Values]:
    """(the arms' mean rewards, the first policy's logits), float[K]: arm 0 is right and has
    probability p, the others equal shares; the verifier errs with probability `noise`.
    """
    means = np.full(arms, noise)
    means[0] = 1 - noise
    logits = np.zeros(arms)
    logits[0] = np.log(p * (arms - 1) / (1 - p))
    return means, logits


def suboptimality(theta: Float[Array, " K"], means: Float[Array, " K"]) -> Float[Array, ""]:
    """The best mean minus the expected reward; a sum of terms >= 0, so that small values keep their
    digits."""
    return jnp.sum(jax.nn.softmax(theta) * (means.max() - means))


def exact_gradient(theta: Float[Array, " K"], means: Float[Array, " K"]) -> Float[Array, " K"]:
    """d(expected reward) / d(theta): the update at infinite n."""
    pi = jax.nn.softmax(theta)
    return pi * (means - pi @ means)


def sampled_gradient(
    theta: Float[Array, " K"],
    means: Float[Array, " K"],
    key: Key[Array, ""],
    n: int,
    baseline: str = "none",
) -> Float[Array, " K"]:
    """1/n sum_i A_i (e_{a_i} - pi) over n draws of an arm and its reward.

    Each uniform falls into one of 2 K cells, an arm with reward 1 or 0; an update needs the cells'
    counts alone.
    """
    pi = jax.nn.softmax(theta)
    edges = jnp.cumsum(jnp.concatenate([pi * means, pi * (1 - means)]))[:-1]
    below = (jax.random.uniform(key, (n,))[None, :] < edges[:, None]).sum(1)
    correct, wrong = jnp.split(jnp.diff(below, prepend=0, append=n).astype(pi.dtype), 2)
    advantages = correct
    # A_i = r_i - (S - r_i) / (n - 1) = (n r_i - S) / (n - 1), S the sum of rewards
    if baseline == "leave_one_out":
        advantages = (n * correct - correct.sum() * (correct + wrong)) / (n - 1)
    return (advantages - advantages.sum() * pi) / n


@partial(jax.jit, static_argnames=("n", "baseline"))
def _advance(
    theta: Float[Array, "R K"],
    keys: Key[Array, " R"],
    first: Int[Array, ""],
    last: Int[Array, ""],
    means: Float[Array, " K"],
    learning_rate: Float[Array, ""],
    *,
    n: int | None,
    baseline: str,
) -> tuple[Float[Array, "R K"], Float[Array, " R"]]:
    """Updates first, ..., last - 1 of R repetitions; the logits and the suboptimality after
    them."""

    def update(
        theta: Float[Array, " K"], key: Key[Array, ""], t: Int[Array, ""]
    ) -> Float[Array, " K"]:
        if n is None:
            return theta + learning_rate * exact_gradient(theta, means)
        return theta + learning_rate * sampled_gradient(
            theta, means, jax.random.fold_in(key, t), n, baseline
        )

    theta = jax.lax.fori_loop(
        first, last, lambda t, theta: jax.vmap(update, (0, 0, None))(theta, keys, t), theta
    )
    return theta, jax.vmap(suboptimality, (0, None))(theta, means)


def simulate(
    means: Values,
    logits: Values,
    n: int | None,
    t: Sequence[int],
    learning_rate: float,
    *,
    repetitions: int,
    seed: int,
    baseline: str = "none",
) -> Iterator[Values]:
    """The suboptimality, float[repetitions], after each number of updates in t (rising, all > 0).

    n: samples per update; None for the exact gradient. A draw depends on (seed, n, repetition,
    update) alone.
    """
    key = jax.random.fold_in(jax.random.key(seed), n or 0)
    keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(repetitions))
    theta = jnp.tile(jnp.float32(logits)[None, :], (repetitions, 1))

    for first, last in zip((0, *t), t, strict=False):
        theta, values = _advance(
            theta,
            keys,
            jnp.int32(first),
            jnp.int32(last),
            jnp.float32(means),
            jnp.float32(learning_rate),
            n=n,
            baseline=baseline,
        )
        yield np.asarray(values, np.float64)


def slope(t: Sequence[int], values: Values) -> tuple[float, float]:
    """Least-squares slope of log(mean suboptimality) over log t in the last decade; its standard
    error by jackknife.

    values: float[points, repetitions].
    """
    in_tail = np.asarray(t) >= t[-1] / LAST_DECADE
    x = np.log(np.asarray(t)[in_tail])
    weight = (x - x.mean()) / np.sum((x - x.mean()) ** 2)  # of a least-squares slope
    total = values[in_tail].sum(1)
    R = values.shape[1]

    slope_without_one = weight @ np.log((total[:, None] - values[in_tail]) / (R - 1))
    standard_error = np.sqrt((R - 1) * np.var(slope_without_one))
    return float(weight @ np.log(total / R)), float(standard_error)


def summarize(n: int, t: list[int], values: Values, gap: float) -> Curve:
    """One n's curve from float[points, repetitions]; gap: what a wrong arm costs."""
    se = values.std(1, ddof=1) / np.sqrt(values.shape[1])
    slope_in_t, slope_se = slope(t, values)
    return Curve(
        n=n,
        t=t,
        mean=values.mean(1).tolist(),
        se=se.tolist(),
        slope=slope_in_t,
        slope_se=slope_se,
        lost=float(np.mean(values[-1] > gap / 2)),
    )


def compare_budgets(curves: Sequence[Curve]) -> dict[int, dict[int, tuple[float, float]]]:
    """C -> n -> (suboptimality, standard error), at up to three C that every n reached after at
    least one update."""
    C_max = min(c.n * c.t[-1] for c in curves)
    budgets = [C for C in (C_max // 100, C_max // 10, C_max) if C >= max(c.n for c in curves)]
    return {C: {c.n: _interpolate(c, C // c.n) for c in curves} for C in budgets}


def mark_best(by_n: dict[int, tuple[float, float]]) -> dict[int, str]:
    """n -> "*" for the least suboptimality, "=" within TIE_SE standard errors of it, "" for the
    rest."""
    best, best_se = min(by_n.values())
    ties = {
        n: "=" if value - best < TIE_SE * np.hypot(se, best_se) else ""
        for n, (value, se) in by_n.items()
    }
    return ties | {min(by_n, key=lambda n: by_n[n]): "*"}


def _interpolate(curve: Curve, t: int) -> tuple[float, float]:
    """Mean and standard error after t updates, between recorded ones by a line in log-log."""
    x = np.log(curve.t)
    value = float(np.exp(np.interp(np.log(t), x, np.log(curve.mean))))
    return value, value * float(np.interp(np.log(t), x, np.array(curve.se) / np.array(curve.mean)))


def draw_figure(curves: Sequence[Curve], exact: Values, limit: float) -> bytes:
    """Suboptimality against updates and against rollouts, as PNG. limit: t * suboptimality of equal
    wrong arms."""
    fig = Figure(figsize=(12.5, 5.2), dpi=DPI, layout="constrained")
    by_update = fig.add_subplot(1, 2, 1)
    by_rollout = fig.add_subplot(1, 2, 2, sharey=by_update)
    style_axes(by_update, "the rate: what an update buys", "updates t", "suboptimality")
    style_axes(by_rollout, "the budget: what a rollout buys", "C = n t (rollouts)", "")
    by_update.set_yscale("log")
    colours = n_palette([c.n for c in curves])
    for c in curves:
        mean = np.array(c.mean)
        t = np.array(c.t)
        # on the log scale, so that the interval stays positive
        factor = np.exp(Z90 * np.array(c.se) / mean)
        for ax, x in ((by_update, t), (by_rollout, c.n * t)):
            ax.fill_between(
                x, mean / factor, mean * factor, color=colours[c.n], alpha=0.2, lw=0, zorder=2
            )
            ax.plot(x, mean, color=colours[c.n], lw=2, zorder=4, label=f"n = {c.n}")

    # What theory expects: the exact gradient, and a line of slope -1 just below it.
    t = np.array(curves[0].t)
    tail = t[t >= t[-1] / 100]
    by_update.plot(t, exact, color=INK, lw=1.6, ls=":", zorder=5, label="exact gradient")
    by_update.plot(
        tail, 0.6 * limit / tail, color=LAW_COLOUR, lw=1.6, ls="--", zorder=5, label="slope -1"
    )

    handles, _ = by_update.get_legend_handles_labels()
    fig.legend(handles=handles, loc="outside lower center", ncols=10, frameon=False, fontsize=9)
    return render_figure(fig).png


def print_table(
    curves: Sequence[Curve], budgets: dict[int, dict[int, tuple[float, float]]]
) -> None:
    """A row per n: slope, t x suboptimality, lost runs, and what each budget leaves."""
    headings = [f"{f'at C = {C:,}':<15}" for C in budgets]
    print(f"{'n':>5} {'slope in t':>15} {'t x suboptimality':>18} {'lost':>6}  ", *headings)
    for c in curves:
        cells = []
        for by_n in budgets.values():
            value, _ = by_n[c.n]
            cells.append(f"{f'{value:.3g} {mark_best(by_n)[c.n]}':<15}")
        end = c.t[-1] * c.mean[-1]
        end_se = c.t[-1] * c.se[-1]
        print(
            f"{c.n:>5} {c.slope:>8.3f} ± {c.slope_se:.3f} {end:>9.3g} ± {end_se:<6.2g} "
            f"{c.lost:>6.1%}  ",
            *cells,
        )
    print("* the least at this budget, = within two standard errors of it")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="One training problem, simulated (docs/bandit.md)."
    )
    parser.add_argument("--n", default="1,2,4,8,16,32,64", help="samples per update, each a curve")
    parser.add_argument("--updates", type=int, default=10_000, help="updates of each curve")
    parser.add_argument(
        "--arms", type=int, default=10, help="possible responses, one of them right"
    )
    parser.add_argument("--p", type=float, default=0.1, help="pass@1 before training")
    parser.add_argument("--noise", type=float, default=0.1, help="how often the verifier errs")
    parser.add_argument("--learning-rate", type=float, default=0.5, help="of every update")
    parser.add_argument(
        "--baseline", choices=BASELINES, default="none", help="what is subtracted from a reward"
    )
    parser.add_argument("--repetitions", type=int, default=256, help="runs that a mean is taken of")
    parser.add_argument("--seed", type=int, default=0, help="of all draws")
    parser.add_argument("--out", type=Path, help="a new folder for bandit.csv and bandit.png")
    args = parser.parse_args()

    args.n = sorted({int(n) for n in args.n.split(",")})
    least_n = 2 if args.baseline == "leave_one_out" else 1
    in_range = MIN_UPDATES <= args.updates <= MAX_UPDATES and 0 < args.learning_rate <= 50
    if not (in_range and min(args.arms, args.repetitions) >= 2 and args.n[0] >= least_n):
        parser.error(
            f"expected {MIN_UPDATES} to {MAX_UPDATES} updates, a learning rate in (0, 50], two "
            f"arms and repetitions or more, and n from 1 (from 2 with leave_one_out)"
        )
    if not (0 < args.p < 1 and 0 <= args.noise < 0.5):
        parser.error(
            "expected p in (0, 1), else no gradient is left, and noise in [0, .5), else no arm is "
            "right"
        )
    return args


def main() -> None:
    """Simulate, print the table, write the files."""
    args = parse_arguments()
    t = sorted({round(x) for x in np.geomspace(1, args.updates, GRID_POINTS)})
    means, logits = one_right_arm(args.arms, args.p, args.noise)
    run = partial(simulate, means, logits, t=t, learning_rate=args.learning_rate, seed=args.seed)
    curves = []
    for n in args.n:
        values = np.array([*run(n=n, repetitions=args.repetitions, baseline=args.baseline)])
        curves.append(summarize(n, t, values, gap=1 - 2 * args.noise))
    print_table(curves, compare_budgets(curves))
    if args.out is None:
        return

    args.out.mkdir(parents=True)  # an error where it exists: nothing is overwritten
    exact = np.array([*run(n=None, repetitions=1)])[:, 0]
    limit = (args.arms - 1) / (args.arms * args.learning_rate)
    (args.out / "bandit.png").write_bytes(draw_figure(curves, exact, limit))
    rows = [(c.n, *row) for c in curves for row in zip(c.t, c.mean, c.se, strict=True)]
    header = "n,t,suboptimality,standard_error"
    np.savetxt(args.out / "bandit.csv", rows, fmt="%.6g", delimiter=",", header=header, comments="")


if __name__ == "__main__":
    main()
