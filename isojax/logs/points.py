"""One run's rows -> its evaluations: a step's rows joined, training metrics averaged since the last evaluation, C from steps if need be."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from isojax.logs.fields import Bound
from isojax.logs.table import Row, Table
from isojax.logs.values import counts, is_blank, number, where, whole
from isojax.types import Cell, EvalPoint, InputError

_AT_K = re.compile(r"(?:mean|avg)@([1-9]\d*)$")
_CLOCKS = ("rollouts", "tokens", "device_hours")


@dataclass
class Entry:
    """All that a log says of one step of a run."""

    key: int
    row: Row
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Row] = field(default_factory=dict)
    blank: dict[str, Row] = field(default_factory=dict)


def measures(bound: Bound) -> list[str]:
    """The fields that a row is read for: validation and training metrics."""
    return [name for name in bound.columns if _is_validation(name) or _is_training(name)]


def is_measured(row: Row, bound: Bound) -> bool:
    """Whether a row has a cell, be it empty, for any of them."""
    return any(bound.columns[name] in row.values for name in measures(bound))


def _is_validation(name: str) -> bool:
    return name in ("reward", "counts") or name.startswith("metric:")


def _is_training(name: str) -> bool:
    return name in ("train_reward", "response_length") or name.startswith("train:")


def main_metric(bound: Bound) -> str:
    """The validation metric that makes a row an evaluation: `reward`, else the right answers, else the first further one."""
    named = [name for name in bound.columns if _is_validation(name)]
    return min(named, key=lambda name: (name != "reward", name != "counts"))


def metric_name(name: str, bound: Bound) -> str:
    """A validation metric's name in the ledger: as asked (metric:NAME), else the column's own, avg@k where that ends in mean@k or avg@k."""
    if name == "counts":
        return "right answers"
    if name != "reward":
        return name.removeprefix("metric:")
    column = bound.columns[name]
    match = _AT_K.search(column)
    return f"avg@{match[1]}" if match else column


def _values(row: Row, table: Table, bound: Bound) -> tuple[dict[str, Any], list[str]]:
    """(a row's measurements and clocks by field, the fields whose cell is empty); a training metric nobody asked for may be NaN."""
    found: dict[str, Any] = {}
    blank = []
    for name, column in bound.columns.items():
        if column not in row.values or not (_is_validation(name) or _is_training(name) or name in _CLOCKS):
            continue
        value = row.values[column]
        if is_blank(value):
            blank.append(name)
        elif name == "counts":
            found[name] = counts(row, table, bound, whole("samples", row, table, bound, 1))
        elif name in _CLOCKS:
            found[name] = number(name, row, table, bound) if name == "device_hours" else whole(name, row, table, bound, 0)
        elif not (_is_training(name) and name in bound.found and _is_nan(value)):
            found[name] = number(name, row, table, bound)
    return found, blank


def _is_nan(value: Any) -> bool:
    try:
        return not math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _entries(rows: Sequence[Row], table: Table, bound: Bound) -> list[Entry]:
    """Rows of one step joined, in rising order.

    Raises:
        InputError: steps (or rollouts) that fall, or a value given twice at one step, with both places.
    """
    clock = "step" if "step" in bound else "rollouts"
    entries: list[Entry] = []
    for row in rows:
        key = whole(clock, row, table, bound, 0)
        if entries and key < entries[-1].key:
            given = f"{clock} falls from {entries[-1].key} ({entries[-1].row.place}) to {key}"
            mend = "Sort the file, or tell its runs apart with --map run=COLUMN."
            raise InputError(f"{table.source}, {row.place}: {given}; expected {clock} that rises within a run. {mend}")
        if not entries or key > entries[-1].key:
            entries.append(Entry(key, row))
        entry = entries[-1]
        values, blank = _values(row, table, bound)
        twice = next(
            (name for name in values if name in entry.values and (name not in _CLOCKS or entry.values[name] != values[name])), None
        )
        if twice is not None:
            before = f"{entry.values[twice]!r} at {entry.places[twice].place} and {values[twice]!r} here"
            mend = "Remove one, or tell the runs apart with --map run=COLUMN or seed=COLUMN."
            place = where(row, table, bound, twice)
            raise InputError(f"{place}: the point at {clock} {key} is there twice ({before}); expected once. {mend}")
        entry.values |= values
        entry.places |= dict.fromkeys(values, row)
        entry.blank |= dict.fromkeys(blank, row)
    return entries


def _rollouts(entry: Entry, table: Table, bound: Bound, cell: Cell) -> int:
    """C of an entry: as the log has it, else steps x B_p x n."""
    if "rollouts" not in bound:
        return entry.key * cell.B
    if "rollouts" not in entry.values:
        whole("rollouts", entry.blank.get("rollouts", entry.row), table, bound, 0)
    return int(entry.values["rollouts"])


def _metrics(entry: Entry, table: Table, bound: Bound) -> dict[str, float]:
    """An evaluation's metrics by their names in the ledger, each in [0, 1]; none where the entry holds training only.

    Raises:
        InputError: a metric outside [0, 1], or an empty cell where a metric is due.
    """
    main = main_metric(bound)
    trained = any(_is_training(name) for name in entry.values)
    for name in bound.columns:
        if name in entry.blank and _is_validation(name) and (main in entry.values or not trained):
            number(name, entry.blank[name], table, bound)
    if main not in entry.values:
        return {}
    scale = float(bound.constants.get("scale", 1))
    found: dict[str, float] = {}
    for name in sorted(bound.columns, key=lambda name: name != main):  # the main one first: it is the one fitted by default
        if name in entry.values and _is_validation(name) and name != "counts":
            value = entry.values[name] * scale
            if not 0 <= value <= 1:
                place = where(entry.places[name], table, bound, name)
                mend = "Percent: --map scale=0.01; otherwise mend it or name another column."
                raise InputError(f"{place} is {value:g}, expected a number in [0, 1]. {mend}")
            found[metric_name(name, bound)] = value
    if "counts" in entry.values:
        samples = whole("samples", entry.places["counts"], table, bound, 1)
        right = entry.values["counts"]
        found.setdefault(f"avg@{samples}", sum(right) / (samples * len(right)))
    return found


def _samples(entry: Entry, table: Table, bound: Bound) -> int:
    if "samples" in bound:
        return whole("samples", entry.places.get("counts", entry.row), table, bound, 1)
    match = re.fullmatch(r"avg@(\d+)", metric_name(main_metric(bound), bound))
    return int(match[1]) if match else 0


def _train(entries: Sequence[Entry]) -> dict[str, float]:
    """Means of the training metrics over the rows of a stretch that have them."""
    named: dict[str, list[float]] = {}
    for entry in entries:
        for name, value in entry.values.items():
            if _is_training(name):
                key = {"train_reward": "reward"}.get(name, name.removeprefix("train:"))
                named.setdefault(key, []).append(value)
    return {name: sum(values) / len(values) for name, values in named.items()}


def _clock(entries: Sequence[Entry], table: Table, bound: Bound, cell: Cell) -> list[int]:
    """C at each entry; a training row that does not say it has that of the row before."""
    C: list[int] = []
    for entry in entries:
        due = "rollouts" not in bound or "rollouts" in entry.values or any(_is_validation(name) for name in entry.values)
        C.append(_rollouts(entry, table, bound, cell) if due else (C or [0])[-1])
    return C


def _tokens(entries: Sequence[Entry], C: Sequence[int]) -> list[float]:
    """Response tokens at each entry: mean length x rollouts, each length standing for the rollouts since the last one logged.

    Where the evaluation comes between two logged lengths, the last one goes on.
    """
    tokens: list[float] = []
    total, counted, last = 0.0, 0, 0.0
    for entry, rollouts in zip(entries, C, strict=True):
        if "response_length" in entry.values:
            last = entry.values["response_length"]
            total, counted = total + last * (rollouts - counted), rollouts
        tokens.append(max([total + last * (rollouts - counted), *tokens[-1:]]))
    return tokens


def evaluations(rows: Sequence[Row], table: Table, bound: Bound, cell: Cell) -> tuple[tuple[EvalPoint, ...], tuple[float, ...], list[str]]:
    """A run's evaluations, the device hours at each (empty where the log has none), and what was left out.

    Raises:
        InputError: no evaluation, a point twice, compute that falls, a metric outside [0, 1], a cell that is missing or no number; with
            file and line (or step).
    """
    points: list[EvalPoint] = []
    hours: list[float] = []
    stretch: list[Entry] = []
    stray = 0
    entries = _entries(rows, table, bound)
    C = _clock(entries, table, bound, cell)
    for entry, rollouts, counted in zip(entries, C, _tokens(entries, C), strict=True):
        metrics = _metrics(entry, table, bound)
        stretch.append(entry)
        if not metrics:
            stray += any(_is_validation(name) for name in entry.values)
            continue
        _refuse_order(points, rollouts, entry, table)
        M = entry.key if "step" in bound else round(rollouts / cell.B)
        tokens = _logged_tokens(points, entry, table, bound) if "tokens" in bound else round(counted)
        right, samples = entry.values.get("counts", ()), _samples(entry, table, bound)
        points.append(EvalPoint(rollouts, M, rollouts, tokens, metrics, right, samples, _train(stretch)))
        if "device_hours" in bound:
            hours.append(_hours(entry, hours, table, bound))
        stretch = []
    if not points:
        columns = ", ".join(bound.columns[name] for name in bound.columns if _is_validation(name))
        raise InputError(f"{table.source}, {rows[0].place}: the run that begins there has no value of {columns}; expected an evaluation.")
    return tuple(points), tuple(hours), _said(stretch, stray, points, cell, bound)


def _refuse_order(points: Sequence[EvalPoint], C: int, entry: Entry, table: Table) -> None:
    if points and C <= points[-1].rollouts:
        how = "is there twice" if C == points[-1].rollouts else f"comes after {points[-1].rollouts}"
        raise InputError(
            f"{table.source}, {entry.row.place}: compute of {C} rollouts {how}; expected rollouts that rise from evaluation to "
            "evaluation. Remove one point, or tell the runs apart with --map run=COLUMN."
        )


def _logged_tokens(points: Sequence[EvalPoint], entry: Entry, table: Table, bound: Bound) -> int:
    if "tokens" not in entry.values:
        whole("tokens", entry.blank.get("tokens", entry.row), table, bound, 0)
    found, before = int(entry.values["tokens"]), points[-1].tokens if points else 0
    if found < before:
        raise InputError(f"{where(entry.row, table, bound, 'tokens')} falls from {before} to {found}; expected a sum so far. Mend it.")
    return found


def _hours(entry: Entry, hours: Sequence[float], table: Table, bound: Bound) -> float:
    if "device_hours" not in entry.values:
        number("device_hours", entry.blank.get("device_hours", entry.row), table, bound)
    found = float(entry.values["device_hours"])
    if found < (hours[-1] if hours else 0):
        place = where(entry.row, table, bound, "device_hours")
        raise InputError(f"{place} is {found:g} after {hours[-1] if hours else 0:g}; expected hours >= 0 that rise. Mend it.")
    return found


def _said(stretch: Sequence[Entry], stray: int, points: Sequence[EvalPoint], cell: Cell, bound: Bound) -> list[str]:
    """What a reader of the ledger should know of how it was made."""
    said = []
    if stretch:
        said.append(f"{len(stretch)} training rows after the last evaluation are left out")
    if stray:
        said.append(f"{stray} steps have a further metric without the main one, and are left out")
    if "rollouts" in bound and "step" in bound:
        off = [p for p in points if p.rollouts != p.M * cell.B]
        if off:
            at = f"{off[0].rollouts} at step {off[0].M}, not {off[0].M} x {cell.B_p} x {cell.n} = {off[0].M * cell.B}"
            said.append(f"rollouts are taken from the log, though they are not steps x B_p x n ({at})")
    return said
