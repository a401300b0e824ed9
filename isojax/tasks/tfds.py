"""Problems in a TFDS data set of ArrayRecord files, read through grain and written without TensorFlow: `tfds:FOLDER#SPLIT[,SPLIT...]`.

`write_dataset` makes one, as `isojax difficulty` does: `tfds.builder_from_directory(FOLDER).as_data_source(SPLIT)` reads it as well. Its
splits are named PART_train and PART_validation; without # the split `all` is read. Any other data set prepared as ArrayRecord, whose
features are flat, is read as rows of a file are (rows.py). Needs `pip install "isojax[tfds]"`.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from isojax.config import DataConfig
from isojax.tasks.rows import Row, distinct, plain, read_rows
from isojax.tasks.sources import choose
from isojax.types import InputError, Problem

NAME = "problems"
NUMBERS, TEXTS = ("id", "solved", "attempts"), ("prompt", "answer", "messages", "columns")  # the last two as JSON text


def source(argument: str, data: DataConfig) -> Splits:
    """Some splits of a data set.

    Raises:
        InputError: no such data set or split, not ArrayRecord files, or a package is missing.
    """
    folder, _, names = argument.partition("#")
    if not folder:
        raise InputError("cell.task: tfds takes a data set's folder and splits: tfds:FOLDER#hard_train.")
    return Splits(_open(Path(folder).expanduser()), tuple(names.split(",")) if names else (), data)


@dataclass(frozen=True)
class Splits:
    """Splits of a data set that is open; `names` may be empty, for the split `all` or the only one."""

    builder: Any  # a tfds.core.DatasetBuilder
    names: tuple[str, ...]
    data: DataConfig

    def __post_init__(self) -> None:
        sizes = split_sizes(self.builder)
        for name in self.names:
            if not sizes.get(name):
                raise self._no_split(f"no split {name!r}" if name not in sizes else f"split {name!r} is empty")

    @property
    def labelled(self) -> bool:
        """Whether `write_dataset` wrote it."""
        return set(self.builder.info.features) == {*NUMBERS, *TEXTS}

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """`count` problems of the splits, or all; InputError where a record cannot be used."""
        names, sizes = self.names, split_sizes(self.builder)
        if not names:
            names = ("all",) if "all" in sizes else tuple(sizes)
            if len(names) != 1 or not sizes[names[0]]:
                raise self._no_split("no split is named, and there is not one of problems called all")
        rows = (row for name in names for row in self._rows(name))
        place = f"{self.builder.data_dir}#{','.join(names)}"
        found = distinct(map(_problem, rows), place) if self.labelled else read_rows(rows, self.data, place)
        return choose(found, count, rng)

    def _rows(self, name: str) -> Iterator[Row]:
        """The records of a split; numbered over all splits by name, so that a number is the same whichever splits are read."""
        import grain

        info, features = self.builder.info.splits[name], self.builder.info.features
        before = sum(size for other, size in split_sizes(self.builder).items() if other < name)
        place = f"{self.builder.data_dir}, split {name}"
        try:
            records = grain.sources.ArrayRecordDataSource([str(p) for p in info.filepaths])
            for i in range(info.num_examples):
                values = features.deserialize_example_np(records[i])
                yield Row(before + i, f"{place}, record {i}", plain(values))
        except (RuntimeError, IndexError) as e:  # ArrayRecord's words for a file that was cut or changed
            raise InputError(f"{place}: a damaged file ({str(e).splitlines()[0][:200]}). Copy the data set anew.") from e

    def _no_split(self, what: str) -> InputError:
        there = ", ".join(f"{name} ({size})" for name, size in split_sizes(self.builder).items()) or "none"
        return InputError(f"{self.builder.data_dir}: {what}; there are {there}. Write tfds:FOLDER#SPLIT.")


def split_sizes(builder: Any) -> dict[str, int]:
    """The splits of a data set that is open, by name, and how many problems each holds."""
    return {name: builder.info.splits[name].num_examples or 0 for name in sorted(builder.info.splits)}


def parts(folder: Path) -> dict[str, int]:
    """The parts of a data set, those with splits PART_train and PART_validation, and how many training problems each holds."""
    sizes = split_sizes(_open(folder))
    names = [name.removesuffix("_train") for name in sizes if name.endswith("_train")]
    return {name: sizes[f"{name}_train"] for name in names if f"{name}_validation" in sizes}


def write_dataset(folder: Path, splits: Mapping[str, Sequence[Problem]], about: Mapping[str, Any]) -> None:
    """Write a data set whole or not at all, one file a split; `about`, plain JSON, becomes its metadata.json.

    Raises:
        InputError: `folder` exists or cannot be written, a split's name is none, or a package is missing.
    """
    if folder.exists():
        raise InputError(f"{folder} exists already, and a data set is written once; choose another folder, or move that one away.")
    if bad := [name for name in splits if not re.fullmatch(r"\w+", name, re.ASCII)]:
        raise InputError(f"given {bad[0]!r} as a split's name, expected letters, digits and '_'. Rename it.")
    tfds = package()
    temp = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        temp.mkdir(parents=True)
        _write(tfds, temp, splits, about)
        os.rename(temp, folder)
    except OSError as e:
        raise InputError(f"cannot write {folder}: {e.strerror or e}. Choose a place that you may write.") from e
    finally:
        shutil.rmtree(temp, ignore_errors=True)


def _write(tfds: ModuleType, folder: Path, splits: Mapping[str, Sequence[Problem]], about: Mapping[str, Any]) -> None:
    array_record = importlib.import_module("array_record.python.array_record_module")
    numbers: dict[str, Any] = dict.fromkeys(NUMBERS, np.int64)
    features = tfds.features.FeaturesDict(numbers | {name: tfds.features.Text() for name in TEXTS})
    identity = tfds.core.DatasetIdentity(name=NAME, version=tfds.core.Version("1.0.0"), data_dir=str(folder), module_name=__name__)
    info = tfds.core.DatasetInfo(
        builder=identity,
        features=features,
        description="Problems, and how often the base model solved each of them (isojax).",
        metadata=tfds.core.MetadataDict(about),
        disable_shuffling=True,
    )
    info.set_file_format("array_record")
    written = []
    for name, problems in splits.items():
        template = tfds.core.ShardedFileTemplate(data_dir=folder, dataset_name=NAME, split=name, filetype_suffix="array_record")
        writer = array_record.ArrayRecordWriter(str(template.sharded_filepath(shard_index=0, num_shards=1)), "group_size:1")
        records = [features.serialize_example(_record(p)) for p in problems]
        for record in records:
            writer.write(record)
        writer.close()
        size = sum(map(len, records))
        written.append(tfds.core.SplitInfo(name=name, shard_lengths=[len(records)], num_bytes=size, filename_template=template))
    info.set_splits(tfds.core.splits.SplitDict(written))
    info.write_to_directory(folder)


def _record(problem: Problem) -> dict[str, Any]:
    numbers = {name: vars(problem)[name] for name in NUMBERS}
    messages = json.dumps([dict(m) for m in problem.messages], ensure_ascii=True)
    return {
        **numbers,
        "prompt": problem.prompt,
        "answer": problem.answer,
        "messages": messages,
        "columns": json.dumps(dict(problem.columns)),
    }


def _problem(row: Row) -> Problem:
    own = dict(row.columns)
    return Problem(**{**own, "messages": tuple(json.loads(own["messages"])), "columns": json.loads(own["columns"])})


def package() -> ModuleType:
    """tensorflow_datasets; InputError where it, or what reads and writes ArrayRecord files, is missing."""
    try:
        for name in ("grain", "array_record.python.array_record_module"):
            importlib.import_module(name)
        return importlib.import_module("tensorflow_datasets")
    except ImportError as e:
        raise InputError(f'tfds needs the package {e.name}; pip install "isojax[tfds]".') from e


def _open(folder: Path) -> Any:
    """The builder of a data set; InputError where the folder holds none that is read without TensorFlow."""
    if not (folder / "dataset_info.json").is_file():
        inner = sorted(str(p.parent) for p in folder.glob("*/**/dataset_info.json"))[:3]
        mend = f" There is one in {', '.join(inner)}." if inner else " Check the path; `isojax difficulty` writes one."
        raise InputError(f"{folder} is no TFDS data set; expected a folder with dataset_info.json.{mend}")
    tfds = package()
    try:
        builder = tfds.builder_from_directory(folder)
    except Exception as e:  # what TFDS raises for files it cannot read is documented nowhere
        raise InputError(
            f"{folder}: its dataset_info.json or features.json cannot be read ({str(e).splitlines()[0]}). Write it anew."
        ) from e
    if builder.info.file_format is None or builder.info.file_format.file_suffix != "array_record":
        given = builder.info.file_format and builder.info.file_format.file_suffix
        raise InputError(
            f"{folder}: its files are {given}, expected array_record, read without TensorFlow: prepare it with --file_format=array_record."
        )
    full = [builder.info.splits[name] for name, size in split_sizes(builder).items() if size]
    missing = [p for split in full for p in split.filepaths if not Path(p).is_file()]
    if missing:
        raise InputError(f"{folder}: {len(missing)} of its files are missing, the first is {Path(missing[0]).name}. Copy it whole.")
    return builder
