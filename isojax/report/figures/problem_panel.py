"""pass@1 of a fixed panel of training problems, along training (IsoCompute Playbook, arXiv:2603.12151, Figs. 11 and 27;
section 5.1). Where updates for one problem undo another's, a share of problems stays at 0 while the mean rises:
interference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from isojax.core.config import PANEL
from isojax.core.nouns import RunRecord
from isojax.report.canvas import MUTED, legend_below, n_palette, panel_grid, style_axes
from isojax.report.fit_views import FloatArray, all_n
from isojax.report.wording import MIN_Z, format_compact, format_percent
from isojax.scaling.result import FitResult
from isojax.scaling.validation_metrics import as_float64


@dataclass(frozen=True)
class ProblemPanel:
    """A cell's panel, its seeds together, at the values of C that all compared cells share.

    Attributes:
        C: float[points], rollouts, 0 of the base policy first where it was evaluated; the mean over seeds.
        correct: int[seeds, points, problems], correct answers of `samples`.
    """

    B_p: int
    n: int
    C: FloatArray
    correct: np.ndarray
    samples: int

    @property
    def correct_shares(self) -> FloatArray:
        """float[points, samples + 1]: the share of problems with 0, 1, ..., all answers correct, mean over seeds."""
        return np.stack([as_float64((self.correct == k).mean((0, 2))) for k in range(self.samples + 1)], -1)

    def final_frequencies(self, count: int) -> FloatArray:
        """float[problems]: how often each had `count` correct at the last point, the mean over seeds."""
        return as_float64((self.correct[:, -1] == count).mean(0))


def compared_panels(fit: FitResult, runs: Sequence[RunRecord]) -> list[ProblemPanel]:
    """The smallest and the largest n (or the only one) of the B_p with the widest range of n, of equals the frontier's
    last; [] where no panel was recorded, or not of the same problems."""
    runs_with_panel = [run for run in runs if all(PANEL in p.extra and p.samples for p in run.points)]
    n_by_B_p: dict[int, set[int]] = {}
    for run in runs_with_panel:
        n_by_B_p.setdefault(run.cell.B_p, set()).add(run.cell.n)
    sizes = {(len(p.extra[PANEL]), p.samples) for run in runs_with_panel for p in run.points}
    if not n_by_B_p or len(sizes) > 1:
        return []
    last_B_p = fit.joint.frontier[-1].B_p if fit.joint.frontier else None
    B_p = max(n_by_B_p, key=lambda b: (max(n_by_B_p[b]) / min(n_by_B_p[b]), b == last_B_p, -b))
    cells = [
        [run for run in runs_with_panel if (run.cell.B_p, run.cell.n) == (B_p, n)]
        for n in sorted({min(n_by_B_p[B_p]), max(n_by_B_p[B_p])})
    ]
    shared_targets = sorted(set.intersection(*({p.target for p in run.points} for seeds in cells for run in seeds)))
    if not shared_targets or not shared_targets[-1]:
        return []
    samples = sizes.pop()[1]
    return [_load_panel(seeds, shared_targets, samples) for seeds in cells]


def _load_panel(seeds: Sequence[RunRecord], targets: Sequence[int], samples: int) -> ProblemPanel:
    points_by_target = [{p.target: p for p in run.points} for run in seeds]
    C = np.array([[points[t].rollouts for points in points_by_target] for t in targets], dtype=np.float64).mean(1)
    correct = np.array([[points[t].extra[PANEL] for t in targets] for points in points_by_target])
    return ProblemPanel(seeds[0].cell.B_p, seeds[0].cell.n, C, correct, samples)


def panel_figure(fits: Sequence[FitResult], runs: Sequence[RunRecord]) -> Figure | None:
    """The histogram of pass@1 at the largest shared C, and its change over C for each n."""
    problem_panels = compared_panels(fits[0], runs)
    if not problem_panels:
        return None
    fig, axes = panel_grid(1 + len(problem_panels), height=4.4)
    colours = n_palette(all_n(fits[0]))
    _draw_histogram(axes[0], problem_panels, colours)
    legend_handles: list[Patch] = []
    for ax, cell in zip(axes[1:], problem_panels, strict=True):
        legend_handles = _draw_shares_over_C(ax, cell)
        style_axes(ax, f"n = {cell.n}: share of problems by pass@1", "C (rollouts)", "")
    legend_below(fig, len(legend_handles), legend_handles, title="correct answers of a problem")
    return fig


def _draw_histogram(ax: Axes, problem_panels: Sequence[ProblemPanel], colours: dict[int, str]) -> None:
    """A bar for each n; steps for the base policy."""
    samples = problem_panels[0].samples
    width = 0.8 / len(problem_panels) / samples
    x = np.arange(samples + 1) / samples
    for i, cell in enumerate(problem_panels):
        bar_positions = x + (i - (len(problem_panels) - 1) / 2) * width
        ax.bar(bar_positions, cell.correct_shares[-1], width, color=colours[cell.n], label=f"n = {cell.n}", zorder=2)
    if problem_panels[0].C[0] == 0:
        base = np.mean([cell.correct_shares[0] for cell in problem_panels], axis=0)
        ax.plot(x, base, ls="none", marker="_", ms=30, mew=2, color=MUTED, label="base policy", zorder=3)
    title = f"pass@1 at C = {format_compact(float(problem_panels[0].C[-1]))}, $B_p$ = {problem_panels[0].B_p}"
    style_axes(
        ax,
        title,
        f"pass@1 of a training problem ({samples} samples)",
        f"share of {problem_panels[0].correct.shape[2]} problems",
        log_x=False,
    )
    ax.set_xticks(x)
    ax.legend(frameon=False, fontsize=9)


def _draw_shares_over_C(ax: Axes, problem_panel: ProblemPanel) -> list[Patch]:
    """Shares stacked from no correct answer (below) to all (above); the base policy is drawn a step left of the first
    update.
    """
    shares, C = problem_panel.correct_shares, problem_panel.C.copy()
    if C[0] == 0 and len(C) > 2:
        C[0] = C[1] ** 2 / C[2]
    elif C[0] == 0:
        C[0] = C[1] / 2
    shades = [colormaps["viridis"](0.1 + 0.85 * k / problem_panel.samples) for k in range(problem_panel.samples + 1)]
    ax.stackplot(C, *shares.T, colors=shades, zorder=1)
    ax.set_xlim(C[0], C[-1])
    ax.set_ylim(0, 1)
    return [Patch(color=shade, label=f"{k} of {problem_panel.samples}") for k, shade in enumerate(shades)]


def describe_panels(fit: FitResult, runs: Sequence[RunRecord]) -> list[str]:
    """The panel in sentences: the shares at 0 and at 1 at the largest shared C, and whether n changes them; empty
    without a panel.
    """
    problem_panels = compared_panels(fit, runs)
    if not problem_panels:
        return []
    first = problem_panels[0]
    problems, seeds = first.correct.shape[2], max(len(panel.correct) for panel in problem_panels)
    C_text = format_compact(float(first.C[-1]))
    sentences = []
    for count, outcome in ((0, "never solved"), (first.samples, "always solved")):
        shares = [format_percent(float(panel.final_frequencies(count).mean())) for panel in problem_panels]
        values = ", ".join(f"{share} at n = {panel.n}" for share, panel in zip(shares, problem_panels, strict=True))
        base = np.mean([(panel.correct[:, 0] == count).mean() for panel in problem_panels])
        base_text = f" ({format_percent(float(base))} by the base policy)" if first.C[0] == 0 else ""
        condition = f"{outcome} in {first.samples} samples at C = {C_text}, B_p = {first.B_p}"
        sentences.append(f"Of {problems} training problems {condition}: {values}{base_text}.")
    if len(problem_panels) == 2:
        sentences.append(_describe_difference(first, problem_panels[1], seeds))
    return sentences


def _describe_difference(small_n_panel: ProblemPanel, large_n_panel: ProblemPanel, seeds: int) -> str:
    """Whether the larger n leaves fewer problems at 0, paired over problems."""
    differences = large_n_panel.final_frequencies(0) - small_n_panel.final_frequencies(0)
    mean = float(differences.mean())
    error = float(differences.std(ddof=1) / np.sqrt(len(differences))) if len(differences) > 1 else 0.0
    points = f"{100 * mean:+.0f} ± {100 * error:.0f} percentage points"
    small_n, large_n = small_n_panel.n, large_n_panel.n
    if abs(mean) <= MIN_Z * error or not mean:
        pair = f"n = {small_n} and n = {large_n}"
        return f"The share never solved does not differ between {pair} by more than chance ({points})."
    more = "fewer" if mean < 0 else "more"
    paper_text = "as in the paper: less interference" if mean < 0 else "unlike in the paper"
    seed_text = "" if seeds > 1 else "; one seed, so runs may differ by chance"
    return f"n = {large_n} leaves {more} problems never solved than n = {small_n} ({points}, {paper_text}{seed_text})."
