"""pass@1 of a fixed panel of training problems (IsoCompute Playbook, arXiv:2603.12151, Figs. 11, 27
and section 5.1): under interference a share of problems stays at 0 while the mean rises."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from isojax.core.config import PANEL
from isojax.core.nouns import RunRecord
from isojax.report import canvas
from isojax.report.fit_views import FloatArray, all_n
from isojax.report.wording import format_compact
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import as_float64, group_by


@dataclass(frozen=True)
class ProblemPanel:
    """A cell's panel, its seeds together, at the values of C that all compared cells share."""

    B_p: int
    n: int
    # [points], rollouts, 0 of the base policy first where it was evaluated; the mean over seeds
    C: FloatArray
    correct: np.ndarray  # int[seeds, points, problems], correct answers of `samples`
    samples: int

    @property
    def correct_shares(self) -> FloatArray:
        """float[points, samples + 1]: the share of problems with 0, 1, ..., all answers correct,
        mean over seeds."""
        return np.stack(
            [as_float64((self.correct == k).mean((0, 2))) for k in range(self.samples + 1)], -1
        )


def compared_panels(fit: FitResult, runs: Sequence[RunRecord]) -> list[ProblemPanel]:
    """The smallest and the largest n (or the only one) of the B_p with the widest range of n, of
    equals the frontier's last; [] where no panel was recorded, rewards are graded, or problems
    differ."""
    usable_runs = [
        run
        for run in runs
        if all(PANEL in p.extra and p.samples and not p.graded for p in run.points)
    ]
    sizes = {(len(p.extra[PANEL]), p.samples) for run in usable_runs for p in run.points}
    if len(sizes) != 1:
        return []
    last_B_p = fit.joint.frontier[-1].B_p if fit.joint.frontier else None
    groups = group_by(usable_runs, lambda run: run.cell.B_p).items()
    by_B_p = {B_p: group_by(group, lambda run: run.cell.n) for B_p, group in groups}
    B_p = max(by_B_p, key=lambda b: (max(by_B_p[b]) / min(by_B_p[b]), b == last_B_p, -b))
    by_n = by_B_p[B_p]
    cells = [by_n[n] for n in sorted({min(by_n), max(by_n)})]
    shared_targets = sorted(
        set.intersection(*({p.target for p in run.points} for seeds in cells for run in seeds))
    )
    if not shared_targets or not shared_targets[-1]:
        return []
    samples = sizes.pop()[1]
    return [_load_panel(seeds, shared_targets, samples) for seeds in cells]


def _load_panel(seeds: Sequence[RunRecord], targets: Sequence[int], samples: int) -> ProblemPanel:
    points_by_target = [{p.target: p for p in run.points} for run in seeds]
    C = np.array(
        [[points[t].rollouts for points in points_by_target] for t in targets], dtype=np.float64
    ).mean(1)
    correct = np.array([[points[t].extra[PANEL] for t in targets] for points in points_by_target])
    return ProblemPanel(seeds[0].cell.B_p, seeds[0].cell.n, C, correct, samples)


def panel_figure(fit: FitResult, runs: Sequence[RunRecord]) -> Figure | None:
    """The histogram of pass@1 at the largest shared C, and its change over C for each n."""
    panels = compared_panels(fit, runs)
    if not panels:
        return None
    fig, axes = canvas.panel_grid(1 + len(panels), height=4.4)
    _draw_histogram(axes[0], panels, canvas.n_palette(all_n(fit)))
    samples = panels[0].samples
    shades = [
        to_hex(colour) for colour in colormaps["viridis"](np.linspace(0.08, 0.92, samples + 1))
    ]
    for ax, panel in zip(axes[1:], panels, strict=True):
        _draw_shares_over_C(ax, panel, shades)
        canvas.style_axes(ax, f"n = {panel.n}: share of problems by pass@1", "C (rollouts)", "")
    handles = [Patch(color=shade, label=f"{k} of {samples}") for k, shade in enumerate(shades)]
    canvas.legend_below(fig, len(handles), handles, title="correct answers of a problem")
    return fig


def _draw_histogram(ax: Axes, panels: Sequence[ProblemPanel], colours: Mapping[int, str]) -> None:
    first, samples = panels[0], panels[0].samples
    width = 0.8 / len(panels) / samples
    x = np.arange(samples + 1) / samples
    for i, panel in enumerate(panels):
        centres = x + (i - (len(panels) - 1) / 2) * width
        ax.bar(
            centres,
            panel.correct_shares[-1],
            width,
            color=colours[panel.n],
            label=f"n = {panel.n}",
            zorder=2,
        )
    if first.C[0] == 0:
        base = np.mean([panel.correct_shares[0] for panel in panels], axis=0)
        ax.plot(
            x,
            base,
            ls="none",
            marker="_",
            ms=30,
            mew=2,
            color=canvas.MUTED,
            label="base policy",
            zorder=3,
        )
    title = f"pass@1 at C = {format_compact(float(first.C[-1]))}, $B_p$ = {first.B_p}"
    x_label = f"pass@1 of a training problem ({samples} samples)"
    canvas.style_axes(
        ax, title, x_label, f"share of {first.correct.shape[2]} problems", log_x=False
    )
    ax.set_xticks(x)
    ax.legend(frameon=False, fontsize=9)


def _draw_shares_over_C(ax: Axes, panel: ProblemPanel, shades: Sequence[str]) -> None:
    """Shares stacked from no correct answer (below) to all; the base policy is a step left of the
    first update."""
    C = panel.C.copy()
    if C[0] == 0:
        C[0] = C[1] ** 2 / C[2] if len(C) > 2 else C[1] / 2
    ax.stackplot(C, *panel.correct_shares.T, colors=shades, zorder=1)
    ax.set_xlim(C[0], C[-1])
    ax.set_ylim(0, 1)
