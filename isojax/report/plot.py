"""One figure of a fit, for a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.report.figures.catalogue import FIGURES
from isojax.scaling.result import FitResult


def plot(fit: FitResult, runs: Sequence[RunRecord], name: str = "frontier") -> Figure:
    """Draw a figure of the report.

    Args:
        runs: those that were fitted.
        name: a key of FIGURES, such as "frontier", "n_star" or "evidence".

    Raises:
        InputError: another name, or a fit without the data of that figure.
    """
    if name not in FIGURES:
        raise InputError(f"no figure is called {name!r}; expected one of {', '.join(FIGURES)}.")
    figure = FIGURES[name].draw([fit], runs)
    if figure is None:
        raise InputError(f"the fit has no data for the figure {name!r}. Ask for another: {', '.join(FIGURES)}.")
    return figure
