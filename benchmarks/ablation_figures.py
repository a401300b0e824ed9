"""The figures of `ablations.py`: reward against C, a line per arm with the spread of its seeds, and
metrics of training beneath.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ablation_arms import Experiment
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from isojax.report.canvas import DASHES, DPI, RenderedFigure, n_palette, render_figure, style_axes

NAMES = {"entropy": "entropy (nats a token)", "kl": "KL to the base policy"}
Line = Mapping[str, Any]


def draw(experiment: Experiment, lines: Sequence[Line]) -> RenderedFigure:
    """A column of axes for each panel: reward, then each of the experiment's metrics."""
    titles = list(dict.fromkeys(title_of(experiment, line) for line in lines))
    rows = 1 + len(experiment.metrics)
    columns = len(titles)
    size = (max(8.0, 5.2 * columns), 3.6 * rows + 0.8)
    fig = Figure(figsize=size, dpi=DPI, layout="constrained")
    for j, title in enumerate(titles):
        of_panel = [line for line in lines if title_of(experiment, line) == title]
        styles = styles_of(experiment, of_panel)
        x_label = "" if experiment.metrics else "C (rollouts)"  # else beneath the lowest axes
        y_label = f"validation reward ({of_panel[0]['metric']})" if j == 0 else ""
        top = fig.add_subplot(rows, columns, j + 1)
        style_axes(top, title, x_label, y_label)
        for line in of_panel:
            key = key_of(experiment, line)
            reward(top, line, f"n = {key}" if experiment.by_n else key, styles[key])
        top.legend(frameon=False, fontsize=8, ncols=2 if len(of_panel) > 6 else 1)

        for i, metric in enumerate(experiment.metrics, start=1):
            ax = fig.add_subplot(rows, columns, i * columns + j + 1, sharex=top)
            x_label = "C (rollouts)" if i == len(experiment.metrics) else ""
            style_axes(ax, "", x_label, NAMES[metric] if j == 0 else "")
            for line in of_panel:
                if line["series"][metric]:
                    C, values = zip(*line["series"][metric], strict=True)
                    ax.plot(C, values, lw=1.6, **styles[key_of(experiment, line)])
    fig.suptitle(experiment.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return render_figure(fig)


def title_of(experiment: Experiment, line: Line) -> str:
    """The panel a line is drawn in."""
    return f"{line['panel']}, {line['arm']}" if experiment.by_n else line["panel"]


def key_of(experiment: Experiment, line: Line) -> Any:
    """What tells a line from the others of its panel."""
    return line["n"] if experiment.by_n else line["arm"]


def styles_of(experiment: Experiment, lines: Sequence[Line]) -> dict[Any, dict[str, Any]]:
    """Colour and dash of each line of a panel: by n, or one of ten distinguishable colours, then
    dashed."""
    if experiment.by_n:
        return {
            n: {"color": colour, "ls": "-"}
            for n, colour in n_palette([line["n"] for line in lines]).items()
        }
    tab = [to_hex(colour) for colour in colormaps["tab10"](range(10))]
    return {
        line["arm"]: {"color": tab[i % 10], "ls": DASHES[i // 10 % len(DASHES)]}
        for i, line in enumerate(lines)
    }


def reward(ax: Axes, line: Line, name: str, style: Mapping[str, Any]) -> None:
    """Mean over seeds, a band of one standard deviation, and where the base policy stands."""
    C, mean, spread = np.array([point for point in line["curve"] if point[0] > 0]).T
    ax.plot(C, mean, lw=1.8, label=name, zorder=3, **style)
    ax.fill_between(
        C, mean - spread, mean + spread, color=style["color"], alpha=0.15, lw=0, zorder=2
    )
    ax.axhline(line["base"], color=style["color"], lw=0.6, ls=(0, (1.2, 1.6)), zorder=1)
