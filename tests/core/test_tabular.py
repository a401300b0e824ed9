"""Tables: three formats read alike, and whatever cannot be used is refused with its file and
line."""

import json

import pytest

from isojax.core.table_checks import check_unique_rows, filter_rows, float_column
from isojax.core.table_files import read_table
from tests.refusals import refused


def write(tmp_path, text, name="points.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "n,rollouts,set\n8,1e5,easy\n\n16,250000,hard\n"),
        ("a.tsv", "n\trollouts\tset\r\n8\t1e5\teasy\r\n\r\n16\t250000\thard\r\n"),
        ("a.txt", "\ufeffn;rollouts;set\n8; 1e5;easy\n\n16;250000;hard"),
        (
            "a.jsonl",
            '{"n": 8, "rollouts": 1e5, "set": "easy"}\n\n'
            '{"n": "16", "rollouts": 250000, "set": "hard", "more": {"x": 1}}\n',
        ),
    ],
)
def test_formats_read_alike(tmp_path, name, text):
    table = read_table(write(tmp_path, text, name))
    assert float_column(table, "n").tolist() == [8, 16] and float_column(
        table, "rollouts"
    ).tolist() == [1e5, 250000]
    assert table.rows[0].index in (0, 1) and table.rows[1].index == table.rows[0].index + 2
    assert [row.position for row in table.rows] == [f"line {row.index + 1}" for row in table.rows]
    assert float_column(filter_rows(table, ["set=hard"]), "n").tolist() == [16]


def test_where_takes_numbers_as_numbers_and_joins_filters(tmp_path):
    table = read_table(
        write(tmp_path, "n,B_p,set\n8,32,easy\n16,32.0,easy\n32,64,easy\n64,32,hard\n")
    )
    assert float_column(filter_rows(table, ["B_p=32", "set=easy"]), "n").tolist() == [8, 16]
    assert float_column(filter_rows(table, ["n=8", "n=64"]), "n").tolist() == [8, 64]


def test_a_quoted_cell_over_two_lines_keeps_the_lines_after_it_right(tmp_path):
    table = read_table(write(tmp_path, 'n,note\n8,"two\nlines"\nx,\n'))
    with refused(where="points.csv, line 4: n"):
        float_column(table, "n")


REFUSED = {
    "empty": "",
    "blank": "\n \n",
    "header only": "n,rollouts\n",
    "no header": "8,100\n16,200\n",
    "twice": "n,n\n8,9\n",
    "ragged": "n,rollouts\n8,100\n16,250,000\n",
    "not UTF-8": b"n,rollouts\n8,100\n16,\xff\n",
    "quotes": 'n,rollouts\n8,100\n16,"20\n',
    "half an object": '{"n": 8}\n{"n": ',
    "a list": '{"n": 8}\n[1]',
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_cannot_be_read(tmp_path, case):
    text = REFUSED[case]
    with refused(where="points.csv") as e:
        read_table(write(tmp_path, text))
    assert "points.csv" in str(e.value)


def test_a_file_that_is_not_there(tmp_path):
    with refused(where="none.csv"):
        read_table(tmp_path / "none.csv")


@pytest.mark.parametrize(
    "given", ["250k", "1_000", "'1,000'", "12 s", "0x10", "true", "eight", "1e", "--1", "٣"]
)
def test_no_plain_number(tmp_path, given):
    table = read_table(write(tmp_path, f"n;rollouts\n8;1\n{given};2\n"))
    with refused(where="points.csv, line 3: n"):
        float_column(table, "n")


@pytest.mark.parametrize("given", ["nan", "NaN", "inf", "-Infinity", "1e999"])
def test_not_finite(tmp_path, given):
    with refused(where="points.csv, line 2: n"):
        float_column(read_table(write(tmp_path, f"n,rollouts\n{given},2\n")), "n")


@pytest.mark.parametrize("given", [json.dumps(10**400), "NaN", "Infinity"])
def test_not_finite_in_json(tmp_path, given):
    with refused(where="points.csv, line 1: n"):
        float_column(read_table(write(tmp_path, f'{{"n": {given}}}')), "n")


@pytest.mark.parametrize("given", ["true", "null", "[1]", '"8 "'])
def test_json_values(tmp_path, given):
    table = read_table(write(tmp_path, f'{{"n": {given}}}'))
    if given == '"8 "':
        assert float_column(table, "n").tolist() == [8]
        return
    with refused(where="points.csv, line 1: n"):
        float_column(table, "n")


def test_ranges_empty_cells_columns_and_filters(tmp_path):
    table = read_table(write(tmp_path, "n,rollouts,set\n0.5,0,easy\n8,,hard\n8,5,hard\n"))
    for act, where in (
        (lambda: float_column(table, "n", minimum=1), "points.csv, line 2: n"),
        (
            lambda: float_column(table, "rollouts", exclusive_minimum=0),
            "points.csv, line 2: rollouts",
        ),
        (
            lambda: float_column(filter_rows(table, ["n=8"]), "rollouts"),
            "points.csv, line 3: rollouts",
        ),
        (lambda: float_column(table, "rolouts"), "points.csv, line 1"),
        (lambda: filter_rows(table, ["sett=easy"]), "points.csv, line 1"),
        (lambda: filter_rows(table, ["set=medium"]), "points.csv: --where set=medium"),
        (lambda: filter_rows(table, ["set"]), "--where"),
    ):
        with refused(where=where):
            act()


def test_duplicates_name_both_lines(tmp_path):
    table = read_table(write(tmp_path, "n,rollouts\n8,100\n8,200\n8.0,1e2\n"))
    with refused(where="points.csv, line 4"):
        check_unique_rows(table, ["n", "rollouts"])
