"""The result of comparing sweeps (comparison.py), in words."""

from collections.abc import Iterator, Sequence

from isojax.scaling.comparison import (
    EarlierSaturation,
    RewardDifference,
    Saturation,
    SweepSummary,
)

MIN_PROBABILITY = 0.9  # with at least this probability, "earlier" or "later" is stated as a fact


def comparison_sentences(sweeps: Sequence[SweepSummary], C_high: float) -> Iterator[str]:
    """The comparison as sentences, about all sweeps in turn.

    They state in which sweeps nothing was learnt; where n* of each other sweep levels off; how each
    differs from the first one, at the largest shared budget C_high; and which cells overfit.
    sweeps: at least one; the first is the reference, without `difference` and `earlier`."""
    first, *others = sweeps
    for sweep in sweeps:
        if sweep.nothing_learnt:
            yield f"{sweep.label}: {sweep.nothing_learnt}"
    for sweep in sweeps:
        if not sweep.nothing_learnt:
            yield f"{sweep.label}: {_describe_saturation(sweep.saturation)}"

    for sweep in others:
        if sweep.difference is not None:
            yield _describe_difference(first, sweep, sweep.difference, C_high)
        if sweep.earlier is not None:
            yield _describe_earlier(first, sweep, sweep.earlier)
        else:
            pair = f"{sweep.label} and {first.label}"
            reason = _why_not_compared(first, sweep)
            yield f"where n* levels off cannot be compared between {pair}: {reason}"

    for sweep in sweeps:
        for cell in sweep.overfitting:
            where = f"n = {cell.n}, B_p = {cell.B_p} from C = {cell.C:.4g} on"
            runs = f"{cell.runs} {'run' if cell.runs == 1 else 'runs'}"
            what = "training reward rises while validation falls"
            yield f"{sweep.label} overfits: {what} at {where} ({runs})"


def _why_not_compared(first: SweepSummary, sweep: SweepSummary) -> str:
    """The reason why it is unknown in which of two sweeps n* levels off earlier, in words.

    For a sweep without `earlier`. The first reason that holds is given."""
    nothing_labels = [s.label for s in (first, sweep) if s.nothing_learnt]
    if nothing_labels:
        return f"no run learnt anything in {' and '.join(nothing_labels)}"
    no_effect_labels = [s.label for s in (first, sweep) if s.no_effect]
    if no_effect_labels:
        return f"n makes no difference in {' and '.join(no_effect_labels)}"
    if sweep.difference is not None and sweep.difference.low is None:
        return "a fit has no intervals"
    return "they share fewer than two values of n"


def _describe_saturation(saturation: Saturation | None) -> str:
    """A sentence on where n* of a sweep levels off, without the sweep's name.

    It has interval and probability where there are replicates. saturation: None where n makes no
    difference in this sweep."""
    if saturation is None:
        return "n makes no difference that its evaluations can show"
    if saturation.n == saturation.n_largest:
        end = f"n* ends at the largest n measured ({saturation.n})"
        return f"{end}; whether it levels off there, these runs cannot say"

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
        low = _format_bound(saturation.low)
        high = _format_bound(saturation.high)
        interval_text = f" ({low} to {high})"
    where = f"from C = {saturation.C:.4g}{interval_text} on"
    return f"n* levels off at n = {saturation.n}, {where}{probability_text}"


def _format_bound(C: float | None) -> str:
    return "open" if C is None else f"{C:.4g}"


def _format_probability(p: float) -> str:
    """A probability with its sign, such as "= 0.42" or "> 0.99": a share of a finite number of
    replicates is never written as certain."""
    if p > 0.99:
        return "> 0.99"
    if p < 0.01:
        return "< 0.01"
    return f"= {p:.2f}"


def _describe_difference(
    first: SweepSummary, sweep: SweepSummary, difference: RewardDifference, C: float
) -> str:
    """A sentence on the reward that a sweep reaches at C, against the first sweep's.

    C: the largest shared budget, that of the last row of sweep.at."""
    reached = f"{sweep.at[-1].reward:.3f}, {difference.value:+.3f} against {first.label}"
    text = f"at C = {C:.4g} {sweep.label} reaches {reached}"
    if difference.low is None or difference.high is None:
        return f"{text} (no intervals)"

    verdict = "no clear difference"
    if difference.low > 0:
        verdict = "more"
    elif difference.high < 0:
        verdict = "less"
    return f"{text} ({difference.low:+.3f} to {difference.high:+.3f}: {verdict})"


def _describe_earlier(first: SweepSummary, sweep: SweepSummary, earlier: EarlierSaturation) -> str:
    """A sentence on whether n* levels off earlier in one sweep than in the first one."""
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
    """Sentences on what limits the comparison.

    They are on assumed sizes of evaluations, different n or B_p in the sweeps, and how the
    intervals of differences were made."""
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
            consequence = "each frontier is that of its own cells"
            yield f"the runs did not measure the same {name} ({each}); {consequence}"

    if all(s.difference is None or s.difference.low is None for s in sweeps):
        yield "no intervals: mode paper has none, nor has a fit made with --replicates 0"
    else:
        paired = "where they were evaluated on the same problems"
        yield (
            "intervals of differences take the runs as independent; "
            f"{paired} the differences are known better than that"
        )
