"""The table into which an importer reads a log; the fields that its columns can be (FIELD_HELP);
and the user's table of settings for what the logs lack, with the columns run, n, B_p (or B), seed,
samples, devices, scale (--settings)."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from isojax.core.columns import Column, Mask, is_blank
from isojax.core.errors import InputError
from isojax.core.table_checks import check_unique_rows, require_column
from isojax.core.table_files import parse_json, read_objects, read_table, read_text, split_lines
from isojax.core.tabular import DataRow, RowTable, list_some, nearest_names

# What a log's columns can be, and what a refusal and --help say of each.
FIELD_HELP = {
    "rollouts": "C, rollouts sampled for training so far",
    "step": "updates so far (rollouts = step x B_p x n where no column has them)",
    "sampled_batches": (
        "batches of prompts sampled in a step that filters groups (rollouts = sum x "
        "sampled_B_p x n)"
    ),
    "sampled_B_p": "problems of such a batch",
    "replaced_problems": (
        "problems of a step that were sampled and replaced (rollouts = (step x B_p + "
        "their sum) x n)"
    ),
    "surplus_problems": (
        "further problems of a step that were sampled and dropped (they count as those)"
    ),
    "reward": "the validation metric, in [0, 1]",
    "n": "rollouts per problem",
    "B_p": "problems per batch",
    "B": "rollouts per update (B_p = B / n)",
    "seed": "the run's seed",
    "run": "a name that separates several runs of one file",
    "tokens": "response tokens sampled for training so far",
    "response_length": "mean response tokens per rollout (tokens are summed from it)",
    "device_hours": "device hours so far",
    "step_seconds": (
        "wall-clock seconds of each step (with devices, device hours are summed from it)"
    ),
    "elapsed_seconds": (
        "wall-clock seconds since the start, or a Unix time (with devices, for device hours)"
    ),
    "devices": "devices that train a run",
    "train_reward": "mean training reward",
    "counts": (
        "correct rollouts (or the sum of graded rewards) of each validation problem, as a list"
    ),
    "samples": "rollouts per validation problem",
    "scale": (
        "a number that multiplies the validation metrics: 0.01 for percent; auto: by "
        "each run's own rewards"
    ),
}

CUMULATIVE_FIELDS = ("rollouts", "tokens", "device_hours")
# Problems of a step that were sampled and not trained on; a step that logs none had none.
DROPPED_FIELDS = ("replaced_problems", "surplus_problems")
# of each step, with metrics or without
STEP_FIELDS = ("step_seconds", "sampled_batches", *DROPPED_FIELDS)

# Columns named as in a ledger of our own need no map. Where a format's own `reward` is the training
# reward, its importer takes SAME_NAME_FIELDS and says which column is which.
_COUNTS = (
    "rollouts",
    "step",
    "n",
    "B_p",
    "B",
    "seed",
    "tokens",
    "device_hours",
    "devices",
    "samples",
)
SAME_NAME_FIELDS = {name: (name,) for name in _COUNTS}
LEDGER_FIELDS = {name: (name,) for name in FIELD_HELP if name != "scale"} | {
    # the last: "10/560", by ms-swift
    "step": ("step", "training_step", "global_step", "global_step/max_steps"),
    "train:entropy": ("entropy",),
    "train:kl": ("kl",),
}

SETTING_FIELDS = ("n", "B_p", "B", "seed", "samples", "devices", "scale")  # of a user's table
RunSettings = Mapping[str, Mapping[str, str]]  # of a user's table: run -> field -> number as text


@dataclass(frozen=True)
class LogTable:
    """A log as a table: a row for each entry of the log, a column for each name."""

    source: str  # the file, as the user named it
    # its entries in order; values are as the log has them (text, number, list or None)
    rows: Sequence[DataRow]
    # what it says once for all its rows, as further columns
    config: Mapping[str, Any] = field(default_factory=dict)
    # whether the format holds one run per log, so that n and B_p cannot change in it
    one_run: bool = True
    # a table that people made of logs, in which NaN says that nothing was logged
    is_export: bool = False
    notes: tuple[str, ...] = ()  # what was left out in reading
    run: str = ""  # the run's name, where the log says it
    # what the logs of one run share, each of which goes on where the one before was cut off
    run_id: str = ""
    started: float = 0.0  # seconds of the epoch; orders the logs of one run
    only_metric: str = ""  # the one column with a metric, in a format that holds nothing else

    @property
    def label(self) -> str:
        """The log, and the run in it where it says its name."""
        return f"{self.source} (run {self.run!r})" if self.run else self.source

    @cached_property
    def cells(self) -> RowTable:
        """The rows as columns."""
        return RowTable.of(self.rows)

    def is_unlogged(self, cells: Column) -> Mask:
        """bool[rows]: where one of its columns (`cells`) has no value.

        In a trainer's log NaN is a value that was not finite; in a table that people exported
        (`is_export`), it says that there was none.
        """
        return cells.is_missing if self.is_export else cells.is_blank

    @cached_property
    def columns(self) -> list[str]:
        """Every column of any row, in the order they first appear, then the config's."""
        return list(dict.fromkeys([*self.cells.names, *self.config]))


# How pandas writes a frame as JSON by default, orient="columns": {"step": {"0": 1, "1": 2},
# "reward": {"0": 0.1, ...
COLUMNS_OF_FRAME = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\{\s*"\d+"\s*:')

# How files begin that are no text and no log of W&B or TensorBoard, what they are, and what to do.
_ARCHIVE = "a zip archive or an Excel file; unpack it, or save it as CSV"
_PACKED = "packed by bzip2, xz or zstd; unpack it, or pack it as .gz"
_PARQUET_OR_PICKLE = "a Parquet file or a pickle; save it as CSV"
_UTF_16 = "UTF-16 text; save it as UTF-8"
BINARY_STARTS = {
    b"PK\x03\x04": _ARCHIVE,
    b"BZh": _PACKED,
    b"\xfd7zXZ": _PACKED,
    b"(\xb5/\xfd": _PACKED,
    b"PAR1\x15": _PARQUET_OR_PICKLE,
    b"\x80\x04\x95": _PARQUET_OR_PICKLE,
    b"\x80\x05\x95": _PARQUET_OR_PICKLE,
    b"\xff\xfe": _UTF_16,
    b"\xfe\xff": _UTF_16,
}


def check_log_file(path: Path) -> None:
    """InputError where a log is a folder, an empty file, or a binary file that no importer reads.

    Packed files but .gz are such too. The message names what the file is.
    """
    if path.is_dir():
        raise InputError(
            where=path,
            found="a folder",
            expected="a file",
            fix="Name the log in it.",
        )
    if path.stat().st_size == 0:
        raise InputError(
            where=path,
            found="empty (line 1 is missing)",
            expected="a log with at least one row",
            fix="Leave it out.",
        )

    # Binary formats are told by their first bytes.
    with path.open("rb") as file:
        first_bytes = file.read(8)
    for start, description in BINARY_STARTS.items():
        if first_bytes.startswith(start):
            raise InputError(
                where=path,
                expected="text in UTF-8, or a .gz of it",
                fix=f"This is {description}.",
            )


class LogObjects(NamedTuple):
    rows: Iterable[DataRow]  # one or more, read as they are asked for, which may raise InputError
    notes: tuple[str, ...]  # where the last line is torn


def read_log_objects(path: Path) -> LogObjects:
    """The objects of a JSON file as rows: one on each line, in one list, or in pandas's columns.

    A last line that is torn is left out, with a note. InputError as `read_objects`, also while the
    rows are read.
    """
    check_log_file(path)
    text = read_text(path)
    if re.match(r"\s*\[\s*\{", text):
        # Each object as a numbered line, as `read_objects` takes them.
        lines = [(i, json.dumps(value)) for i, value in enumerate(parse_json(text, path), 1)]
        rows = [
            replace(row, position=f"entry {row.index + 1}") for row in read_objects(path, lines)
        ]
        return LogObjects(rows, ())
    if COLUMNS_OF_FRAME.match(text) and (frame_rows := _rows_of_frame(path, text)):
        return LogObjects(frame_rows, ())
    if not text.strip():
        raise InputError(
            where=path,
            found="holds blank lines only",
            expected="one JSON object per line",
            fix="Leave it out.",
        )

    whole_lines = text[: text.rfind("\n") + 1]
    last_line = text[len(whole_lines) :]
    if whole_lines.strip() and not _is_object(path, last_line):
        note = "its last line is torn, and left out (the run still writes it, or was stopped)"
        return LogObjects(read_objects(path, split_lines(whole_lines)), (note,))
    return LogObjects(read_objects(path, split_lines(text)), ())


def _rows_of_frame(path: Path, text: str) -> list[DataRow]:
    """The rows of a data frame as pandas writes it: {"step": {"0": 1, "1": 2}, ...}.

    That is one object of columns, each an object of cells by row. [] where the text is anything
    else.
    """
    try:
        frame = parse_json(text, path)
    except InputError:  # of several objects, one on a line
        return []

    columns = list(frame.values())  # by COLUMNS_OF_FRAME, the text begins as an object of objects
    if not all(isinstance(column, dict) for column in columns):
        return []
    keys = columns[0].keys()
    if any(column.keys() != keys for column in columns):
        return []
    return [
        DataRow(
            str(path),
            f"entry {i + 1}",
            {name: column[key] for name, column in frame.items()},
            index=i,
        )
        for i, key in enumerate(keys)
    ]


def _is_object(path: Path, line: str) -> bool:
    """Whether a line is a whole object, or blank."""
    try:
        return not line.strip() or isinstance(parse_json(line, path), dict)
    except InputError:
        return False


def parse_message(message_class: Any, data: bytes, path: Path) -> Any:
    """A protobuf message of a log; InputError where the bytes are none."""
    from google.protobuf.message import DecodeError

    try:
        return message_class.FromString(data)
    except DecodeError as e:
        raise InputError(
            where=path,
            found=f"damaged ({e})",
            fix="Copy it again from where the run was.",
        ) from e


def read_settings(path: Path) -> RunSettings:
    """The user's table of settings: run -> field -> number as text, {"run-a": {"n": "16"}}.

    InputError where it lacks the column run, has a column that is no setting, or a run is empty or
    there twice.
    """
    table = read_table(path)
    require_column(table, "run")
    unknown = [name for name in table.columns if name not in ("run", *SETTING_FIELDS)]
    if unknown:
        raise InputError(
            where=f"{path}, {table.header_position}",
            found=f"no setting {unknown[0]!r}",
            expected=f"run and some of {', '.join(SETTING_FIELDS)}",
            fix="Remove the column.",
        )
    for row in table.rows:
        if is_blank(row.values.get("run")):
            raise InputError(
                where=row.location,
                found="names no run",
                expected="one in each row",
                fix="Fill it in, or remove the row.",
            )
    check_unique_rows(table, ["run"])

    settings: dict[str, Mapping[str, str]] = {}
    for row in table.rows:
        run = str(row.values["run"]).strip()
        settings[run] = {
            name: str(row.values[name])
            for name in SETTING_FIELDS
            if not is_blank(row.values.get(name))
        }
    return settings


def name_in_settings(table: LogTable, settings: RunSettings) -> str | None:
    """The name under which the user's table of settings has a run; None where it has none.

    It may be the run's name or id, the log's path, file name or stem, or a folder above it, in this
    order.
    """
    path = Path(table.source)
    stem = path.name.removesuffix(".gz")
    names = [
        table.run,
        table.run_id,
        table.source,
        path.name,
        stem,
        Path(stem).stem,
        *reversed(path.parts[:-1]),
    ]
    return next((name for name in names if name and name in settings), None)


def settings_of(table: LogTable, settings: RunSettings) -> Mapping[str, str]:
    """The settings of a run in the user's table, such as {"n": "16"}; {} without a table.

    InputError where the table has no row for the run.
    """
    if not settings:
        return {}
    name = name_in_settings(table, settings)
    if name is not None:
        return settings[name]

    expected_name = table.run or Path(table.source).name
    (nearest,) = nearest_names(expected_name, list(settings))  # always one
    raise InputError(
        where="--settings",
        found=f"no row for {table.label}",
        expected=f"one with run = {expected_name}",
        fix=f"The nearest is {nearest!r}; the runs are {list_some(list(settings))}.",
    )
