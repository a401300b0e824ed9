"""isojax: where a budget of GRPO rollouts goes.

Runs (B_p, n) sweeps on JAX and fits the scaling law n*(C) to them.

In a notebook, without jax:

    # The records of a sweep's folder, or of a DataFrame.
    runs = isojax.read_runs("runs/quickstart")

    law = isojax.fit(runs)         # curves, frontier, n*(C) and flags (scaling.result.FitResult)
    law.recommend(1e6)             # how to spend 1e6 rollouts (scaling.allocate.recommendation)
    law.quote(0.6)                 # what a reward costs (scaling.allocate.quote.Quote)
    law.plot("n_star")             # a figure of the report (matplotlib)
    law.frame("frontier")          # a table of it as a DataFrame (pandas)

    # The runs behind docs/reproduction.md (extra parquet).
    isojax.load_study()["small_easy"]

    # Sweeps compared (scaling.comparison.SweepComparison).
    isojax.compare([law, other], ["a", "b"])
"""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isojax.report.catalogue import plot
    from isojax.report.notebook import fit, read_runs
    from isojax.runs.study import load_study
    from isojax.scaling.allocate.constraints import TimeBudget
    from isojax.scaling.allocate.quote import quote
    from isojax.scaling.allocate.recommend import recommend
    from isojax.scaling.compare_sweeps import compare_sweeps as compare
    from isojax.scaling.curves.sweep_estimate import FitOptions

__version__ = "0.1.0"
__all__ = [
    "FitOptions",
    "TimeBudget",
    "compare",
    "fit",
    "load_study",
    "plot",
    "quote",
    "read_runs",
    "recommend",
]

# Name -> its module and its name there; a name is imported when it is first used.
_LAZY_NAMES = {
    "read_runs": "isojax.report.notebook:read_runs",
    "fit": "isojax.report.notebook:fit",
    "load_study": "isojax.runs.study:load_study",
    "TimeBudget": "isojax.scaling.allocate.constraints:TimeBudget",
    "FitOptions": "isojax.scaling.curves.sweep_estimate:FitOptions",
    "quote": "isojax.scaling.allocate.quote:quote",
    "recommend": "isojax.scaling.allocate.recommend:recommend",
    "compare": "isojax.scaling.compare_sweeps:compare_sweeps",
    "plot": "isojax.report.catalogue:plot",
}


def __getattr__(name: str) -> Any:
    """A lazy name, as Python asks for one that is not there yet."""
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve_name(_LAZY_NAMES[name])


def __dir__() -> list[str]:
    """The lazy names too, for completion."""
    return sorted([*globals(), *_LAZY_NAMES])
