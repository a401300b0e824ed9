"""Every broken log is refused with its file and line, and says how to correct it."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle

import pytest

from isojax.runs.logs.import_logs import read_logs
from tests.refusals import refused

HEAD = "step,reward,n,B_p\n"
BROKEN = {
    "a metric that is not a number": HEAD + "1,nan,4,2\n2,nan,4,2\n",
    "an infinite one": HEAD + "1,inf,4,2\n",
    "text for a number": HEAD + '1,.1,4,2\n2,"0,25",4,2\n',
    "percent": HEAD + "1,42,4,2\n",
    "a negative reward": HEAD + "1,.1,4,2\n2,-.1,4,2\n",
    "negative compute": HEAD + "-1,.1,4,2\n",
    "half an update": HEAD + "1.5,.1,4,2\n",
    "a dot that may divide thousands": HEAD + "1.000,.1,4,2\n",
    "two dots": HEAD + "1.000.000,.1,4,2\n",
    "less than an update": "rollouts,reward,n,B_p\n0,.1,4,2\n7,.2,4,2\n",
    "a point twice": HEAD + "1,.1,4,2\n2,.1,4,2\n2,.1,4,2\n",
    "compute that falls": HEAD + "1,.1,4,2\n3,.1,4,2\n2,.1,4,2\n",
    "an empty cell": HEAD + "1,.1,4,2\n2,,4,2\n",
    "an empty setting": HEAD + "1,.1,4,2\n2,.2,,2\n",
    "a short row": HEAD + "1,.1,4,2\n2,.1\n",
    "a long row": HEAD + "1,.1,4,2,5\n",
    "n changes in a run": HEAD + "1,.1,4,2\n2,.2,8,2\n3,.3,4,2\n",
    "B_p changes in a run": HEAD + "1,.1,4,2\n2,.2,4,3\n",
    "n changes there and back in one of many runs": HEAD
    + "1,.1,4,2\n2,.2,4,2\n1,.1,8,2\n2,.2,88,2\n3,.3,8,2\n",
    "no rollouts per problem": HEAD + "1,.1,0,2\n",
    "a quote that never ends": HEAD + '1,".1,4,2\n2,.2,4,2\n',
    "a name twice": "step,reward,n,n\n1,.1,4,2\n",
    "no row": HEAD,
    "nothing": "",
    "not UTF-8": HEAD.encode() + b"1,.1,4,2\n2,\xff,4,2\n",
    "UTF-16": HEAD.encode("utf-16"),
    "a binary file": b"a,b\n\0\0",
}
BROKEN_JSON = {
    "half a line": '{"step": 1, "reward": 0.1}\n{"step": 2, "rew\n{"step": 3, "reward": 0.1}',
    "a list": '{"step": 1, "reward": 0.1}\n[1]\n',
    "CSV": "step,reward\n1,2\n",
    "NaN": '{"step": 1, "reward": NaN}\n',
    "null": '{"step": 1, "reward": null}\n',
    "a word": '{"step": 1, "reward": true}\n',
    "falling rollouts": (
        '{"step": 1, "rollouts": 9, "reward": 0.1}\n{"step": 2, "rollouts": 8, "reward": 0.1}\n'
    ),
    "falling tokens": (
        '{"step": 1, "tokens": 9, "reward": 0.1}\n{"step": 2, "tokens": 8, "reward": 0.1}\n'
    ),
    "negative device hours": '{"step": 1, "device_hours": -1, "reward": 0.1}\n',
    "no step": '{"step": 1, "reward": 0.1}\n{"reward": 0.1}\n',
    "very deep": '{"a":' * 100_000 + "\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_csv(logged, name):
    text = BROKEN[name]
    with refused() as e:
        logged("csv", text)
    assert "log.csv" in str(e.value)


@pytest.mark.parametrize("name", BROKEN_JSON)
def test_broken_json_lines(logged, name):
    text = BROKEN_JSON[name]
    with refused() as e:
        logged("jsonl", text, "n=2,B_p=2")
    assert "log.jsonl" in str(e.value)


def test_an_object_over_many_lines_and_a_packed_file(logged, tmp_path):
    with refused(where="log.jsonl, line 1"):
        logged("jsonl", '{\n "runs": [\n  {"step": 0, "reward": 0.1}\n ]\n}\n')
    (tmp_path / "log.zip").write_bytes(b"PK\x03\x04\x14\x00\x08\x00\xe3\n")
    with refused(where="log.zip"):
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
    with refused(where="log.jsonl.gz"):
        read_logs([tmp_path / "log.jsonl.gz"], "jsonl", {})


def test_objects_without_keys(logged):
    with refused(where="log.jsonl"):
        logged("jsonl", "{}\n{}\n", "reward=val")


def test_a_setting_that_changes_in_a_named_run(logged):
    text = "id,step,reward,n,B_p\na,1,.1,4,2\nb,1,.1,8,2\na,2,.1,4,2\na,3,.1,8,2\n"
    with refused(where="log.csv, line 5"):
        logged("csv", text, "run=id")


def test_two_runs_of_one_cell_and_seed(logged):
    text = "id,step,reward,n,B_p,seed\na,1,.1,4,2,0\nb,1,.2,4,2,0\n"
    with refused() as e:
        logged("csv", text, "run=id")
    assert e.value.found.endswith("(runs a and b)")


def test_one_run_given_twice(logged, tmp_path):
    rows = [{"step": s, "reward": 0.1 * s} for s in (1, 2, 3)]
    with refused(where="b.jsonl, line 1"):
        logged("jsonl", {"a.jsonl": rows, "b.jsonl": rows[:2]}, "n=2,B_p=2")
    with refused(where="a.jsonl"):
        logged("jsonl", {"a.jsonl": rows, "./a.jsonl": rows}, "n=2,B_p=2")


@pytest.mark.parametrize("reward", [0, 0.5])
def test_two_runs_of_constant_equal_rewards_are_no_copies(logged, reward):
    rows = [{"step": s, "reward": reward} for s in (1, 2, 3)]
    result = logged("jsonl", {"a.jsonl": rows, "b.jsonl": rows}, "n=2,B_p=2")
    assert [(run.cell.seed, len(run.points)) for run in result.runs] == [(0, 3), (1, 3)]
    rising = [*rows, {"step": 4, "reward": reward + 0.1}]
    with refused(where="b.jsonl, line 1"):
        logged("jsonl", {"a.jsonl": rising, "b.jsonl": rising}, "n=2,B_p=2")


def test_a_batch_that_n_does_not_divide(logged):
    with refused():
        logged("jsonl", [{"step": 1, "reward": 0.5}], "n=4,B=10")


def test_different_metrics_are_not_one_sweep(logged):
    logs = {f"{k}.jsonl": [{"step": 1, "data": {f"val-core/x/acc/mean@{k}": 0.5}}] for k in (4, 8)}
    with refused(where="validation metrics"):
        logged("verl", logs, "n=2,B_p=2")


@pytest.mark.parametrize(
    "maps",
    [
        ["rewrd=x"],
        ["reward"],
        ["n=2,n=4"],
        ["reward=val/ac"],
        ["reward=0.5"],
        ["reward=val/acc"],
        ["reward=val/acc,n=2"],
        ["n=2,B_p=2"],
        ["reward=val/acc,n=n{},B_p=2"],
        ["reward=val/acc,n=2,B_p=2,scale=val/acc"],
        ["counts=right,n=2,B_p=2"],
    ],
)
def test_maps_that_cannot_be_followed_teach_what_to_type(logged, maps):
    with refused():
        logged("jsonl", [{"step": 1, "val/acc": 0.5, "train/loss": 3.0, "right": [1]}], *maps)


def test_a_column_of_names_is_asked_for(logged):
    text = "name,step,reward\nx-n8,0,0.1\nx-n8,1,0.2\ny-n4,0,0.1\ny-n4,1,0.3\n"
    with refused(where="--map n=n{}"):
        logged("csv", text, "n=n{},B_p=4")
    assert [run.cell.n for run in logged("csv", text, "n=n{},B_p=4,run=name").runs] == [4, 8]


def test_the_column_of_names_is_not_proposed_for_n(logged):
    with refused(where="log.csv"):
        logged("csv", "run,step,reward,group_size,B_p\na,0,0.1,8,4\na,1,0.2,8,4\n")


def test_a_log_without_steps_or_rollouts(logged):
    with refused(where="log.jsonl"):
        logged("jsonl", [{"reward": 0.5}], "n=2,B_p=2")


def test_right_answers_outside_the_samples(logged):
    with refused():
        logged("jsonl", [{"step": 1, "right": [5]}], "counts=right,samples=4,n=2,B_p=2")


def test_a_missing_file_an_unknown_format(logged, tmp_path):
    with refused(where="none.csv"):
        read_logs([tmp_path / "none.csv"], "csv", {})
    with refused():
        read_logs([tmp_path], "csv", {})
    with refused(where="importers plug-in 'excel'"):
        logged("excel", "x")


PACKED = {"a.bz2": bz2.compress, "a.xz": lzma.compress, "a.pkl": pickle.dumps}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(
    "log_format", [None, "csv", "jsonl", "verl", "verl_console", "trl", "wandb", "tensorboard"]
)
def test_what_no_importer_reads_is_refused_by_its_first_bytes(tmp_path, name, log_format):
    (tmp_path / name).write_bytes(PACKED[name](HEAD.encode()))
    with refused():
        read_logs([tmp_path / name], log_format, {})


ONCE = "step,n,B_p,run,acc\n0,4,32,n4,.1\n1,,,n4,.2\n0,8,32,n8,.1\n1,,,n8,.3\n"


def test_settings_that_stand_only_in_the_first_row_of_each_run(logged):
    """What the refusal says to type leads to the import; without names there is nothing to type."""
    with refused(where="log.csv, line 3: n"):
        logged("csv", ONCE, "reward=acc")
    runs = logged("csv", ONCE, "reward=acc,n=n{},B_p=32").runs
    assert [(run.cell.B_p, run.cell.n, len(run.points)) for run in runs] == [(32, 4, 2), (32, 8, 2)]
    with refused(where="log.csv, line 3: n"):
        logged("csv", ONCE.replace("n4", "a").replace("n8", "b"), "reward=acc")
    with refused(where="log.csv, line 3: n"):
        logged("csv", "step,n,B_p,acc\n0,4,32,.1\n1,,32,.2\n0,8,32,.1\n1,8,32,.3\n", "reward=acc")


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 2, "reward": 0.1, "n": 4, "reward": 0.99}',
        '{"step": 2, "val": {"acc": 0.1, "acc": 0.2}, "n": 4}',
        '{"step" : 2, "step" : 3, "reward": 0.1, "n": 4}',
        '{"step": 2, "step" : 3, "reward": 0.1, "n": 4}',
    ],
)
def test_a_key_with_two_values_in_a_line_is_refused(logged, line):
    good = '{"step": 1, "reward": 0.1, "n": 4, "val": {"acc": 0.3}}\n'
    for end in ("", "\n"):  # without an end it is not taken for torn
        with refused(where="log.jsonl, line 2"):
            logged("jsonl", good + line + end, "B_p=2")
    same = '{"step": 2, "reward": 0.2, "note": "\\"a\\": 1", "n": 4, "n": 4}\n'
    assert len(logged("jsonl", good + same, "B_p=2,reward=reward").runs[0].points) == 2
