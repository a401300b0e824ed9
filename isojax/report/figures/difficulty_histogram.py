"""How hard the problems are for the base model: a histogram of its avg@k by split (paper's Fig.
2)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context

from isojax.report import canvas

UNUSED, UNUSED_COLOUR = "unused", "#c3cad1"  # problems in no split
# steps that avg@k is cut into, where k has a divisor between them
MIN_BINS = 10
MAX_BINS = 32

# (correct answers, or summed rewards; attempts) of the base model on one problem, and the problem's
# split or UNUSED
DifficultyLabel = tuple[float, int, str]
AvgRange = tuple[float, float]  # the lowest and the highest avg@k of a split


def draw_difficulty(
    labels: Sequence[DifficultyLabel], splits: Mapping[str, AvgRange], folder: Path
) -> list[Path]:
    """Write difficulty.png and .pdf into `folder`, each replaced in one step. `splits`: such as
    {"hard": (0, 0.0625), "extremely_hard": (0, 0)}, of which (0, 0) is cut from another. Bars are
    stacked, the hardest split below; Extremely Hard is hatched in the colour of the split it is cut
    from."""
    splits = {name: splits[name] for name in sorted(splits, key=lambda name: splits[name])}
    counts_by_split, bin_count = count_bars(labels, (*splits, UNUSED))
    all_attempts = [attempts for _, attempts, _ in labels]
    k = "–".join(
        str(attempts) for attempts in dict.fromkeys((min(all_attempts), max(all_attempts)))
    )
    fig = canvas.new_figure(10.0, 4.8)
    ax = fig.add_subplot()
    totals = sum(counts_by_split.values(), Counter[int]())
    title = f"Difficulty of {totals.total():,} problems"
    canvas.style_axes(ax, title, f"avg@{k} of the base model", "problems", log_x=False)
    nonzero_splits = [name for name, (_, high) in splits.items() if high > 0]
    colours = dict(zip(nonzero_splits, canvas.DISTINCT_COLOURS, strict=False)) | {
        UNUSED: UNUSED_COLOUR
    }
    hardest_colour = next(
        (colours[name] for name in nonzero_splits if splits[name][0] == 0), UNUSED_COLOUR
    )
    bars = range(bin_count + 1)
    centres, bottoms = [i / bin_count for i in bars], [0] * (bin_count + 1)
    with rc_context({"hatch.linewidth": 1.2}):
        for name, counts in counts_by_split.items():
            heights = [counts[i] for i in bars]
            style = {
                "facecolor": colours.get(name, hardest_colour),
                "hatch": None if name in colours else "///",
            }
            style |= {"edgecolor": "white", "lw": 0, "zorder": 2}
            label = f"{_split_title(name, splits)}: {sum(heights):,}"
            ax.bar(centres, heights, 0.9 / bin_count, bottoms, label=label, **style)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    text_position = {
        "xytext": (0, 2),
        "textcoords": "offset points",
        "ha": "center",
        "va": "bottom",
    }
    for i, top in totals.items():
        ax.annotate(
            f"{top:,}", (i / bin_count, top), fontsize=7, color=canvas.MUTED, **text_position
        )
    ax.set_xlim(-0.6 / bin_count, 1 + 0.6 / bin_count)
    ax.set_ylim(0, 1.08 * max(totals.values()))
    ax.grid(visible=False, axis="x")
    canvas.legend_below(fig, 3, labelcolor=canvas.INK)
    drawing = canvas.render_figure(fig)
    paths = [folder / "difficulty.png", folder / "difficulty.pdf"]
    for path in paths:
        drawing.write(path)
    return paths


def count_bars(
    labels: Sequence[DifficultyLabel], splits: Sequence[str]
) -> tuple[dict[str, Counter[int]], int]:
    """How many problems of each split each bar 0, 1, ... counts, and the number of steps between
    the bars, the last of which is at avg@k = 1: k, or a divisor of a large k, so that each bar
    holds as many values of avg@k."""
    k_min = min(attempts for _, attempts, _ in labels)
    bin_count = next(
        (d for d in range(MAX_BINS, MIN_BINS - 1, -1) if k_min % d == 0), min(k_min, MAX_BINS)
    )
    counts_by_split = {name: Counter[int]() for name in splits}
    for solved, attempts, split in labels:
        nearest_bar = int((2 * solved * bin_count + attempts) // (2 * attempts))
        counts_by_split[split][nearest_bar] += 1
    return counts_by_split, bin_count


def _split_title(name: str, splits: Mapping[str, AvgRange]) -> str:
    """A split in the legend: "Easy [0.3, 0.6]", "Very Easy (0.6, 0.9]"."""
    if name == UNUSED:
        return "in no split"
    low, high = splits[name]
    shares_lower_end = any(
        other_low < low == other_high for other_low, other_high in splits.values()
    )
    range_text = (
        f"{'(' if shares_lower_end else '['}{low:g}, {high:g}]" if high else "(no attempt correct)"
    )
    return f"{canvas.escape_label(name.replace('_', ' ').title())} {range_text}"
