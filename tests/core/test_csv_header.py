"""Which line of a CSV names its columns, and what divides them."""

from pathlib import Path

import pytest

from isojax.core.csv_header import reject_further_headers
from isojax.core.csv_text import parse_csv
from tests.refusals import refused


@pytest.mark.parametrize(
    ("text", "columns", "line"),
    [
        ("# by a script\n#\n\nstep,reward\n0,.5\n", ["step", "reward"], 5),
        ("# from A, by B\nproblem,answer\nTwo and two,4\n", ["problem", "answer"], 3),
        ("sep=;\n# made by hand\nstep;reward\n0;.5\n", ["step", "reward"], 4),
        ("# step,reward\n0,.5\n", ["# step", "reward"], 2),  # numpy.savetxt
        ("# n = 4\n# step,reward\n0,.5\n", ["# step", "reward"], 3),
        ("#,problem\n1,Two and two\n", ["#", "problem"], 2),
        ("#id,problem\na,Who?\nb,5 and 5\n", ["#id", "problem"], 2),
        ('#id,problem\na,"Who, if not you?\nI"\n', ["#id", "problem"], 2),
        ("step|reward\n0|.5\n", ["step", "reward"], 2),
        # bars within names
        ("step,acc|math,acc|gsm8k\n0,.5,.6\n", ["step", "acc|math", "acc|gsm8k"], 2),
    ],
)
def test_the_header_and_the_line_of_the_first_row(text: str, columns: list[str], line: int) -> None:
    table = parse_csv(Path("a.csv"), text)
    assert list(table.columns) == columns
    assert table.rows[0].position == f"line {line}" and len(table.rows) == text.count(
        "\n"
    ) - line + 1 - text.count("\nI")


@pytest.mark.parametrize(
    "text",
    [
        # pandas.pivot
        ",reward,reward\nrun,n4,n8\nstep,,\n0,.1,.2\n",
        "n,4,4\nseed,0,1\nstep,,\n0,.1,.2\n",
        "step,n4,,n8,\n,s0,s1,s0,s1\n0,.1,.2,.1,.2\n",  # Excel
    ],
)
def test_columns_of_several_levels(text: str) -> None:
    with refused(where="a.csv, lines 1"):
        parse_csv(Path("a.csv"), text)


def test_a_row_of_units_below_the_header_of_a_log() -> None:
    with refused(where="a.csv, lines 1 and 2"):
        reject_further_headers("a.csv", "run,step,reward\n,(updates),(fraction)\na,0,.1\n")
    reject_further_headers("a.csv", "run,step,reward\na,0,.1\na,1,.2\n")
    # one cell that is text
    reject_further_headers("a.csv", "run,metric,step,value\na,model,,Qwen\na,acc,1,.2\n")
    reject_further_headers("a.csv", "problem,answer\nWho?,I\nWho else?,4\n")


def test_a_name_twice_above_rows_of_numbers_is_one_header() -> None:
    with refused(where="a.csv, line 1"):
        parse_csv(Path("a.csv"), "run,step,reward,reward\na,0,.1,.2\n")


@pytest.mark.parametrize(
    "text", ["| n | acc |\n|---|:-:|\n| 0 | .1 |\n", "n | acc\n-----|------\n0 | .1\n"]
)
def test_a_table_of_markdown(text: str) -> None:
    with refused(where="a.md"):
        parse_csv(Path("a.md"), text)
        reject_further_headers("a.md", text)
    assert parse_csv(Path("a.md"), "step | reward\n0 | .1\n").columns == ("step", "reward")
