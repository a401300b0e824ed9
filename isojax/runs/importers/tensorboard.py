"""TensorBoard's event files (torch's SummaryWriter, tensorboardX, TensorFlow): scalars, joined by
step; a folder of them is one run. A tag that a later file of a folder logs again from some step on,
after a restart, is taken from there. A file is a row of TFRecords: a length, its masked CRC-32C, an
Event and its masked CRC-32C."""

import json
import struct
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from isojax.core.errors import InputError
from isojax.core.registry import import_extra
from isojax.core.table_files import paths_below
from isojax.core.tabular import DataRow
from isojax.runs.importers import importer
from isojax.runs.logs import trl_columns
from isojax.runs.logs.known_columns import TRACKER_FIELDS
from isojax.runs.logs.log_files import LogRecords, LogStart
from isojax.runs.logs.log_table import LogTable, check_log_file, parse_message

EVENT_FILE_PATTERN = "*tfevents*"
RECORD_HEADER = struct.Struct("<QI")  # the event's length, and that length's checksum
RECORD_FOOTER = struct.Struct("<I")  # the event's checksum
# by tensorboard.DataType
FLOAT_FORMATS = {1: "<f", 2: "<d"}
STRING = 7
ARGUMENTS_TAG = "args/text_summary"  # where transformers writes the training arguments, as JSON
# where SummaryWriter.add_hparams and isojax write a run's settings
HPARAMS_TAG = "_hparams_/session_start_info"

WALL_TIME = "wall_time"  # of an event, as a Unix time
FIELDS = TRACKER_FIELDS | {"step": ("M", "step"), "elapsed_seconds": (WALL_TIME,)}


class ScalarPoint(NamedTuple):
    step: int
    value: float


ScalarSeries = dict[str, list[ScalarPoint]]  # by tag, in the order written


@dataclass
class _EventFile:
    """The content of one event file."""

    series: ScalarSeries = field(default_factory=lambda: defaultdict(list))
    config: dict[str, Any] = field(default_factory=dict)  # the run's settings
    time_of_step: dict[int, float] = field(default_factory=dict)  # Unix time of its last scalar
    is_torn: bool = False  # its last event is not whole, and is left out


def detect(log: LogStart) -> bool:
    return "tfevents" in log.name


def find_logs(folder: Path) -> list[Path]:
    """The folders that hold event files, each of which is a run."""
    folders = sorted({file.parent for file in paths_below(folder, EVENT_FILE_PATTERN)})
    if not folders:
        raise InputError(
            where=folder,
            found=f"no event file ({EVENT_FILE_PATTERN})",
            expected="a SummaryWriter's folder",
        )
    return folders


@importer(
    fields=FIELDS,
    detect=detect,
    is_general=True,  # W&B and TRL keep event files too
    folder_pattern=EVENT_FILE_PATTERN,
    find_logs=find_logs,
    example=(
        "isojax records import tb/ --from tensorboard --map reward=val/acc,n=n{},B_p=64 "
        "--out runs/tb"
    ),
)
def read(path: Path) -> list[LogTable]:
    """An event file, or all event files of a folder, as the table of one run."""
    files = sorted(path.glob(EVENT_FILE_PATTERN)) if path.is_dir() else [path]
    # A run that was killed before its first flush leaves an empty file. Where all are empty, they
    # stay, to be refused by name.
    files = [file for file in files if file.stat().st_size] or files

    series: ScalarSeries = defaultdict(list)
    config: dict[str, Any] = {}
    time_of_step: dict[int, float] = {}
    notes: list[str] = []
    for file in files:
        events = _read_event_file(file)
        config |= events.config
        time_of_step |= events.time_of_step
        if events.is_torn:
            notes.append(
                f"the last event of {file.name} is torn "
                "(the run was stopped as it was written) and is left out"
            )

        # After a restart a run logs some steps again: the later file counts.
        relogged = 0
        for tag, points in events.series.items():
            joined = _join_restart(series[tag], points, f"{file} logs {tag}")
            relogged += len(series[tag]) + len(points) - len(joined)
            series[tag] = joined
        if relogged:
            notes.append(
                f"{relogged} values that {file.name} logs again, after a restart, "
                "are taken from there"
            )
    if not series:
        raise InputError(
            where=path,
            found="no scalar: nothing was logged in this run",
            fix="Leave it out.",
        )

    # B, computed from the arguments of TRL's trainer; {} where the run has none of them
    config |= trl_columns.rollouts_per_step(config)
    return [LogTable(str(path), _rows(path, series, time_of_step), config, notes=tuple(notes))]


def _join_restart(
    earlier: list[ScalarPoint], points: list[ScalarPoint], what: str
) -> list[ScalarPoint]:
    """A tag's points of an earlier file, up to where a later file begins, and those of the later.

    what: "FILE logs TAG", for messages. InputError where the later file begins at or before the
    earlier one's first step, of several, as nothing would be left of them.
    """
    restart = points[0].step
    if earlier and restart <= earlier[0].step < earlier[-1].step:
        raise InputError(
            found=f"{what} again from step {restart}, so it may be another run",
            fix="Give each run its own folder, and remove a start that failed.",
        )
    return [point for point in earlier if point.step < restart] + points


def _rows(path: Path, series: ScalarSeries, time_of_step: dict[int, float]) -> tuple[DataRow, ...]:
    """The scalars as rows by rising step, with tags as columns, the step and the time.

    A step has one row; where a tag was logged several times at it, its further values get further
    rows of this step.
    """
    # isojax's own event files have C as their step, and the updates as a tag M.
    clock = "rollouts" if "M" in series else "step"

    # (step, how many values a tag had there before) -> the values there
    values_at: dict[tuple[int, int], dict[str, float]] = {}
    for tag, points in series.items():
        count_at_step: Counter[int] = Counter()
        for step, value in points:
            values_at.setdefault((step, count_at_step[step]), {clock: step})[tag] = value
            count_at_step[step] += 1
    for (step, _), values in values_at.items():
        values.setdefault(WALL_TIME, time_of_step[step])

    return tuple(
        DataRow(str(path), f"step {step}", values)
        for (step, _), values in sorted(values_at.items(), key=lambda item: item[0])
    )


def _read_event_file(file: Path) -> _EventFile:
    """The scalars, settings and times of an event file; InputError where it is none or damaged."""
    event_class = import_extra(
        "tensorboard", "--from tensorboard", "tensorboardX.proto.event_pb2"
    ).Event
    check_log_file(file)

    log = _split_records(file)
    content = _EventFile(is_torn=log.is_torn)
    for record in log.records:
        event = parse_message(event_class, record, file)
        for value in event.summary.value:
            scalar = _scalar_of(value)
            if scalar is not None:
                content.series[value.tag].append(ScalarPoint(event.step, scalar))
                content.time_of_step[event.step] = event.wall_time
            elif value.tag == ARGUMENTS_TAG:
                content.config |= _arguments_of(value.tensor)
            elif value.tag == HPARAMS_TAG:
                content.config |= _numeric_hparams(value.metadata.plugin_data.content, file)
    return content


def _arguments_of(tensor: Any) -> dict[str, int | float | str]:
    """The training arguments; {} of another text than what transformers' callback writes."""
    if tensor.dtype != STRING or not tensor.string_val:
        return {}
    with suppress(ValueError, RecursionError):
        return trl_columns.plain_arguments(json.loads(tensor.string_val[0]))
    return {}


def _scalar_of(value: Any) -> float | None:
    """The number of a value in a summary (a protobuf message); None where it is no scalar.

    An image or a text is none.
    """
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return value.simple_value
    tensor = value.tensor
    if kind != "tensor" or tensor.dtype not in FLOAT_FORMATS:
        return None
    if any(dimension.size != 1 for dimension in tensor.tensor_shape.dim):
        return None

    # The number is in a field of its type, or, as TensorFlow writes it, in the tensor's bytes.
    layout = struct.Struct(FLOAT_FORMATS[tensor.dtype])
    numbers = [*tensor.float_val, *tensor.double_val]
    if len(tensor.tensor_content) == layout.size:
        numbers += layout.unpack(tensor.tensor_content)
    return float(numbers[0]) if numbers else None


def _numeric_hparams(content: bytes, file: Path) -> dict[str, Any]:
    """The numbers among a run's settings."""
    from tensorboardX.proto import plugin_hparams_pb2

    message_class = vars(plugin_hparams_pb2)["HParamsPluginData"]
    hparams = parse_message(message_class, content, file).session_start_info.hparams
    return {
        key: value.number_value
        for key, value in sorted(hparams.items())  # a protobuf map is in random order
        if value.WhichOneof("kind") == "number_value"
    }


def _split_records(file: Path) -> LogRecords:
    """The events of a file, each as bytes; the format is described at the top of this file.

    An event that is cut off at the end is left out, and `is_torn` says so. InputError where a
    checksum is wrong.
    """
    from tensorboardX.record_writer import masked_crc32c

    data = file.read_bytes()
    records: list[bytes] = []
    offset = 0
    while offset < len(data):
        start = offset + RECORD_HEADER.size
        if start > len(data):
            break
        length, checksum = RECORD_HEADER.unpack_from(data, offset)
        length_bytes = data[offset : offset + 8]  # the "Q" of RECORD_HEADER
        if masked_crc32c(length_bytes) != checksum:
            raise InputError(
                where=file,
                found=f"no event file, or damaged at byte {offset}",
                fix="Copy it again from the run.",
            )

        end = start + length
        if end + RECORD_FOOTER.size > len(data):
            break
        (checksum,) = RECORD_FOOTER.unpack_from(data, end)
        if masked_crc32c(data[start:end]) != checksum:
            raise InputError(
                where=file,
                found=f"damaged at byte {offset}",
                fix="Copy it again from where the run was.",
            )
        records.append(data[start:end])
        offset = end + RECORD_FOOTER.size
    return LogRecords(records, is_torn=offset < len(data))
