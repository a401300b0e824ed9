"""A log before it is read: its files, its name, and its first lines, by which a format knows its
own."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from isojax.core.csv_header import COMMENT
from isojax.core.errors import InputError
from isojax.core.table_files import JSON_LINES_SUFFIXES, read_lines
from isojax.runs.logs.log_table import COLUMNS_OF_FRAME

MAX_LINES = 20_000  # that are looked at: a console log may print thousands before its first step
MAX_CONTENT_LINES = 40  # enough to know what kind of table or JSON a text is


@dataclass(frozen=True)
class LogFiles:
    """The files of one log: one, or those of all tags of a run."""

    files: tuple[Path, ...]
    source: Path  # what messages call the log


@dataclass(frozen=True)
class LogRecords:
    """The records of a binary log, without one that is torn at its end."""

    records: list[bytes]
    is_torn: bool


class LogStart:
    """A file's name and first lines, which are read when they are asked for."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def name(self) -> str:
        """The file's name, as it is unpacked."""
        return self.path.name.removesuffix(".gz")

    def ends_in(self, suffixes: Sequence[str]) -> bool:
        """Whether its name ends in one of these, such as ".csv", whatever its case, or with .gz."""
        return self.path.name.lower().removesuffix(".gz").endswith(tuple(suffixes))

    def lines(self) -> Iterator[str]:
        """The first lines, with U+FFFD for bytes that are no UTF-8, which a console may have."""
        with suppress(InputError):  # a file that cannot be read, which its importer will refuse
            for _, text in islice(read_lines(self.path, "replace"), MAX_LINES):
                yield text

    @cached_property
    def content(self) -> tuple[str, ...]:
        """The first lines that are neither blank nor a comment, stripped; none of a file that is no
        UTF-8 text."""
        content: list[str] = []
        try:
            # To the end, though few lines are taken: a byte that is no text may come later.
            for _, text in islice(read_lines(self.path), MAX_LINES):
                has_content = text.strip() != "" and not text.startswith(COMMENT)
                if has_content and len(content) < MAX_CONTENT_LINES:
                    content.append(text.strip())
        except InputError:
            return ()
        return tuple(content)

    @property
    def head(self) -> str:
        """`content` as one text: JSON may be written over many lines."""
        return " ".join(self.content)

    @property
    def is_json_list(self) -> bool:
        """Whether it begins as one list of objects, [{..."""
        return re.match(r"\[ *\{", self.head) is not None

    @property
    def has_json_lines(self) -> bool:
        """Whether it has one object on each line, by the end of its name or by its first lines."""
        if self.ends_in(JSON_LINES_SUFFIXES):
            return len(self.content) > 0
        first_lines = self.content[:2]
        return len(first_lines) == 2 and all(text.startswith('{"') for text in first_lines)

    @property
    def is_json(self) -> bool:
        """Whether its rows are objects: a list of them, one on each line, or pandas's object of
        columns."""
        is_frame = COLUMNS_OF_FRAME.match(self.head) is not None
        return self.is_json_list or is_frame or self.has_json_lines
