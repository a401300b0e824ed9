"""Tables, held as columns, whose rows know where in a file they stand."""

import difflib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from isojax.core.columns import ABSENT, Column
from isojax.core.limits import MAX_COLUMNS, MAX_NAME

MAX_LISTED = 20  # values and columns that a message lists


@dataclass(frozen=True)
class DataRow:
    """A row of a table, and its place."""

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
    """A RowSource: the columns of a file, and where in it each row begins.

    line_numbers: int[rows], from 1. columns: by name, each of as many rows. unit: what the numbers
    count, such as "step", where it is not lines.
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
    """A RowSource of rows as they are; a column is gathered from them when it is asked for."""

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
        """The rows of a source that have these numbers, in this order; None: all."""
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
        """A table of the rows of one file, which are taken apart into columns.

        Of a million rows, no more than one is held at a time. So a row's place is not kept as it
        is, but made again: "line 12" of index 11, or "step 12", with the first word of the last
        row's position. All rows must have the same source, and positions that fit this.
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
            # `pop` frees the list's memory. `values` are in the order of these rows, as
            # `Column.of` wants them.
            is_present[rows_of_cells.pop(name)] = True
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
        """The rows by their keys: a table of the rows of each, in their order.

        keys: one for each row, such as the cells of a column. Keys come in the order of their first
        rows; {} for a table without rows.
        """
        code_of_key: dict[Hashable, int] = {}
        codes = np.fromiter(
            (code_of_key.setdefault(key, len(code_of_key)) for key in keys), np.int64, len(self)
        )

        # A stable sort by code puts the rows of a key side by side, and leaves them in their order.
        order = np.argsort(codes, kind="stable")
        # Where in `order` the rows of the second key begin, of the third, and so on.
        starts = np.searchsorted(codes[order], np.arange(1, len(code_of_key)))
        rows_by_code = np.split(order, starts)
        # Of no rows, the split has one part, and there is no key.
        return {key: self.take(rows) for key, rows in zip(code_of_key, rows_by_code, strict=False)}

    def with_columns(self, columns: Mapping[str, Column]) -> "RowTable":
        """The same rows, with their places, and with these columns alone in place of theirs, each
        of the length of this table."""
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


def nearest_names(name: str, names: Sequence[str], cutoff: float = 0.0) -> list[str]:
    """A list of the one of `names` that is most alike; [] where none is as alike as `cutoff`.

    names: at least one. cutoff: from 0 (any name will do) to 1 (an equal one). At most MAX_COLUMNS
    names, and none of more than MAX_NAME characters, are looked at, because the time to compare
    grows with the product of the lengths.
    """
    short_names = [other for other in names[:MAX_COLUMNS] if len(other) <= MAX_NAME]
    candidates = short_names or [names[0][:MAX_NAME]]
    return difflib.get_close_matches(name[:MAX_NAME], candidates, n=1, cutoff=cutoff)


def list_some(texts: Sequence[str]) -> str:
    """The first MAX_LISTED of some texts, for a message: "a, b and 3 more"."""
    more = f" and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else ""
    return ", ".join(texts[:MAX_LISTED]) + more
