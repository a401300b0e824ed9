"""TFDS data sets: written whole or not at all, read back through grain, and by TFDS itself; never
with TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from isojax.core.config import DataConfig
from isojax.core.nouns import Problem
from isojax.core.tabular import DataRow
from isojax.tasks.problem_sources import open_source
from isojax.tasks.sources import tfds as source
from tests.refusals import refused

TURNS = ({"role": "system", "content": "S"}, {"role": "user", "content": "é?\n"})


def labelled(first: int, count: int) -> list[Problem]:
    """Problems with ids of their own; every third has a conversation, every other columns."""
    return [
        Problem(
            i,
            "é?\n" if i % 3 == 0 else f"p{i}",
            f"#### {i}",
            i % 17,
            16,
            TURNS if i % 3 == 0 else (),
            {"x": [1, None]} if i % 2 else {},
        )
        for i in range(first, first + 3 * count, 3)
    ]


def write(folder: Path) -> dict[str, list[Problem]]:
    splits = {
        "hard_train": labelled(1, 20),
        "hard_validation": labelled(302, 5),
        "easy_train": labelled(601, 7),
    }
    splits |= {
        "easy_validation": labelled(901, 3),
        "extremely_hard_train": [],
        "odd_train": labelled(3, 1),
    }
    source.write_dataset(folder, splits, {"attempts": 16, "model": {"family": "tiny"}})
    return splits


def read(argument: object, answer_key: str | None = None) -> list[Problem]:
    result = open_source(f"tfds:{argument}", DataConfig(answer_key=answer_key)).problems(
        10**6, np.random.default_rng(0)
    )
    return sorted(result, key=lambda p: p.id)


def test_what_is_written_reads_back_equal(tmp_path: Path) -> None:
    splits = write(tmp_path / "set")
    for name in ("hard_train", "easy_validation", "odd_train"):
        assert read(f"{tmp_path}/set#{name}") == splits[name]
    assert (
        read(f"{tmp_path}/set#easy_train,hard_train") == splits["hard_train"] + splits["easy_train"]
    )
    assert json.loads((tmp_path / "set/metadata.json").read_text()) == {
        "attempts": 16,
        "model": {"family": "tiny"},
    }
    some = open_source(f"tfds:{tmp_path}/set#hard_train", DataConfig()).problems(
        4, np.random.default_rng(0)
    )
    assert len(some) == 4 and {p.id for p in some} <= {p.id for p in splits["hard_train"]}


def test_tfds_itself_reads_it(tmp_path: Path) -> None:
    splits = write(tmp_path / "set")
    builder = tfds.builder_from_directory(tmp_path / "set")
    assert {name: s.num_examples for name, s in builder.info.splits.items()} == {
        name: len(p) for name, p in splits.items()
    }
    record = builder.as_data_source("odd_train")[0]
    assert {k: v if isinstance(v, bytes) else int(v) for k, v in record.items()} == {
        "id": 3,
        "prompt": "é?\n".encode(),
        "answer": b"#### 3",
        "solved": 3,
        "attempts": 16,
        "messages": json.dumps(TURNS).encode(),
        "columns": b'{"x": [1, null]}',
    }


def test_the_split_that_is_read_when_none_is_named(tmp_path: Path) -> None:
    write(tmp_path / "set")
    with refused(where="set"):
        read(tmp_path / "set")
    source.write_dataset(tmp_path / "one", {"all": labelled(1, 4), "b": labelled(1, 2)}, {})
    assert read(tmp_path / "one") == labelled(1, 4)
    source.write_dataset(tmp_path / "only", {"b": labelled(1, 2)}, {})
    assert read(tmp_path / "only") == labelled(1, 2)


def test_splits_and_folders_that_are_not_there(tmp_path: Path) -> None:
    write(tmp_path / "set")
    with refused(where="set"):
        read(f"{tmp_path}/set#hard_train,train")
    with refused(where="set"):
        read(f"{tmp_path}/set#extremely_hard_train")
    for folder in (tmp_path, tmp_path / "none"):
        with refused():
            read(folder)
    with refused(where="cell.task"):
        read("")


def test_damaged_data_sets(tmp_path: Path) -> None:
    write(tmp_path / "set")
    file = tmp_path / "set/problems-hard_train.array_record-00000"
    content = bytearray(file.read_bytes())
    content[100] ^= 255  # within the first record
    file.write_bytes(content)
    with refused(where="set, split hard_train"):
        read(f"{tmp_path}/set#hard_train")
    file.unlink()
    with refused(where="set, split hard_train"):
        read(f"{tmp_path}/set#hard_train")
    (tmp_path / "set/features.json").write_text("{")
    with refused(where="set"):
        read(f"{tmp_path}/set#easy_train")


@pytest.mark.parametrize("messages", ["[" * 3000, "5"])
def test_a_record_that_another_program_wrote(messages: str) -> None:
    values = {
        "id": 1,
        "prompt": "p",
        "answer": "a",
        "solved": 0,
        "attempts": 1,
        "messages": messages,
        "columns": "{}",
    }
    with refused(where="set, record 3"):
        source._record_to_problem(DataRow("set", "record 3", values, 3))


def test_nothing_is_overwritten_or_left_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "set")
    before = sorted((p.name, p.read_bytes()) for p in (tmp_path / "set").iterdir())
    with refused(where="set"):
        source.write_dataset(tmp_path / "set", {"all": labelled(0, 1)}, {})
    assert sorted((p.name, p.read_bytes()) for p in (tmp_path / "set").iterdir()) == before
    with pytest.raises(TypeError):  # what is no JSON is the caller's mistake, met half-way
        source.write_dataset(
            tmp_path / "new",
            {"a": [Problem(0, "p", "a")], "b": [Problem(1, "q", "a", columns={"x": object()})]},
            {},
        )
    monkeypatch.setattr(
        os, "rename", lambda a, b: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with refused(where="new"):
        source.write_dataset(tmp_path / "new", {"a": labelled(0, 1)}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["set"]


def test_another_data_set_is_read_by_its_columns(tmp_path: Path) -> None:
    """Prepared by TFDS's own writer, in shards; the test split's rows are numbered before those of
    train."""
    features = tfds.features.FeaturesDict(
        {
            "question": tfds.features.Text(),
            "answer": np.int64,
            "tags": tfds.features.Sequence(np.int64),
        }
    )
    identity = tfds.core.DatasetIdentity(
        name="sums", version=tfds.core.Version("1.0.0"), data_dir=str(tmp_path), module_name="x"
    )
    info = tfds.core.DatasetInfo(builder=identity, features=features, disable_shuffling=True)
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=2, file_format="array_record")
    writer.initialize_splits(["train", "test"])
    rows = [{"question": f"{i}+1", "answer": i + 1, "tags": [i, i]} for i in range(5)]
    writer.add_examples({"train": rows[:3], "test": rows[3:]})
    writer.close_all()
    assert read(f"{tmp_path}#train") == [
        Problem(i + 2, f"{i}+1", str(i + 1), columns={"tags": [i, i]}) for i in range(3)
    ]
    assert [(p.id, p.prompt) for p in read(f"{tmp_path}#test")] == [(0, "3+1"), (1, "4+1")]
    with refused():
        read(f"{tmp_path}#test", answer_key="truth")


def test_only_array_record_is_read(tmp_path: Path) -> None:
    write(tmp_path / "set")
    path = tmp_path / "set/dataset_info.json"
    path.write_text(path.read_text().replace('"array_record"', '"tfrecord"'))
    with refused(where="set"):
        read(f"{tmp_path}/set#hard_train")


def test_tensorflow_is_never_loaded_and_a_missing_package_is_named(tmp_path: Path) -> None:
    program = f"""
import sys
import numpy as np
from pathlib import Path
from isojax.core.config import DataConfig
from isojax.tasks.sources import tfds
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.core.tabular import DataRow
tfds.write_dataset(Path({str(tmp_path / "set")!r}), {{"all": [Problem(3, "p", "a", 1, 16)]}}, {{}})
dataset = tfds.dataset({str(tmp_path / "set")!r}, DataConfig())
problems = dataset.problems(9, np.random.default_rng(0))
print(problems[0].id, "tensorflow" in sys.modules)
sys.modules["grain"] = None
try:
    tfds.dataset({str(tmp_path / "set")!r}, DataConfig())
except InputError as e:
    print(e)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (
        done.stdout == '3 False\ntfds: needs the package grain. Type: pip install "isojax[tfds]"\n'
    ), done.stderr
