"""Every broken log is refused with its file and line, and says how to correct it."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import re

import pytest

from isojax.core.errors import InputError
from isojax.runs.logs.import_logs import read_logs

HEAD = "step,reward,n,B_p\n"
BROKEN = {
    "a metric that is not a number": (
        HEAD + "1,nan,4,2\n2,nan,4,2\n",
        r"line 2: reward is nan, and the run has no other value of it; expected an evaluation\.",
    ),
    "an infinite one": (HEAD + "1,inf,4,2\n", "line 2: reward is inf"),
    "text for a number": (
        HEAD + '1,.1,4,2\n2,"0,25",4,2\n',
        r"line 3: reward is '0,25'; expected a number .* export with decimal points\.",
    ),
    "percent": (
        HEAD + "1,42,4,2\n",
        r"line 2: reward is 42, expected a number in \[0, 1\].*scale=0.01",
    ),
    "a negative reward": (
        HEAD + "1,.1,4,2\n2,-.1,4,2\n",
        r"line 3: reward is -0\.1, expected a number in \[0, 1\]",
    ),
    "negative compute": (
        HEAD + "-1,.1,4,2\n",
        "line 2: step is -1; expected a whole number of at least 0",
    ),
    "half an update": (HEAD + "1.5,.1,4,2\n", r"line 2: step is 1\.5; expected a whole number"),
    "a dot that may divide thousands": (
        HEAD + "1.000,.1,4,2\n",
        r"line 2: step is 1\.000, where the point may divide",
    ),
    "two dots": (
        HEAD + "1.000.000,.1,4,2\n",
        r"line 2: step is 1\.000\.000, where .*expected a whole number, without a point",
    ),
    "less than an update": (
        "rollouts,reward,n,B_p\n0,.1,4,2\n7,.2,4,2\n",
        "line 3: 7 rollouts are less than one update's B_p n = 8; expected C in rollouts",
    ),
    "a point twice": (
        HEAD + "1,.1,4,2\n2,.1,4,2\n2,.1,4,2\n",
        r"line 4: reward: the point at step 2 is there twice \(0.1 at line 3 and 0.1 here\)",
    ),
    "compute that falls": (
        HEAD + "1,.1,4,2\n3,.1,4,2\n2,.1,4,2\n",
        r"line 4: step falls from 3 \(line 3\) to 2",
    ),
    "an empty cell": (HEAD + "1,.1,4,2\n2,,4,2\n", "line 3: reward is missing"),
    "an empty setting": (
        HEAD + "1,.1,4,2\n2,.2,,2\n",
        "line 3: n is missing or empty; expected rollouts per problem",
    ),
    "a short row": (HEAD + "1,.1,4,2\n2,.1\n", "line 3 has 2 cells, expected 4 as in the header"),
    "a long row": (
        HEAD + "1,.1,4,2,5\n",
        "line 2 has 5 cells.* A number may hold no comma: export with decimal points",
    ),
    "n changes in a run": (
        HEAD + "1,.1,4,2\n2,.2,8,2\n3,.3,4,2\n",
        "line 3: two settings are mixed in one run: n = 4.* then n = 8.*run=COLUMN",
    ),
    "B_p changes in a run": (
        HEAD + "1,.1,4,2\n2,.2,4,3\n",
        r"line 3: two settings are mixed in one run: n = 4, B_p = 2 \(from line 2\)",
    ),
    "n changes there and back in one of many runs": (
        HEAD + "1,.1,4,2\n2,.2,4,2\n1,.1,8,2\n2,.2,88,2\n3,.3,8,2\n",
        r"line 5: two settings are mixed in one run: n = 8, B_p = 2 \(from line 4\), then n = 88",
    ),
    "no rollouts per problem": (
        HEAD + "1,.1,0,2\n",
        "line 2: n is 0; expected a whole number of at least 1",
    ),
    "a quote that never ends": (HEAD + '1,".1,4,2\n2,.2,4,2\n', "line 2: not CSV"),
    "a name twice": ("step,reward,n,n\n1,.1,4,2\n", "line 1: the column 'n' is there twice"),
    "no row": (HEAD, r"no row of data below its header \(line 1\)"),
    "nothing": ("", "is empty"),
    "not UTF-8": (HEAD.encode() + b"1,.1,4,2\n2,\xff,4,2\n", "line 3: not UTF-8"),
    "UTF-16": (HEAD.encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
    "a binary file": (b"a,b\n\0\0", "line 2: a NUL byte"),
}
BROKEN_JSON = {
    "half a line": (
        '{"step": 1, "reward": 0.1}\n{"step": 2, "rew\n{"step": 3, "reward": 0.1}',
        r"line 2: not JSON .*expected a whole object",
    ),
    "a list": (
        '{"step": 1, "reward": 0.1}\n[1]\n',
        "line 2: given .* \\(list\\), expected a JSON object",
    ),
    "CSV": ("step,reward\n1,2\n", "line 1: not JSON .*expected a whole object"),
    "NaN": ('{"step": 1, "reward": NaN}\n', "line 1: reward is nan"),
    "null": ('{"step": 1, "reward": null}\n', "line 1: reward is missing"),
    "a word": ('{"step": 1, "reward": true}\n', "line 1: reward is True; expected a number"),
    "falling rollouts": (
        '{"step": 1, "rollouts": 9, "reward": 0.1}\n{"step": 2, "rollouts": 8, "reward": 0.1}\n',
        "line 2: compute of 8 rollouts comes after 9",
    ),
    "falling tokens": (
        '{"step": 1, "tokens": 9, "reward": 0.1}\n{"step": 2, "tokens": 8, "reward": 0.1}\n',
        r"line 2: tokens is 8 after 9",
    ),
    "negative device hours": (
        '{"step": 1, "device_hours": -1, "reward": 0.1}\n',
        "line 1: device_hours is -1",
    ),
    "no step": ('{"step": 1, "reward": 0.1}\n{"reward": 0.1}\n', "line 2: step is missing"),
    "very deep": ('{"a":' * 100_000 + "\n", "line 1: cannot be read"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_csv(logged, name):
    text, match = BROKEN[name]
    with pytest.raises(InputError, match=match) as e:
        logged("csv", text)
    assert "log.csv" in str(e.value)


@pytest.mark.parametrize("name", BROKEN_JSON)
def test_broken_json_lines(logged, name):
    text, match = BROKEN_JSON[name]
    with pytest.raises(InputError, match=match) as e:
        logged("jsonl", text, "n=2,B_p=2")
    assert "log.jsonl" in str(e.value)


def test_an_object_over_many_lines_and_a_packed_file(logged, tmp_path):
    with pytest.raises(
        InputError, match=r"line 1: not JSON .* Put one object on a line, in a \.jsonl\."
    ):
        logged("jsonl", '{\n "runs": [\n  {"step": 0, "reward": 0.1}\n ]\n}\n')
    (tmp_path / "log.zip").write_bytes(b"PK\x03\x04\x14\x00\x08\x00\xe3\n")
    with pytest.raises(
        InputError,
        match=r"log\.zip.* is a zip archive or an Excel file; unpack it, or save it as CSV",
    ):
        read_logs([tmp_path / "log.zip"], "csv", {})


def test_a_torn_last_line_of_json_is_left_out(logged):
    whole = '{"step": 1, "reward": 0.1}\n{"step": 2, "reward": 0.2}\n'
    result = logged("jsonl", whole + '{"step": 3, "rewa', "n=2,B_p=2")
    assert [point.M for point in result.runs[0].points] == [1, 2]
    assert any("last line is torn" in note for note in result.notes)
    verl = [{"step": M, "data": {"val-core/x/acc/mean@4": 0.1 * M}} for M in (1, 2, 3)]
    # after the end of its inner object
    result = logged("verl", "\n".join(map(json.dumps, verl))[:-1], "n=2,B_p=2")
    assert [point.M for point in result.runs[0].points] == [1, 2]
    assert not any("torn" in note for note in logged("jsonl", whole.rstrip(), "n=2,B_p=2").notes)


@pytest.mark.parametrize(
    "last", ['{"step": 2, "reward": 0.3, "note": "{"}', '{"step": 2, "reward": 0.3} ', "  "]
)
def test_a_whole_last_line_without_its_end_is_read(logged, last):
    result = logged(
        "jsonl", '{"step": 0, "reward": 0.1}\n{"step": 1, "reward": 0.2}\n' + last, "n=2,B_p=2"
    )
    assert [point.M for point in result.runs[0].points] == ([0, 1, 2] if last.strip() else [0, 1])
    assert not any("torn" in note for note in result.notes)


def test_a_packed_file_of_nothing_is_refused(tmp_path):
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(InputError, match="holds blank lines only"):
        read_logs([tmp_path / "log.jsonl.gz"], "jsonl", {})


def test_objects_without_keys(logged):
    with pytest.raises(InputError, match=r"log\.jsonl: no row holds a value"):
        logged("jsonl", "{}\n{}\n", "reward=val")


def test_a_setting_that_changes_in_a_named_run(logged):
    text = "id,step,reward,n,B_p\na,1,.1,4,2\nb,1,.1,8,2\na,2,.1,4,2\na,3,.1,8,2\n"
    with pytest.raises(
        InputError, match=r"line 5: the run 'a' \(from line 2\) changes n from 4 to 8"
    ):
        logged("csv", text, "run=id")


def test_two_runs_of_one_cell_and_seed(logged):
    text = "id,step,reward,n,B_p,seed\na,1,.1,4,2,0\nb,1,.2,4,2,0\n"
    with pytest.raises(
        InputError, match=r"two runs with B_p = 2, n = 4, seed = 0: .*line 2 and .*line 3"
    ) as e:
        logged("csv", text, "run=id")
    assert "(runs a and b); keep one, or number their seeds by --settings TABLE." in str(e.value)


def test_one_run_given_twice(logged, tmp_path):
    rows = [{"step": s, "reward": 0.1 * s} for s in (1, 2, 3)]
    with pytest.raises(InputError, match="hold the same run of B_p = 2, n = 2"):
        logged("jsonl", {"a.jsonl": rows, "b.jsonl": rows[:2]}, "n=2,B_p=2")
    with pytest.raises(InputError, match="is given twice"):
        logged("jsonl", {"a.jsonl": rows, "./a.jsonl": rows}, "n=2,B_p=2")


@pytest.mark.parametrize("reward", [0, 0.5])
def test_two_runs_of_constant_equal_rewards_are_no_copies(logged, reward):
    rows = [{"step": s, "reward": reward} for s in (1, 2, 3)]
    result = logged("jsonl", {"a.jsonl": rows, "b.jsonl": rows}, "n=2,B_p=2")
    assert [(run.cell.seed, len(run.points)) for run in result.runs] == [(0, 3), (1, 3)]
    rising = [*rows, {"step": 4, "reward": reward + 0.1}]
    with pytest.raises(InputError, match="hold the same run of B_p = 2, n = 2"):
        logged("jsonl", {"a.jsonl": rising, "b.jsonl": rising}, "n=2,B_p=2")


def test_a_batch_that_n_does_not_divide(logged):
    with pytest.raises(InputError, match="line 1: B = 10 is no multiple of n = 4"):
        logged("jsonl", [{"step": 1, "reward": 0.5}], "n=4,B=10")


def test_different_metrics_are_not_one_sweep(logged):
    logs = {f"{k}.jsonl": [{"step": 1, "data": {f"val-core/x/acc/mean@{k}": 0.5}}] for k in (4, 8)}
    with pytest.raises(InputError, match=r"different validation metrics: .*avg@4.*4\.jsonl"):
        logged("verl", logs, "n=2,B_p=2")


@pytest.mark.parametrize(
    ("maps", "match"),
    [
        (["rewrd=x"], "no field 'rewrd'; the nearest is 'reward'"),
        (["reward"], "given 'reward', expected FIELD=COLUMN"),
        (["n=2,n=4"], "n is given twice"),
        (
            ["reward=val/ac"],
            r"no column 'val/ac' for reward; the nearest is 'val/acc' \(--map reward=val/acc\)"
            r".*The columns are step, val/acc",
        ),
        (["reward=0.5"], "a number for the whole file cannot stand for reward"),
        (["reward=val/acc"], "no column is known to be n .*type --map n=16"),
        (["reward=val/acc,n=2"], "no column is known to be B_p .*--map B=8192"),
        (
            ["n=2,B_p=2"],
            r"no column is known to be reward .*type --map reward=val/acc \(the nearest\)",
        ),
        (
            ["reward=val/acc,n=n{},B_p=2"],
            r"--map n=n\{\}: .*log\.jsonl has no number there, and in its name no word",
        ),
        (["reward=val/acc,n=2,B_p=2,scale=val/acc"], "expected a number, such as scale=0.01"),
        (["counts=right,n=2,B_p=2"], "say of how many rollouts per problem counts are"),
    ],
)
def test_maps_that_cannot_be_followed_teach_what_to_type(logged, maps, match):
    with pytest.raises(InputError, match=match):
        logged("jsonl", [{"step": 1, "val/acc": 0.5, "train/loss": 3.0, "right": [1]}], *maps)


def test_a_column_of_names_is_asked_for(logged):
    text = "name,step,reward\nx-n8,0,0.1\nx-n8,1,0.2\ny-n4,0,0.1\ny-n4,1,0.3\n"
    with pytest.raises(
        InputError,
        match=r"has no number there, .* Where a column names the runs, add --map run=COLUMN\.",
    ):
        logged("csv", text, "n=n{},B_p=4")
    assert [run.cell.n for run in logged("csv", text, "n=n{},B_p=4,run=name").runs] == [4, 8]


def test_the_column_of_names_is_not_proposed_for_n(logged):
    with pytest.raises(
        InputError, match=r"no column is known to be n .*; type --map n=16 or n=COLUMN"
    ):
        logged("csv", "run,step,reward,group_size,B_p\na,0,0.1,8,4\na,1,0.2,8,4\n")


def test_a_log_without_steps_or_rollouts(logged):
    with pytest.raises(InputError, match=r"no column is known to be rollouts .*--map step=COLUMN"):
        logged("jsonl", [{"reward": 0.5}], "n=2,B_p=2")


def test_right_answers_outside_the_samples(logged):
    with pytest.raises(
        InputError,
        match=r"line 1: counts \(column right\) is '\[5\]', expected a list of numbers in 0\.\.4",
    ):
        logged("jsonl", [{"step": 1, "right": [5]}], "counts=right,samples=4,n=2,B_p=2")


def test_a_missing_file_an_unknown_format(logged, tmp_path):
    with pytest.raises(InputError, match="no such log"):
        read_logs([tmp_path / "none.csv"], "csv", {})
    with pytest.raises(InputError, match=r"holds no file that ends in \.csv or \.tsv"):
        read_logs([tmp_path], "csv", {})
    with pytest.raises(
        InputError, match="expected one of csv, jsonl, tensorboard, trl, verl, verl_console, wandb"
    ):
        logged("excel", "x")


PACKED = {"a.bz2": bz2.compress, "a.xz": lzma.compress, "a.pkl": pickle.dumps}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(
    "log_format", [None, "csv", "jsonl", "verl", "verl_console", "trl", "wandb", "tensorboard"]
)
def test_what_no_importer_reads_is_refused_by_its_first_bytes(tmp_path, name, log_format):
    (tmp_path / name).write_bytes(PACKED[name](HEAD.encode()))
    with pytest.raises(
        InputError, match=rf"{name}: expected text .* is .*; (unpack it|save it as CSV)"
    ):
        read_logs([tmp_path / name], log_format, {})


ONCE = "step,n,B_p,run,acc\n0,4,32,n4,.1\n1,,,n4,.2\n0,8,32,n8,.1\n1,,,n8,.3\n"


def test_settings_that_stand_only_in_the_first_row_of_each_run(logged):
    """What the refusal says to type leads to the import; without names there is nothing to type."""
    remedy = "say it for all rows by --map n=n{},B_p=32, or"
    with pytest.raises(
        InputError, match=rf"line 3: n is missing or empty; .*{re.escape(remedy)} remove the row"
    ):
        logged("csv", ONCE, "reward=acc")
    runs = logged("csv", ONCE, "reward=acc,n=n{},B_p=32").runs
    assert [(run.cell.B_p, run.cell.n, len(run.points)) for run in runs] == [(32, 4, 2), (32, 8, 2)]
    with pytest.raises(
        InputError,
        match=r"line 3: n is .*--settings TABLE, a table with the columns run, n and B_p",
    ):
        logged("csv", ONCE.replace("n4", "a").replace("n8", "b"), "reward=acc")
    with pytest.raises(
        InputError, match=r"rollouts per problem\. Fill the cell in, or remove the row\."
    ):
        logged("csv", "step,n,B_p,acc\n0,4,32,.1\n1,,32,.2\n0,8,32,.1\n1,8,32,.3\n", "reward=acc")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"step": 2, "reward": 0.1, "n": 4, "reward": 0.99}', "reward"),
        ('{"step": 2, "val": {"acc": 0.1, "acc": 0.2}, "n": 4}', "acc"),
        ('{"step" : 2, "step" : 3, "reward": 0.1, "n": 4}', "step"),
    ],
)
def test_a_key_with_two_values_in_a_line_is_refused(logged, line, key):
    good = '{"step": 1, "reward": 0.1, "n": 4, "val": {"acc": 0.3}}\n'
    for end in ("", "\n"):  # without an end it is not taken for torn
        with pytest.raises(
            InputError, match=rf"line 2: the key '{key}' is there twice, with .* Remove one"
        ):
            logged("jsonl", good + line + end, "B_p=2")
    same = '{"step": 2, "reward": 0.2, "note": "\\"a\\": 1", "n": 4, "n": 4}\n'
    assert len(logged("jsonl", good + same, "B_p=2,reward=reward").runs[0].points) == 2
