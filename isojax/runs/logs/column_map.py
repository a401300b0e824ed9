"""The column of each field in a log, and how a field's value is read from a row.
column_detection.py decides which column is which field."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from isojax.core.columns import Column, Mask, is_blank, parse_number, rows_where
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT, MAX_NUMBER
from isojax.core.nouns import RewardSums
from isojax.core.table_checks import check_number
from isojax.core.tabular import DataRow, RowTable, nearest_names
from isojax.runs.logs.log_table import FIELD_HELP, STEP_FIELDS, LogTable
from isojax.runs.logs.reward_rounding import clip_rounding

# The lowest value of each field that is a whole number.
LOWEST_VALUES = {
    "rollouts": 0,
    "step": 0,
    "tokens": 0,
    "seed": 0,
    "n": 1,
    "B_p": 1,
    "B": 1,
    "samples": 1,
    "devices": 1,
}
# Fields for further metrics: metric:NAME for validation (avg@4 is short for metric:avg@4), and
# train:NAME for training.
METRIC_PREFIXES = ("metric:", "train:")
METRIC_AT_K = re.compile(r"(avg|best|worst|pass)@[1-9]\d*")
NOT_LOGGED_HINT = "Correct it; where nothing was logged, write NaN."
_RUN_SETTINGS = ("n", "B_p", "B")
_MEAN_AT_K = re.compile(r"(?:mean|avg)@([1-9]\d*)$")

# "1.000" is 1 or 1000. That a log's points are decimal points can be seen where one of its numbers
# has a point that cannot divide thousands: 0.000, or four digits before it.
DOT_OF_THOUSANDS = re.compile(r"\s*[1-9]\d{0,2}(\.\d{3})+\s*")
_DECIMALS = re.compile(r"\s*(0|\d{4,})\.\d{3}\s*")
TWO_MEANINGS = "the point may divide thousands or decimals"
WITHOUT_POINT = "a whole number, without a point"


def _may_divide_thousands(value: Any) -> bool:
    return isinstance(value, str) and DOT_OF_THOUSANDS.fullmatch(value) is not None


def _has_decimals(value: Any) -> bool:
    return _DECIMALS.fullmatch(str(value)) is not None


def is_validation(field: str) -> bool:
    return field in ("reward", "counts") or field.startswith("metric:")


def is_training(field: str) -> bool:
    return field in ("train_reward", "response_length") or field.startswith("train:")


@dataclass(frozen=True)
class ColumnMap:
    """A log's table, and where each field's value is found: in a column, in the log's config, or a
    number of the user's map."""

    table: LogTable
    columns: Mapping[str, str]  # field -> column
    constants: Mapping[str, float | int]  # field -> the number that holds for the whole log
    detected: frozenset[str]  # the fields in `columns` that no --map names

    def __contains__(self, field: str) -> bool:
        return field in self.columns or field in self.constants

    @property
    def mapped(self) -> frozenset[str]:
        """The fields in `columns` that a --map names."""
        return frozenset(self.columns) - self.detected

    @property
    def clock_field(self) -> str:
        """The field by which the rows of a run are ordered."""
        return "step" if "step" in self.columns else "rollouts"

    @property
    def metric_fields(self) -> list[str]:
        return [field for field in self.columns if is_validation(field) or is_training(field)]

    @property
    def step_columns(self) -> list[str]:
        """The columns that have one value of each step: metrics, its seconds and its sampled
        batches."""
        return [
            self.columns[field]
            for field in (*self.metric_fields, *STEP_FIELDS)
            if field in self.columns
        ]

    @property
    def main_metric(self) -> str:
        """The validation metric that makes a row an evaluation: `reward`, else `counts`, else the
        first further one."""
        for field in ("reward", "counts"):
            if field in self.columns:
                return field
        return next(filter(is_validation, self.columns))

    @property
    def validation_fields(self) -> list[str]:
        """The main metric, which is fitted by default, and the others."""
        names = filter(is_validation, self.columns)
        return sorted(names, key=lambda name: name != self.main_metric)

    def ledger_name(self, field: str) -> str:
        """A metric's name in the ledger: NAME of metric:NAME, else the reward's column, with avg@k
        for mean@k."""
        if field != "reward":
            other_names = {"counts": "correct counts", "train_reward": "reward"}
            return other_names.get(field, field.removeprefix("metric:").removeprefix("train:"))
        match = _MEAN_AT_K.search(self.columns[field])
        return f"avg@{match[1]}" if match else self.columns[field]

    def cell_value(self, field: str, row: DataRow) -> Any:
        """What a row, or else the log, has for a field; None where neither has it."""
        if field in self.constants:
            return self.constants[field]
        column = self.columns.get(field)
        return None if column is None else row.values.get(column, self.table.config.get(column))

    def cells(self, field: str, rows: RowTable) -> Column:
        """`cell_value` of every row."""
        if field in self.constants:
            return Column.constant(self.constants[field], len(rows))
        name = self.columns.get(field)
        if name is None:
            return Column.absent(len(rows))
        column = rows.column(name)
        is_everywhere = name not in self.table.config or column.is_present.all()
        return column if is_everywhere else column.or_else(self.table.config[name])

    def describe_cell(self, field: str, row: DataRow) -> str:
        """ "runs.csv, line 7: reward (column val/acc)"; where each column is a run, its run too."""
        names = []
        column = self.columns.get(field, field)
        if column != field:
            names.append(f"column {column}")
        if self.table.run and self.table.is_export and self.table.one_run:
            names.append(f"run {self.table.run}")
        in_brackets = f" ({', '.join(names)})" if names else ""
        return f"{row.location}: {field}{in_brackets}"

    def is_unlogged(self, field: str, rows: RowTable) -> Mask:
        """bool[rows]: where neither a row nor the log has a value of a field."""
        return self.table.is_unlogged(self.cells(field, rows))

    def read(self, field: str, row: DataRow) -> Any:
        """The value of a field in a row, checked.

        A finite number (an int for the fields of LOWEST_VALUES), a tuple for counts, a text for
        run. InputError, with file, line and column, where the cell is empty or holds something
        else.
        """
        value = self.cell_value(field, row)
        if field == "run" and not is_blank(value):
            return str(value)
        if field == "counts" and not is_blank(value):
            return self._read_counts(value, row)
        if field == "step" and isinstance(value, str):
            value = re.sub(r"/\d+$", "", value)  # ms-swift writes "10/560": 10 of 560 steps

        cell = self.describe_cell(field, row)
        expected = FIELD_HELP.get(field, "a number")
        lowest = LOWEST_VALUES.get(field)  # None of a field that need not be whole
        if lowest is not None and _may_divide_thousands(value) and not self._has_decimals(field):
            raise InputError(
                where=cell,
                found=f"given {value}, where {TWO_MEANINGS}",
                expected=WITHOUT_POINT,
            )
        if field in _RUN_SETTINGS and is_blank(value):
            remedy = self._remedy_for_settings(row)
            if remedy:
                raise InputError(
                    where=cell,
                    found="missing or empty",
                    expected=expected,
                    fix=remedy,
                )

        # In a trainer's log NaN was measured; in an exported table it may mean that nothing was
        # logged, and the message suggests to write it.
        is_metric = is_validation(field) or is_training(field)
        may_be_nan = is_metric and self.table.is_export
        number = check_number(
            value,
            cell,
            expected=expected,
            minimum=lowest,
            whole=lowest is not None,
            remedy=NOT_LOGGED_HINT if may_be_nan else "Correct it, or remove the row.",
        )
        return number if lowest is None else int(number)

    def _remedy_for_settings(self, row: DataRow) -> str:
        """Advice for a row without n, B_p or B in a log where other rows have them; "" for none.

        As when a trainer logs them once per run: the --map or the table to give. "" where no row
        has them, or where the runs have no names.
        """
        run = str(self.cell_value("run", row) or self.table.run)
        options: list[str] = []  # "" of a setting that no option can say for all rows
        for field in _RUN_SETTINGS:
            if field not in self.columns or not is_blank(self.cell_value(field, row)):
                continue
            cells = self.cells(field, self.table.cells)
            values = {str(value).strip() for value in cells if not is_blank(value)}
            if not values:
                return ""

            (value, *others) = values
            if not others and parse_number(value) is not None:
                options.append(f"{field}={value}")
            elif re.search(rf"(?<![A-Za-z]){field}\d", run):  # in the run's name
                options.append(f"{field}={field}{{}}")
            else:
                options.append("")

        if all(options):
            return (
                "Fill the cell in, or say it for all rows by "
                f"--map {','.join(options)}, or remove the row."
            )
        if not run:
            return ""
        return (
            "Fill the cell in, or say it once for each run by --settings TABLE, "
            "a table with the columns run, n and B_p, or remove the row."
        )

    def _has_decimals(self, field: str) -> bool:
        """Whether a cell of the log has a point that cannot divide thousands."""
        return bool(self.cells(field, self.table.cells).ask(_has_decimals).any())

    def read_all(self, field: str, rows: RowTable) -> list[Any]:
        """The values of a field in all rows, as `read` gives them.

        Plain numbers are read as one column, which is fast; other cells one by one, so that errors
        name their place.
        """
        if field == "counts":
            return [self.read(field, row) for row in rows]
        column = self.cells(field, rows)
        if field == "run":
            for row in rows_where(column.is_blank):
                self.read(field, rows[row])  # which refuses it
            return list(map(str, column))

        numbers = column.numbers
        lowest = LOWEST_VALUES.get(field)
        if lowest is None:
            is_plain = np.abs(numbers) <= MAX_NUMBER
            values = numbers.tolist()
        else:
            is_whole = (numbers >= lowest) & (numbers <= MAX_COUNT) & (numbers == np.trunc(numbers))
            is_plain = is_whole & ~column.ask(_may_divide_thousands)
            values = np.where(is_plain, numbers, 0).astype(np.int64).tolist()
        for row in rows_where(~is_plain):
            values[row] = self.read(field, rows[row])
        return values

    def _read_counts(self, value: Any, row: DataRow) -> RewardSums:
        """The correct rollouts of each problem, from a list or its text, "[1, 0, 4]".

        Floats where one is not whole (sums of graded rewards). InputError for anything else, and
        for numbers outside 0 to the number of samples.
        """
        samples = self.read("samples", row)
        try:
            counts: Any = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            counts = None

        is_list = isinstance(counts, list) and len(counts) > 0
        are_numbers = is_list and all(type(count) in (int, float) for count in counts)
        if are_numbers:
            counts = [
                count if isinstance(count, int) else clip_rounding(count, samples)
                for count in counts
            ]
        if not are_numbers or not all(0 <= count <= samples for count in counts):
            raise InputError(
                found=f"{self.describe_cell('counts', row)} is {str(value)[:60]!r}",
                expected=f"a list of numbers in 0..{samples}, one per problem, as [1, 0, 4]",
            )
        are_whole = all(count == int(count) for count in counts)
        return tuple(map(int if are_whole else float, counts))


def parse_field_map(map_options: Iterable[str]) -> dict[str, str]:
    """The user's --map options as field -> column or number.

    ["n=16,reward=val/acc", "metric:ood=val/ood"] becomes {"n": "16", "reward": "val/acc",
    "metric:ood": "val/ood"}. avg@4=COLUMN is short for metric:avg@4=COLUMN. InputError for another
    form, an unknown field, or a field given twice.
    """
    field_map: dict[str, str] = {}
    for option in map_options:
        # a comma within a column's name is no separator
        for assignment in re.split(r",(?=[^,=]*=)", option):
            name, equals, column = (piece.strip() for piece in assignment.partition("="))
            if not equals or not column:
                raise InputError(
                    where="--map",
                    found=f"given {assignment!r}",
                    expected="FIELD=COLUMN, as reward=val/acc, or n=16",
                )
            field = f"metric:{name}" if METRIC_AT_K.fullmatch(name) else name
            _check_field(field)
            if field in field_map:
                raise InputError(
                    where="--map",
                    found=f"{name} is given twice ({field_map[field]!r} and {column!r})",
                    expected="once",
                )
            field_map[field] = column
    return field_map


def _check_field(field: str) -> None:
    """InputError of --map where it is none."""
    is_named_metric = field.startswith(METRIC_PREFIXES) and field.partition(":")[2] != ""
    if field in FIELD_HELP or is_named_metric:
        return
    (nearest,) = nearest_names(field, list(FIELD_HELP))
    known = ", ".join([*FIELD_HELP, "metric:NAME", "train:NAME"])
    raise InputError(
        where="--map",
        found=f"no field {field!r}",
        expected=f"one of {known}",
        fix=f"The nearest is {nearest!r}.",
    )
