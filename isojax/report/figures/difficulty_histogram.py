"""How hard the problems are for the base model: a histogram of its avg@k, coloured by split (paper's Fig. 2), with the
bins as CSV.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from isojax.core.atomic_files import write_bytes, write_text
from isojax.core.errors import InputError
from isojax.report.canvas import DPI, INK, MUTED, escape_label, legend_below, render_figure, style_axes
from isojax.report.figures.compared_sweeps import COLOURS

FILE_STEM, UNUSED = "difficulty", "unused"
UNUSED_COLOUR = "#c3cad1"  # of problems in no split
MIN_BINS, MAX_BINS = 10, 32  # steps that avg@k is cut into, where k has a divisor between them

DifficultyLabel = tuple[int, int]  # (correct answers, attempts) of the base model on one problem
AvgRange = tuple[float, float]


def draw_difficulty(
    labels: Sequence[DifficultyLabel], splits: Mapping[str, AvgRange], folder: Path, min_unsolved_attempts: int = 128
) -> list[Path]:
    """Write difficulty.png, difficulty.pdf and difficulty.csv into `folder`; each is replaced in one step.

    Every problem is counted once, as in `split_of`. The CSV has a row for each bar: the avg@k it stands for, the
    problems of each split there, those in no split, and all of them.

    Args:
        labels: (solved, attempts) of each problem.
        splits: name -> (lowest, highest avg@k), such as {"hard": (0, 0.0625), "easy": (0.3, 0.6),
            "extremely_hard": (0, 0)}.
        min_unsolved_attempts: attempts that a problem of a split (0, 0) must have had, all of them wrong.

    Returns:
        The three paths.

    Raises:
        InputError: no labels, an impossible one, an impossible range, or a folder that cannot be written.
    """
    _check_labels(labels, splits)
    ordered_splits = {name: splits[name] for name in sorted(splits, key=lambda name: splits[name])}
    bin_count = _bin_count(min(attempts for _, attempts in labels))
    counts_by_split = {name: Counter[int]() for name in (*ordered_splits, UNUSED)}
    for solved, attempts in labels:
        counts_by_split[split_of((solved, attempts), ordered_splits, min_unsolved_attempts)][
            _bin_index(solved, attempts, bin_count)
        ] += 1
    drawing = render_figure(
        _histogram_figure(labels, ordered_splits, counts_by_split, bin_count, min_unsolved_attempts)
    )
    paths = [folder / f"{FILE_STEM}.{ending}" for ending in ("png", "pdf", "csv")]
    write_bytes(paths[0], drawing.png)
    write_bytes(paths[1], drawing.pdf)
    write_text(paths[2], _csv(counts_by_split, bin_count))
    return paths


def split_of(label: DifficultyLabel, splits: Mapping[str, AvgRange], min_unsolved_attempts: int = 128) -> str:
    """The split that a label falls into, or "unused"; both ends of a range belong to it, a shared one to the harder
    split.

    A split (0, 0), Extremely Hard, takes the problems that none of at least `min_unsolved_attempts` attempts solved,
    before any other split does.
    """
    solved, attempts = label
    for name, (low, high) in sorted(splits.items(), key=lambda split: split[1]):
        if low <= solved / attempts <= high and (high > 0 or attempts >= min_unsolved_attempts):
            return name
    return UNUSED


def _check_labels(labels: Sequence[DifficultyLabel], splits: Mapping[str, AvgRange]) -> None:
    if not labels:
        raise InputError("no labelled problem to draw; expected at least one (solved, attempts). Label some first.")
    for solved, attempts in labels:
        if not 0 <= solved <= attempts or attempts < 1:
            expected = "expected 0 <= solved <= attempts, attempts >= 1"
            raise InputError(f"a problem's label is {solved} solved of {attempts}; {expected}. Correct it.")
    for name, (low, high) in splits.items():
        if not 0 <= low <= high <= 1 or name == UNUSED:
            expected = f"expected 0 <= low <= high <= 1 and another name than {UNUSED}"
            raise InputError(f"the split {name!r} has the range {low} to {high}; {expected}.")


def _bin_count(attempts: int) -> int:
    """How many steps avg@k is cut into: k where that is few, else a divisor of k, so that each bar holds equally many
    of its values.
    """
    return next((d for d in range(MAX_BINS, MIN_BINS - 1, -1) if attempts % d == 0), min(attempts, MAX_BINS))


def _bin_index(solved: int, attempts: int, bin_count: int) -> int:
    """The bar that an avg@k is nearest to: 0 .. bin_count."""
    return (2 * solved * bin_count + attempts) // (2 * attempts)


def _histogram_figure(
    labels: Sequence[DifficultyLabel],
    splits: Mapping[str, AvgRange],
    counts_by_split: Mapping[str, Counter[int]],
    bin_count: int,
    min_unsolved_attempts: int,
) -> Figure:
    """Stacked bars, the hardest split below; Extremely Hard is hatched in the colour of the split it is cut from."""
    fig = Figure(figsize=(10.0, 4.8), dpi=DPI, layout="constrained")
    ax = fig.add_subplot()
    ks = sorted({attempts for _, attempts in labels})
    k = str(ks[0]) if len(ks) == 1 else f"{ks[0]} to {ks[-1]}"
    style_axes(ax, f"Difficulty of {len(labels):,} problems", f"avg@{k} of the base model", "problems", log_x=False)
    nonzero_splits = [name for name, (_, high) in splits.items() if high > 0]
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(nonzero_splits)} | {UNUSED: UNUSED_COLOUR}
    hardest_colour = next((colours[name] for name in nonzero_splits if splits[name][0] == 0), UNUSED_COLOUR)
    stack_heights: Counter[int] = Counter()
    with rc_context({"hatch.linewidth": 1.2}):
        for name, split_counts in counts_by_split.items():
            heights, bottoms = ([found[i] for i in range(bin_count + 1)] for found in (split_counts, stack_heights))
            legend_text = f"{_split_title(name, splits, min_unsolved_attempts)}: {sum(heights):,}"
            centres, hatch = [i / bin_count for i in range(bin_count + 1)], None if name in colours else "///"
            colour = colours.get(name, hardest_colour)
            ax.bar(
                centres,
                heights,
                0.9 / bin_count,
                bottoms,
                label=legend_text,
                facecolor=colour,
                edgecolor="white",
                hatch=hatch,
                lw=0,
                zorder=2,
            )
            stack_heights.update(split_counts)
    for i, top in stack_heights.items():
        ax.annotate(
            f"{top:,}",
            (i / bin_count, top),
            (0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=7,
            color=MUTED,
        )
    ax.set_xlim(-0.6 / bin_count, 1 + 0.6 / bin_count)
    ax.set_ylim(0, 1.08 * max(stack_heights.values()))
    ax.grid(visible=False, axis="x")
    legend_below(fig, 3, labelcolor=INK)
    return fig


def _split_title(name: str, splits: Mapping[str, AvgRange], min_unsolved_attempts: int) -> str:
    """A split in the legend: "Easy [0.3, 0.6]", "Very Easy (0.6, 0.9]"."""
    if name == UNUSED:
        return "in no split"
    low, high = splits[name]
    shares_lower_end = any(other_low < low == other_high for other_low, other_high in splits.values())
    range_text = (
        f"{'(' if shares_lower_end else '['}{low:g}, {high:g}]"
        if high > 0
        else f"(none correct of {min_unsolved_attempts:,} or more)"
    )
    return f"{escape_label(name.replace('_', ' ').title())} {range_text}"


def _csv(counts_by_split: Mapping[str, Counter[int]], bin_count: int) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["avg", *counts_by_split, "all"])
    for i in range(bin_count + 1):
        bin_counts = [found[i] for found in counts_by_split.values()]
        rows.writerow([f"{i / bin_count:g}", *bin_counts, sum(bin_counts)])
    return text.getvalue()
