"""How hard the problems are for the base model: a histogram of its avg@k, coloured by split (paper's Fig. 2), with the bins as CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from isojax.files import write_bytes, write_text
from isojax.report.canvas import DPI, INK, SOFT, frame, label, rendered
from isojax.report.figures_compare import COLOURS
from isojax.types import InputError

NAME, UNUSED = "difficulty", "unused"
GREY = "#c3cad1"  # of problems in no split
FEWEST, MOST = 10, 32  # steps that avg@k is cut into, where k has a divisor between them

Label = tuple[int, int]  # (right answers, attempts) of the base model on one problem
Range = tuple[float, float]


def draw(labels: Sequence[Label], splits: Mapping[str, Range], folder: Path, none_of: int = 128) -> list[Path]:
    """Write difficulty.png, difficulty.pdf and difficulty.csv into `folder`; each is replaced in one step.

    Every problem is counted once, as in `group`. The CSV has a row a bar: the avg@k it stands for, the problems of each split there, those
    in no split, and all of them.

    Args:
        labels: (solved, attempts) of each problem.
        splits: name -> (lowest, highest avg@k), such as {"hard": (0, 0.0625), "easy": (0.3, 0.6), "extremely_hard": (0, 0)}.
        none_of: attempts that a problem of a split (0, 0) must have had, all of them wrong.

    Returns:
        The three paths.

    Raises:
        InputError: no labels, an impossible one, an impossible range, or a folder that cannot be written.
    """
    _check(labels, splits)
    ordered = {name: splits[name] for name in sorted(splits, key=lambda name: splits[name])}
    bins = _bins(min(attempts for _, attempts in labels))
    counts = {name: Counter[int]() for name in (*ordered, UNUSED)}
    for solved, attempts in labels:
        counts[group((solved, attempts), ordered, none_of)][_bar(solved, attempts, bins)] += 1
    drawing = rendered(_figure(labels, ordered, counts, bins, none_of))
    paths = [folder / f"{NAME}.{ending}" for ending in ("png", "pdf", "csv")]
    write_bytes(paths[0], drawing.png)
    write_bytes(paths[1], drawing.pdf)
    write_text(paths[2], _csv(counts, bins))
    return paths


def group(one: Label, splits: Mapping[str, Range], none_of: int = 128) -> str:
    """The split that a label falls into, or "unused"; both ends of a range belong to it, a shared one to the harder split.

    A split (0, 0), Extremely Hard, takes what none of at least `none_of` attempts solved, before any other split does.
    """
    solved, attempts = one
    for name, (low, high) in sorted(splits.items(), key=lambda split: split[1]):
        if low <= solved / attempts <= high and (high > 0 or attempts >= none_of):
            return name
    return UNUSED


def _check(labels: Sequence[Label], splits: Mapping[str, Range]) -> None:
    if not labels:
        raise InputError("no labelled problem to draw; expected at least one (solved, attempts). Label some first.")
    for solved, attempts in labels:
        if not 0 <= solved <= attempts or attempts < 1:
            raise InputError(
                f"a problem's label is {solved} solved of {attempts}; expected 0 <= solved <= attempts, attempts >= 1. Mend it."
            )
    for name, (low, high) in splits.items():
        if not 0 <= low <= high <= 1 or name == UNUSED:
            raise InputError(
                f"the split {name!r} has the range {low} to {high}; expected 0 <= low <= high <= 1 and another name than unused."
            )


def _bins(k: int) -> int:
    """Into how many steps avg@k is cut: k where that is few, else a divisor of it, so that bars hold equally many of its values."""
    return next((d for d in range(MOST, FEWEST - 1, -1) if k % d == 0), min(k, MOST))


def _bar(solved: int, attempts: int, bins: int) -> int:
    """The bar that an avg@k is nearest to: 0 .. bins."""
    return (2 * solved * bins + attempts) // (2 * attempts)


def _figure(labels: Sequence[Label], splits: Mapping[str, Range], counts: Mapping[str, Counter[int]], bins: int, none_of: int) -> Figure:
    """Stacked bars, the hardest split below; Extremely Hard is hatched in the colour of the split it is cut from."""
    fig = Figure(figsize=(10.0, 4.8), dpi=DPI, layout="constrained")
    ax = fig.add_subplot()
    ks = sorted({attempts for _, attempts in labels})
    k = str(ks[0]) if len(ks) == 1 else f"{ks[0]} to {ks[-1]}"
    frame(ax, f"Difficulty of {len(labels):,} problems", f"avg@{k} of the base model", "problems", log=False)
    wide = [name for name, (_, high) in splits.items() if high > 0]
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(wide)} | {UNUSED: GREY}
    zero = next((colours[name] for name in wide if splits[name][0] == 0), GREY)
    tops: Counter[int] = Counter()
    with rc_context({"hatch.linewidth": 1.2}):
        for name, own in counts.items():
            heights, bottoms = ([found[i] for i in range(bins + 1)] for found in (own, tops))
            words = f"{_title(name, splits, none_of)}: {sum(heights):,}"
            centres, hatch = [i / bins for i in range(bins + 1)], None if name in colours else "///"
            colour = colours.get(name, zero)
            ax.bar(centres, heights, 0.9 / bins, bottoms, label=words, facecolor=colour, edgecolor="white", hatch=hatch, lw=0, zorder=2)
            tops.update(own)
    for i, top in tops.items():
        ax.annotate(f"{top:,}", (i / bins, top), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=7, color=SOFT)
    ax.set_xlim(-0.6 / bins, 1 + 0.6 / bins)
    ax.set_ylim(0, 1.08 * max(tops.values()))
    ax.grid(visible=False, axis="x")
    fig.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9, labelcolor=INK)
    return fig


def _title(name: str, splits: Mapping[str, Range], none_of: int) -> str:
    """A split in the legend: "Easy [0.3, 0.6]", "Very Easy (0.6, 0.9]"."""
    if name == UNUSED:
        return "in no split"
    low, high = splits[name]
    shared = any(other_low < low == other_high for other_low, other_high in splits.values())
    where = f"{'(' if shared else '['}{low:g}, {high:g}]" if high > 0 else f"(none right of {none_of:,} or more)"
    return f"{label(name.replace('_', ' ').title())} {where}"


def _csv(counts: Mapping[str, Counter[int]], bins: int) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["avg", *counts, "all"])
    for i in range(bins + 1):
        own = [found[i] for found in counts.values()]
        rows.writerow([f"{i / bins:g}", *own, sum(own)])
    return text.getvalue()
