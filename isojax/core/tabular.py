"""Tables, held as columns, whose rows know where in a file they stand.

Checks of their cells name the file, the row and the column of one that cannot be used.
"""

import difflib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from isojax.core.columns import ABSENT, Column, is_blank, parse_number, rows_where
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COLUMNS, MAX_COUNT, MAX_NAME, MAX_NUMBER
from isojax.core.number_text import number_advice

MAX_LISTED = 20  # values and columns that a message lists


@dataclass(frozen=True)
class DataRow:
    source: str  # the file, or what else holds the row, for messages
    position: str  # where the row stands in it: "line 12", or "step 40" where a format has no lines
    # column -> text from CSV, anything from JSON; a column that the row lacks is absent
    values: Mapping[str, Any]
    index: int = 0  # the row's number in the source, from 0; blank lines count

    @property
    def location(self) -> str:
        return f"{self.source}, {self.position}"


class RowSource(Protocol):
    """Where a table's rows come from.

    That is a file that was read as columns, or rows that an importer made one by one.
    """

    def __len__(self) -> int: ...

    @property
    def names(self) -> Sequence[str]: ...

    def column(self, name: str) -> Column: ...

    def place(self, row: int) -> DataRow:
        """A row's place; its values may be left out."""
        ...


class LinesOfFile:
    """The columns of a file, and where in it each row begins.

    `line_numbers`: int[rows], from 1; `unit`: what they count, where it is not lines.
    """

    def __init__(
        self,
        source: str,
        line_numbers: NDArray[np.integer],
        columns: Mapping[str, Column],
        unit: str = "line",
    ):
        self.source = source
        self.line_numbers = line_numbers
        self.columns = columns
        self.unit = unit
        self.names = tuple(columns)

    def __len__(self) -> int:
        return len(self.line_numbers)

    def column(self, name: str) -> Column:
        return self.columns[name]

    def place(self, row: int) -> DataRow:
        line_number = int(self.line_numbers[row])
        return DataRow(self.source, f"{self.unit} {line_number}", {}, line_number - 1)


class RowList:
    """Rows as they are; a column is gathered from them where somebody asks for it."""

    def __init__(self, rows: Sequence[DataRow]):
        self.rows = rows
        self.names = tuple(dict.fromkeys(name for row in rows for name in row.values))
        self._columns: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> Column:
        if name not in self._columns:
            is_present = np.fromiter((name in row.values for row in self.rows), np.bool_, len(self))
            values = [row.values[name] for row in self.rows if name in row.values]
            self._columns[name] = Column.of(values, is_present)
        return self._columns[name]

    def place(self, row: int) -> DataRow:
        return self.rows[row]


class RowTable(Sequence[DataRow]):
    """Rows of a source, as columns and, one at a time, as rows."""

    def __init__(self, source: RowSource, row_numbers: NDArray[np.integer] | None = None):
        """The rows of these numbers; None: all."""
        self._source = source
        self._is_whole = row_numbers is None
        self._row_numbers = np.arange(len(source)) if row_numbers is None else row_numbers
        self._columns: dict[str, Column] = {}

    @classmethod
    def of(cls, rows: Sequence[DataRow]) -> "RowTable":
        """Rows that an importer has made; a table as it is."""
        return rows if isinstance(rows, RowTable) else cls(RowList(rows))

    @classmethod
    def gather(cls, rows: Iterable[DataRow]) -> "RowTable":
        """The columns of the rows of one file, each at "line INDEX + 1", or the like.

        Of a million rows, no more than one is held at a time.
        """
        source = ""
        unit = "line"
        indices: list[int] = []
        cells: dict[str, list[Any]] = defaultdict(list)  # of each column, where a row has it
        rows_of_cells: dict[str, list[int]] = defaultdict(list)  # which rows these are
        for number, row in enumerate(rows):
            source = row.source
            unit = row.position.partition(" ")[0]
            indices.append(row.index)
            for name, value in row.values.items():
                cells[name].append(value)
                rows_of_cells[name].append(number)

        columns: dict[str, Column] = {}
        for name, values in cells.items():
            is_present = np.zeros(len(indices), np.bool_)
            is_present[rows_of_cells.pop(name)] = True  # and the list's memory is freed
            columns[name] = Column.of(values, is_present)

        line_numbers = np.array(indices, np.int64) + 1
        return cls(LinesOfFile(source, line_numbers, columns, unit))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns that any of the rows has."""
        return tuple(name for name in self._source.names if self.column(name).is_present.any())

    def column(self, name: str) -> Column:
        """The cells of a column; of a name that no row has, one that all rows lack."""
        if name not in self._columns:
            self._columns[name] = self._make_column(name)
        return self._columns[name]

    def _make_column(self, name: str) -> Column:
        if name not in self._source.names:
            return Column.absent(len(self))
        column = self._source.column(name)
        return column if self._is_whole else column.take(self._row_numbers)

    def take(self, rows: NDArray[Any]) -> "RowTable":
        """Some of the rows, by their numbers or by a mask."""
        return RowTable(self._source, self._row_numbers[rows])

    def group_by(self, keys: Iterable[Hashable]) -> dict[Any, "RowTable"]:
        """The rows by their keys, one for each row, in the order in which these appear."""
        code_of_key: dict[Hashable, int] = {}
        codes = np.fromiter(
            (code_of_key.setdefault(key, len(code_of_key)) for key in keys), np.int64, len(self)
        )

        # A stable sort by code puts the rows of a key side by side, and leaves them in their order.
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(1, len(code_of_key)))
        rows_by_code = np.split(order, starts)
        # Of no rows, the split has one part, and there is no key.
        return {key: self.take(rows) for key, rows in zip(code_of_key, rows_by_code, strict=False)}

    def with_columns(self, columns: Mapping[str, Column]) -> "RowTable":
        """The same rows with these columns alone, each of the length of this table."""
        return RowTable(_OtherColumns(self, columns))

    def place(self, row: int) -> DataRow:
        """A row whose values may be left out: its source, position, location and index."""
        return self._source.place(self._row_numbers[row])

    def __len__(self) -> int:
        return len(self._row_numbers)

    def __getitem__(self, row: Any) -> Any:
        """A row with its values, or the table of a slice of rows."""
        if isinstance(row, slice):
            return self.take(np.arange(len(self))[row])

        values = {}
        for name in self._source.names:
            column = self.column(name)
            if column.codes[row] != ABSENT:
                values[name] = column[row]
        return replace(self.place(row), values=values)


class _OtherColumns:
    """The places of a table's rows, with other columns."""

    def __init__(self, table: RowTable, columns: Mapping[str, Column]):
        self._table = table
        self._columns = columns
        self.names = tuple(columns)

    def __len__(self) -> int:
        return len(self._table)

    def column(self, name: str) -> Column:
        return self._columns[name]

    def place(self, row: int) -> DataRow:
        return self._table.place(row)


@dataclass(frozen=True)
class DataTable:
    """The rows of a file, at least one."""

    source: str  # the file, for messages
    # of JSON lines, those of any row, with dots for objects within objects
    columns: tuple[str, ...]
    rows: RowTable
    header_position: str  # the line that names the columns; of JSON lines, the first row's


def check_number(
    cell_value: Any,
    cell: str,
    *,
    expected: str = "a number",
    minimum: float | None = None,
    exclusive_minimum: float | None = None,
    whole: bool = False,
    remedy: str = "Correct it, or remove the row.",
) -> float:
    """A cell's finite number.

    InputError where it is none, or out of range: it names the `cell` and what was `expected`, with
    the `remedy` for text that nobody takes for a number.
    """
    if is_blank(cell_value):
        raise InputError(
            f"{cell} is missing or empty; expected {expected}. Fill the cell in, or remove the row."
        )

    number = parse_number(cell_value)
    if number is None:
        form = "a number such as 0.25 or 2.5e5, without unit and thousands separator"
        advice = number_advice(cell_value, whole) if isinstance(cell_value, str) else ""
        raise InputError(f"{cell} is {cell_value!r}; expected {form}.{advice or f' {remedy}'}")

    requirement = _broken_requirement(number, minimum, exclusive_minimum, whole)
    if requirement:
        meaning = "" if expected == "a number" else f" ({expected})"
        raise InputError(
            f"{cell} is {cell_value}; expected {requirement}{meaning}. "
            "Correct it, or remove the row."
        )
    return number


def _broken_requirement(
    number: float, minimum: float | None, exclusive_minimum: float | None, whole: bool
) -> str:
    """What a number should be and is not; "" where it is all that it should be."""
    largest = MAX_COUNT if whole else MAX_NUMBER
    is_too_low = minimum is not None and number < minimum

    if not math.isfinite(number):
        return "a finite number"
    if whole and (is_too_low or number != int(number)):
        return "a whole number" + ("" if minimum is None else f" of at least {minimum:g}")
    if abs(number) > largest:
        return f"a number of at most {largest:g} in size"
    if is_too_low:
        return f"at least {minimum:g}"
    if exclusive_minimum is not None and number <= exclusive_minimum:
        return f"more than {exclusive_minimum:g}"
    return ""


def check_numbers(
    column: Column,
    cell: Callable[[int], str],
    *,
    expected: str = "a number",
    minimum: float | None = None,
    exclusive_minimum: float | None = None,
    whole: bool = False,
) -> NDArray[np.float64]:
    """float[rows]: every cell of a column, checked as `check_number` does.

    `cell` names the cell of a row.
    """
    # All at once, as a column may have a million rows. A comparison with NaN, which stands for what
    # is no number, is false.
    numbers = column.numbers
    with np.errstate(invalid="ignore"):  # trunc of what is not finite
        is_usable = np.abs(numbers) <= (MAX_COUNT if whole else MAX_NUMBER)
        if minimum is not None:
            is_usable &= numbers >= minimum
        if exclusive_minimum is not None:
            is_usable &= numbers > exclusive_minimum
        if whole:
            is_usable &= numbers == np.trunc(numbers)

    # The first cell that cannot be used is refused, with the reason.
    for row in rows_where(~is_usable):
        check_number(
            column[row],
            cell(int(row)),
            expected=expected,
            minimum=minimum,
            exclusive_minimum=exclusive_minimum,
            whole=whole,
        )
    return numbers


def require_column(table: DataTable, name: str) -> str:
    """The name itself, once the table is known to have that column; InputError where it has not."""
    if name not in table.columns:
        (nearest,) = nearest_names(name, table.columns)
        raise InputError(
            f"{table.source}, {table.header_position}: no column {name!r}; "
            f"the nearest is {nearest!r}. The columns are {list_some(table.columns)}."
        )
    return name


def nearest_names(name: str, names: Sequence[str], cutoff: float = 0.0) -> list[str]:
    """The one of `names` that is most alike, or none where none is as alike as `cutoff`, from 0
    to 1.

    At most MAX_COLUMNS names, and none of more than MAX_NAME characters, are looked at: to compare
    takes the product of the lengths.
    """
    short_names = [other for other in names[:MAX_COLUMNS] if len(other) <= MAX_NAME]
    candidates = short_names or [names[0][:MAX_NAME]]
    return difflib.get_close_matches(name[:MAX_NAME], candidates, n=1, cutoff=cutoff)


def list_some(texts: Sequence[str]) -> str:
    """The first of some texts, for a message: "a, b and 3 more"."""
    more = f" and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else ""
    return ", ".join(texts[:MAX_LISTED]) + more


def float_column(
    table: DataTable,
    name: str,
    minimum: float | None = None,
    exclusive_minimum: float | None = None,
) -> NDArray[np.float64]:
    """A column as float[rows]; InputError where there is none, or at a cell that `check_number`
    refuses."""
    column = table.rows.column(require_column(table, name))

    def name_cell(row: int) -> str:
        return f"{table.rows.place(row).location}: {name}"

    return check_numbers(column, name_cell, minimum=minimum, exclusive_minimum=exclusive_minimum)


def filter_rows(table: DataTable, filters: Sequence[str]) -> DataTable:
    """The rows for which every filter COLUMN=VALUE holds; of several on one column, any of them.

    InputError where there is no such column, or no such row.
    """
    for name, wanted in _parse_filters(table, filters).items():
        wanted_keys = {_comparison_key(value) for value in wanted}
        cells = list(table.rows.column(name))
        is_wanted = np.array([_comparison_key(cell) in wanted_keys for cell in cells], np.bool_)
        if not is_wanted.any():
            available = list(dict.fromkeys(map(_cell_text, cells)))
            condition = " or ".join(f"{name}={value}" for value in wanted)
            raise InputError(
                f"{table.source}: --where {condition} matches no row; "
                f"{name} has {list_some(available)}."
            )
        table = replace(table, rows=table.rows.take(is_wanted))
    return table


def _parse_filters(table: DataTable, filters: Sequence[str]) -> dict[str, list[str]]:
    """The wanted values of each column that the filters name."""
    wanted_by_column: dict[str, list[str]] = {}
    for text in filters:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--where: given {text!r}, expected COLUMN=VALUE, such as set=easy.")
        column = require_column(table, name.strip())
        wanted_by_column.setdefault(column, []).append(value.strip())
    return wanted_by_column


def check_unique_rows(table: DataTable, key_columns: Sequence[str]) -> None:
    """InputError where two rows agree in these columns."""
    columns = [list(table.rows.column(name)) for name in key_columns]
    row_by_key: dict[tuple[str | float, ...], int] = {}

    for row, cells in enumerate(zip(*columns, strict=True)):
        key = tuple(map(_comparison_key, cells))
        earlier_row = row_by_key.setdefault(key, row)
        if earlier_row != row:
            named_cells = zip(key_columns, cells, strict=True)
            key_text = ", ".join(f"{name} = {_cell_text(cell)}" for name, cell in named_cells)
            location = table.rows.place(row).location
            earlier_position = table.rows.place(earlier_row).position
            raise InputError(
                f"{location}: {key_text}, as in {earlier_position} already; remove one of them."
            )


def _cell_text(value: Any) -> str:
    """A cell as text: of a CSV as it is, of JSON lines as JSON, and "" where it is absent."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _comparison_key(value: Any) -> str | float:
    """What makes cells equal: their number (32 equals 32.0), else their text."""
    number = parse_number(value)
    return number if number is not None and math.isfinite(number) else _cell_text(value)
