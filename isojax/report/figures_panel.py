"""How training moves single problems: pass@1 of a fixed panel of training problems (IsoCompute Playbook, arXiv:2603.12151, Figs. 11 and
27; section 5.1). Where updates for one problem undo another's, a share of problems stays at 0 while the mean rises: interference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from isojax.config import PANEL
from isojax.report.canvas import SOFT, frame, palette, panels
from isojax.report.reading import Fit, FloatArray
from isojax.report.words import compact, percent
from isojax.scaling.metrics import floats
from isojax.types import RunRecord

Z = 2.0


@dataclass(frozen=True)
class Panel:
    """A cell's panel, its seeds together, at the values of C that all compared cells share.

    Attributes:
        C: float[points], rollouts, 0 of the base policy first where it was evaluated; the mean over seeds.
        right: int[seeds, points, problems], right answers of `samples`.
    """

    B_p: int
    n: int
    C: FloatArray
    right: np.ndarray
    samples: int

    @property
    def shares(self) -> FloatArray:
        """float[points, samples + 1]: the share of problems with 0, 1, ..., all answers right, the mean over seeds."""
        return np.stack([floats((self.right == k).mean((0, 2))) for k in range(self.samples + 1)], -1)

    def ends(self, count: int) -> FloatArray:
        """float[problems]: how often each had `count` right at the last point, the mean over seeds."""
        return floats((self.right[:, -1] == count).mean(0))


def compared(fit: Fit, runs: Sequence[RunRecord]) -> list[Panel]:
    """The smallest and the largest n (or the only one) of the B_p with the widest range of n, of equals the frontier's last; [] where no
    panel was recorded, or not of the same problems."""
    kept = [run for run in runs if all(PANEL in p.extra and p.samples for p in run.points)]
    ns: dict[int, set[int]] = {}
    for run in kept:
        ns.setdefault(run.cell.B_p, set()).add(run.cell.n)
    sizes = {(len(p.extra[PANEL]), p.samples) for run in kept for p in run.points}
    if not ns or len(sizes) > 1:
        return []
    last = fit["frontier"][-1]["B_p"] if fit["frontier"] else None
    B_p = max(ns, key=lambda b: (max(ns[b]) / min(ns[b]), b == last, -b))
    cells = [[run for run in kept if (run.cell.B_p, run.cell.n) == (B_p, n)] for n in sorted({min(ns[B_p]), max(ns[B_p])})]
    shared = sorted(set.intersection(*({p.target for p in run.points} for seeds in cells for run in seeds)))
    if not shared or not shared[-1]:
        return []
    samples = sizes.pop()[1]
    return [_panel(seeds, shared, samples) for seeds in cells]


def _panel(seeds: Sequence[RunRecord], targets: Sequence[int], samples: int) -> Panel:
    points = [{p.target: p for p in run.points} for run in seeds]
    C = np.array([[own[t].rollouts for own in points] for t in targets], dtype=np.float64).mean(1)
    right = np.array([[own[t].extra[PANEL] for t in targets] for own in points])
    return Panel(seeds[0].cell.B_p, seeds[0].cell.n, C, right, samples)


def panel(fits: Sequence[Fit], runs: Sequence[RunRecord]) -> Figure | None:
    """The histogram of pass@1 at the largest shared C, and its change over C for each n."""
    found = compared(fits[0], runs)
    if not found:
        return None
    fig, axes = panels(1 + len(found), height=4.4)
    colours = palette([r["n"] for r in fits[0]["runs"]])
    _histogram(axes[0], found, colours)
    for ax, cell in zip(axes[1:], found, strict=True):
        levels = _over_C(ax, cell)
        frame(ax, f"n = {cell.n}: share of problems by pass@1", "C (rollouts)", "")
    fig.legend(handles=levels, loc="outside lower center", ncols=len(levels), frameon=False, fontsize=9, title="right answers of a problem")
    return fig


def _histogram(ax: Axes, found: Sequence[Panel], colours: dict[int, str]) -> None:
    """Bars side by side for each n; steps for the base policy."""
    k = found[0].samples
    width = 0.8 / len(found) / k
    x = np.arange(k + 1) / k
    for i, cell in enumerate(found):
        at = x + (i - (len(found) - 1) / 2) * width
        ax.bar(at, cell.shares[-1], width, color=colours[cell.n], label=f"n = {cell.n}", zorder=2)
    if found[0].C[0] == 0:
        base = np.mean([cell.shares[0] for cell in found], axis=0)
        ax.plot(x, base, ls="none", marker="_", ms=30, mew=2, color=SOFT, label="base policy", zorder=3)
    title = f"pass@1 at C = {compact(float(found[0].C[-1]))}, $B_p$ = {found[0].B_p}"
    frame(ax, title, f"pass@1 of a training problem ({k} samples)", f"share of {found[0].right.shape[2]} problems", log=False)
    ax.set_xticks(x)
    ax.legend(frameon=False, fontsize=9)


def _over_C(ax: Axes, cell: Panel) -> list[Patch]:
    """Shares stacked from no right answer (below) to all (above); the base policy stands a step left of the first update."""
    shown, C = cell.shares, cell.C.copy()
    if C[0] == 0 and len(C) > 2:
        C[0] = C[1] ** 2 / C[2]
    elif C[0] == 0:
        C[0] = C[1] / 2
    shades = [colormaps["viridis"](0.1 + 0.85 * k / cell.samples) for k in range(cell.samples + 1)]
    ax.stackplot(C, *shown.T, colors=shades, zorder=1)
    ax.set_xlim(C[0], C[-1])
    ax.set_ylim(0, 1)
    return [Patch(color=shade, label=f"{k} of {cell.samples}") for k, shade in enumerate(shades)]


def in_words(fit: Fit, runs: Sequence[RunRecord]) -> list[str]:
    """What the panel says: the shares at 0 and at 1 at the largest shared C, and whether n changes them; [] without a panel."""
    found = compared(fit, runs)
    if not found:
        return []
    problems, seeds = found[0].right.shape[2], max(len(cell.right) for cell in found)
    where = f"in {found[0].samples} samples at C = {compact(float(found[0].C[-1]))}, B_p = {found[0].B_p}"
    said = []
    for count, what in ((0, "never solved"), (found[0].samples, "always solved")):
        values = ", ".join(f"{percent(float(cell.ends(count).mean()))} at n = {cell.n}" for cell in found)
        base = np.mean([(cell.right[:, 0] == count).mean() for cell in found])
        before = f" ({percent(float(base))} by the base policy)" if found[0].C[0] == 0 else ""
        said.append(f"Of {problems} training problems {what} {where}: {values}{before}.")
    if len(found) == 2:
        said += [_difference(found[0], found[1], seeds)]
    return said


def _difference(small: Panel, large: Panel, seeds: int) -> str:
    """Whether the larger n leaves fewer problems at 0, paired over problems."""
    d = large.ends(0) - small.ends(0)
    mean, error = float(d.mean()), float(d.std(ddof=1) / np.sqrt(len(d))) if len(d) > 1 else 0.0
    points = f"{100 * mean:+.0f} ± {100 * error:.0f} percentage points"
    if abs(mean) <= Z * error or not mean:
        return f"The share never solved does not differ between n = {small.n} and n = {large.n} by more than luck ({points})."
    more = "fewer" if mean < 0 else "more"
    seen = "as in the paper: less interference" if mean < 0 else "unlike in the paper"
    of = "" if seeds > 1 else "; one seed, so runs may differ by luck"
    return f"n = {large.n} leaves {more} problems never solved than n = {small.n} ({points}, {seen}{of})."
