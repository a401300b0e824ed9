"""Texts from anywhere, made harmless to a terminal."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from isojax.core.terminal import MAX_CHARACTERS, note, printable, warn


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("a\rb\x00c\x08\x7f\x9b1m", r"a\rb\x00c\x08\x7f\x9b1m"),
        ("file-\udcff.jsonl", r"file-\udcff.jsonl"),
        ("abc\u202egnp.exe\u2028", r"abc\u202egnp.exe\u2028"),
        ("avg@4: é, 日本, 😀,\ta tab\nand a line", "avg@4: é, 日本, 😀,\ta tab\\nand a line"),
        (ValueError("\x1b"), r"\x1b"),
    ],
)
def test_control_characters_become_escapes(text: object, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_value_loses_its_middle_and_states_its_length() -> None:
    shown = printable("given " + "x" * 5_000_000 + ", expected a number.")
    assert len(shown) < MAX_CHARACTERS + 50
    assert (
        shown.startswith("given xxx")
        and shown.endswith("xxx, expected a number.")
        and "(5,000,026 char" in shown
    )
    assert printable("x" * MAX_CHARACTERS) == "x" * MAX_CHARACTERS


def test_warnings_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    warn("\x1b")
    note("\r")
    assert capsys.readouterr().err == "warning: \\x1b\nnote: \\r\n"


def test_descriptors_that_are_closed_are_no_files() -> None:
    program = "import os; from isojax.core.terminal import guard_output; guard_output(True); "
    program += "os._exit(open('/dev/null').fileno())"
    words = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(program)} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", words], check=False).returncode >= 3
