"""The search for the learning rate: reward against rate, and the curves behind it (`isojax lr-search`)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from isojax.report import canvas
from isojax.report.wording import format_compact


def learning_rate_figure(search: Mapping[str, Any]) -> canvas.RenderedFigure:
    """Draw what `isojax lr-search --json` prints: on the left each rate's reward, on the right each rate's runs."""
    fig = canvas.new_figure(12.5, 5.0)
    reward_ax, run_ax = fig.add_subplot(1, 2, 1), fig.add_subplot(1, 2, 2)
    reward_label = f"validation reward ({canvas.escape_label(search['metric'])})"
    batch = f"B = {search['B']}: {search['B_p']} problems x {search['n']} rollouts"
    canvas.style_axes(reward_ax, batch, "learning rate", reward_label)
    reward_ax.xaxis.set_major_formatter(lambda rate, _: f"{rate:.0e}".replace("e-0", "e-"))
    reward_ax.xaxis.set_minor_formatter(lambda rate, _: "")
    canvas.style_axes(run_ax, "runs of each rate", "C (rollouts)", "", log_x=False)
    run_ax.xaxis.set_major_formatter(lambda C, _: format_compact(C))
    healthy_rows = [row for row in search["rates"] if not row["flags"]]
    reward_ax.plot(
        [row["rate"] for row in healthy_rows], [row["reward"] for row in healthy_rows], color=canvas.MUTED, lw=1
    )
    colours = canvas.sequential_colours("viridis", len(search["rates"]))
    for row, colour in zip(search["rates"], colours, strict=True):
        if row["reward"] is not None:
            _draw_reward(reward_ax, row, colour, is_chosen=row["rate"] == search["learning_rate"])
        for i, curve in enumerate(row["curves"]):
            style = {"color": colour, "lw": 1.5, "ls": canvas.DASHES[2] if row["flags"] else "-", "zorder": 3}
            run_ax.plot(*zip(*curve, strict=True), label=f"{row['rate']:.3g}" if i == 0 else None, **style)
    run_ax.legend(title="rate (dotted: left out)", frameon=False, fontsize=9, title_fontsize=9)
    return canvas.render_figure(fig)


def _draw_reward(ax: Axes, row: Mapping[str, Any], colour: str, is_chosen: bool) -> None:
    """A rate's mean with its standard error and seeds; a cross where it is left out, a ring on the chosen rate."""
    rate, reward = [row["rate"]], [row["reward"]]
    if row["flags"]:
        ax.plot(rate, reward, marker="x", ms=9, mew=2, color=canvas.LAW_COLOUR, zorder=4)
        return
    ax.errorbar(rate, reward, yerr=row["se"] or None, fmt="o", ms=7, capsize=4, color=colour, zorder=4)
    seeds = {"ls": "none", "marker": "_", "ms": 10, "color": canvas.MUTED, "zorder": 3}
    ax.plot(np.full(len(row["scores"]), row["rate"]), row["scores"], **seeds)
    if is_chosen:
        ax.plot(rate, reward, marker="o", ms=15, mfc="none", mec=canvas.INK, mew=1.6, zorder=5)
