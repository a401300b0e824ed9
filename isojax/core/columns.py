"""What a cell means, and a column of cells.

A column keeps each value that occurs in it once, and per row which of them it has. What a value
means (is it blank? which number is it?) is asked once a value, so that a log of a million rows is
read in seconds.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
ABSENT = -1  # the code of a row that lacks the column

_NUMBER_PATTERN = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MISSING = frozenset(("", "nan", "-nan", "none", "null", "na", "n/a", "<na>", "#n/a"))
_NOT_FINITE = ("nan", "inf", "infinity")


def is_blank(value: Any) -> bool:
    """Whether a cell is empty, or holds spaces alone."""
    return value is None or (isinstance(value, str) and not value.strip())


def is_missing(value: Any) -> bool:
    """Whether a cell says that there is no value.

    That is: blank, or as pandas, NumPy, R and W&B write it.
    """
    if isinstance(value, str):
        return value.strip().lower() in _MISSING
    return value is None or (isinstance(value, float) and math.isnan(value))


def parse_number(cell_value: Any) -> float | None:
    """The number in a cell; None where it holds none.

    cell_value: text of a CSV, such as " 2.5e5", or any value of JSON. True and False are no
    numbers, and neither is "1,000" or "1_000". What is written as nan or inf is NaN; a finite
    number that is too large for a float is infinite. So a caller tells "no number" (None) from "not
    finite" and from "too large".
    """
    if isinstance(cell_value, str):
        text = cell_value.strip()
        if text.lower().lstrip("+-") in _NOT_FINITE:
            return math.nan
        # Python's float takes more, such as 1_000, which no other program writes.
        return float(text) if _NUMBER_PATTERN.fullmatch(text) else None

    if isinstance(cell_value, bool) or not isinstance(cell_value, (int, float)):
        return None
    try:
        return float(cell_value)
    except OverflowError:  # of an integer with more than 308 digits
        return math.inf


def rows_where(mask: Mask) -> list[int]:
    """The numbers of the rows for which a mask holds."""
    return np.flatnonzero(mask).tolist()


class CellValues:
    """The values that occur in a column, each once or more, and what is asked of each.

    Columns that share it have codes into the same `values`, whose order must not change.
    """

    def __init__(self, load: Callable[[], Sequence[Any]]):
        """`load` returns the values; it is called once, when they are first asked for."""
        # A file's texts become Python's where somebody asks for them: most columns are no field.
        self._load = load
        self._answers: dict[Callable[[Any], bool], Mask] = {}

    @cached_property
    def values(self) -> Sequence[Any]:
        return self._load()

    @cached_property
    def numbers(self) -> NDArray[np.float64]:
        """float[values], by `parse_number`, and NaN where that finds no number."""
        numbers = map(parse_number, self.values)
        return np.array([math.nan if number is None else number for number in numbers], np.float64)

    def ask(self, question: Callable[[Any], bool]) -> Mask:
        """bool[values]: the answer to a question for each value, such as `is_blank`.

        Each question is asked once, also where many runs share a column. It is known by the
        function itself: a new lambda, or a new partial, is another question.
        """
        if question not in self._answers:
            answers = map(question, self.values)
            self._answers[question] = np.fromiter(answers, np.bool_, len(self.values))
        return self._answers[question]


class Column:
    """The cells of a column: `codes` int[rows] says which of the values each row has, or ABSENT."""

    def __init__(self, codes: NDArray[np.integer], cells: CellValues):
        self.codes = codes
        self.cells = cells

    @classmethod
    def constant(cls, value: Any, row_count: int) -> "Column":
        """One with the same value in every row."""
        return cls(np.zeros(row_count, np.int32), CellValues(lambda: [value]))

    @classmethod
    def absent(cls, row_count: int) -> "Column":
        """One that every row lacks."""
        return cls(np.full(row_count, ABSENT, np.int32), CellValues(list))

    @classmethod
    def of(cls, values: Sequence[Any], is_present: Mask | None = None) -> "Column":
        """A value for each row, or for each that `is_present`, bool[rows]."""
        if is_present is None:
            codes = np.arange(len(values), dtype=np.int32)
        else:
            # The k-th row that is present has the k-th value.
            codes = np.where(is_present, np.cumsum(is_present) - 1, ABSENT).astype(np.int32)
        return cls(codes, CellValues(lambda: values))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> Any:
        """A row's cell; None where the row lacks the column."""
        code = self.codes[row]
        return None if code == ABSENT else self.cells.values[code]

    def __iter__(self) -> Iterator[Any]:
        """Every row's cell, as `__getitem__` gives it."""
        values = self.cells.values
        return (None if code == ABSENT else values[code] for code in self.codes.tolist())

    def take(self, rows: NDArray[Any]) -> "Column":
        """The cells of some rows, by their numbers or by a mask."""
        return Column(self.codes[rows], self.cells)

    def where(self, is_kept: Mask) -> "Column":
        """The column without the cells of the rows that are not kept: these then lack it. The
        number of rows stays. is_kept: bool[rows]."""
        return Column(np.where(is_kept, self.codes, ABSENT), self.cells)

    def or_else(self, value: Any) -> "Column":
        """The column with this value in the rows that lack it.

        The value comes after those that there are, so codes of the old column are codes of the same
        values in the new one.
        """
        new_code = len(self.cells.values)
        codes = np.where(self.is_present, self.codes, new_code)
        return Column(codes, CellValues(lambda: [*self.cells.values, value]))

    @property
    def is_present(self) -> Mask:
        """bool[rows]"""
        return self.codes != ABSENT

    @property
    def is_blank(self) -> Mask:
        """bool[rows]; a row that lacks the column is blank in it."""
        return self._by_row(self.cells.ask(is_blank), True)

    @property
    def is_missing(self) -> Mask:
        """bool[rows]; a row that lacks the column is missing in it."""
        return self._by_row(self.cells.ask(is_missing), True)

    @property
    def numbers(self) -> NDArray[np.float64]:
        """float[rows]; NaN where a cell holds no number."""
        return self._by_row(self.cells.numbers, math.nan)

    def ask(self, question: Callable[[Any], bool]) -> Mask:
        """bool[rows]; False where a row lacks the column.

        The question is asked once for each value.
        """
        return self._by_row(self.cells.ask(question), False)

    def _by_row(self, answers: NDArray[Any], of_absent: Any) -> NDArray[Any]:
        """The answer for each row: of `answers`, [values], that of its value; `of_absent` where the
        row lacks the column."""
        if len(answers) == 0:  # Then nothing can be indexed, not even for a row that is absent.
            return np.full(len(self), of_absent, answers.dtype)
        # ABSENT, which is -1, takes the last answer there, and np.where replaces it.
        return np.where(self.is_present, answers[self.codes], of_absent)
