"""A number in the name of a run or of its log, such as 8 in run-n8.jsonl, by a pattern of --map
(n=n{})."""

import re
from pathlib import Path
from typing import NoReturn

from isojax.core.errors import InputError
from isojax.runs.logs.log_table import LogTable
from isojax.runs.logs.typed_options import leave_out_option

# by which torch and transformers name a folder
_DATE_AND_HOST = re.compile(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_")


def number_in_names(field: str, text: str, table: LogTable) -> int:
    """The number that the name of a run or log has where a pattern of --map has {}.

    8 for a log called run-n8.jsonl, with `field` "n" and `text` "n{}". InputError where there is
    none, or more than one.

    It is looked for in the name of the table's run, then in the name of its file, then in the path
    of the file (8 in runs/n8/log.jsonl). The path is not tried where a longer word of the names
    ends as the pattern does (gen4, for n{}): the user may have meant that word."""
    template = re.escape(text).replace(r"\{\}", r"(\d+)(?!\d)", 1)
    # A pattern begins where a word does: n{} finds nothing in gen4. One that begins with the number
    # finds 8 in "run-8", and nothing in "n8".
    if text[0].isalpha():
        before = "(?<![A-Za-z])"
    elif text[0] in "{0123456789":
        before = "(?<![A-Za-z0-9])"
    else:
        before = ""
    pattern = re.compile(before + template)

    names = [
        name
        for name in (table.run, Path(table.source).name)
        if name and not _DATE_AND_HOST.match(name)
    ]

    # The first of the names that has a number counts, else the path.
    numbers: set[str] = set()
    for name in names:
        numbers = numbers or set(pattern.findall(name))
    ends_a_word = any(re.search(template, name, re.IGNORECASE) for name in names)
    if not numbers and not ends_a_word:
        numbers = set(pattern.findall(table.source))

    if len(numbers) != 1:
        _refuse_names(field, text, table, sorted(numbers), names[0] if names else "")
    return int(numbers.pop())


def _refuse_names(
    field: str, text: str, table: LogTable, numbers: list[str], name: str
) -> NoReturn:
    """InputError where a pattern of --map (`text`, for `field`) finds no number, or several.

    numbers: those that it finds; name: the name of the run or file, where the number was expected.
    The message lists the words of that name that end in a number ("gen4"), so that the user can
    correct the pattern.
    """
    words = re.findall(r"[A-Za-z]+[=: ]*\d+", name)
    elsewhere = ", ".join(words) or "no word with a number"
    numbers_text = ", ".join(numbers) or "no number"

    hint = ""
    if not table.one_run and not table.run:
        hint = (
            " Where a column names the runs, add --map run=COLUMN. "
            "Where each column is a run: --map 'reward=*'."
        )
    if table.run:
        hint += _pattern_hint(field, table.run) or (
            f" Where it is no run of the sweep: {leave_out_option(table.run, [table.source])}; "
            "where no name has it, a table of it in place of this option: "
            f"--settings TABLE (run,{field})."
        )
    raise InputError(
        where=f"--map {field}={text}",
        found=f"{table.label} has {numbers_text} there, and in its name {elsewhere}",
        expected=f"one, as {field}{{}} finds 8 in {field}8.jsonl or run-{field}8-a.jsonl",
        fix=hint.strip(),
    )


def _pattern_hint(field: str, name: str) -> str:
    """The pattern that finds the one number in a run's name; "" where it has several, or none."""
    numbers = list(re.finditer(r"(?<![\d.])\d+(?![\d.])", name))
    if len(numbers) != 1:
        return ""
    (number,) = numbers
    word_before = re.search(r"[A-Za-z]*[=: _-]?$", name[: number.start()])
    word_after = re.match(r"[A-Za-z]*", name[number.end() :])
    before = word_before[0] if word_before else ""
    after = word_after[0] if word_after and not before else ""
    return f" For this name: --map '{field}={before}{{}}{after}'."
