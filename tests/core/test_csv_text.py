"""CSV against Python's own csv module: the same cells, on the same lines."""

import csv
import io
import random
from pathlib import Path

import pytest

from isojax.core.csv_text import parse_csv
from tests.refusals import refused

CELLS = (
    "1",
    "0.5",
    " x ",
    "",
    '"q"',
    '"two\nlines"',
    '"a""b"',
    "é\u00a0",
    'mid"quote',
    '"\r\n"',
    "\u2003",
    "n",
)


def read(text: str) -> list[tuple[str, dict[str, str]]]:
    table = parse_csv(Path("a.csv"), text)
    return [(row.position, dict(row.values)) for row in table.rows]


def reference(text: str, delimiter: str) -> list[tuple[str, dict[str, str]]]:
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter, strict=True)
    header, rows, line_number = next(reader), [], reader.line_num + 1
    for cells in reader:
        values = [cell.strip() for cell in cells]
        if any(values) and values != header:
            rows.append((f"line {line_number}", dict(zip(header, values, strict=True))))
        line_number = reader.line_num + 1
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_cells_and_lines_are_those_of_the_csv_module(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        delimiter, end = rng.choice(",;\t"), rng.choice(["\n", "\r\n"])
        header = ["n", "m", "o"][: rng.randint(2, 3)]
        lines = [delimiter.join(header)]
        for _ in range(rng.randint(1, 8)):
            other_lines = ["", " ", delimiter * (len(header) - 1), lines[0]]
            cells = delimiter.join(rng.choice(CELLS) for _ in header)
            lines.append(rng.choice(other_lines) if rng.random() < 0.2 else cells)
        text = end.join([*lines, delimiter.join("9" * len(header))]) + rng.choice(["", end])
        assert read(text) == reference(text, delimiter), text


def test_line_ends_that_windows_wrote_twice() -> None:
    assert read("n,m\r\r\n1,2\r\r\n3,4\r\r\n") == [
        ("line 2", {"n": "1", "m": "2"}),
        ("line 3", {"n": "3", "m": "4"}),
    ]


@pytest.mark.parametrize(
    "text",
    [
        'n,m\n1,"2\n3"\n4\n',
        'n,m\n"a"b,2\n',
        'n,m\n1,2\n"3,4\n5,6\n',
        'n,m\n"a ""b"" c","d\ne"\n"3,4\n5,"6"\n',
        "n,m\n1,2\n# end\n",
        "n;m\n1;2;3\n",
        "n,m\r1,2\r3,4\r",
        "n,m\n1,2\n1,000,5\n",
    ],
)
def test_refusals_name_the_line(text: str) -> None:
    with refused(where="a.csv"):
        parse_csv(Path("a.csv"), text)
