"""The page of `isojax spend`: what a budget was spent on, what was expected and reached, what a
fixed n would get."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.figure import Figure

from isojax.core.nouns import RunRecord, Spending
from isojax.core.schedule import schedule_text
from isojax.report import canvas
from isojax.report.page import markup
from isojax.report.wording import (
    format_count,
    format_interval,
    format_percent,
    format_reward,
    join_commas,
)


def render_spending(folder: Path, spending: Spending, runs: Sequence[RunRecord]) -> str:
    summary = markup.tag("p", " ".join(describe_spending(spending, runs)))
    alt_text = f"{spending.metric} of all runs along C, and what was expected of the budget's end on the way"
    caption = (
        f"Left: {spending.metric} on validation problems, a colour for each n; dashed: pilots that did not go on. "
        "Right: what was expected of the budget's end, with its interval, when each n was chosen; the line is what was "
        "reached."
    )
    figure = canvas.render_figure(draw_spending(spending, runs))
    sections = [
        markup.html_section(
            "answer", "What came of it", summary, markup.html_figure(figure.png, alt_text, caption)
        ),
        markup.html_section("spent", "What was spent on what", _legs_table(spending, runs)),
        markup.html_section("fixed", "What a fixed n would have got", _fixed_table(spending, runs)),
    ]
    header = markup.tag("header", markup.tag("h1", f"{folder.name}: one budget, one policy"))
    body = markup.join_html([header, markup.tag("main", *sections)])
    return markup.html_document(f"isojax: {folder.name}", body, [], "{}")


def describe_spending(spending: Spending, runs: Sequence[RunRecord]) -> Iterator[str]:
    """What was spent, on what, what it gave, and what the best fixed n would have given, a sentence
    each."""
    rollouts = {run.cell: run.points[-1].rollouts for run in runs}
    spent, own = sum(rollouts.values()), rollouts[spending.cell]
    share = spent / spending.budget
    others = f", {spent - own:,} on {format_count(len(rollouts) - 1, 'pilot')} that did not go on"
    spent_text = f"{spent:,} of {spending.budget:,} rollouts were spent ({format_percent(share)})"
    yield f"{spent_text}: {own:,} on {spending.cell.name}{others if spent > own else ''}."
    yield f"Its B_p x n: {schedule_text(spending.stages(spending.cell))}."
    yield f"It reached {spending.metric} = {format_reward(reached_reward(spending, runs))}."
    if going_on := [leg for leg in spending.legs if leg.expected is not None]:
        expected = format_reward(going_on[0].expected)
        interval = format_interval(going_on[0].interval)
        yield f"After the pilots, {expected}{interval} was expected."
    if spending.fixed:
        best = max(spending.fixed, key=lambda forecast: forecast.reward)
        expected, interval = format_reward(best.reward), format_interval(best.interval)
        yield f"The best fixed n, {best.n}, would have got {expected}{interval}, by the same model."
    if spending.is_ended and spent < 0.9 * spending.budget:
        yield "It ended early: the rest of the budget was not expected to gain anything."


def reached_reward(spending: Spending, runs: Sequence[RunRecord]) -> float:
    """That of the policy's last evaluation."""
    return (
        next(run for run in runs if run.cell == spending.cell).points[-1].metrics[spending.metric]
    )


def draw_spending(spending: Spending, runs: Sequence[RunRecord]) -> Figure:
    fig = canvas.new_figure(12.0, 4.6)
    curves, forecasts = fig.subplots(1, 2, sharex=True)  # nothing may have been expected
    colours = canvas.n_palette([leg.n for leg in spending.legs])
    for run in runs:
        points = [(p.rollouts, p.M, p.metrics[spending.metric]) for p in run.points if p.rollouts]
        is_policy = run.cell == spending.cell
        if points:
            C, M, _ = points[0]
            curves.plot(*points[0][::2], "o", ms=3, color=colours[C // M // run.cell.B_p])
        for (C0, M0, R0), (C, M, R) in pairwise(points):
            n = (C - C0) // (M - M0) // run.cell.B_p
            curves.plot(
                [C0, C],
                [R0, R],
                "-" if is_policy else "--",
                color=colours[n],
                lw=2 if is_policy else 1.2,
            )
    canvas.style_axes(curves, "Reward on the way", "C, rollouts", spending.metric)
    chosen = [
        (leg.C_start, leg.expected, leg.interval)
        for leg in spending.legs
        if leg.expected is not None
    ]
    bounds = [(C, *interval) for C, _, interval in chosen if interval is not None]
    canvas.fill_band(forecasts, bounds, color=canvas.LAW_COLOUR, alpha=0.15)
    forecasts.plot(
        [C for C, _, _ in chosen], [R for _, R, _ in chosen], "o-", ms=4, color=canvas.LAW_COLOUR
    )
    forecasts.axhline(reached_reward(spending, runs), color=canvas.INK, lw=1)
    canvas.style_axes(
        forecasts, "Expected of the budget's end", "C when n was chosen", spending.metric
    )
    canvas.legend_below(fig, len(colours), canvas.n_handles(colours))
    return fig


def _legs_table(spending: Spending, runs: Sequence[RunRecord]) -> markup.Html:
    points = {run.cell: run.points for run in runs}
    rows = []
    for leg in spending.legs:
        # maybe an update beyond
        end = next((p for p in points.get(leg.cell, ()) if p.target >= leg.C_end), None)
        C_end = leg.C_end if end is None else end.rollouts
        is_pilot = leg.expected is None
        row = (
            leg.cell.name,
            "pilot" if is_pilot else "went on",
            leg.n,
            f"{leg.C_start:,}",
            f"{C_end:,}",
            format_percent((C_end - leg.C_start) / spending.budget),
            "" if end is None else format_reward(end.metrics[spending.metric]),
            "" if is_pilot else f"{format_reward(leg.expected)}{format_interval(leg.interval)}",
        )
        rows.append(row)
    headings = (
        "run",
        "what",
        "n",
        "from C",
        "to C",
        "of the budget",
        "reward there",
        "expected of the end",
    )
    return markup.html_table("Legs, in their order", headings, rows, text_columns=(1, 7))


def _fixed_table(spending: Spending, runs: Sequence[RunRecord]) -> markup.Html:
    reached = reached_reward(spending, runs)
    rows = [(f"{spending.cell.name}, as it was run", format_reward(reached), "", "")]
    rows += [
        (
            f"n = {f.n}",
            format_reward(f.reward),
            format_interval(f.interval),
            f"{reached - f.reward:+.3f}",
        )
        for f in spending.fixed
    ]
    names = join_commas(f.n for f in spending.fixed)
    caption = f"The whole budget on one run with n = {names}, by the model that was fitted to all evaluations"
    return markup.html_table(
        caption, ("run", "reward", "interval", "reached, less this"), rows, text_columns=(2,)
    )
