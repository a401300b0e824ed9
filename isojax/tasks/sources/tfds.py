"""Problems in a TFDS data set of ArrayRecord files, `tfds:FOLDER#SPLIT[,SPLIT...]` (without #, the
split `all`), read and written without TensorFlow.

Flat features of another's data set are rows (tasks/problem_sources.py).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from isojax.core.argument_path import ArgumentPath
from isojax.core.atomic_files import atomic_folder
from isojax.core.config import DataConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.core.registry import import_extra
from isojax.core.table_files import parse_json
from isojax.core.tabular import DataRow
from isojax.core.yaml_files import first_line
from isojax.tasks.problem_sources import (
    drop_duplicates,
    random_subset,
    rows_to_problems,
    to_plain_json,
)
from isojax.tasks.sources import source

DATASET_NAME = "problems"
NUMBER_FEATURES = ("id", "solved", "attempts")
TEXT_FEATURES = ("prompt", "answer", "messages", "columns")  # the last two as JSON text


def argument_path(argument: str) -> ArgumentPath:
    return ArgumentPath(argument.partition("#")[0])


@source(path=argument_path)
def dataset(argument: str, data: DataConfig) -> "TfdsSplits":
    """The source of a task `tfds:FOLDER#SPLIT,SPLIT`: some splits of a data set; argument: what
    follows the colon. InputError where there is no such data set or split, or a package is
    missing."""
    folder, _, split_names = argument.partition("#")
    if not folder:
        raise InputError(
            where="cell.task",
            found="tfds takes a data set's folder and splits: tfds:FOLDER#hard_train",
        )
    builder = _open_builder(Path(folder).expanduser())
    splits = builder.info.splits
    sizes = {name: splits[name].num_examples or 0 for name in sorted(splits)}  # records of each

    # Without names the split `all`, or the only one. Where it is unclear which, there are no names,
    # and `problems` refuses.
    names: list[str] = []
    if split_names:
        names = split_names.split(",")
    elif "all" in sizes:
        names = ["all"]
    elif len(sizes) == 1:
        names = list(sizes)
    tfds_splits = TfdsSplits(builder, sizes, names, data)
    for name in names:
        if name not in sizes:
            raise tfds_splits.no_split_error(f"no split {name!r}")
        if not sizes[name]:
            raise tfds_splits.no_split_error(f"split {name!r} is empty")
    return tfds_splits


@dataclass(frozen=True)
class TfdsSplits:
    """Some splits of a data set."""

    builder: Any  # a tfds.core.DatasetBuilder
    sizes: Mapping[str, int]  # how many records each split holds, by name
    names: Sequence[str]  # the splits to read; none where it is not clear which
    data: DataConfig

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """`count` problems of the splits, or all; InputError where a record cannot be used."""
        if not self.names:
            raise self.no_split_error("no split is named, and there is none called all")
        rows = (row for name in self.names for row in self._read_rows(name))
        location = f"{self.builder.data_dir}#{','.join(self.names)}"
        if set(self.builder.info.features) == {*NUMBER_FEATURES, *TEXT_FEATURES}:
            candidates = drop_duplicates(map(_record_to_problem, rows), location)
        else:
            candidates = rows_to_problems(rows, self.data, location)
        return random_subset(candidates, count, rng)

    def _read_rows(self, name: str) -> Iterator[DataRow]:
        """The records of a split, such as "hard_train", as rows. Their numbers count over all
        splits of the data set in order of name, so that a record has the same number whichever
        splits are read."""
        import grain

        info = self.builder.info
        first_number = sum(size for other_split, size in self.sizes.items() if other_split < name)
        location = f"{self.builder.data_dir}, split {name}"
        try:
            files = [str(path) for path in info.splits[name].filepaths]
            records = grain.sources.ArrayRecordDataSource(files)
            for i in range(self.sizes[name]):
                values = info.features.deserialize_example_np(records[i])
                yield DataRow(location, f"record {i}", to_plain_json(values), first_number + i)
        # What ArrayRecord raises of a file that was changed or is gone.
        except (RuntimeError, IndexError, OSError) as e:
            raise InputError(
                where=location,
                found=f"a damaged file ({first_line(e)[:200]})",
                fix="Copy the data set again.",
            ) from e

    def no_split_error(self, fault: str) -> InputError:
        """What is wrong with the names of splits, and which ones there are."""
        splits_text = ", ".join(f"{name} ({size})" for name, size in self.sizes.items()) or "none"
        return InputError(
            where=self.builder.data_dir,
            found=fault,
            expected=f"one of {splits_text}",
            fix="Write tfds:FOLDER#SPLIT.",
        )


def write_dataset(
    folder: Path, splits: Mapping[str, Sequence[Problem]], metadata: Mapping[str, Any]
) -> None:
    """Write problems as a TFDS data set in a new folder, one file for each split. splits: name ->
    its problems, such as {"hard_train": [...]}; metadata: plain JSON, for its metadata.json. After
    a failure no folder is left, since everything is written in a temporary one (`atomic_folder`)
    that is renamed at the end. InputError where the folder exists, or tensorflow_datasets is
    missing."""
    if folder.exists():
        raise InputError(
            where=folder,
            found="exists already, and a data set is written once",
            fix="Choose another, or move it away.",
        )
    tfds = import_tfds()

    # The columns, and their types in the file.
    all_problems = [problem for problems in splits.values() for problem in problems]
    features: dict[str, Any] = dict.fromkeys(NUMBER_FEATURES, np.int64)
    if any(isinstance(problem.solved, float) for problem in all_problems):
        features["solved"] = np.float64  # sums of graded rewards
    features |= {name: tfds.features.Text() for name in TEXT_FEATURES}

    # One shard (file) for each split, however large: largest + 1 is never 0, and no split is so
    # large.
    largest = max(map(len, splits.values()), default=0)
    with atomic_folder(folder) as temp:
        identity = tfds.core.DatasetIdentity(
            name=DATASET_NAME,
            version=tfds.core.Version("1.0.0"),
            data_dir=str(temp),
            module_name=__name__,
        )
        info = tfds.core.DatasetInfo(
            builder=identity,
            features=tfds.features.FeaturesDict(features),
            description="Problems, and how often the base model solved each of them (isojax).",
            metadata=tfds.core.MetadataDict(metadata),
            disable_shuffling=True,
        )
        writer = tfds.core.SequentialWriter(
            info, max_examples_per_shard=largest + 1, file_format="array_record"
        )
        writer.initialize_splits(list(splits))
        records = {
            name: [_problem_to_record(problem) for problem in problems]
            for name, problems in splits.items()
        }
        writer.add_examples(records)
        writer.close_all()


def _problem_to_record(problem: Problem) -> dict[str, Any]:
    plain = {name: vars(problem)[name] for name in (*NUMBER_FEATURES, "prompt", "answer")}
    messages = json.dumps([dict(message) for message in problem.messages])
    return {**plain, "messages": messages, "columns": json.dumps(dict(problem.columns))}


def _record_to_problem(row: DataRow) -> Problem:
    """The problem of a record that `write_dataset` wrote; InputError where it is damaged."""
    messages = parse_json(row.values["messages"], Path(row.location))
    columns = parse_json(row.values["columns"], Path(row.location))
    if not isinstance(messages, list) or not isinstance(columns, dict):
        raise InputError(
            where=row.location,
            found="messages is no JSON list, or columns no object",
            fix="Write the data set again.",
        )
    fields = dict(row.values)
    fields.update(messages=tuple(messages), columns=columns, location=row.location)
    return Problem(**fields)


def import_tfds() -> ModuleType:
    """tensorflow_datasets; InputError where it, or what reads and writes ArrayRecord files, is
    missing."""
    return import_extra(
        "tfds", "tfds", "grain", "array_record.python.array_record_module", "tensorflow_datasets"
    )


def _open_builder(folder: Path) -> Any:
    """The TFDS builder of the data set in a folder; InputError where there is none, or where its
    files are not ArrayRecord, which alone can be read without TensorFlow. The builder gives the
    splits and features as builder.info, and the data set's folder as builder.data_dir."""
    if not (folder / "dataset_info.json").is_file():
        raise InputError(
            where=folder,
            found="no TFDS data set",
            expected="its dataset_info.json, as in DIR/splits of `isojax difficulty`",
        )

    tfds = import_tfds()
    try:
        builder = tfds.builder_from_directory(folder)
    except Exception as e:  # what TFDS raises for files it cannot read is documented nowhere
        problem = f"its dataset_info.json or features.json cannot be read ({first_line(e)})"
        raise InputError(
            where=folder,
            found=problem,
            fix="Write the data set again.",
        ) from e

    file_format = builder.info.file_format and builder.info.file_format.file_suffix
    if file_format != "array_record":
        raise InputError(
            where=folder,
            found=f"its files are {file_format}",
            expected="array_record",
            fix="Prepare it in that format.",
        )
    return builder
