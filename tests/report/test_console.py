"""Tables lose nothing in a narrow terminal, and no text in them can harm one."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.markup import escape
from rich.text import Text

import isojax
from isojax.report.console import SafeConsole, TextTable

COLUMNS = ("cell", "of budget", "reward", "last evaluation", "where")
ROWS = [
    ["16x8-s0", "100%", "0.7812", "2.5 min ago", "node-1, node-2"],
    ["512x16-s1", "8%", "-", "-", "node-12"],
]


def lines(width: int, *rows: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    console = SafeConsole()
    with console.capture() as capture:
        console.print(
            TextTable("a sweep in runs/sweep", COLUMNS, rows, text_columns=1, last_is_text=True)
        )
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [120, 80, 60, 50, 40, 25])
def test_a_table_holds_at_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = lines(width, *ROWS, monkeypatch=monkeypatch)
    assert max(map(cell_len, shown)) <= width and "…" not in "".join(shown)
    words = set(re.findall(r"[^\s│┃,]+", " ".join(shown)))
    assert {word for row in ROWS for cell in row for word in re.split(r"[\s,]+", cell)} <= words


def test_its_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headings break before texts do; at last each row names its values."""
    assert lines(120, *ROWS, monkeypatch=monkeypatch)[1].startswith("┏")
    narrow = lines(60, *ROWS, monkeypatch=monkeypatch)
    assert not any("last evaluation" in line for line in narrow) and any(
        "2.5 min ago" in line for line in narrow
    )
    list_lines = lines(30, *ROWS, monkeypatch=monkeypatch)
    assert " ".join(line.strip() for line in list_lines[1:]).startswith(
        "cell 16x8-s0, of budget 100%, reward 0.7812, last evaluation 2.5 min ago, where node-1, "
        "node-2"
    )


def test_texts_are_no_markup_and_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = ["[/red]\x1b[2J", "[bold]x", "\r", "\x9b", "y" * 1_000_000]
    for width in (200, 40):
        shown = "\n".join(lines(width, hostile, monkeypatch=monkeypatch))
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown) and len(shown) < 30_000
        assert (
            "[bold]x" in shown
            and r"\x1b" in shown
            and "(1,000,000 characters)" in re.sub(r"[│\s]+", " ", shown)
        )


def test_a_value_in_a_message_cannot_end_its_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the cut of a long value falls between a bracket and what escapes it."""
    console = SafeConsole()
    console.file = io.StringIO()
    console.print(f"[yellow]note:[/yellow] {escape('[/yellow]' * 100_000)}:smile:", soft_wrap=True)
    console.print(Text("plain"))
    shown = console.file.getvalue()
    assert shown.startswith("note: [/yellow][/yellow]") and shown.endswith(
        "[/yellow]:smile:\nplain\n"
    )
    assert len(shown) < 5000


def test_everything_that_is_printed_passes_it() -> None:
    """No module makes a console or a table of its own, or writes to standard error without
    `printable`."""
    other_ways = re.compile(
        r"(?<![\w.])(Console|Table)\(|print\((?!printable|[^\n]*printable)[^\n]*file=sys\.stderr"
    )
    package = Path(isojax.__file__).parent
    sources = {str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")}
    assert [
        name
        for name, text in sources.items()
        if name != "report/console.py" and other_ways.search(text)
    ] == []
