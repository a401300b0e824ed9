"""The tables of docs/reproduction.md and docs/quickstart.md, from the runs of the open data;
reproduce.py writes them.

A claim that n grows is "reproduced" where it holds in 90% of the fit's draws, "not" where it fails
in 90% of them, else "too noisy"; other claims say by what they are judged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from config_plans import plan_rows
from cut_sweep import up_to

import isojax
from isojax.core.nouns import RunRecord
from isojax.report.wording import format_crossover
from isojax.scaling.allocate.curve_ensemble import load_ensemble
from isojax.scaling.result import FitResult

SWEEPS = (
    "easy",
    "hard",
    "weak_base",
    "strong_base",
    "few_problems",
    "ppo_easy",
    "cispo_easy",
    "ppo_hard",
    "extremely_hard",
    "few_in_gradient",
)
SEEDS = (0, 3, 4, 5)  # of the quickstart's sweeps
CERTAIN = 0.9  # the share of draws from which on a claim counts as decided
HELD = 0.8  # the share of 90% intervals that must hold
CLEAR_Z = 1.64  # standard errors from which on a difference counts
REPLICATES = 500


class FitKey(NamedTuple):
    """A fit that claims are judged by."""

    sweep: str
    metric: str = "avg@4"
    compute: str = "rollouts"
    mode: str = "hierarchical"
    share: float = 1.0  # of the largest C: the evaluations up to it are fitted


class Row(NamedTuple):
    """A line of the page's table."""

    figure: str
    claim: str
    result: str
    verdict: str


Fits = Callable[..., FitResult]  # of a FitKey's values


def fit_runs(runs: Sequence[RunRecord], key: FitKey) -> FitResult:
    """The fit of a sweep's runs, or of their evaluations up to a share of the largest C."""
    C = key.share * max(run.points[-1].rollouts for run in runs)
    options = isojax.FitOptions(mode=key.mode, replicates=0 if key.mode == "paper" else REPLICATES)
    return isojax.fit([up_to(run, C) for run in runs], key.metric, key.compute, options)


class BestN(NamedTuple):
    """Which n is best at the smallest and at the largest C that all cells measured, in each
    draw."""

    first: np.ndarray  # int[replicates]
    last: np.ndarray

    @property
    def text(self) -> str:
        """The two most frequent n, and how often the last is larger."""
        grows = _probability(self.last > self.first)
        return f"n = {_mode(self.first)} to {_mode(self.last)}; P(grows) {grows}"

    @property
    def verdict(self) -> str:
        """Whether n grows."""
        return decide(self.last > self.first)


def best_n(fit: FitResult, B_p: int | None = None, B: int | None = None) -> BestN:
    """Of all cells, or of those of one B_p or of one batch B = B_p n."""
    ensemble = load_ensemble(fit)
    has_B_p = (ensemble.B_p == B_p) | (B_p is None)
    has_B = (ensemble.B == B) | (B is None)
    cells = np.flatnonzero(has_B_p & has_B)

    def best_at(C: float) -> np.ndarray:
        return ensemble.n[cells][ensemble.sampled_rewards(C)[:, cells].argmax(1)]

    first_C = float(np.max(ensemble.samples.C_low[cells]))
    last_C = float(np.min(ensemble.samples.C_high[cells]))
    return BestN(first=best_at(first_C), last=best_at(last_C))


def decide(holds: np.ndarray) -> str:
    """What the draws say of a claim."""
    share = float(np.mean(holds))
    if share >= CERTAIN:
        return "reproduced"
    if share <= 1 - CERTAIN:
        return "not reproduced"
    return "too noisy"


def _mode(values: np.ndarray) -> int:
    numbers, counts = np.unique(values, return_counts=True)
    return int(numbers[counts.argmax()])


def _probability(holds: np.ndarray) -> str:
    return f"{np.mean(holds):.2f}"


def _mean(values: Sequence[float]) -> str:
    """A mean over seeds and its standard error."""
    se = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{np.mean(values):.3f} ± {se:.3f}"


def _z(a: np.ndarray, b: np.ndarray) -> float:
    """The difference of two means over its standard error."""
    se_a = a.std(ddof=1) / np.sqrt(len(a))
    se_b = b.std(ddof=1) / np.sqrt(len(b))
    return float((a.mean() - b.mean()) / np.hypot(se_a, se_b))


def _verdict(z: float) -> str:
    """Of a claim that a difference is positive."""
    if z > CLEAR_Z:
        return "reproduced"
    if z < -CLEAR_Z:
        return "not reproduced"
    return "too noisy"


def growth(
    figure: str, claim: str, fit: FitResult, B_p: int | None = None, B: int | None = None
) -> Row:
    """A claim that the best n grows with C."""
    best = best_n(fit, B_p, B)
    return Row(figure, claim, best.text, best.verdict)


def compare_best_n(
    figure: str, claim: str, smaller: FitResult, larger: FitResult, names: tuple[str, str]
) -> Row:
    """A claim that the best n at the largest C is smaller in one fit than in the other, whose draws
    are independent."""
    a, b = best_n(smaller).last, best_n(larger).last
    pairs = a[:, None] < b[None, :]
    text = f"{names[0]}: n = {_mode(a)}; {names[1]}: n = {_mode(b)}; P {_probability(pairs)}"
    return Row(figure, claim, text, decide(pairs))


def sensitivity_row(figure: str, claim: str, fit: FitResult, n_matters_more: bool) -> Row:
    """How much n matters, against B_p."""
    over_n = fit.sensitivity.over_n if fit.sensitivity else None
    over_B_p = fit.sensitivity.over_B_p if fit.sensitivity else None
    if over_n is None or over_B_p is None:
        return Row(figure, claim, "–", "too noisy")

    n_text, B_p_text = (f"{s.spread:.3f} ({s.low:.3f} to {s.high:.3f})" for s in (over_n, over_B_p))
    has_ends = over_n.low is not None and over_B_p.high is not None
    n_matters_clearly = has_ends and over_n.low > over_B_p.high
    verdict = "reproduced" if n_matters_clearly == n_matters_more else "not reproduced"
    return Row(figure, claim, f"range over n {n_text}, over B_p {B_p_text}", verdict)


def record_row(fits: Fits, sweep: str) -> Row:
    """The frontier of record-breaking points, against the interval of all points' frontier."""
    paper = fits(sweep, mode="paper").joint.frontier[-1]
    joint = fits(sweep).joint.frontier[-1]
    inside = (
        joint.low is not None and joint.high is not None and joint.low <= paper.reward <= joint.high
    )
    interval = f"({joint.low:.3f} to {joint.high:.3f})"
    text = f"records {paper.reward:.3f}, all points {joint.reward:.3f} {interval}"
    return Row(
        "5, 15",
        f"Record-breaking points give the frontier, {sweep}",
        text,
        "reproduced" if inside else "not reproduced",
    )


def panel_row(runs: Sequence[RunRecord], figure: str, claim: str) -> Row:
    """The share of training problems without a correct answer at the end, smallest against largest
    n."""
    all_n = sorted({run.cell.n for run in runs})
    shares = {}
    for n in (all_n[0], all_n[-1]):
        ends = [
            run.points[-1].extra["panel"]
            for run in runs
            if run.cell.n == n and "panel" in run.points[-1].extra
        ]
        shares[n] = [float(np.mean(np.array(sums) == 0)) for sums in ends]
    text = "unsolved: " + ", ".join(f"{_mean(values)} at n = {n}" for n, values in shares.items())
    return Row(figure, claim, text, _verdict(_z(*(np.array(values) for values in shares.values()))))


def gradient_rows(runs: Mapping[str, list[RunRecord]], figure: str) -> list[Row]:
    """What rollouts are worth in the gradient and in the baseline: the last rewards of runs of B_p
    = 32."""

    def ends(sweep: str, n: int) -> np.ndarray:
        cell_runs = [run for run in runs[sweep] if (run.cell.B_p, run.cell.n) == (32, n)]
        return np.array([run.points[-1].metrics["avg@4"] for run in cell_runs])

    few, large, small = ends("few_in_gradient", 32), ends("easy", 32), ends("easy", 8)
    few_text, large_text, small_text = (_mean(rewards.tolist()) for rewards in (few, large, small))
    return [
        Row(
            figure,
            "32 rollouts in both gradient and baseline beat 8 in the gradient, 32 in the baseline",
            f"{large_text} and {few_text}",
            _verdict(_z(large, few)),
        ),
        Row(
            figure,
            "8 in the gradient, 32 in the baseline are no better than 8 in both",
            f"{few_text} and {small_text}",
            "not reproduced" if _z(few, small) > CLEAR_Z else "reproduced",
        ),
    ]


def forgetting_row(runs: Sequence[RunRecord], figure: str, claim: str) -> Row:
    """What training does to problems of every difficulty, by runs' first and last evaluation."""
    gains = [
        run.points[-1].metrics["any/avg@4"] - run.points[0].metrics["any/avg@4"] for run in runs
    ]
    verdict = "reproduced" if np.mean(gains) + 2 * np.std(gains) < 0 else "not reproduced"
    return Row(figure, claim, f"change of reward on all problems {_mean(gains)}", verdict)


def half_rows(study: Mapping[str, list[RunRecord]], fits: Fits) -> list[Row]:
    """A fit of half of the budget against the rewards at all of it."""
    rows = []
    for sweep in ("easy", "hard"):
        ensemble = load_ensemble(fits(sweep, share=0.5))
        index = {curve.key: i for i, curve in enumerate(ensemble.curves)}
        is_inside = []
        for run in study[f"small_{sweep}"]:
            i = index.get((run.cell.B_p, run.cell.n))
            if i is None:  # half of its evaluations are too few for a curve
                continue
            end = run.points[-1]
            interval = ensemble.predict_new_run(i, end.rollouts).interval
            assert interval is not None
            is_inside.append(interval[0] <= end.metrics["avg@4"] <= interval[1])

        claim = f"Half of the budget predicts all of it, {sweep}"
        text = f"{sum(is_inside)} of {len(is_inside)} runs inside their 90% interval"
        verdict = "reproduced" if np.mean(is_inside) >= HELD else "not reproduced"
        rows.append(Row("ScaleRL", claim, text, verdict))
    return rows


def all_rows(study: Mapping[str, list[RunRecord]], fits: Fits) -> list[Row]:
    """The table of the page."""
    easy, hard = fits("easy"), fits("hard")
    runs = {name: study[f"small_{name}"] for name in SWEEPS}
    hard_batches = sorted({r.cell.B_p * r.cell.n for r in runs["hard"]})
    rows = [record_row(fits, "easy"), record_row(fits, "hard")]
    for name, fit in (("easy", easy), ("hard", hard)):
        figure = "6, 7, 16" if name == "easy" else "6, 7, 17"
        rows += [
            growth(figure, f"n\\* grows with C at B_p = {B_p}, {name}", fit, B_p)
            for B_p in sorted({run.cell.B_p for run in runs[name]})
        ]
    rows += [
        compare_best_n(
            "7",
            "Hard problems saturate at a smaller n than easy ones",
            hard,
            easy,
            ("hard", "easy"),
        ),
        compare_best_n(
            "8",
            "Easy: best@4 needs a smaller n than worst@4",
            fits("easy", "best@4"),
            fits("easy", "worst@4"),
            ("best@4", "worst@4"),
        ),
        compare_best_n(
            "8",
            "Hard: worst@4 needs a smaller n than best@4",
            fits("hard", "worst@4"),
            fits("hard", "best@4"),
            ("worst@4", "best@4"),
        ),
        *(
            growth("9, 18", f"Easy: at a fixed batch of {B}, n\\* grows with M", easy, B=B)
            for B in (256, 512)
        ),
        *(
            growth("19", f"Hard: at a fixed batch of {B}, n\\* grows with M", hard, B=B)
            for B in hard_batches
            if len({r.cell.n for r in runs["hard"] if r.cell.B_p * r.cell.n == B}) > 1
        ),
        sensitivity_row("10", "Easy: n matters more than B_p", easy, n_matters_more=True),
        sensitivity_row("10", "Hard: n and B_p matter about equally", hard, n_matters_more=False),
        panel_row(runs["easy"], "11, 27", "Easy: a small n leaves more problems unsolved"),
        panel_row(runs["hard"], "11, 27", "Hard: a small n leaves more problems unsolved"),
        growth("12", "A weaker base policy: n\\* grows with C", fits("weak_base")),
        growth("12", "A stronger base policy: n\\* grows with C", fits("strong_base")),
        compare_best_n(
            "13",
            "250 problems: n\\* saturates at a smaller n than with all",
            fits("few_problems"),
            easy,
            ("250 problems", "all problems"),
        ),
        forgetting_row(runs["hard"], "14", "Training on hard problems alone forgets the others"),
        growth(
            "20", "Extremely hard: n\\* of best@4 grows with C", fits("extremely_hard", "best@4")
        ),
        compare_best_n(
            "20",
            "Extremely hard: worst@4 needs a smaller n than best@4",
            fits("extremely_hard", "worst@4"),
            fits("extremely_hard", "best@4"),
            ("worst@4", "best@4"),
        ),
        growth("21, 22", "n\\* grows with C, all (B_p, n) together, easy", easy),
        growth("21, 22", "n\\* grows with C, all (B_p, n) together, hard", hard),
        growth(
            "23",
            "On other problems than those of training, n\\* grows with C (hard)",
            fits("hard", "any/avg@4"),
        ),
        growth("24", "n\\* grows with C in tokens, easy", fits("easy", compute="tokens")),
        growth("25", "PPO, easy: n\\* grows with C", fits("ppo_easy")),
        growth("25", "PPO, hard: n\\* grows with C", fits("ppo_hard")),
        growth("25", "CISPO, easy: n\\* grows with C", fits("cispo_easy")),
        *gradient_rows(runs, "26"),
        *half_rows(study, fits),
    ]
    return rows


def best_at_end(fit: FitResult) -> tuple[str, str]:
    """The best cell at the largest C that was evaluated with its P(n), and its reward with the
    interval."""
    last = fit.joint.frontier[-1]
    chance = (last.n_probability or {}).get(last.n, float("nan"))
    return (
        f"{last.B_p} x {last.n}, P(n) {chance:.2f}",
        f"{last.reward:.3f} ({last.low:.3f} to {last.high:.3f})",
    )


def sweep_rows(study: Mapping[str, list[RunRecord]], fits: Fits) -> list[list[str]]:
    """The page's second table: what each sweep is, and its best cell at the largest C."""
    rows = []
    for name in SWEEPS:
        runs, fit = study[f"small_{name}"], fits(name)
        C = max(run.points[-1].rollouts for run in runs)
        sizes = [
            ", ".join(map(str, sorted({getattr(r.cell, k) for r in runs}))) for k in ("B_p", "n")
        ]
        config = f"[`small/{name}`](../configs/small/{name}.yaml)"
        rows.append(
            [config, *sizes, str(len(runs)), f"{C:,}", f"{fit.base_reward:.3f}", *best_at_end(fit)]
        )
    return rows


def language_model_table(study: Mapping[str, list[RunRecord]]) -> str:
    """The law of configs/small/smollm2.yaml; and what it says of its last evaluations when it knows
    half of C only."""
    runs = study["small_smollm2"]
    C = max(run.points[-1].target for run in runs)
    options = isojax.FitOptions(replicates=REPLICATES)
    fit, half = (
        isojax.fit([up_to(run, limit) for run in runs], "avg@4", "rollouts", options)
        for limit in (C, C / 2)
    )
    now, forecast = isojax.recommend(fit, C), isojax.recommend(half, C)
    assert now.n_probability and forecast.n_probability
    expected = {cell.n: cell for cell in forecast.measured_cells}
    rows = []
    inside = 0
    means = {}
    for cell in sorted(now.measured_cells, key=lambda cell: cell.n):
        n, guess = cell.n, expected[cell.n]
        measured = [run.points[-1].metrics["avg@4"] for run in runs if run.cell.n == n]
        means[n] = np.mean(measured)
        assert guess.low is not None and guess.high is not None
        inside += sum(guess.low <= reward <= guess.high for reward in measured)
        half_text, all_text = (
            f"{c.reward:.3f} ({c.low:.3f} to {c.high:.3f})" for c in (guess, cell)
        )
        half_chance, chance = (
            f"{chances.get(n, 0.0):.2f}" for chances in (forecast.n_probability, now.n_probability)
        )
        rows.append(
            [
                str(n),
                half_text,
                half_chance,
                ", ".join(f"{x:.3f}" for x in measured),
                all_text,
                chance,
            ]
        )
    columns = [
        "n",
        "expected from half (90%)",
        "P(n)",
        f"measured at C = {C:,}",
        "fit to all (90%)",
        "P(n)",
    ]
    recommended = forecast.allocation.n
    return (
        f"{markdown_table(columns, rows)}\n"
        f"These intervals are for the mean of many runs; of the {len(runs)} single "
        f"runs, {inside} ended inside the interval from half. From half, isojax\n"
        f"recommends n = {recommended}, which measured {means[recommended]:.3f} in the mean; "
        f"the best n measured {max(means.values()):.3f}. From all, it "
        f"recommends n = {now.allocation.n}.\n"
    )


def quickstart_tables(study: Mapping[str, list[RunRecord]]) -> dict[str, str]:
    """Where n* changes in each sweep of the quickstart; and its forecasts of 4 times the budget,
    against runs."""
    options = isojax.FitOptions(replicates=REPLICATES)
    sweeps = {
        seed: isojax.fit(study[f"quickstart_{seed}"], "avg@4", "rollouts", options)
        for seed in SEEDS
    }
    rows = []
    for seed, fit in sweeps.items():
        crossings = [
            f"{x.n_low} to {x.n_high} at {format_crossover(x, fit)}" for x in fit.joint.crossovers
        ]
        rows.append([str(seed), "; ".join(crossings), *best_at_end(fit)])
    columns = [
        "sweep.seed",
        "the best n changes at C (90%)",
        "best cell at the end",
        "its reward (90%)",
    ]
    ensemble, forecasts = load_ensemble(sweeps[0]), []
    cells = list(zip(ensemble.B_p.tolist(), ensemble.n.tolist(), strict=True))
    new_runs = sorted(study["quickstart_4x"], key=lambda run: run.cell)
    for run in new_runs:
        B_p, n = run.cell.B_p, run.cell.n
        reward, interval = ensemble.predict_new_run(cells.index((B_p, n)), run.points[-1].rollouts)
        assert interval is not None
        row = [f"{B_p} x {n}", f"{run.points[-1].metrics['avg@4']:.3f}", f"{reward:.3f}"]
        forecasts.append([*row, f"{interval[0]:.3f} to {interval[1]:.3f}"])
    chosen = isojax.recommend(
        sweeps[0], max(run.points[-1].rollouts for run in new_runs)
    ).allocation
    text = f"For this budget, isojax recommends B_p = {chosen.B_p}, n = {chosen.n}.\n"
    headings = ["B_p x n", "measured", "forecast", "90% interval for one new run"]
    return {
        "quickstart_seeds": markdown_table(columns, rows),
        "quickstart_4x": f"{markdown_table(headings, forecasts)}\n{text}",
    }


def make_tables(study: Mapping[str, list[RunRecord]]) -> dict[str, str]:
    """The tables of all pages as Markdown, by their names."""
    cached: dict[FitKey, FitResult] = {}

    def fits(*args: Any, **kwargs: Any) -> FitResult:
        key = FitKey(*args, **kwargs)
        if key not in cached:
            print(f"fit {len(cached) + 1}: {key}", file=sys.stderr, flush=True)
            cached[key] = fit_runs(study[f"small_{key.sweep}"], key)
        return cached[key]

    columns = [
        "config",
        "B_p",
        "n",
        "runs",
        "C per run",
        "base policy",
        "best cell at the end",
        "its reward (90%)",
    ]
    with ProcessPoolExecutor(1) as other_core:
        plans = other_core.submit(plan_rows)
        quickstart = other_core.submit(quickstart_tables, study)
        language_model = other_core.submit(language_model_table, study)
        claims = [list(row) for row in all_rows(study, fits)]
        return {
            "sweeps": markdown_table(columns, sweep_rows(study, fits)),
            "plans": markdown_table(["config", "runs", "GiB per chip", "days"], plans.result()),
            "claims": markdown_table(["figure", "claim", "here", "verdict"], claims),
            "language_model": language_model.result(),
            **quickstart.result(),
        }


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with a line end after each row."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
