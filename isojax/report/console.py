"""What people read in a terminal: a console that no text can harm, and tables that lose nothing in a narrow one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import HEAVY_HEAD, Box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from isojax.core.terminal import escape_controls, printable, shorten


class SafeConsole(Console):
    """A console that prints every text as `printable` does; markup is read, and values in it are escaped."""

    def __init__(self, stderr: bool = False):
        super().__init__(stderr=stderr, highlight=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return shorten(super().render_str(escape_controls(text), **options))  # no tag of the markup is cut in two


@dataclass(frozen=True)
class TextTable:
    """A table whose first `text_columns` columns are text, as the last one may be, the others right-aligned numbers.
    Where it is too wide, its headings are broken, then its text; where that does not suffice, each row is a line that
    names its values."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    text_columns: int
    last_is_text: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.title:
            yield Text(self.title, "table.title")
        wide = options.update(max_width=10_000)
        for box, keeps_headings, keeps_text in self._layouts():
            table = self._table(box, keeps_headings)
            width = Measurement.get(console, wide, table)
            if (width.maximum if keeps_text else width.minimum) <= options.max_width:
                yield table
                return
        for row in self.rows:
            named_cells = zip(self.columns, row, strict=True)
            yield Text(", ").join(Text.assemble(f"{name} " if name else "", cell) for name, cell in named_cells)

    def _layouts(self) -> Iterator[tuple[Box | None, bool, bool]]:
        """From the widest to the narrowest: (lines, headings on one line, texts on one line)."""
        yield HEAVY_HEAD, True, True
        yield HEAVY_HEAD, False, True
        yield HEAVY_HEAD, False, False
        yield None, False, False

    def _table(self, box: Box | None, keeps_headings: bool) -> Table:
        table = Table(box=box, pad_edge=box is not None)
        for i, heading in enumerate(self.columns):
            words = [heading] if keeps_headings else heading.split()
            width = max(map(cell_len, [*words, *(str(row[i]) for row in self.rows)]), default=0)
            is_text = i < self.text_columns or (self.last_is_text and i == len(self.columns) - 1)
            justify = "left" if is_text else "right"
            table.add_column(heading, justify=justify, width=None if is_text else width, overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


def text_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    text_columns: int = 0,
    last_is_text: bool = False,
) -> TextTable:
    """A table of texts that come from anywhere: nothing in them is markup."""

    def plain(cell: str | Text) -> Text:
        return cell if isinstance(cell, Text) else Text(printable(cell))

    plain_rows = [[plain(cell) for cell in row] for row in rows]
    return TextTable(
        printable(title), [printable(column) for column in columns], plain_rows, text_columns, last_is_text
    )
