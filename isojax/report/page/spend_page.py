"""The page of `isojax spend`: what a budget was spent on, what was expected and reached, what a
fixed n would get."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isojax.core.nouns import RunRecord, Spending
from isojax.core.schedule import schedule_text
from isojax.report import canvas
from isojax.report.fit_views import BandRow
from isojax.report.page import markup
from isojax.report.wording import (
    format_count,
    format_interval,
    format_percent,
    format_reward,
    join_commas,
)

LEGS_HEADER = (
    "run",
    "what",
    "n",
    "from C",
    "to C",
    "of the budget",
    "reward there",
    "expected of the end",
)
FIXED_HEADER = ("run", "reward", "interval", "reached, less this")


def render_spending(folder: Path, spending: Spending, runs: Sequence[RunRecord]) -> str:
    """The page of `isojax spend` as one HTML document: what came of the budget, what it was spent
    on, and what a fixed n would have got. `folder`: the sweep's, whose name is the title; `runs`:
    the policy's and the pilots'."""
    answer = [
        markup.tag("p", " ".join(describe_spending(spending, runs))),
        _spending_figure(spending, runs),
    ]
    sections = [
        markup.html_section("answer", "What came of it", *answer),
        markup.html_section("spent", "What was spent on what", _legs_table(spending, runs)),
        markup.html_section("fixed", "What a fixed n would have got", _fixed_table(spending, runs)),
    ]

    header = markup.tag("header", markup.tag("h1", f"{folder.name}: one budget, one policy"))
    body = markup.join_html([header, markup.tag("main", *sections)])
    return markup.html_document(f"isojax: {folder.name}", body, scripts=[], data="{}")


def describe_spending(spending: Spending, runs: Sequence[RunRecord]) -> Iterator[str]:
    """What came of `isojax spend`, a sentence each: what was spent, on the policy (the run that was
    kept) and on pilots (short runs to compare n), the reward that was reached, what was expected,
    and what the best fixed n would have given. `runs`: the policy's and the pilots'."""
    rollouts = {run.cell: run.points[-1].rollouts for run in runs}
    spent = sum(rollouts.values())
    spent_on_policy = rollouts[spending.cell]
    spent_on_pilots = spent - spent_on_policy

    share = format_percent(spent / spending.budget)
    text = f"{spent:,} of {spending.budget:,} rollouts were spent ({share})"
    text += f": {spent_on_policy:,} on {spending.cell.name}"
    if spent_on_pilots > 0:
        pilots = format_count(len(rollouts) - 1, "pilot")
        text += f", {spent_on_pilots:,} on {pilots} that did not go on"
    yield f"{text}."

    yield f"Its B_p x n: {schedule_text(spending.stages(spending.cell))}."
    yield f"It reached {spending.metric} = {format_reward(reached_reward(spending, runs))}."

    first_forecast = next((leg for leg in spending.legs if leg.expected is not None), None)
    if first_forecast is not None:
        expected = format_reward(first_forecast.expected) + format_interval(first_forecast.interval)
        yield f"After the pilots, {expected} was expected."

    if spending.fixed:
        best = max(spending.fixed, key=lambda forecast: forecast.reward)
        expected = format_reward(best.reward) + format_interval(best.interval)
        yield f"The best fixed n, {best.n}, would have got {expected}, by the same model."

    if spending.is_ended and spent < 0.9 * spending.budget:
        yield "It ended early: the rest of the budget was not expected to gain anything."


def reached_reward(spending: Spending, runs: Sequence[RunRecord]) -> float:
    """That of the policy's last evaluation."""
    policy_run = next(run for run in runs if run.cell == spending.cell)
    return policy_run.points[-1].metrics[spending.metric]


def _spending_figure(spending: Spending, runs: Sequence[RunRecord]) -> markup.Html:
    figure = canvas.render_figure(draw_spending(spending, runs))
    alt_text = (
        f"{spending.metric} of all runs along C, "
        "and what was expected of the budget's end on the way"
    )
    caption = (
        f"Left: {spending.metric} on validation problems, a colour for each n; "
        "dashed: pilots that did not go on. "
        "Right: what was expected of the budget's end, with its interval, when each n was chosen; "
        "the line is what was reached."
    )
    return markup.html_figure(figure.png, alt_text, caption)


def draw_spending(spending: Spending, runs: Sequence[RunRecord]) -> Figure:
    """A figure of how a budget was spent: on the left the rewards of all runs along C, on the right
    the reward that was expected at the budget's end, each time that n was chosen, and a line at the
    one that was reached."""
    fig = canvas.new_figure(12.0, 4.6)
    # C is shared: nothing may have been expected, and a log axis without points has no range
    rewards_ax, forecasts_ax = fig.subplots(1, 2, sharex=True)
    colours = canvas.n_palette([leg.n for leg in spending.legs])

    for run in runs:
        _draw_run(rewards_ax, run, spending, colours)
    canvas.style_axes(rewards_ax, "Reward on the way", "C, rollouts", spending.metric)

    _draw_forecasts(forecasts_ax, spending)
    forecasts_ax.axhline(reached_reward(spending, runs), color=canvas.INK, lw=1)
    title = "Expected of the budget's end"
    canvas.style_axes(forecasts_ax, title, "C when n was chosen", spending.metric)

    canvas.legend_below(fig, len(colours), canvas.n_handles(colours))
    return fig


def _draw_run(ax: Axes, run: RunRecord, spending: Spending, colours: Mapping[int, str]) -> None:
    """Draw a run's rewards along C, each piece in the colour of the n it was trained with, which
    may change on the way; dashed for a pilot. `colours`: by n."""
    # `pair_at(C)`, (B_p, n) at C, goes by the stages that the run has had, one for each n.
    cell = run.cell.with_stages(spending.stages(run.cell))
    is_policy = run.cell == spending.cell
    dashes = "-" if is_policy else "--"
    width = 2 if is_policy else 1.2

    points = [point for point in run.points if point.rollouts]
    if points:
        first = points[0]
        _, n = cell.pair_at(0)
        ax.plot(first.rollouts, first.metrics[spending.metric], "o", ms=3, color=colours[n])

    for before, after in pairwise(points):
        _, n = cell.pair_at(before.rollouts)
        C = [before.rollouts, after.rollouts]
        rewards = [before.metrics[spending.metric], after.metrics[spending.metric]]
        ax.plot(C, rewards, dashes, color=colours[n], lw=width)


def _draw_forecasts(ax: Axes, spending: Spending) -> None:
    """Draw the reward that was expected at the budget's end when each leg (a part of the policy's
    run with one n) began, over the band of its interval; pilots had no such forecast."""
    C = []
    expected = []
    band = []
    for leg in spending.legs:
        if leg.expected is None:  # a pilot
            continue
        C.append(leg.C_start)
        expected.append(leg.expected)
        if leg.interval is not None:
            band.append(BandRow(leg.C_start, *leg.interval))

    canvas.fill_band(ax, band, color=canvas.LAW_COLOUR, alpha=0.15)
    ax.plot(C, expected, "o-", ms=4, color=canvas.LAW_COLOUR)


def _legs_table(spending: Spending, runs: Sequence[RunRecord]) -> markup.Html:
    """A table of the legs, the parts that a budget was spent in, in their order: each a pilot or a
    part of the policy's run, with its n, its range of C, the reward at its end and the one that was
    expected of the budget's end."""
    points = {run.cell: run.points for run in runs}
    rows = []
    for leg in spending.legs:
        # A leg ends at its first evaluation there, maybe an update beyond; one that has not come
        # so far has no reward yet.
        end = next((point for point in points.get(leg.cell, ()) if point.target >= leg.C_end), None)
        C_end = leg.C_end if end is None else end.rollouts
        reward = "" if end is None else format_reward(end.metrics[spending.metric])

        is_pilot = leg.expected is None
        expected = "" if is_pilot else format_reward(leg.expected) + format_interval(leg.interval)
        row = (
            leg.cell.name,
            "pilot" if is_pilot else "went on",
            leg.n,
            f"{leg.C_start:,}",
            f"{C_end:,}",
            format_percent((C_end - leg.C_start) / spending.budget),
            reward,
            expected,
        )
        rows.append(row)
    return markup.html_table("Legs, in their order", LEGS_HEADER, rows, text_columns=(1, 7))


def _fixed_table(spending: Spending, runs: Sequence[RunRecord]) -> markup.Html:
    """A table that compares the reward that was reached with what one run on the whole budget would
    have got at each fixed n, by the fitted model."""
    reached = reached_reward(spending, runs)
    rows = [(f"{spending.cell.name}, as it was run", format_reward(reached), "", "")]
    for forecast in spending.fixed:
        row = (
            f"n = {forecast.n}",
            format_reward(forecast.reward),
            format_interval(forecast.interval),
            f"{reached - forecast.reward:+.3f}",
        )
        rows.append(row)

    ns = join_commas(forecast.n for forecast in spending.fixed)
    caption = (
        f"The whole budget on one run with n = {ns}, "
        "by the model that was fitted to all evaluations"
    )
    return markup.html_table(caption, FIXED_HEADER, rows, text_columns=(2,))
