"""What people read in a terminal: a console that no text can harm, and tables that lose nothing in
a narrow one."""

from collections.abc import Iterable, Iterator, Sequence
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
        # no tag of the markup is cut in two
        return shorten(super().render_str(clean(text), **options))


# From the widest to the narrowest: (lines, headings on one line, texts on one line).
LAYOUTS = (
    *((HEAVY_HEAD, True, True), (HEAVY_HEAD, False, True), (None, False, True)),
    *((HEAVY_HEAD, False, False), (None, False, False)),
)


class TextTable:
    """A table of texts that come from anywhere. The first `text_columns` columns are text, as the
    last one may be, the others right-aligned numbers. Where it is too wide, its headings are
    broken, then its texts; where that does not suffice, each row is a line that names its
    values."""

    def __init__(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str | Text]],
        text_columns: int = 0,
        last_is_text: bool = False,
    ):
        self.title, self.columns = printable(title), [printable(column) for column in columns]
        self.rows = [
            [cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row]
            for row in rows
        ]
        self.text_indices = {*range(text_columns), *([len(columns) - 1] if last_is_text else [])}

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        if self.title:
            yield Text(self.title, "table.title")
        for box, keeps_headings, keeps_text in LAYOUTS:
            table = self._table(box, keeps_headings)
            width = Measurement.get(console, options.update(max_width=10_000), table)
            if (width.maximum if keeps_text else width.minimum) <= options.max_width:
                yield table
                return
        for row in self.rows:
            named_cells = zip(self.columns, row, strict=True)
            yield Text(", ").join(
                Text.assemble(f"{name} " if name else "", cell) for name, cell in named_cells
            )

    def _table(self, box: Box | None, keeps_headings: bool) -> Table:
        table = Table(box=box, pad_edge=box is not None)
        for i, heading in enumerate(self.columns):
            words = [heading] if keeps_headings else heading.split()
            width = max(map(cell_len, [*words, *(str(row[i]) for row in self.rows)]), default=0)
            is_text = i in self.text_indices
            justify = "left" if is_text else "right"
            table.add_column(
                Text(heading), justify=justify, width=None if is_text else width, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*row)
        return table
