"""How the report and the command line write numbers, and sentences about a law, a segment and a
crossover."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from isojax.core.terminal import format_hours, format_number
from isojax.scaling.allocate.recommendation import GrowingRun, NextRun, Recommendation
from isojax.scaling.law.n_star_law import MIN_DISTINCT_N
from isojax.scaling.result import (
    CrossoverRow,
    DecidingRun,
    FitResult,
    FrontierFit,
    NStarFit,
    SegmentRow,
)

# A segment of the frontier holds where it is at least so long, and so many standard errors ahead.
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

Bounds = tuple[float | None, float | None]  # (low, high); None: open, both None: no interval


class NShare(NamedTuple):
    """The probability that n is the best. The page's JSON holds it as a list in this order."""

    n: int
    text: str  # such as "12%"
    share: float


class SegmentVerdict(NamedTuple):
    """Whether a segment of the frontier holds; None: it cannot be judged."""

    holds: bool | None
    reason: str


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
    validation_word = r"(?:^|[^a-z])(?:val|valid|validation|eval|test)(?:[^a-z]|$)"
    if re.search(validation_word, metric.lower()):
        return metric
    return f"validation {metric}"


def format_percent(x: float) -> str:
    """A share as a percentage: 0.9 -> "90%"."""
    return f"{100 * x:.3g}%"


def n_shares(n_probability: Mapping[int, float]) -> list[NShare]:
    """The probability to be the best of each n that has one to speak of."""
    return [
        NShare(n, format_percent(round(share, 2)), round(share, 3))
        for n, share in sorted(n_probability.items())
        if share >= MIN_SHOWN_PROBABILITY
    ]


def every_n_share(n_probability: Mapping[int, float]) -> list[NShare]:
    """As `n_shares`, with those that have none to speak of, which a reader would miss: "<1%"."""
    shown = {share.n: share for share in n_shares(n_probability)}
    return [
        shown.get(n, NShare(n, "<1%", round(share, 3)))
        for n, share in sorted(n_probability.items())
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
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def join_commas(items: Iterable[object]) -> str:
    """ "a, b, c"."""
    return ", ".join(map(str, items))


def format_count(count: int, noun: str) -> str:
    """ "1 run", "2 runs"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def segment_verdict(segment: SegmentRow) -> SegmentVerdict:
    """Whether a segment of the frontier (a range of C that one cell leads) is more than noise, and
    the reason in words. It holds where it is at least MIN_DECADES long, the cells before and after
    it were measured there too, and it leads the closer of them by MIN_Z standard errors."""
    if not segment.neighbours:
        return SegmentVerdict(False, "Nothing to compare with: this cell leads everywhere")
    if not segment.has_counts:
        reason = "Not judged: the right answers of single problems are not recorded"
        return SegmentVerdict(None, reason)

    shortfalls = []
    if segment.decades < MIN_DECADES:
        shortfalls.append(f"only {segment.decades:.2f} decade long (under {MIN_DECADES})")
    if not segment.measured_for_neighbours:
        shortfalls.append("not measured for every neighbour")
    if segment.z is None or segment.lead is None:
        shortfalls.append("lead not testable")
    elif segment.z < MIN_Z:
        if segment.lead > 0:
            shortfalls.append("lead under two standard errors")
        else:
            shortfalls.append("not ahead of its rival in the evaluations")
    if shortfalls:
        return SegmentVerdict(False, "Not shown: " + "; ".join(shortfalls))

    assert segment.z is not None  # or the lead would not be testable
    length = f"{segment.decades:.2f} decade long"
    return SegmentVerdict(True, f"Holds: {length}, ahead by {segment.z:.1f} standard errors")


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
    """The law n*(C) of a frontier in a sentence, or why it has none. log2 n* is b (constant),
    b + k log10(C / C0) (linear), or a sigmoid in log10 C from b to b + L with its middle at C0."""
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
        through = f"through n* = {2**law.b:.3g} at C = {middle}"
        factor = f"{2**law.k:.3g} times for ten times the budget"
        return f"n*(C) {direction} as a power of C, {through}: {factor}."

    direction = "rises" if law.L >= 0 else "falls"
    small_C_n = f"{2**law.b:.3g} at small budgets"
    large_C_n = f"{2 ** (law.b + law.L):.3g} at large ones"
    halfway = f"halfway (on the log scale) at C = {middle}"
    return f"n*(C) {direction} as a sigmoid in log C, from {small_C_n} to {large_C_n}, {halfway}."


def describe_verdicts(fit: FitResult) -> str:
    """The published laws of n by what the fit says of them, in one line."""
    texts = []
    for verdict in VERDICTS:
        laws = [row.law for row in fit.referee if row.verdict == verdict]
        if laws:
            texts.append(f"{verdict}: {join_commas(laws)}")

    # the range of C of the first law that could be judged
    judged = [row for row in fit.referee if row.C_low]
    C_range = f" (from C = {judged[0].C_low:.3g} to {judged[0].C_high:.3g})" if judged else ""
    return "; ".join(texts) + C_range


def describe_deciding_run(run: DecidingRun | None) -> str:
    """ "B_p = 16, n = 2 to C = 139k", and how much another seed of a measured cell would settle."""
    if run is None:
        return "–"
    text = f"B_p = {run.B_p}, n = {run.n} to C = {format_compact(run.C)}"
    if run.explained is not None:
        text += f" (another seed; it explains {format_percent(run.explained)} of the doubt)"
    return text


def describe_time(recommendation: Recommendation, price: float | None) -> str:
    """How long the recommended run takes on how many devices, by the measured times of the runs,
    and what it costs at a `price` of a device hour (None: not asked); "" where the runs recorded
    no times."""
    hours = recommendation.hours
    device_hours = recommendation.device_hours
    if hours is None or device_hours is None:
        return ""

    devices = device_hours / hours
    machine = "1 device" if round(devices) == 1 else f"{devices:.3g} devices"
    cost = ""
    if price is not None:
        cost = f", {price * device_hours:,.2f} at {price:g} for a device hour"
    return f"takes {format_hours(hours)} on {machine}, by the measured times of these runs{cost}"


def describe_devices(measured: Sequence[int], devices: int | None) -> str:
    """What an answer in hours assumes of the number of devices; "" where no run recorded its times.

    `measured`: the numbers of devices that the runs had, as [8]; `devices`: the number that the
    user asks for, None for that of the runs."""
    if not measured:
        return ""
    noun = "device" if measured == [1] else "devices"
    measured_on = f"{' or '.join(map(str, measured))} {noun}"
    if devices is None:
        hint = "as the records say of these runs (for another number: --devices N)"
        return f"time: on {measured_on}, {hint}"
    if [devices] == measured:
        return f"time: on {measured_on}, as these runs"

    here = format_count(devices, "device")
    return f"time: on {here}, assumed to take as many device hours as these runs on {measured_on}"


def describe_advice(recommendation: Recommendation) -> list[str]:
    """Its risk, what its run should reach on its way, what a growing n would reach, and what to
    measure next: a sentence each."""
    sentences = []
    if recommendation.risks:
        sentences.append(f"Risk: {recommendation.risk_summary}.")
    if recommendation.false_stop is not None:
        sentences.append(_halting_sentence(recommendation, recommendation.false_stop))
    growing = recommendation.growing
    if growing is not None and growing.gain >= MIN_SHOWN_GAIN:
        sentences.append(_growing_sentence(growing))
    if recommendation.next_run is not None:
        sentences.append(_next_run_sentence(recommendation.next_run))
    return sentences


def _halting_sentence(recommendation: Recommendation, false_stop: float) -> str:
    """The rewards below which to stop a run, and how often that stops one that goes as forecast."""
    marks = [
        f"at C = {mark.C:,} expect {mark.expected_reward:.3f}, stop below {mark.stop_below:.3f}"
        for mark in recommendation.halting_marks
    ]
    stopped = f"at most {format_percent(false_stop)} of the runs that go as forecast"
    return f"During the run: {'; '.join(marks)}. That stops {stopped}."


def _growing_sentence(growing: GrowingRun) -> str:
    gain_low, gain_high = growing.gain_interval
    gain = f"({growing.gain:+.3f}, {gain_low:+.3f} to {gain_high:+.3f})"
    return (
        f"With a growing n: sweep.schedules={{growing: '{growing.schedule}'}} is expected to reach "
        f"{format_reward(growing.expected_reward)} {gain}, "
        "if a run goes on from a reward as those of its new n do."
    )


def _next_run_sentence(next_run: NextRun) -> str:
    run = next_run.allocation
    leader, rival = (f"{B_p}x{n}" for B_p, n in next_run.between)
    before = f"{next_run.regret_before:.4f}"
    after = f"{next_run.regret_after:.4f}"
    return (
        f"Measure next: another seed of {run.B_p}x{run.n} for M = {run.M} ({run.C:,} rollouts). "
        f"It would help to decide between {leader} and {rival}, "
        f"and lower the expected regret from {before} to {after}."
    )


def measured_n_intervals(n_star: NStarFit) -> list[str]:
    """The interval of the best measured n at the first, middle and last budget of the band; []
    where there is none."""
    band = n_star.band
    if band is None or n_star.no_effect:
        return []
    rows = (band[0], band[len(band) // 2], band[-1])
    return [format_range((row.low, row.high), format_compact) for row in rows]


def format_crossover(crossover: CrossoverRow, fit: FitResult) -> str:
    """Where two curves cross, with the interval if the fit has any: "12.3k [9.8k, open]"."""
    C_text = format_compact(crossover.C)
    if fit.intervals is None:
        return C_text
    # of a fit with intervals, no bound means that both ends are open
    interval = format_interval((crossover.low, crossover.high), format_compact)
    return C_text + (interval or " [open, open]")
