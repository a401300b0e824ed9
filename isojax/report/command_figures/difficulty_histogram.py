"""How hard the problems are for the base model: a histogram of its avg@k by split (paper's Fig.
2)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes

from isojax.report import canvas

UNUSED = "unused"  # problems in no split
UNUSED_COLOUR = "#c3cad1"
# steps that avg@k is cut into, where k has a divisor between them
MIN_BINS = 10
MAX_BINS = 32

AvgRange = tuple[float, float]  # the lowest and the highest avg@k of a split


class DifficultyLabel(NamedTuple):
    """What the base model reached on one problem."""

    solved: float  # correct answers, or summed rewards
    attempts: int
    split: str  # the problem's, or UNUSED


class BarCounts(NamedTuple):
    """How many problems of each split each bar counts: bar i stands at avg@k = i / bin_count."""

    by_split: dict[str, Counter[int]]
    bin_count: int  # steps between the bars, of which there is one more


def draw_difficulty(
    labels: Sequence[DifficultyLabel], splits: Mapping[str, AvgRange], folder: Path
) -> list[Path]:
    """Write a histogram of the problems' avg@k as difficulty.png and .pdf into `folder`, each
    replaced in one step; returns their paths.

    `labels`: what the base model reached on each problem. `splits`: by name, the range of avg@k of
    each split, such as {"hard": (0, 0.0625), "extremely_hard": (0, 0)}; (0, 0) holds problems cut
    out of another split. Bars are stacked, the hardest split at the bottom; Extremely Hard is
    hatched in the colour of the split it is cut out of."""
    by_difficulty = sorted(splits, key=lambda name: splits[name])
    splits = {name: splits[name] for name in by_difficulty}
    counts = count_bars(labels, (*splits, UNUSED))
    totals = sum(counts.by_split.values(), Counter[int]())  # of each bar

    fig = canvas.new_figure(10.0, 4.8)
    ax = fig.add_subplot()
    title = f"Difficulty of {totals.total():,} problems"
    x_label = f"avg@{_attempts_text(labels)} of the base model"
    canvas.style_axes(ax, title, x_label, "problems", log_x=False)

    _draw_bars(ax, counts, splits)
    _write_totals(ax, totals, counts.bin_count)

    ax.set_xlim(-0.6 / counts.bin_count, 1 + 0.6 / counts.bin_count)
    ax.set_ylim(0, 1.08 * max(totals.values()))
    ax.grid(visible=False, axis="x")
    canvas.legend_below(fig, 3, labelcolor=canvas.INK)

    drawing = canvas.render_figure(fig)
    paths = [folder / "difficulty.png", folder / "difficulty.pdf"]
    for path in paths:
        drawing.write(path)
    return paths


def count_bars(labels: Sequence[DifficultyLabel], splits: Sequence[str]) -> BarCounts:
    """How many problems of each split stand in each bar; a problem is in the bar nearest to its
    avg@k. The bars are k steps apart, or, for a large k, a divisor of it, so that each bar
    holds equally many of the possible values of avg@k."""
    k_min = min(label.attempts for label in labels)
    divisors = (d for d in range(MAX_BINS, MIN_BINS - 1, -1) if k_min % d == 0)
    bin_count = next(divisors, min(k_min, MAX_BINS))

    by_split = {name: Counter[int]() for name in splits}
    for solved, attempts, split in labels:
        # round(bin_count * solved / attempts), a half up
        nearest_bar = int((2 * solved * bin_count + attempts) // (2 * attempts))
        by_split[split][nearest_bar] += 1
    return BarCounts(by_split, bin_count)


def _attempts_text(labels: Sequence[DifficultyLabel]) -> str:
    """k of avg@k: "16", or "16–128" where problems differ."""
    attempts = [label.attempts for label in labels]
    low = min(attempts)
    high = max(attempts)
    return str(low) if low == high else f"{low}–{high}"


def _draw_bars(ax: Axes, counts: BarCounts, splits: Mapping[str, AvgRange]) -> None:
    """Draw a stack of bars at each avg@k, the splits from below in the order of `counts`.
    `splits`: the range of avg@k of each split but UNUSED."""
    # A split of (0, 0) has no colour of its own: it is hatched in that of the split from 0 on.
    coloured_splits = [name for name, (_, high) in splits.items() if high > 0]
    colours: dict[str, str] = dict(zip(coloured_splits, canvas.DISTINCT_COLOURS, strict=False))
    colours[UNUSED] = UNUSED_COLOUR
    from_zero = [colours[name] for name in coloured_splits if splits[name][0] == 0]
    hardest_colour = from_zero[0] if from_zero else UNUSED_COLOUR

    # Each split stands on top of those before it.
    bars = range(counts.bin_count + 1)
    centres = [i / counts.bin_count for i in bars]
    bottoms = [0 for _ in bars]
    with rc_context({"hatch.linewidth": 1.2}):
        for name, count_of_bar in counts.by_split.items():
            heights = [count_of_bar[i] for i in bars]
            style: dict[str, Any] = {"edgecolor": "white", "lw": 0, "zorder": 2}
            if name in colours:
                style |= {"facecolor": colours[name], "hatch": None}
            else:
                style |= {"facecolor": hardest_colour, "hatch": "///"}

            label = f"{_split_title(name, splits)}: {sum(heights):,}"
            ax.bar(centres, heights, 0.9 / counts.bin_count, bottoms, label=label, **style)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]


def _write_totals(ax: Axes, totals: Counter[int], bin_count: int) -> None:
    """The number of problems above each bar."""
    place = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom"}
    for i, total in totals.items():
        position = (i / bin_count, total)
        ax.annotate(f"{total:,}", position, fontsize=7, color=canvas.MUTED, **place)


def _split_title(name: str, splits: Mapping[str, AvgRange]) -> str:
    """A split in the legend: "Easy [0.3, 0.6]", "Very Easy (0.6, 0.9]"."""
    if name == UNUSED:
        return "in no split"

    title = canvas.escape_label(name.replace("_", " ").title())
    low, high = splits[name]
    if high == 0:
        return f"{title} (no attempt correct)"

    # an end that two splits share belongs to the lower one
    is_shared = any(other_low < low == other_high for other_low, other_high in splits.values())
    bracket = "(" if is_shared else "["
    return f"{title} {bracket}{low:g}, {high:g}]"
