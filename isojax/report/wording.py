"""How the report and the command line write numbers, and sentences about a law, a segment and a
crossover."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from isojax.core.nouns import Recommendation
from isojax.core.terminal import format_hours, format_number
from isojax.scaling.law.n_star_law import MIN_DISTINCT_N
from isojax.scaling.result import (
    CrossoverRow,
    DecidingRun,
    FitResult,
    FrontierFit,
    NStarFit,
    SegmentRow,
)

MIN_DECADES = 0.2
MIN_Z = 2.0
MIN_SHOWN_PROBABILITY = 0.005
MIN_SHOWN_GAIN = 0.002  # of reward: a smaller gain of a growing n is not worth a sentence
UNITS = {"rollouts": "rollouts", "tokens": "response tokens", "device_hours": "device hours"}
VERDICTS = ("supported", "excluded", "cannot tell")  # on a published law of n
LAW_REACH = 4.0  # a law is drawn to this many times the measured budget
LAW_PARAMETERS = {
    "constant": ("b",),
    "linear": ("k", "log10_C0", "b"),
    "sigmoid": ("L", "k", "log10_C0", "b"),
}

Bounds = tuple[float | None, float | None]


def format_compact(x: float | None) -> str:
    """250000 -> "250k", 1234567 -> "1.23M", 0.0512 -> "0.0512": three digits, for budgets."""
    if x is None:
        return "–"
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= size * 0.9995:
            return f"{x / size:.3g}{letter}"
    return f"{x:.3g}"


def format_reward(x: float | None) -> str:
    return "–" if x is None else f"{x:.3f}"


def metric_phrase(metric: str) -> str:
    """ "validation avg@4"; of a log's metric whose name says that already, "val/acc", its name
    alone."""
    says_it = re.search(
        r"(?:^|[^a-z])(?:val|valid|validation|eval|test)(?:[^a-z]|$)", metric.lower()
    )
    return metric if says_it else f"validation {metric}"


def format_percent(x: float) -> str:
    """A share as a percentage: .9 -> "90%"."""
    return f"{100 * x:.3g}%"


def n_shares(n_probability: Mapping[int, float]) -> list[tuple[int, str, float]]:
    """(n, "12%", 0.123): the probability to be the best of each n that has one to speak of."""
    shares = [
        (n, share) for n, share in sorted(n_probability.items()) if share >= MIN_SHOWN_PROBABILITY
    ]
    return [(n, format_percent(round(share, 2)), round(share, 3)) for n, share in shares]


def every_n_share(n_probability: Mapping[int, float]) -> list[tuple[int, str, float]]:
    """As `n_shares`, with those that have none to speak of, which a reader would miss: (n, "<1%",
    0.001)."""
    spoken_of = {n: (n, text, share) for n, text, share in n_shares(n_probability)}
    return [
        spoken_of.get(n, (n, "<1%", round(share, 3))) for n, share in sorted(n_probability.items())
    ]


def format_range(
    bounds: Sequence[float | None] | None, formatter: Callable[[float], str] = format_reward
) -> str:
    """An interval in words: "0.498 to 0.520", "open" for an open end; "-" where there is none."""
    if bounds is None or all(bound is None for bound in bounds):
        return "-"
    return " to ".join("open" if bound is None else formatter(bound) for bound in bounds)


def format_interval(
    bounds: Bounds | None, formatter: Callable[[float], str] = format_reward
) -> str:
    """An interval to follow its number: " [0.498, 0.520]", "open" for an open end; "" where there
    is none."""
    if bounds is None or bounds == (None, None):
        return ""
    low, high = ("open" if bound is None else formatter(bound) for bound in bounds)
    return f" [{low}, {high}]"


def join_list(items: Iterable[object]) -> str:
    """ "a", "a and b", "a, b and c"."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def join_commas(items: Iterable[object]) -> str:
    """ "a, b, c"."""
    return ", ".join(map(str, items))


def format_count(count: int, noun: str) -> str:
    """ "1 run", "2 runs"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def segment_verdict(segment: SegmentRow) -> tuple[bool | None, str]:
    """(holds, why), by its length, measured neighbours and a lead of MIN_Z standard errors; None:
    cannot be judged."""
    if not segment.neighbours:
        return False, "Nothing to compare with: this cell leads everywhere"
    if not segment.has_counts:
        return None, "Not judged: the right answers of single problems are not recorded"
    shortfalls = []
    if segment.decades < MIN_DECADES:
        shortfalls.append(f"only {segment.decades:.2f} decade long (under {MIN_DECADES})")
    if not segment.measured_for_neighbours:
        shortfalls.append("not measured for every neighbour")
    if segment.z is None or segment.lead is None:
        shortfalls.append("lead not testable")
    elif segment.z < MIN_Z:
        is_ahead = segment.lead > 0
        shortfalls.append(
            "lead under two standard errors"
            if is_ahead
            else "not ahead of its rival in the evaluations"
        )
    if shortfalls or segment.z is None:
        return False, "Not shown: " + "; ".join(shortfalls)
    return (
        True,
        f"Holds: {segment.decades:.2f} decade long, ahead by {segment.z:.1f} standard errors",
    )


def format_estimate(value: float, bounds: Sequence[float | None] | None) -> tuple[str, str]:
    """A number and its interval, for two columns of a table."""
    return format_number(value), format_range(bounds, format_number)


def law_is_drawn(view: FrontierFit) -> bool:
    """Whether the frontier has enough values of n to show a law: one (constant), or three and
    more."""
    values = len({point.n for point in view.frontier})
    return values == 1 or values >= MIN_DISTINCT_N


def sentence_of(text: str) -> str:
    """A flag's text as a sentence, such as the first one of every answer about a sweep that shows
    nothing."""
    return f"{text[:1].upper()}{text[1:]}."


def describe_law(view: FrontierFit) -> str:
    law = view.n_star.law
    if view.n_star.no_effect:
        return "n makes no difference here: one curve for all n explains the evaluations as well."
    if not law_is_drawn(view):
        values = join_list(sorted({point.n for point in view.frontier}))
        return f"The frontier has two values of n only ({values}): too few for a law n*(C)."
    if law.form == "constant":
        return f"n* = {2**law.b:.3g} at every C: the data do not show it to change."
    middle = format_compact(None if law.log10_C0 is None else 10**law.log10_C0)
    if law.form == "linear":
        direction = "rises" if law.k > 0 else "falls"
        factor = f"{2**law.k:.3g} times for ten times the budget"
        return f"n*(C) {direction} as a power of C, through n* = {2**law.b:.3g} at C = {middle}: {factor}."
    direction = "rises" if law.L >= 0 else "falls"
    low, high = 2**law.b, 2 ** (law.b + law.L)
    ends = f"from {low:.3g} at small budgets to {high:.3g} at large ones"
    return f"n*(C) {direction} as a sigmoid in log C, {ends}, halfway (on the log scale) at C = {middle}."


def describe_verdicts(fit: FitResult) -> str:
    """The published laws of n by what the fit says of them, in one line."""
    laws = {kind: [row.law for row in fit.referee if row.verdict == kind] for kind in VERDICTS}
    judged = next(
        (f" (from C = {row.C_low:.3g} to {row.C_high:.3g})" for row in fit.referee if row.C_low), ""
    )
    return (
        "; ".join(f"{kind}: {join_commas(names)}" for kind, names in laws.items() if names) + judged
    )


def describe_deciding_run(run: DecidingRun | None) -> str:
    """ "B_p = 16, n = 2 to C = 139k", and how much another seed of a measured cell would settle."""
    if run is None:
        return "–"
    seed = (
        ""
        if run.explained is None
        else f" (another seed; it explains {format_percent(run.explained)} of the doubt)"
    )
    return f"B_p = {run.B_p}, n = {run.n} to C = {format_compact(run.C)}{seed}"


def describe_time(recommendation: Recommendation, price: float | None) -> str:
    """What the allocation takes by its cell's clock, and costs; "" where it has none."""
    hours, device_hours = recommendation.hours, recommendation.device_hours
    if hours is None or device_hours is None:
        return ""
    devices = device_hours / hours
    cost = "" if price is None else f", {price * device_hours:,.2f} at {price:g} for a device hour"
    machine = "1 device" if round(devices) == 1 else f"{devices:.3g} devices"
    return f"takes {format_hours(hours)} on {machine}, by the measured times of these runs{cost}"


def describe_devices(measured: Sequence[int], devices: int | None) -> str:
    """What an answer in hours assumes of the devices; "" where no run has a clock."""
    if not measured:
        return ""
    measured_on = f"{' or '.join(map(str, measured))} {'device' if measured == [1] else 'devices'}"
    if devices is None:
        return f"time: on {measured_on}, as the records say of these runs (for another number: --devices N)"
    if [devices] == measured:
        return f"time: on {measured_on}, as these runs"
    here = "1 device" if devices == 1 else f"{devices} devices"
    return f"time: on {here}, assumed to take as many device hours as these runs on {measured_on}"


def describe_advice(recommendation: Recommendation) -> list[str]:
    """Its risk, what its run should reach on its way, and what to measure next: a sentence each."""
    sentences = [f"Risk: {recommendation.risk_summary}."] if recommendation.risks else []
    if recommendation.false_stop is not None:
        marks = "; ".join(
            f"at C = {mark.C:,} expect {mark.expected_reward:.3f}, stop below {mark.stop_below:.3f}"
            for mark in recommendation.halting_marks
        )
        false_stop = format_percent(recommendation.false_stop)
        sentences.append(
            f"During the run: {marks}. That stops at most {false_stop} of the runs that go as forecast."
        )
    growing = recommendation.growing
    if growing is not None and growing.gain >= MIN_SHOWN_GAIN:
        reward = f"{format_reward(growing.expected_reward)} ({growing.gain:+.3f}"
        gain = growing.gain_interval
        sentences.append(
            f"With a growing n: sweep.schedules={{growing: '{growing.schedule}'}} is expected to reach {reward}, "
            f"{gain[0]:+.3f} to {gain[1]:+.3f}), if a run goes on from a reward as those of its new n do."
        )
    if recommendation.next_run is not None:
        run, next_run = recommendation.next_run.allocation, recommendation.next_run
        leader, rival = (f"{B_p}x{n}" for B_p, n in next_run.between)
        regrets = f"lower the expected regret from {next_run.regret_before:.4f} to {next_run.regret_after:.4f}"
        what = (
            f"Measure next: another seed of {run.B_p}x{run.n} for M = {run.M} ({run.C:,} rollouts)"
        )
        sentences.append(
            f"{what}. It would help to decide between {leader} and {rival}, and {regrets}."
        )
    return sentences


def measured_n_intervals(n_star: NStarFit) -> list[str]:
    """The interval of the best measured n at the first, middle and last budget of the band; []
    where there is none."""
    if n_star.band is None or n_star.no_effect:
        return []
    rows = (n_star.band[0], n_star.band[len(n_star.band) // 2], n_star.band[-1])
    return [format_range((row.low, row.high), format_compact) for row in rows]


def format_crossover(crossover: CrossoverRow, fit: FitResult) -> str:
    """Where two curves cross, with the interval if the fit has any: "12.3k [9.8k, open]"."""
    if fit.intervals is None:
        return format_compact(crossover.C)
    bounds = (crossover.low, crossover.high)
    return format_compact(crossover.C) + (
        format_interval(bounds, format_compact) or " [open, open]"
    )
