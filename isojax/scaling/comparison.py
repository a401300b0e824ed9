"""What comparing sweeps (compare.py) finds, as plain data and in words. C is in the sweeps' unit;
an interval (low, high) is the central 90% of the replicates: both None where there are none, one
None for an open end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MIN_PROBABILITY = 0.9  # of a difference that is stated as one


@dataclass(frozen=True)
class BudgetRow:
    C: float
    n: int
    n_low: int | None
    n_high: int | None
    reward: float
    low: float | None
    high: float | None
    tied: bool = False  # no cell has left the reward of its start, so that any n is as good


@dataclass(frozen=True)
class Saturation:
    """Where n* levels off."""

    n: int  # n* at the largest budget compared
    n_largest: int  # that was measured
    # beyond which n* does not change; None where it ends at the largest n, or never changes
    C: float | None
    low: float | None  # interval of C
    high: float | None
    below_largest: float | None  # share of the replicates in which n* ends below the largest n


@dataclass(frozen=True)
class OverfittedCell:
    """A cell of which `runs` runs overfit, the first from C on."""

    B_p: int
    n: int
    runs: int
    C: float


@dataclass(frozen=True)
class RewardDifference:
    """The frontier's reward at the largest budget less that of the first sweep; p_higher: P(it is
    positive)."""

    value: float
    low: float | None
    high: float | None
    p_higher: float | None


@dataclass(frozen=True)
class EarlierSaturation:
    """Whether n* levels off earlier than in the first sweep, over the n that both measured."""

    shared_n: tuple[int, ...]
    p_earlier: float  # shares of the pairs of replicates
    p_later: float


@dataclass(frozen=True)
class SweepSummary:
    label: str
    base_reward: float | None
    n: tuple[int, ...]  # measured, rising
    B_p: tuple[int, ...]
    no_effect: bool
    at: tuple[BudgetRow, ...]  # a few budgets, the last the largest compared
    curve: tuple[BudgetRow, ...]  # many
    saturation: Saturation | None  # None where n makes no difference
    overfitting: tuple[OverfittedCell, ...]
    difference: RewardDifference | None = None  # against the first sweep; None for itself
    earlier: EarlierSaturation | None = None  # likewise, and None where nothing can be said
    nothing_learnt: str = ""  # of a sweep that shows nothing: what was seen and why
    evaluation_size: str = ""  # of such a sweep, what its intervals rest on


@dataclass(frozen=True)
class SweepComparison:
    """Sweeps compared over the budgets C_low to C_high that all of them measured; the first is the
    reference."""

    metric: str
    compute: str
    mode: str
    C_low: float
    C_high: float
    sweeps: tuple[SweepSummary, ...]
    sentences: tuple[str, ...]  # what each shows
    notes: tuple[str, ...]  # what limits the comparison


def comparison_sentences(sweeps: Sequence[SweepSummary], C_high: float) -> Iterator[str]:
    """What each sweep shows, and how it differs from the first up to C_high; first of all, which
    show nothing."""
    first, *others = sweeps
    for sweep in sweeps:
        if sweep.nothing_learnt:
            yield f"{sweep.label}: {sweep.nothing_learnt}"
    for sweep in (sweep for sweep in sweeps if not sweep.nothing_learnt):
        yield f"{sweep.label}: {_describe_saturation(sweep)}"
    for sweep in others:
        if sweep.difference is not None:
            yield _describe_difference(first, sweep, sweep.difference, C_high)
        if sweep.earlier is not None:
            yield _describe_earlier(first, sweep, sweep.earlier)
            continue
        no_effect_labels = [s.label for s in (first, sweep) if s.no_effect]
        reason = "they share fewer than two values of n"
        if sweep.difference is not None and sweep.difference.low is None:
            reason = "a fit has no intervals"
        nothing_labels = [s.label for s in (first, sweep) if s.nothing_learnt]
        if nothing_labels:
            reason = f"no run learnt anything in {' and '.join(nothing_labels)}"
        elif no_effect_labels:
            reason = f"n makes no difference in {' and '.join(no_effect_labels)}"
        yield f"where n* levels off cannot be compared between {sweep.label} and {first.label}: {reason}"
    for sweep in sweeps:
        for cell in sweep.overfitting:
            where = f"n = {cell.n}, B_p = {cell.B_p} from C = {cell.C:.4g} on"
            runs = f"{cell.runs} {'run' if cell.runs == 1 else 'runs'}"
            yield f"{sweep.label} overfits: training reward rises while validation falls at {where} ({runs})"


def _describe_saturation(sweep: SweepSummary) -> str:
    saturation = sweep.saturation
    if saturation is None:
        return "n makes no difference that its evaluations can show"
    if saturation.n == saturation.n_largest:
        return f"n* ends at the largest n measured ({saturation.n}); whether it levels off there, these runs cannot say"
    probability_text = ""
    if saturation.below_largest is not None:
        probability = _format_probability(saturation.below_largest)
        probability_text = (
            f" (below the largest n measured, {saturation.n_largest}, with P {probability})"
        )
    if saturation.C is None:
        return f"n* stays at {saturation.n}{probability_text}"
    interval_text = ""
    if saturation.low is not None or saturation.high is not None:
        low, high = (
            "open" if bound is None else f"{bound:.4g}"
            for bound in (saturation.low, saturation.high)
        )
        interval_text = f" ({low} to {high})"
    return f"n* levels off at n = {saturation.n}, from C = {saturation.C:.4g}{interval_text} on{probability_text}"


def _format_probability(p: float) -> str:
    """ "= 0.42"; a share of replicates is no certainty."""
    return "> 0.99" if p > 0.99 else "< 0.01" if p < 0.01 else f"= {p:.2f}"


def _describe_difference(
    first: SweepSummary, sweep: SweepSummary, difference: RewardDifference, C: float
) -> str:
    reached = f"{sweep.at[-1].reward:.3f}, {difference.value:+.3f} against {first.label}"
    text = f"at C = {C:.4g} {sweep.label} reaches {reached}"
    if difference.low is None or difference.high is None:
        return f"{text} (no intervals)"
    verdict = (
        "more" if difference.low > 0 else "less" if difference.high < 0 else "no clear difference"
    )
    return f"{text} ({difference.low:+.3f} to {difference.high:+.3f}: {verdict})"


def _describe_earlier(first: SweepSummary, sweep: SweepSummary, earlier: EarlierSaturation) -> str:
    pair = f"in {sweep.label} than in {first.label}"
    n_text = f"over n = {', '.join(map(str, earlier.shared_n))}"
    p_earlier = _format_probability(earlier.p_earlier)
    p_later = _format_probability(earlier.p_later)
    if earlier.p_earlier >= MIN_PROBABILITY:
        return f"n* levels off earlier {pair}, P {p_earlier} ({n_text})"
    if earlier.p_later >= MIN_PROBABILITY:
        return f"n* levels off later {pair}, P {p_later} ({n_text})"
    odds = f"P(earlier) {p_earlier}, P(later) {p_later}"
    return f"these runs cannot say whether n* levels off earlier {pair}: {odds} ({n_text})"


def comparison_notes(sweeps: Sequence[SweepSummary]) -> Iterator[str]:
    """What limits the comparison."""
    for sweep in sweeps:
        if sweep.evaluation_size:
            yield f"{sweep.label}: {sweep.evaluation_size}"
    for name in ("n", "B_p"):
        values_by_label = {s.label: getattr(s, name) for s in sweeps}
        if len(set(values_by_label.values())) > 1:
            each = "; ".join(
                f"{label}: {', '.join(map(str, values))}"
                for label, values in values_by_label.items()
            )
            yield f"the runs did not measure the same {name} ({each}); each frontier is that of its own cells"
    if all(s.difference is None or s.difference.low is None for s in sweeps):
        yield "no intervals: mode paper has none, nor has a fit made with --replicates 0"
    else:
        paired = "where they were evaluated on the same problems the differences are known better than that"
        yield f"intervals of differences take the runs as independent; {paired}"
