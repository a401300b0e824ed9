"""The search for the best learning rate at one batch B, from which `cell.rl.lr_scaling` leads to
every other batch (IsoCompute Playbook, arXiv:2603.12151, section 3, factor 3).

Every rate is a sweep in runs/NAME-lr/RATE. Of rates within a standard error of the difference to
the best, the lowest is taken: a rate too high breaks long runs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isojax.core.config import AUTOSIZED_SETTINGS, WHOLE_GRID, Config, load_config
from isojax.core.errors import RunFailed
from isojax.core.nouns import RunRecord
from isojax.launch.planner import plan_cells
from isojax.launch.rounds import Round, Rounds, Stop
from isojax.launch.sweep_status import CONFIG_FILE
from isojax.runs.ledger import RECORDS_FILE, default_metric, read_runs
from isojax.scaling.checks.run_health import health_flags
from isojax.scaling.reward_metric import metric_value

RATE_STEP = 10**0.5  # between two rates that are tried
MAX_EXTENSIONS = 2  # rates beyond the grid
MIN_EVALUATIONS = 4  # of a run, at different updates
MIN_WARMUPS = 3  # how many times its warm-up a run lasts
# Runs a sweep; called with (config, resume, dry_run); returns its folder, None in other processes.
LaunchSweep = Callable[[Config, bool, bool], Path | None]


class SearchPlan(NamedTuple):
    """What a search runs: `seeds` runs of `budget` rollouts at each rate, at one (B_p, n)."""

    rates: list[float]  # such as [1e-6, 3.2e-6, 1e-5]
    B_p: int
    n: int
    B: int
    budget: int
    seeds: int
    folder: str  # runs/NAME-lr, in which each rate has its folder

    def rate_config(self, config: Config, rate: float) -> Config:
        """The sweep of one rate: a config like any other, in runs/NAME-lr/RATE."""
        one_cell = {"B_p": (self.B_p,), "n": (self.n,), "schedules": {}}
        return config.with_settings(
            name=rate_name(rate),
            cell={"rl": {"learning_rate": rate, "lr_reference_batch": self.B}},
            sweep={**one_cell, "seeds": self.seeds, "budget": self.budget, **WHOLE_GRID},
            run={"dir": self.folder},
        )

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


@dataclass(frozen=True)
class RateResult:
    """What came of one learning rate."""

    rate: float
    scores: tuple[float, ...] = ()  # of each seed: its mean reward late in the run
    flags: tuple[str, ...] = ()  # why it is not chosen, with the run's name
    failed: tuple[str, ...] = ()  # those of them that say nothing of the rate, such as a full disk

    @property
    def is_out(self) -> bool:
        """Whether a flag says that the rate is to blame."""
        return len(self.flags) > len(self.failed)

    @property
    def reward(self) -> float:
        return float(np.mean(self.scores)) if self.scores else math.nan


@dataclass(frozen=True)
class LrSearchResult:
    """Results by rising rate, and what follows from them; `best` and `recommended` are None where
    every rate is out."""

    results: tuple[RateResult, ...]
    standard_error: float | None
    best: RateResult | None
    tied: tuple[RateResult, ...] = ()
    recommended: RateResult | None = None

    def to_json(self, config: Config, plan: SearchPlan) -> dict[str, Any]:
        """The content of lr_search.json: what was run, every rate, and what the config should say.

        "learning_rate" is the recommended one, null where every rate is out; "rates" has one entry
        for each, by rising rate.
        """
        metric = f"avg@{config.cell.eval.samples}"
        score = f"mean over seeds of the mean {metric} over the last quarter of the evaluations"
        rates = []
        for result in self.results:
            reward = result.reward if result.scores else None
            is_judged = result.scores and not result.flags
            se = self.standard_error if is_judged else None
            rates.append(asdict(result) | {"B": plan.B, "reward": reward, "se": se})

        return {
            "schema": 1,
            "name": config.name,
            "B_p": plan.B_p,
            "n": plan.n,
            "B": plan.B,
            "budget": plan.budget,
            "seeds": plan.seeds,
            "metric": metric,
            "score": score,
            "extended": len(self.results) - len(plan.rates),
            "rates": rates,
            "best": None if self.best is None else self.best.rate,
            "tied": [result.rate for result in self.tied],
            "learning_rate": None if self.recommended is None else self.recommended.rate,
            "lr_reference_batch": plan.B,
            "lr_scaling": config.cell.rl.lr_scaling,
            "says": describe_search(self),
        }


def default_rates(center: float) -> list[float]:
    """Five rates, two below the center and two above it."""
    lower = [step_rate(center, -2), step_rate(center, -1)]
    higher = [step_rate(center, 1), step_rate(center, 2)]
    return [*lower, round_rate(center), *higher]


def step_rate(rate: float, steps: int) -> float:
    """The rate so many factors of sqrt(10) away, to two digits; steps may be negative."""
    return float(f"{rate * RATE_STEP**steps:.1e}")


def round_rate(rate: float) -> float:
    """To three digits, as its folder is named."""
    return float(f"{rate:.2e}")


def rate_name(rate: float) -> str:
    """A rate as its folder is named, such as 1e-3 or 3.2e-4."""
    return np.format_float_scientific(rate, precision=2, trim="-", exp_digits=1).replace("e+", "e")


def choose_batch_shape(config: Config) -> tuple[int, int]:
    """The (B_p, n) of the sweep whose B_p n is nearest to cell.rl.lr_reference_batch in log.

    Of equally near ones, that with the larger B_p.
    """
    reference_batch = config.cell.rl.lr_reference_batch

    def distance(pair: tuple[int, int]) -> tuple[float, int]:
        B_p, n = pair
        log_ratio = math.log(B_p * n / reference_batch)
        return round(abs(log_ratio), 9), -B_p  # rounded, so that equal batches are equal

    return min({pair for cell in plan_cells(config.sweep) for pair in cell.pairs}, key=distance)


def default_budget(config: Config, B: int) -> int:
    """The rollouts of each run of a search at batch B: a tenth of sweep.budget, if that suffices.

    At least MIN_WARMUPS times the warm-up, one update, and up to the first evaluation
    (cell.eval.start); and enough for MIN_EVALUATIONS at different updates.
    """
    warmup_rollouts = MIN_WARMUPS * config.cell.rl.warmup * B
    eval_config = config.cell.eval
    budget = max(config.sweep.budget // 10, warmup_rollouts, B, math.ceil(eval_config.start))

    def evaluated_updates(budget: int) -> set[int]:
        """After which updates a run evaluates, without the base policy's evaluation at C = 0.

        Close targets may be reached by the same update. Captures eval_config and B.
        """
        return {-(-target // B) for target in eval_config.evaluation_targets(budget)[1:]}

    while len(evaluated_updates(budget)) < MIN_EVALUATIONS:
        budget = math.ceil(budget * eval_config.ratio)
    return budget


def run_rate(config: Config, first_folder: Path, resume: bool, launch: LaunchSweep) -> RateResult:
    """Run the sweep of one rate and score it; failures of its runs become flags of the result.

    config: of `SearchPlan.rate_config`. first_folder: that of the rate that runs first, whose base
    policy and sizes the others take. resume: whether the search goes on with an earlier one.
    InputError where the sweep is refused.
    """
    folder = Path(config.run.dir) / config.name
    if folder != first_folder:
        sweep = load_config(str(first_folder / CONFIG_FILE)).sweep
        sizes = {key: getattr(sweep, key) for key in AUTOSIZED_SETTINGS}
        config = config.with_settings(sweep=sizes, run={"base_from": str(first_folder)})

    # A folder that holds a sweep can only be gone on with; `launch` refuses it otherwise.
    goes_on = resume or (folder / CONFIG_FILE).exists()
    failures: list[str] = []
    try:
        launch(config, goes_on, False)  # no dry run
    except RunFailed as e:  # other rates go on
        # One message of each run that failed; of a sweep of several runs, the first argument is a
        # summary.
        failures = [str(message) for message in e.args[1:] or e.args]

    # A ledger with its header alone has no evaluation.
    ledgers = sorted(folder.glob(f"cells/*/{RECORDS_FILE}"))
    evaluated_cells = [path.parent for path in ledgers if path.read_bytes().count(b"\n") > 1]
    return score_runs(config.cell.rl.learning_rate, read_runs(evaluated_cells), failures)


def score_runs(rate: float, runs: Sequence[RunRecord], failures: Sequence[str] = ()) -> RateResult:
    """The result of a rate: a score of each run that has evaluations, and flags of what broke.

    failures: errors of runs that did not finish, such as "16x8-s0: MESSAGE". They count as flags;
    the rate is their cause only where the run's ledger says why it ended, as after an update that
    was not finite.
    """
    diverged = {run.cell.name for run in runs if run.failure_reason}
    failed = tuple(failure for failure in failures if failure.partition(":")[0] not in diverged)

    flags = list(failures)
    for run in runs:
        for flag in health_flags(run):
            # An update that was not finite has ended its run, and is among the failures.
            if flag.name != "nonfinite_update" or not failures:
                flags.append(f"{run.cell.name}: {flag}")
    if not runs:
        return RateResult(rate, flags=tuple(flags), failed=failed)

    metric = default_metric(runs)
    scores = []
    for run in runs:
        curve = [(p.rollouts, metric_value(p, metric, run.source)) for p in run.points]
        scores.append(score_curve(curve))
    return RateResult(rate, tuple(scores), tuple(flags), failed)


def score_curve(curve: Sequence[tuple[int, float]]) -> float:
    """The mean reward over the last quarter of a run's evaluations, their number rounded up.

    curve: (C, reward) by rising C, at least one. That of the base policy, at C = 0, does not count
    unless it is the only one.
    """
    rewards = [reward for C, reward in curve if C > 0]
    if not rewards:  # of a run that ended before its first update
        _, base_reward = curve[-1]
        rewards = [base_reward]
    last_quarter = rewards[-math.ceil(len(rewards) / 4) :]
    return float(np.mean(last_quarter))


@dataclass(frozen=True)
class RateSearch:
    """Asks for all rates of a grid, and then, while the best is an end of it, for one beyond.

    Its history are the results so far, by their rates."""

    rates: Sequence[float]
    extend: bool  # whether up to MAX_EXTENSIONS rates beyond the grid are run

    def ask(self, history: Mapping[float, RateResult]) -> Round[float] | Stop:
        if not history:
            return Round(tuple(sorted(self.rates)))
        if not self.extend:
            return Stop("all rates have run")
        if len(history) - len(self.rates) >= MAX_EXTENSIONS:
            return Stop(f"{MAX_EXTENSIONS} rates beyond the grid have run")

        next_rate = _next_rate(history)
        if next_rate is None:
            explanation = "the best rate is inside the grid, or no rate could be judged"
            return Stop(explanation)
        return Round((next_rate,))


def search_rates(
    rates: Sequence[float], evaluate: Callable[[float], RateResult], extend: bool
) -> LrSearchResult:
    """Run rates by calling `evaluate` with one after the other, and choose one of them.

    rates: the grid, which is run in rising order. extend: as of RateSearch.
    """
    results: dict[float, RateResult] = {}
    for next_rates in Rounds(RateSearch(rates, extend), lambda count: results):
        for rate in next_rates:
            results[rate] = evaluate(rate)
    return select_rate(tuple(results[rate] for rate in sorted(results)))


def _best(results: Sequence[RateResult]) -> RateResult:
    """The highest reward; of equals the lowest rate."""
    return max(results, key=lambda result: (result.reward, -result.rate))


def _next_rate(results: Mapping[float, RateResult]) -> float | None:
    """The next rate beyond the best, if that is an end of the grid; else None.

    Where every rate has flags, the next one below the lowest, but None where a cause that is none
    of a rate's, such as a full disk, ended one of them.
    """
    unflagged = [result for result in results.values() if not result.flags]
    if not unflagged and any(result.failed for result in results.values()):
        return None  # of what a full disk has ended, nothing says where the best is

    lowest, highest = min(results), max(results)
    best_rate = _best(unflagged).rate if unflagged else lowest
    if best_rate == lowest:
        return step_rate(best_rate, -1)
    if best_rate == highest:
        return step_rate(best_rate, 1)
    return None


def select_rate(results: tuple[RateResult, ...]) -> LrSearchResult:
    """The best rate, those within a standard error of the difference to it, and their lowest.

    results: by rising rate, at least one. Rates with flags are not chosen. Without a second seed
    there is no standard error, and only equal rewards are ties.
    """
    unflagged = [result for result in results if not result.flags]

    # Of a rate's mean over seeds, pooled over rates: a few seeds of one rate say little of their
    # variance.
    seed_variances = [
        np.var(result.scores, ddof=1) for result in unflagged if len(result.scores) > 1
    ]
    standard_error = None
    if seed_variances:
        num_seeds = len(unflagged[0].scores)
        standard_error = math.sqrt(float(np.mean(seed_variances)) / num_seeds)
    if not unflagged:
        return LrSearchResult(results, standard_error, None)

    best = _best(unflagged)
    # The difference of two such means has sqrt(2) times their standard error.
    max_difference = math.sqrt(2) * (standard_error or 0.0)
    tied = tuple(result for result in unflagged if best.reward - result.reward <= max_difference)
    return LrSearchResult(results, standard_error, best, tied, tied[0])


def describe_search(search: LrSearchResult) -> list[str]:
    """Sentences that a reader must know of the choice.

    Rates that are out or failed, ties, a single seed, and a best rate at an end of the grid.
    """
    flagged = [result for result in search.results if result.flags]
    sentences = []
    for result in flagged:
        verdict = "is out" if result.is_out else "failed"
        sentences.append(f"{rate_name(result.rate)} {verdict}: {'; '.join(result.flags)}")
    all_flagged_are_out = all(result.is_out for result in flagged)
    if not all_flagged_are_out:
        sentences.append(
            "a rate that failed is not judged: correct what failed, and go on by --resume"
        )

    best = search.best
    recommended = search.recommended
    if best is None or recommended is None:
        if all_flagged_are_out:
            sentences.append(
                "every rate is out: search lower ones (--rates), or correct what the flags say"
            )
        return sentences

    tied_names = [rate_name(result.rate) for result in search.tied if result is not best]
    if tied_names:
        tie = (
            f"{rate_name(best.rate)} is best, and within a standard error of the difference:"
            f" {', '.join(tied_names)}"
        )
        sentences.append(f"{tie}; the lowest of them is taken, {rate_name(recommended.rate)}")
    if search.standard_error is None:
        sentences.append(
            "one seed: without a second one nothing says how far rates differ by luck (--seeds 2)"
        )

    rates = [result.rate for result in search.results]
    grid_ends = {min(rates): "lowest", max(rates): "highest"}
    if best.rate in grid_ends:
        sentences.append(
            f"the best rate is the {grid_ends[best.rate]} that was tried: search beyond it"
            " (--rates)"
        )
    return sentences
