"""What the real writers of verl, TRL, W&B and TensorBoard wrote (make_fixtures.py) imports to the
numbers that were logged.
"""

from __future__ import annotations

import json
import shutil
import time
import zlib
from pathlib import Path

import pytest

from isojax.core.nouns import Cell
from isojax.runs.importers import trl, wandb
from isojax.runs.logs import trl_columns
from isojax.runs.logs.column_map import parse_field_map
from isojax.runs.logs.import_logs import read_logs
from tests.refusals import refused
from tests.runs.importers.conftest import FIXTURES
from tests.runs.importers.make_fixtures import B_P, EVERY, STEPS, accuracy, training_reward

OWN = "reward=val/acc,train_reward=train/reward,response_length=train/length"


def imported(format, names, *maps):
    return read_logs([FIXTURES / name for name in names], format, parse_field_map(maps))


def expect(run, n, metric):
    """The curve of make_fixtures: evaluations at 0, 3, ... 12; rewards of the steps since the last;
    100 + step tokens a rollout.
    """
    assert run.cell == Cell(B_P, n, 0)
    steps = list(range(0, STEPS + 1, EVERY))
    assert [p.M for p in run.points] == steps and [p.rollouts for p in run.points] == [
        s * B_P * n for s in steps
    ]
    assert [p.metrics for p in run.points] == [
        {metric: pytest.approx(accuracy(n, s), abs=1e-6)} for s in steps
    ]
    for before, point in zip(steps, run.points[1:], strict=False):
        mean = sum(training_reward(n, s) for s in range(before + 1, point.M + 1)) / EVERY
        assert point.train["reward"] == pytest.approx(mean, abs=1e-6)
        assert point.tokens == sum((100 + s) * B_P * n for s in range(1, point.M + 1))


@pytest.mark.parametrize(
    ("format", "names", "maps", "cells"),
    [
        (
            "verl",
            ["verl/n8.jsonl", "verl/n16.jsonl"],
            [f"B_p={B_P},n=n{{}}"],
            {8: "avg@4", 16: "avg@4"},
        ),
        ("verl_console", ["verl_console"], [], {8: "avg@4", 16: "avg@4"}),
        ("tensorboard", ["verl_tensorboard"], [f"B_p={B_P},n=n{{}}"], {8: "avg@4", 16: "avg@4"}),
        (
            "tensorboard",
            ["tensorboard/n8", "tensorboard/n16"],
            [f"B_p={B_P}", "n=n{}", OWN],
            {8: "val/acc", 16: "val/acc"},
        ),
        ("wandb", ["wandb/own"], [OWN], {8: "val/acc"}),
        ("wandb", ["wandb/verl/run-verl.wandb"], [], {16: "avg@4"}),
    ],
)
def test_known_curves(format, names, maps, cells):
    result = imported(format, names, *maps)
    assert len(result.runs) == len(cells) and not result.notes
    for run, (n, metric) in zip(result.runs, cells.items(), strict=True):
        expect(run, n, metric)


@pytest.mark.parametrize("name", ["trl", "trl/checkpoint-6", "trl/checkpoint-6/trainer_state.json"])
def test_trl_needs_no_map(name):
    """16 rollouts per update, n = 4, from training_args.bin; tokens are those of GRPOTrainer's own
    counter less the prompts' 4 a rollout.
    """
    (run,) = imported("trl", [name]).runs
    state = json.loads((FIXTURES / "trl/checkpoint-6/trainer_state.json").read_text())
    evaluated = [row["eval_reward"] for row in state["log_history"] if "eval_reward" in row]
    assert run.cell == Cell(4, 4, 42) and [p.rollouts for p in run.points] == [0, 32, 64, 96]
    assert [p.metrics["eval_reward"] for p in run.points] == evaluated
    assert run.points[-1].tokens == state["num_input_tokens_seen"] - 4 * 96
    rewards = [row["reward"] for row in state["log_history"] if "reward" in row]
    assert [p.train.get("reward") for p in run.points] == [
        None,
        *(pytest.approx(sum(rewards[i : i + 2]) / 2) for i in (0, 2, 4)),
    ]


def test_transformers_event_file_agrees_with_its_state():
    (events,), (state,) = imported("tensorboard", ["trl/runs"]).runs, imported("trl", ["trl"]).runs
    assert events.cell == state.cell
    for a, b in zip(events.points, state.points, strict=True):
        assert (a.rollouts, a.tokens) == (b.rollouts, b.tokens)
        assert a.metrics["eval/reward"] == pytest.approx(b.metrics["eval_reward"], abs=1e-6)


def test_trl_without_its_arguments_asks_for_n_and_takes_B(tmp_path):
    shutil.copy(FIXTURES / "trl/checkpoint-6/trainer_state.json", tmp_path)
    with refused(where="trainer_state.json"):
        read_logs([tmp_path], "trl", {})
    (tmp_path / "training_args.bin").write_bytes(b"no archive")
    (run,) = read_logs([tmp_path], "trl", parse_field_map(["n=4,B=16"])).runs
    assert run.cell == Cell(4, 4, 0) and run.points[-1].rollouts == 96


def test_a_pickle_runs_nothing(tmp_path):
    """training_args.bin may come from anybody."""
    import pickle
    import zipfile

    class Harm:
        def __reduce__(self):
            return Path.touch, (tmp_path / "harm",)

    shutil.copy(FIXTURES / "trl/checkpoint-6/trainer_state.json", tmp_path)
    with zipfile.ZipFile(tmp_path / "training_args.bin", "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps(Harm()))
    with refused(where="trainer_state.json"):
        read_logs([tmp_path], "trl", {})
    assert not (tmp_path / "harm").exists()


def test_a_trainers_default_seed_numbers_its_runs(tmp_path):
    for i in (0, 1):
        shutil.copytree(FIXTURES / "trl/checkpoint-6", tmp_path / f"{i}")
    file = tmp_path / "1/trainer_state.json"
    file.write_text(file.read_text().replace('"eval_reward": 0.', '"eval_reward": 0.0'))
    result = read_logs([tmp_path / "0", tmp_path / "1"], "trl", {})
    assert [r.cell.seed for r in result.runs] == [
        0,
        1,
    ] and "numbered in the order given" in result.notes[0]
    shutil.copy(tmp_path / "0/trainer_state.json", file)
    with refused(where="trainer_state.json, log_history[0]"):
        read_logs([tmp_path / "0", tmp_path / "1"], "trl", {})


def test_trl_names_the_entry(tmp_path):
    text = (FIXTURES / "trl/checkpoint-6/trainer_state.json").read_text()
    at = text.index('"eval_reward"', text.index('"eval_reward"') + 1)
    broken = text[:at] + '"eval_reward": 7, "was"' + text[at + len('"eval_reward"') :]
    (tmp_path / "trainer_state.json").write_text(broken)
    with refused(where="trainer_state.json, log_history[3]: reward (column"):
        read_logs([tmp_path], "trl", parse_field_map(["n=4,B=16"]))
    (tmp_path / "trainer_state.json").write_text(text[:3000])
    with refused(where="trainer_state.json, line 88"):
        read_logs([tmp_path], "trl", {})
    (tmp_path / "trainer_state.json").write_text('{"step": 1}')
    with refused(where="trainer_state.json, line 1"):
        read_logs([tmp_path], "trl", {})


BINARY = {
    "wandb": ("wandb/own/run-own.wandb", f"{OWN}"),
    "tensorboard": ("tensorboard/n8/events.out.tfevents.0.fixture", f"{OWN},n=8,B_p={B_P}"),
}


@pytest.mark.parametrize("format", BINARY)
def test_a_torn_end_is_left_out_and_said(tmp_path, format):
    source, maps = BINARY[format]
    data = (FIXTURES / source).read_bytes()
    full = read_logs([FIXTURES / source], format, parse_field_map([maps])).runs[0].points
    file = tmp_path / Path(source).name
    for cut in (len(data) - 1, len(data) - 9, len(data) * 2 // 3):
        file.write_bytes(data[:cut])
        result = read_logs([file], format, parse_field_map([maps]))
        points = result.runs[0].points
        assert points == full[: len(points)] and any("torn" in note for note in result.notes)


@pytest.mark.parametrize("format", BINARY)
def test_damage_before_the_end_is_refused(tmp_path, format):
    source, maps = BINARY[format]
    data = bytearray((FIXTURES / source).read_bytes())
    data[len(data) // 2] ^= 255
    file = tmp_path / Path(source).name
    file.write_bytes(data)
    with refused():
        read_logs([file], format, parse_field_map([maps]))
    file.write_bytes(b"step,reward\n1,2\n")
    with refused():
        read_logs([file], format, {})


def test_a_tag_outside_the_range_is_named_with_its_step():
    with refused(where="n8, step 1: reward (column train/length)"):
        imported("tensorboard", ["tensorboard/n8"], f"reward=train/length,n=8,B_p={B_P}")
    with refused(where="run-own.wandb, step 1: reward (column train/length)"):
        imported("wandb", ["wandb/own"], "reward=train/length")


def write_events(folder, *starts):
    """Event files 0.tfevents, 1.tfevents, ... of the steps from each start up to 3; a later one has
    .5 more."""
    from tensorboardX import SummaryWriter

    for i, start in enumerate(starts):
        with SummaryWriter(str(folder / str(i))) as writer:
            for step in range(start, 4):
                writer.add_scalar("acc", 0.1 * step + 0.5 * (i > 0), step)
        next((folder / str(i)).iterdir()).rename(folder / f"{i}.tfevents")


def test_a_nan_of_an_event_file_is_left_out_and_said(tmp_path):
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(4):
            writer.add_scalar("acc", float("nan") if step == 2 else 0.1 * step, step)
    result = read_logs([tmp_path], "tensorboard", parse_field_map(["reward=acc,n=2,B_p=4"]))
    assert [p.M for p in result.runs[0].points] == [0, 1, 3]
    assert result.skipped == (f"{tmp_path}, step 2: reward (column acc) is nan",)


def test_a_nan_of_wandb_is_left_out_and_said(tmp_path):
    def chunk(record):
        data, kind = record.SerializeToString(), wandb.CHUNK_FULL
        return (
            wandb.CHUNK_HEADER.pack(zlib.crc32(data, zlib.crc32(bytes([kind]))), len(data), kind)
            + data
        )

    from wandb.proto.wandb_internal_pb2 import Record

    chunks = []
    # the last two words as its two writers have them
    for step, text in enumerate(("0.1", "NaN", '"Infinity"', "0.3")):
        record = Record()
        record.history.step.num = step
        record.history.item.add(key="acc", value_json=text)
        chunks.append(chunk(record))
    (tmp_path / "run-x.wandb").write_bytes(wandb.MAGIC + b"\0" + b"".join(chunks))
    result = read_logs([tmp_path], "wandb", parse_field_map(["reward=acc,n=2,B_p=4"]))
    assert [(p.M, p.metrics["acc"]) for p in result.runs[0].points] == [(0, 0.1), (3, 0.3)]
    assert result.skipped == (
        f"{tmp_path}/run-x.wandb, step 1: reward (column acc) is nan, and at step 2",
    )


def test_a_restart_takes_the_later_file(tmp_path):
    """An empty file is of a start that was killed before it wrote anything."""
    write_events(tmp_path, 0, 2)
    (tmp_path / "2.tfevents").touch()
    result = read_logs([tmp_path], "tensorboard", parse_field_map(["reward=acc,n=2,B_p=2"]))
    assert [p.metrics["acc"] for p in result.runs[0].points] == pytest.approx([0, 0.1, 0.7, 0.8])
    assert "2 values that 1.tfevents logs again" in result.notes[0]


def test_a_second_run_in_the_folder_of_a_first_is_refused(tmp_path):
    """It would replace the first."""
    write_events(tmp_path, 0, 0)
    with refused():
        read_logs([tmp_path], "tensorboard", parse_field_map(["reward=acc,n=2,B_p=2"]))


@pytest.mark.parametrize(
    ("format", "package"),
    [("wandb", "wandb"), ("tensorboard", "tensorboardX")],
)
def test_a_package_that_cannot_be_imported_says_which_extra(monkeypatch, tmp_path, format, package):
    import sys

    for name in [n for n in sys.modules if n.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with refused(where="--from"):
        imported(format, [BINARY[format][0]])
    monkeypatch.delitem(sys.modules, package)
    (tmp_path / f"{package}.py").write_text(
        "class VersionError(Exception): ...\nraise VersionError('gencode 7')"
    )
    # as a package made by another version of protobuf ends its import
    monkeypatch.syspath_prepend(tmp_path)
    with refused(where="--from"):
        imported(format, [BINARY[format][0]])


def test_a_record_of_many_chunks_takes_no_time(tmp_path):
    kinds = (wandb.CHUNK_FIRST, *[wandb.CHUNK_MIDDLE] * 60_000, wandb.CHUNK_LAST)
    data, position = bytearray(wandb.MAGIC + b"\0"), len(wandb.MAGIC) + 1
    for kind in kinds:
        if wandb.BLOCK_BYTES - position % wandb.BLOCK_BYTES < wandb.CHUNK_HEADER.size:
            data += b"\0" * (-position % wandb.BLOCK_BYTES)
        data += wandb.CHUNK_HEADER.pack(zlib.crc32(b"", zlib.crc32(bytes([kind]))), 0, kind)
        position = len(data)
    (tmp_path / "run-x.wandb").write_bytes(data)
    before = time.process_time()
    assert wandb._split_records(tmp_path / "run-x.wandb").records == [b""]
    assert time.process_time() - before < 5.0


def test_numbers_of_a_trainer_that_no_run_has(tmp_path):
    arguments = {
        "n": 4,
        "big": 10**5000,
        "nan": float("nan"),
        "name": "x",
        "flag": True,
        "rate": 1e-6,
    }
    assert trl_columns.plain_arguments(arguments) == {"n": 4, "name": "x", "rate": 1e-6}
    (tmp_path / "checkpoint-²").mkdir()
    with refused():
        trl.read(tmp_path)


def test_trl_a_checkpoint_that_is_being_saved_is_not_the_last(tmp_path):
    for name in ("checkpoint-10", "checkpoint-9"):
        shutil.copytree(FIXTURES / "trl/checkpoint-6", tmp_path / name)
    (tmp_path / "checkpoint-100").mkdir()
    assert "checkpoint-10/" in trl.read(tmp_path)[0].source
