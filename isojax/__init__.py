"""isojax: where a budget of GRPO rollouts goes. Runs (B_p, n) sweeps on JAX and fits the scaling law n*(C) to them.

In a notebook, without jax:

    runs = isojax.read_runs(["runs/quickstart"])      the records of a sweep's folders
    fit = isojax.fit(runs)                            curves, frontier, n*(C) and flags (scaling.result.FitResult)
    isojax.recommend(fit, 1e6)                        how to spend 1e6 rollouts (core.nouns.Recommendation)
    isojax.compare([fit, other], ["a", "b"])          sweeps compared (scaling.comparison.SweepComparison)
    isojax.plot(fit, runs, "n_star")                  a figure of the report (matplotlib)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isojax.report.figures.catalogue import plot
    from isojax.runs.ledger import read_runs
    from isojax.scaling.allocate.recommend import recommend
    from isojax.scaling.compare import compare_sweeps as compare
    from isojax.scaling.curves.sweep_estimate import FitOptions
    from isojax.scaling.fit import fit

__version__ = "0.1.0"
__all__ = ["FitOptions", "compare", "fit", "plot", "read_runs", "recommend"]

# Name -> its module and its name there; a name is imported when it is first used.
_LAZY_NAMES = {
    "read_runs": ("isojax.runs.ledger", "read_runs"),
    "fit": ("isojax.scaling.fit", "fit"),
    "FitOptions": ("isojax.scaling.curves.sweep_estimate", "FitOptions"),
    "recommend": ("isojax.scaling.allocate.recommend", "recommend"),
    "compare": ("isojax.scaling.compare", "compare_sweeps"),
    "plot": ("isojax.report.figures.catalogue", "plot"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY_NAMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY_NAMES])
