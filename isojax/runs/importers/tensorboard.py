"""TensorBoard's event files (torch's SummaryWriter, tensorboardX, TensorFlow): scalars, joined by
step; a folder of them is one run. A tag that a later file of a folder logs again from some step on,
after a restart, is taken from there. A file is a row of TFRecords: a length, its masked CRC-32C, an
Event and its masked CRC-32C."""

import json
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from isojax.core.errors import InputError
from isojax.core.registry import import_extra
from isojax.core.table_files import paths_below
from isojax.core.tabular import DataRow
from isojax.runs.importers import importer, trl, wandb
from isojax.runs.logs.log_table import LogTable, check_log_file, parse_message

EVENT_FILE_PATTERN = "*tfevents*"
RECORD_HEADER, RECORD_FOOTER = struct.Struct("<QI"), struct.Struct("<I")
FLOAT_FORMATS, STRING = {1: "<f", 2: "<d"}, 7  # by tensorboard.DataType
ARGUMENTS_TAG = "args/text_summary"  # where transformers writes the training arguments, as JSON
# where SummaryWriter.add_hparams and isojax write a run's settings
HPARAMS_TAG = "_hparams_/session_start_info"

WALL_TIME = "wall_time"  # of an event, as a Unix time
FIELDS = wandb.FIELDS | {"step": ("M", "step"), "elapsed_seconds": (WALL_TIME,)}

ScalarSeries = dict[str, list[tuple[int, float]]]  # tag -> (step, value) in the order written


def find_logs(folder: Path) -> list[Path]:
    folders = sorted({file.parent for file in paths_below(folder, EVENT_FILE_PATTERN)})
    if not folders:
        raise InputError(
            f"{folder} holds no event file ({EVENT_FILE_PATTERN}); expected a SummaryWriter's folder."
        )
    return folders


@importer(fields=FIELDS, find_logs=find_logs)
def read(path: Path) -> list[LogTable]:
    """An event file, or the event files of a folder, as one run."""
    files = sorted(path.glob(EVENT_FILE_PATTERN)) if path.is_dir() else [path]
    series: ScalarSeries = defaultdict(list)
    config: dict[str, Any] = {}
    notes: list[str] = []
    time_at_step: dict[int, float] = {}
    # A run that was killed before its first flush leaves an empty file.
    for file in [file for file in files if file.stat().st_size] or files:
        relogged = 0
        for tag, points in _read_series(file, config, notes, time_at_step).items():
            if series[tag] and points[0][0] <= series[tag][0][0] < series[tag][-1][0]:
                problem = (
                    f"{file} logs {tag} again from step {points[0][0]}, so it may be another run"
                )
                raise InputError(
                    f"{problem}. Give each run its own folder, and remove a start that failed."
                )
            earlier_points = [point for point in series[tag] if point[0] < points[0][0]]
            relogged += len(series[tag]) - len(earlier_points)
            series[tag] = earlier_points + points
        if relogged:
            notes.append(
                f"{relogged} values that {file.name} logs again, after a restart, are taken from there"
            )
    if not series:
        raise InputError(f"{path} holds no scalar: nothing was logged in this run. Leave it out.")
    # One row per step, and a further one for a tag that was logged twice at a step.
    # (step, values that the tag had there before) -> by tag
    values_at: dict[tuple[int, int], dict[str, float]] = {}
    # isojax's own files have the tag M, and C for the step
    clock = "rollouts" if "M" in series else "step"
    for tag, points in series.items():
        repeats: Counter[int] = Counter()
        for step, value in points:
            values_at.setdefault((step, repeats[step]), {clock: step})[tag] = value
            repeats[step] += 1
    for (step, _), values in values_at.items():
        values.setdefault(WALL_TIME, time_at_step[step])
    rows = tuple(
        DataRow(str(path), f"step {step}", values)
        for (step, _), values in sorted(values_at.items())
    )
    return [LogTable(str(path), rows, config | trl.rollouts_per_step(config), notes=tuple(notes))]


def _read_series(
    file: Path, config: dict[str, Any], notes: list[str], time_at_step: dict[int, float]
) -> ScalarSeries:
    """A file's scalars by tag; `config` gets the settings it holds, `notes` what was left out,
    `time_at_step` the Unix time of the last scalar of each step."""
    series: ScalarSeries = defaultdict(list)
    for event in _read_events(file, notes):
        for value in event.summary.value:
            scalar = _scalar_of(value)
            if scalar is not None:
                series[value.tag].append((event.step, scalar))
                time_at_step[event.step] = event.wall_time
            elif (
                value.tag == ARGUMENTS_TAG
                and value.tensor.dtype == STRING
                and value.tensor.string_val
            ):
                # another text than what transformers' callback writes
                with suppress(ValueError, RecursionError):
                    config |= trl.plain_arguments(json.loads(value.tensor.string_val[0]))
            elif value.tag == HPARAMS_TAG:
                config |= _numeric_hparams(value.metadata.plugin_data.content, file)
    return series


def _scalar_of(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return value.simple_value
    tensor = value.tensor
    if (
        kind != "tensor"
        or tensor.dtype not in FLOAT_FORMATS
        or any(d.size != 1 for d in tensor.tensor_shape.dim)
    ):
        return None
    layout = struct.Struct(FLOAT_FORMATS[tensor.dtype])
    content = (
        layout.unpack(tensor.tensor_content) if len(tensor.tensor_content) == layout.size else ()
    )
    return next(map(float, (*tensor.float_val, *tensor.double_val, *content)), None)


def _numeric_hparams(content: bytes, file: Path) -> dict[str, Any]:
    from tensorboardX.proto import plugin_hparams_pb2

    hparams = parse_message(
        vars(plugin_hparams_pb2)["HParamsPluginData"], content, file
    ).session_start_info.hparams
    return {
        key: value.number_value
        for key, value in hparams.items()
        if value.WhichOneof("kind") == "number_value"
    }


def _read_events(file: Path, notes: list[str]) -> Iterator[Any]:
    """The events of a file; one that is torn at the end is left out, and noted in `notes`."""
    event_class = import_extra(
        "tensorboard", "--from tensorboard", "tensorboardX.proto.event_pb2"
    ).Event
    from tensorboardX.record_writer import masked_crc32c

    check_log_file(file)
    data, offset = file.read_bytes(), 0
    while offset < len(data):
        start = offset + RECORD_HEADER.size
        if start > len(data):
            break
        length, checksum = RECORD_HEADER.unpack_from(data, offset)
        if masked_crc32c(data[offset : offset + 8]) != checksum:
            raise InputError(
                f"{file} is no event file, or damaged at byte {offset}; copy it again from the run."
            )
        end = start + length
        if end + RECORD_FOOTER.size > len(data):
            break
        if masked_crc32c(data[start:end]) != RECORD_FOOTER.unpack_from(data, end)[0]:
            raise InputError(
                f"{file} is damaged at byte {offset}; copy it again from where the run was."
            )
        yield parse_message(event_class, data[start:end], file)
        offset = end + RECORD_FOOTER.size
    if offset < len(data):
        notes.append(
            f"the last event of {file.name} is torn (the run was stopped as it was written) and is left out"
        )
