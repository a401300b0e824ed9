"""The header of a CSV: which line names the columns, what divides them, and what is refused of it.

Lines above it that begin with # are comments. A second header, such as the levels that pandas
writes of columns, is refused as one.
"""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice, takewhile

from isojax.core.columns import is_blank, parse_number
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COLUMNS

DELIMITERS = ",\t;"
# It divides the columns of a header that has none of the others: a name may have a bar within it.
BAR = "|"
COMMENT = "#"
_BEFORE_HEADER = re.compile(r"\s*(sep=.\s*)?")  # blank lines, and Excel's first one
_RULE = re.compile(r"[\s|]*(:-+:?|:?-+:|-{2,})(\s*\|\s*(:-+:?|:?-+:|-{2,}))+[\s|]*")  # |---|:-:|

# How far below a header further ones are looked for.
_MOST_HEADERS = 5  # rows
_HEAD_CHARACTERS = 2**20


@dataclass(frozen=True)
class HeaderLine:
    """The line of a file that names the columns."""

    number: int  # from 1; 0 where there is none
    text: str

    @property
    def delimiter(self) -> str:
        """What divides its names: the commonest of DELIMITERS, or BAR where it has none of them."""
        delimiter = max(DELIMITERS, key=self.text.count)
        return BAR if BAR in self.text and delimiter not in self.text else delimiter


def find_header(lines: io.StringIO) -> HeaderLine:
    """The line that names the columns, below which `lines` then goes on.

    lines: a file's whole text, at its beginning. The header is the first line that is neither blank
    nor begins with #, unless the last of the # lines above it turns out to be the header
    (`_names_columns`). Its number is 0, and its text empty, where there is no line at all.
    """
    comment = HeaderLine(0, "")  # the last one so far
    end_of_comment = 0  # where in `lines` the line after it begins
    number = 0
    while text := lines.readline():
        number += 1
        if _BEFORE_HEADER.fullmatch(text):
            continue
        if text.startswith(COMMENT):
            comment = HeaderLine(number, text)
            end_of_comment = lines.tell()
            continue

        # This is the first line that is no comment: the header, or else the first row below it.
        if comment.text:
            lines.seek(end_of_comment)
            rows_below = _first_rows(comment, lines)
            lines.seek(end_of_comment)
            if _names_columns(comment, rows_below):
                return comment

            # The rows were read ahead: go to the end of this line once more.
            while _BEFORE_HEADER.fullmatch(text := lines.readline()):
                pass
        return HeaderLine(number, text)

    # There is no row: the header is the last comment, if there is one.
    lines.seek(end_of_comment)
    return comment


def _first_rows(header: HeaderLine, lines: io.StringIO) -> list[list[str]]:
    """The cells of the first rows below a header: at most _MOST_HEADERS, blank lines left out.

    lines: at the line below the header; it is read further, by an unknown amount. [] for rows that
    are no CSV.
    """
    try:
        rows = csv.reader(lines, delimiter=header.delimiter)
        return [row for row in islice(rows, _MOST_HEADERS) if row]
    except csv.Error:  # Whoever reads all rows refuses them.
        return []


def _names_columns(comment: HeaderLine, rows_below: Sequence[Sequence[str]]) -> bool:
    """Whether a line that begins with # is the header.

    As "#,problem,answer" is, or "# step,reward" by numpy.savetxt. It has to have several cells, and
    as many as each of the first two rows below it.
    """
    cell_count = comment.text.count(comment.delimiter) + 1
    if cell_count == 1 or not rows_below or any(len(row) != cell_count for row in rows_below[:2]):
        return False

    # "# from A, by B" above "problem,answer" has as many cells by chance. Then the first row is the
    # header, and numbers, if there are any, begin below it.
    begins_as_text = comment.text.startswith(f"{COMMENT} ")
    if not begins_as_text:
        return True
    first_has_number = any(map(_is_number, rows_below[0]))
    others_have_number = any(map(_is_number, chain(*rows_below[1:])))
    return first_has_number or not others_have_number


def check_header(
    source: str, header: HeaderLine, cells: Sequence[str], text_below: str
) -> tuple[str, ...]:
    """The names of the columns, of a header's cells; InputError where the header cannot be used.

    That is: one name is there twice, none is a name, or there are more than MAX_COLUMNS.

    source: the file, for messages. cells: the header's, as CSV gives them, at least one.
    text_below: the file's text below the header.
    """
    names = tuple(cell.strip() for cell in cells)
    location = f"{source}, line {header.number}"

    if len(names) > MAX_COLUMNS:
        raise InputError(
            where=location,
            found=f"{len(names):,} columns",
            expected=f"at most {MAX_COLUMNS:,}",
        )

    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        # In a header of several lines, such as pandas', a line below makes them distinct: that is
        # then refused instead.
        _refuse_levels(source, header, _first_rows(header, _head_of(text_below)))
        raise InputError(
            where=location,
            found=f"the column {duplicate!r} is there twice",
            fix="Rename or remove one.",
        )

    # JSON lines in a file of another name, or a table without a header.
    if names[0].startswith("{") or all(_is_number(name) for name in names):
        raise InputError(
            where=location,
            found=f"given {', '.join(names)}",
            expected="a header of column names",
        )
    return names


def _refuse_levels(source: str, header: HeaderLine, rows: Sequence[Sequence[str]]) -> None:
    """InputError where the columns have names of several levels, as pandas writes them.

    That is where rows of words (`_is_row_of_words`) are directly below a header, or where one of
    `rows`, the first below it, names the index alone, as pandas writes it below the levels.
    """
    _reject_markdown(source, rows)

    further_headers = len(list(takewhile(_is_row_of_words, rows)))
    for i, row in enumerate(rows):
        if _names_index_alone(row):
            further_headers = i + 1
    if further_headers:
        raise _several_headers(source, header.number, 1 + further_headers)


def _names_index_alone(row: Sequence[str]) -> bool:
    """Whether a row has a word in its first cell, and nothing in the others, of which it has some:
    ["step", "", ""]."""
    first, *others = row
    is_word = not is_blank(first) and not _is_number(first)
    return is_word and bool(others) and all(map(is_blank, others))


def reject_further_headers(source: str, text: str) -> None:
    """InputError for a table of numbers with rows of words between the header and the numbers.

    Such rows are units, or levels of names: each has words in several of the columns that hold
    numbers further down. A row of words in a single such column is taken for data, and passes.

    source: the file, for messages. text: the whole file's, of which the beginning is looked at.
    """
    lines = _head_of(text)
    header = find_header(lines)
    rows = _first_rows(header, lines)
    _reject_markdown(source, rows)

    rows_of_words = list(takewhile(_is_row_of_words, rows))
    # [] where the rows that are looked at are all of words: then no column counts, and none is
    # refused.
    first_of_numbers = rows[len(rows_of_words)] if len(rows_of_words) < len(rows) else []
    columns_of_numbers = [i for i, cell in enumerate(first_of_numbers) if _is_number(cell)]

    # Of each row of words, how many of its words are in columns of numbers.
    word_counts = [
        sum(1 for i in columns_of_numbers if i < len(row) and row[i].strip())
        for row in rows_of_words
    ]
    if word_counts and min(word_counts) > 1:
        raise _several_headers(source, header.number, 1 + len(rows_of_words))


def _reject_markdown(source: str, rows: Sequence[Sequence[str]]) -> None:
    """InputError where the first row below the header is Markdown's rule, such as |---|:-:|."""
    if rows and _RULE.fullmatch("|".join(rows[0])):
        raise InputError(
            where=source,
            found="a table of Markdown, by the rule below its header",
            expected="CSV",
            fix="Remove the rule, and the bars at the ends of the lines.",
        )


def _head_of(text: str) -> io.StringIO:
    return io.StringIO(text[:_HEAD_CHARACTERS], newline="\n")


def _is_row_of_words(cells: Sequence[str]) -> bool:
    """Whether a row holds something, and no number."""
    return not all(map(is_blank, cells)) and not any(map(_is_number, cells))


def _several_headers(source: str, first: int, count: int) -> InputError:
    """The error for a header of `count` lines, from line `first` on."""
    last = first + count - 1
    lines = f"lines {first} and {last}" if count == 2 else f"lines {first} to {last}"
    in_pandas = "df.columns = ['-'.join(map(str, names)) for names in df.columns]"
    return InputError(
        where=f"{source}, {lines}",
        found=f"given {count} header rows",
        expected="one, which names each column",
        fix=(
            "Make one line of them, or remove the units; "
            f"for columns of several levels in pandas: {in_pandas}."
        ),
    )


def _is_number(cell: str) -> bool:
    return parse_number(cell) is not None
