"""What people read in a terminal: a console that no text can harm, and tables that lose nothing in
a narrow one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import HEAVY_HEAD, Box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from isojax.core.terminal import clean, printable, shorten


class SafeConsole(Console):
    """A console that prints every text as `printable` does; markup is read, and values in it are
    escaped."""

    def __init__(self, stderr: bool = False):
        super().__init__(stderr=stderr, highlight=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        # shortened when markup is read already, so that no tag is cut in two
        return shorten(super().render_str(clean(text), **options))


@dataclass(frozen=True)
class TableLayout:
    """How a table of a width is drawn."""

    box: Box | None
    has_headings_on_one_line: bool
    has_texts_on_one_line: bool


# From the widest to the narrowest.
LAYOUTS = (
    TableLayout(HEAVY_HEAD, has_headings_on_one_line=True, has_texts_on_one_line=True),
    TableLayout(HEAVY_HEAD, has_headings_on_one_line=False, has_texts_on_one_line=True),
    TableLayout(None, has_headings_on_one_line=False, has_texts_on_one_line=True),
    TableLayout(HEAVY_HEAD, has_headings_on_one_line=False, has_texts_on_one_line=False),
    TableLayout(None, has_headings_on_one_line=False, has_texts_on_one_line=False),
)
ANY_WIDTH = 10_000


class TextTable:
    """A table of texts that come from anywhere, which loses nothing in a narrow terminal.

    The first `text_columns` columns are text, as the last one may be, the others right-aligned
    numbers. Where it is too wide, its headings are broken, then its texts; where that does not
    suffice, each row is a line that names its values."""

    def __init__(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str | Text]],
        text_columns: int = 0,
        last_is_text: bool = False,
    ):
        self.title = printable(title)
        self.columns = [printable(column) for column in columns]
        self.rows = [[_as_text(cell) for cell in row] for row in rows]
        self.text_indices = set(range(text_columns))
        if last_is_text:
            self.text_indices.add(len(columns) - 1)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """What rich prints of the table: the first of LAYOUTS that fits the terminal's width, else
        each row as a line of "HEADING VALUE, ..."."""
        if self.title:
            yield Text(self.title, "table.title")

        for layout in LAYOUTS:
            table = self._table(layout)
            # its width with every text on one line, and with texts broken wherever they may be
            width = Measurement.get(console, options.update(max_width=ANY_WIDTH), table)
            needed = width.maximum if layout.has_texts_on_one_line else width.minimum
            if needed <= options.max_width:
                yield table
                return

        for row in self.rows:
            named_cells = zip(self.columns, row, strict=True)
            yield Text(", ").join(
                Text.assemble(f"{name} " if name else "", cell) for name, cell in named_cells
            )

    def _table(self, layout: TableLayout) -> Table:
        """The table in one layout, for rich to draw. A column of numbers is as wide as its widest
        number or heading (its widest word, where headings may be broken), so that no number is cut;
        the width of a column of texts is left to rich."""
        table = Table(box=layout.box, pad_edge=layout.box is not None)
        for i, heading in enumerate(self.columns):
            if i in self.text_indices:
                table.add_column(Text(heading), justify="left", overflow="fold")
                continue

            # numbers and the words of headings are never broken
            unbroken = [heading] if layout.has_headings_on_one_line else heading.split()
            unbroken += [str(row[i]) for row in self.rows]
            width = max(map(cell_len, unbroken), default=0)
            table.add_column(Text(heading), justify="right", width=width, overflow="fold")

        for row in self.rows:
            table.add_row(*row)
        return table


def _as_text(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(printable(cell))
