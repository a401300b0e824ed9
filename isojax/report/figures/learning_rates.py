"""The search for the learning rate: reward against rate, and the curves behind it (`isojax lr-search`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from isojax.report.canvas import (
    DPI,
    INK,
    LAW_COLOUR,
    MUTED,
    RenderedFigure,
    escape_label,
    render_figure,
    style_axes,
)
from isojax.report.wording import format_compact


def learning_rate_figure(search: Mapping[str, Any]) -> RenderedFigure:
    """Draw what `isojax lr-search --json` prints: on the left each rate's reward, on the right each rate's runs."""
    fig = Figure(figsize=(12.5, 5.0), dpi=DPI, layout="constrained")
    reward_ax, run_ax = fig.add_subplot(1, 2, 1), fig.add_subplot(1, 2, 2)
    reward_label = f"validation reward ({escape_label(search['metric'])})"
    style_axes(
        reward_ax,
        f"B = {search['B']}: {search['B_p']} problems x {search['n']} rollouts",
        "learning rate",
        reward_label,
    )
    reward_ax.xaxis.set_major_formatter(lambda rate, _: f"{rate:.0e}".replace("e-0", "e-"))
    reward_ax.xaxis.set_minor_formatter(lambda rate, _: "")
    style_axes(run_ax, "runs of each rate", "C (rollouts)", "", log_x=False)
    run_ax.xaxis.set_major_formatter(lambda C, _: format_compact(C))
    rows = search["rates"]
    colours = {
        row["rate"]: to_hex(colormaps["viridis"](0.88 * i / max(1, len(rows) - 1))) for i, row in enumerate(rows)
    }
    _draw_rewards(reward_ax, search, colours)
    for row in rows:
        for i, curve in enumerate(row["curves"]):
            C, y = zip(*curve, strict=True)
            dash = (0, (1.2, 1.6)) if row["flags"] else "-"
            run_ax.plot(
                C,
                y,
                color=colours[row["rate"]],
                lw=1.5,
                ls=dash,
                label=f"{row['rate']:.3g}" if i == 0 else None,
                zorder=3,
            )
    run_ax.legend(title="rate (dotted: left out)", frameon=False, fontsize=9, title_fontsize=9)
    return render_figure(fig)


def _draw_rewards(ax: Axes, search: Mapping[str, Any], colours: Mapping[float, str]) -> None:
    """Each rate's mean with its standard error and seeds; a cross where it is left out, a ring on the chosen rate."""
    healthy_rows = [row for row in search["rates"] if not row["flags"]]
    ax.plot([row["rate"] for row in healthy_rows], [row["reward"] for row in healthy_rows], color=MUTED, lw=1, zorder=2)
    for row in search["rates"]:
        if row["reward"] is None:
            continue
        if row["flags"]:
            ax.plot([row["rate"]], [row["reward"]], marker="x", ms=9, mew=2, color=LAW_COLOUR, zorder=4)
            continue
        ax.errorbar(
            [row["rate"]],
            [row["reward"]],
            yerr=row["se"] or None,
            fmt="o",
            ms=7,
            capsize=4,
            color=colours[row["rate"]],
            zorder=4,
        )
        ax.plot(
            np.full(len(row["scores"]), row["rate"]), row["scores"], ls="none", marker="_", ms=10, color=MUTED, zorder=3
        )
        if row["rate"] == search["learning_rate"]:
            ax.plot([row["rate"]], [row["reward"]], marker="o", ms=15, mfc="none", mec=INK, mew=1.6, zorder=5)
