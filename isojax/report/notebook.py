"""What a notebook asks for: runs from files or from a DataFrame, and a fit that recommends, draws
itself and gives DataFrames.

pandas is needed only by who uses its frames; polars' frames can be read too."""

import math
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import PrivateAttr

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.core.tabular import DataRow
from isojax.report.fit_views import fitted_runs
from isojax.runs import ledger
from isojax.runs.logs.column_map import parse_field_map
from isojax.runs.logs.import_logs import gather_runs
from isojax.runs.logs.known_columns import TABLE_FIELDS
from isojax.runs.logs.log_table import LogTable
from isojax.runs.logs.run_records import to_run_records
from isojax.scaling.allocate.constraints import TimeBudget
from isojax.scaling.allocate.quote import Quote, quote
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.allocate.recommendation import Recommendation
from isojax.scaling.curves.sweep_estimate import DEFAULT_OPTIONS, FitOptions
from isojax.scaling.fit import fit as fit_runs
from isojax.scaling.result import FitResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class SweepFit(FitResult):
    """A fit, as fit.json holds it, and what a notebook asks of it."""

    _records: tuple[RunRecord, ...] = PrivateAttr(default=())

    def recommend(self, budget: float | TimeBudget, **limits: Any) -> Recommendation:
        """How to spend a budget of rollouts, or of time; `limits` as of isojax.recommend."""
        return recommend(self, budget, **limits)

    def quote(self, reward: float) -> Quote:
        """What a reward costs; as isojax.quote."""
        return quote(self, reward)

    def plot(self, name: str = "frontier") -> "Figure":
        """A figure of the report; InputError for an unknown name, or where its data are absent."""
        # imported here: matplotlib takes a while, which only who draws should wait for
        catalogue = import_module("isojax.report.catalogue")
        return catalogue.plot(self, self._records, name)

    def frame(
        self, name: Literal["runs", "curves", "frontier", "crossovers", "evaluations"] = "curves"
    ) -> Any:
        """A table of the fit as a pandas.DataFrame. `name` is what each row stands for: a run, a
        fitted curve, a point of the frontier, a crossover, or an evaluation of a fitted run
        (`read_runs` reads that table back). InputError for another name, or without pandas."""
        tables = {
            "runs": self.model_dump(include={"runs"})["runs"],
            "curves": self.model_dump(include={"curves"})["curves"],
            "frontier": [row.model_dump() for row in self.joint.frontier],
            "crossovers": [row.model_dump() for row in self.joint.crossovers],
            "evaluations": self._evaluation_rows(),
        }

        if name not in tables:
            raise InputError(
                found=f"no table is called {name!r}",
                expected=f"one of {', '.join(tables)}",
            )

        try:
            pandas = import_module("pandas")
        except ImportError as e:
            raise InputError(
                found="a DataFrame needs pandas",
                fix="Install it with: pip install pandas",
            ) from e
        return pandas.DataFrame(tables[name])

    def _evaluation_rows(self) -> list[dict[str, Any]]:
        """A row for each evaluation of the runs that were fitted."""
        rows = []
        for run in fitted_runs(self, self._records):
            for point in run.points:
                row: dict[str, Any] = {
                    "B_p": run.cell.B_p,
                    "n": run.cell.n,
                    "seed": run.cell.seed,
                    "step": point.M,
                    "rollouts": point.rollouts,
                }
                rows.append(row | dict(point.metrics))
        return rows


def read_runs(
    source: str | Path | Iterable[str | Path] | Any, field_map: str = ""
) -> list[RunRecord]:
    """The runs of sweeps' folders, or of a DataFrame; InputError where they cannot be used.

    A DataFrame has a row for each evaluation, with columns n, B_p, step or rollouts, a reward, and
    maybe seed or run. `field_map` names other columns, as --map of `isojax records import` does
    ("reward=val_acc,n=16")."""
    rows = _frame_rows(source)
    return _read_folders(source) if rows is None else _runs_of_rows(rows, field_map)


def _read_folders(source: Any) -> list[RunRecord]:
    """The runs of one folder or of several."""
    is_several = isinstance(source, Iterable) and not isinstance(source, str)
    paths: list[Any] = list(source) if is_several else [source]
    if not all(isinstance(path, str | Path) for path in paths):
        raise InputError(
            found=f"given {source!r}",
            expected="the folder of a sweep, several, or a DataFrame",
        )
    try:
        return ledger.read_runs(paths)
    except (OSError, UnicodeError) as e:  # of a name that no file can have
        raise InputError(
            found=str(e),
            expected="the path of a place that you may use",
        ) from e


def _runs_of_rows(rows: Sequence[dict[str, Any]], field_map: str) -> list[RunRecord]:
    """The runs of a DataFrame's rows, by the columns of any table."""
    if not rows:
        raise InputError(
            found="the DataFrame has no row",
            expected="one for each evaluation",
        )
    data_rows = [DataRow("DataFrame", f"row {i}", values, i) for i, values in enumerate(rows)]
    table = LogTable("DataFrame", tuple(data_rows), one_run=False, is_export=True)
    columns = parse_field_map([field_map] if field_map else [])
    logs = gather_runs([table], columns, {}, TABLE_FIELDS)
    return list(to_run_records(logs.runs).runs)


def _frame_rows(source: Any) -> list[dict[str, Any]] | None:
    """The rows of a DataFrame of pandas or polars, each as a dict of its columns without the cells
    that are missing; None where `source` is anything else. Neither package is imported: a frame is
    recognized by its methods."""
    if hasattr(source, "to_dicts"):  # polars
        frame_rows = source.to_dicts()
    elif hasattr(source, "to_dict") and hasattr(source, "columns"):  # pandas
        frame_rows = source.to_dict(orient="records")
    else:
        return None

    rows = []
    for frame_row in frame_rows:
        row = {}
        for column, cell in frame_row.items():
            # NumPy's scalars and arrays become Python's numbers and lists
            value = cell.tolist() if hasattr(cell, "tolist") else cell
            is_missing = value is None or (isinstance(value, float) and math.isnan(value))
            if not is_missing:
                row[str(column)] = value
        rows.append(row)
    return rows


def fit(
    runs: Sequence[RunRecord] | Any,
    metric: str | None = None,
    compute: str = "rollouts",
    options: FitOptions = DEFAULT_OPTIONS,
) -> SweepFit:
    """Curves, frontier and n*(C) of runs, or of what `read_runs` takes, without the runs that are
    flagged as broken, which the result names.

    `metric`: a name as in docs/laws.md, Metrics; None: avg@k of the evaluations' k samples.
    `compute`: the unit of C, "rollouts", "tokens" or "device_hours". InputError where all runs are
    flagged, or something cannot be fitted."""
    are_records = isinstance(runs, list | tuple) and all(isinstance(run, RunRecord) for run in runs)
    records = runs if are_records else read_runs(runs)
    result = fit_runs(records, metric, compute, options)

    # the same fields, which are valid already
    fields = {name: getattr(result, name) for name in FitResult.model_fields}
    sweep_fit = SweepFit.model_construct(**fields)
    sweep_fit._records = tuple(records)
    return sweep_fit
