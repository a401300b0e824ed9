"""pass@1 of a fixed panel of training problems, for the smallest and the largest n.

IsoCompute Playbook, arXiv:2603.12151, Figs. 11, 27 and section 5.1: under interference (training on
some problems harms others) a share of problems stays at 0 while the mean rises."""

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
from isojax.report.figures import report_figure
from isojax.report.fit_views import all_n
from isojax.report.wording import format_compact
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import FloatArray, as_float64, group_by


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
        shares = [
            as_float64((self.correct == count).mean(axis=(0, 2)))
            for count in range(self.samples + 1)
        ]
        return np.stack(shares, axis=-1)


def compared_panels(fit: FitResult, runs: Sequence[RunRecord]) -> list[ProblemPanel]:
    """The panels (the same few training problems, sampled at each evaluation) of the two cells that
    the figure compares: the smallest and the largest n, or the only one, of one B_p.

    It is the B_p with the widest range of n; of equals, the one that leads at the end of the
    frontier, else the smallest. [] where no panel was recorded, where rewards are graded (not 0 or
    1), and where runs had different problems or numbers of samples."""
    # `extra[PANEL]` of a point: for each problem of the panel its correct answers, of `samples`.
    usable_runs = [run for run in runs if _has_panel(run)]
    sizes = {
        (len(point.extra[PANEL]), point.samples) for run in usable_runs for point in run.points
    }
    if len(sizes) != 1:
        return []

    by_n = _widest_range_of_n(fit, usable_runs)
    cells = [by_n[n] for n in sorted({min(by_n), max(by_n)})]

    # Distributions are compared at one C, so at values of the grid that every run has reached.
    targets_of_each_run = [
        {point.target for point in run.points} for seeds in cells for run in seeds
    ]
    shared_targets = sorted(set.intersection(*targets_of_each_run))
    if not shared_targets or shared_targets[-1] == 0:  # the base policy alone
        return []

    _, samples = sizes.pop()
    return [_load_panel(seeds, shared_targets, samples) for seeds in cells]


def _has_panel(run: RunRecord) -> bool:
    """Whether every evaluation has the panel's correct answers."""
    return all(PANEL in point.extra and point.samples and not point.graded for point in run.points)


def _widest_range_of_n(fit: FitResult, runs: Sequence[RunRecord]) -> dict[int, list[RunRecord]]:
    """n -> its runs, of the B_p whose largest n is the largest multiple of its smallest."""
    by_B_p = {
        B_p: group_by(runs_of_B_p, lambda run: run.cell.n)
        for B_p, runs_of_B_p in group_by(runs, lambda run: run.cell.B_p).items()
    }
    last_B_p = fit.joint.frontier[-1].B_p if fit.joint.frontier else None

    def preference(B_p: int) -> tuple[float, bool, int]:
        ns = by_B_p[B_p]
        return max(ns) / min(ns), B_p == last_B_p, -B_p

    return by_B_p[max(by_B_p, key=preference)]


def _load_panel(seeds: Sequence[RunRecord], targets: Sequence[int], samples: int) -> ProblemPanel:
    """The panel of a cell over its seeds, at these values of the grid of C, which each run has.
    `samples`: answers sampled for each problem."""
    points_by_target = [{point.target: point for point in run.points} for run in seeds]
    rollouts = np.array(
        [[points[target].rollouts for points in points_by_target] for target in targets],
        dtype=np.float64,
    )  # [points, seeds]
    correct = np.array(
        [[points[target].extra[PANEL] for target in targets] for points in points_by_target]
    )
    cell = seeds[0].cell
    return ProblemPanel(cell.B_p, cell.n, rollouts.mean(axis=1), correct, samples)


@report_figure(
    position=4,
    alt_text="A histogram of pass@1 over a fixed panel of training problems for the smallest and "
    "largest n, and its change.",
    caption="pass@1 of a fixed panel of training problems. "
    "Left: its distribution over problems at the largest C that both n reached, with the base "
    "policy's. "
    "Right: the share of problems with no, some and all answers correct, along training.",
)
def panel_figure(fit: FitResult, runs: Sequence[RunRecord]) -> Figure | None:
    """pass@1 (the share of correct answers) of single training problems, for a small and a large n:
    on the left its histogram at the largest C that both reached, then for each n how it changes
    over C. None where the runs recorded no panel of problems."""
    panels = compared_panels(fit, runs)
    if not panels:
        return None

    fig, axes = canvas.panel_grid(1 + len(panels), height=4.4)
    _draw_histogram(axes[0], panels, canvas.n_palette(all_n(fit)))

    # a shade for 0, 1, ..., all answers correct
    samples = panels[0].samples
    viridis = colormaps["viridis"]
    shades = [to_hex(colour) for colour in viridis(np.linspace(0.08, 0.92, samples + 1))]
    for ax, panel in zip(axes[1:], panels, strict=True):
        _draw_shares_over_C(ax, panel, shades)
        canvas.style_axes(ax, f"n = {panel.n}: share of problems by pass@1", "C (rollouts)", "")

    handles = [Patch(color=shade, label=f"{k} of {samples}") for k, shade in enumerate(shades)]
    canvas.legend_below(fig, len(handles), handles, title="correct answers of a problem")
    return fig


def _draw_histogram(ax: Axes, panels: Sequence[ProblemPanel], colours: Mapping[int, str]) -> None:
    """Draw the share of problems at each pass@1 at the last C: a bar for each n, side by side, and
    a dash across them for the base policy, if it was evaluated. `colours`: by n."""
    first = panels[0]
    samples = first.samples
    pass_at_1 = np.arange(samples + 1) / samples
    width = 0.8 / len(panels) / samples
    for i, panel in enumerate(panels):
        centres = pass_at_1 + (i - (len(panels) - 1) / 2) * width
        style = {"color": colours[panel.n], "label": f"n = {panel.n}", "zorder": 2}
        ax.bar(centres, panel.correct_shares[-1], width, **style)

    if first.C[0] == 0:
        base_shares = np.mean([panel.correct_shares[0] for panel in panels], axis=0)
        dash = {"ls": "none", "marker": "_", "ms": 30, "mew": 2, "color": canvas.MUTED}
        ax.plot(pass_at_1, base_shares, label="base policy", zorder=3, **dash)

    problems = first.correct.shape[2]
    title = f"pass@1 at C = {format_compact(float(first.C[-1]))}, $B_p$ = {first.B_p}"
    x_label = f"pass@1 of a training problem ({samples} samples)"
    canvas.style_axes(ax, title, x_label, f"share of {problems} problems", log_x=False)
    ax.set_xticks(pass_at_1)
    ax.legend(frameon=False, fontsize=9)


def _draw_shares_over_C(ax: Axes, panel: ProblemPanel, shades: Sequence[str]) -> None:
    """Shares stacked from no correct answer (below) to all; the base policy is a step left of the
    first update."""
    # C = 0 has no place on a log axis: it is put as far before the first C as this is before the
    # next.
    C = panel.C.copy()
    if C[0] == 0:
        C[0] = C[1] ** 2 / C[2] if len(C) > 2 else C[1] / 2
    ax.stackplot(C, *panel.correct_shares.T, colors=shades, zorder=1)
    ax.set_xlim(C[0], C[-1])
    ax.set_ylim(0, 1)
