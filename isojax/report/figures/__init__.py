"""The figures of a sweep's report, one a file: `draw(fit, runs)`, which has the decorator
`@report_figure(alt_text=..., caption=...)`.

It returns None where the fit and its runs lack the data of the figure. A file in this folder is all
that a figure needs: the report draws it as PNG and PDF, the page shows it, and isojax.plot knows it
by the file's name."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from isojax.core.nouns import RunRecord
from isojax.core.plugins import Plugin, PluginKind
from isojax.scaling.result import FitResult


@dataclass(frozen=True)
class FigureTraits:
    alt_text: str  # what it shows, for someone who cannot see it
    caption: str
    position: int = 100  # on the page, rising; figures of one position come by their names


ReportFigure = Plugin[[FitResult, Sequence[RunRecord]], Figure | None, FigureTraits]

report_figure = PluginKind("report_figure", "report.figures", FigureTraits)
