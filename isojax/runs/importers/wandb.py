"""W&B's offline runs: wandb/offline-run-*/run-*.wandb, written where WANDB_MODE=offline, and for
every run that was synced too. The file is a log in LevelDB's format (blocks of 32 KiB; chunks of
crc32, length, type; a record may span chunks) of protobuf records. History is joined by step; the
run's config gives columns with dots."""

import struct
import zlib
from pathlib import Path
from typing import Any

from isojax.core.errors import InputError
from isojax.core.registry import import_extra
from isojax.core.table_files import parse_json, paths_below
from isojax.core.tabular import DataRow
from isojax.core.yaml_files import flatten
from isojax.runs.importers import importer
from isojax.runs.logs import trl_columns, verl_columns
from isojax.runs.logs.known_columns import TRACKER_FIELDS
from isojax.runs.logs.log_files import LogRecords, LogStart
from isojax.runs.logs.log_table import LogTable, check_log_file, parse_message

FILE_PATTERN = "run-*.wandb"
MAGIC = b":W&B\xe1\xbe"  # and a byte for the version
BLOCK_BYTES = 32 * 1024
CHUNK_HEADER = struct.Struct("<IHB")  # its checksum, its length, its kind
CHUNK_FULL, CHUNK_FIRST, CHUNK_MIDDLE, CHUNK_LAST = 1, 2, 3, 4


def detect(log: LogStart) -> bool:
    return log.name.endswith(".wandb")


def find_logs(folder: Path) -> list[Path]:
    files = paths_below(folder, FILE_PATTERN)
    if not files:
        raise InputError(
            where=folder,
            found=f"no {FILE_PATTERN}",
            expected="a W&B run's folder, such as wandb/offline-run-*",
        )
    return files


@importer(
    fields=TRACKER_FIELDS,
    detect=detect,
    folder_pattern=FILE_PATTERN,
    find_logs=find_logs,
    example=(
        "isojax records import wandb/offline-run-* --from wandb --map avg@4=val/acc,B=2048 "
        "--out runs/wb"
    ),
)
def read(file: Path) -> list[LogTable]:
    """A .wandb file as the table of one run, in a list of one.

    The table has W&B's id of the run, by which it is joined with another file in which the run
    continues. InputError where the file is damaged or holds no step.
    """
    record_class = import_extra("wandb", "--from wandb", "wandb.proto.wandb_internal_pb2").Record
    check_log_file(file)

    rows: list[DataRow] = []
    config: dict[str, Any] = {}
    run: dict[str, Any] = {}
    log = _split_records(file)  # all of the file is read here; `log.records` is a list
    for record in log.records:
        entry = parse_message(record_class, record, file)
        kind = entry.WhichOneof("record_type")
        if kind == "history":
            rows.append(_history_row(entry.history, file, count_before=len(rows)))
        elif kind == "run":
            started = entry.run.start_time.ToNanoseconds() / 1e9
            run = {"run": entry.run.display_name, "run_id": entry.run.run_id, "started": started}
            config |= _item_values(entry.run.config.update, file)
        elif kind == "config":
            config |= _item_values(entry.config.update, file)
    if not rows:
        raise InputError(
            where=file,
            found="no step: nothing was logged in this run",
            fix="Leave it out.",
        )

    notes = []
    if log.is_torn:
        notes.append(
            "the last record is torn (the run was stopped while it was written) and is left out"
        )
    # What the configs of TRL and verl, which log to W&B, give only by several entries, such as the
    # rollouts of a step. It takes the place of a setting of the same name: verl's n is without the
    # repeats of its forks.
    derived = trl_columns.rollouts_per_step(config) | verl_columns.derived_settings(config, rows)
    return [LogTable(str(file), tuple(rows), config | derived, notes=tuple(notes), **run)]


def _history_row(history: Any, file: Path, count_before: int) -> DataRow:
    """One call of wandb.log as a row, with its number as `_step`.

    history: a protobuf message. count_before: calls before it, its number where an old version of
    wandb has written none.
    """
    values = _item_values(history.item, file)
    if history.HasField("step"):
        step = history.step.num
    else:
        step = values.get("_step", count_before)
    return DataRow(str(file), f"step {step}", {"_step": step, **values})


def _item_values(items: Any, file: Path) -> dict[str, Any]:
    """Keys and values of a record's items, such as {"val/acc": 0.5, "optim.lr": 1e-6}.

    items: protobuf messages, each with a key or a nested key, whose parts are joined by dots, and a
    value as JSON. An object within a value becomes several keys with dots.
    """
    values = {}
    for item in items:
        name = ".".join(item.nested_key) or item.key
        values[name] = parse_json(item.value_json, file)
    return dict(flatten(values))


def _split_records(file: Path) -> LogRecords:
    """The records of a .wandb file, each as bytes, put together from their chunks.

    The format is described at the top of this file. A record that is cut off at the file's end is
    left out, and `is_torn` says so. InputError where the file is damaged.
    """
    data = file.read_bytes()
    if not data.startswith(MAGIC):
        raise InputError(
            where=file,
            found=f"no .wandb file (it begins with {data[:6]!r})",
        )

    records: list[bytes] = []
    chunks: list[bytes] = []  # of the record that has begun
    position = len(MAGIC) + 1  # behind MAGIC and the byte for the version, which is not read
    while position < len(data):
        # No header is split between blocks: the rest of a block that is too short for one is empty.
        block_remaining = BLOCK_BYTES - position % BLOCK_BYTES
        if block_remaining < CHUNK_HEADER.size:
            position += block_remaining
            continue

        chunk_start = position + CHUNK_HEADER.size
        if chunk_start > len(data):
            break
        checksum, length, kind = CHUNK_HEADER.unpack_from(data, position)
        chunk = data[chunk_start : chunk_start + length]
        if len(chunk) < length:
            break
        is_kind = kind in (CHUNK_FULL, CHUNK_FIRST, CHUNK_MIDDLE, CHUNK_LAST)
        # The checksum is of the kind's byte and then the chunk.
        if not is_kind or zlib.crc32(chunk, zlib.crc32(bytes([kind]))) != checksum:
            raise InputError(
                where=file,
                found=f"damaged at byte {position}",
                fix="Copy it again from where the run was.",
            )
        position = chunk_start + length

        # A record that had begun and was not finished before another begins is left out.
        if kind in (CHUNK_FULL, CHUNK_FIRST):
            chunks = []
        chunks.append(chunk)
        if kind in (CHUNK_FULL, CHUNK_LAST):
            records.append(b"".join(chunks))
            chunks = []

    return LogRecords(records, is_torn=position < len(data) or len(chunks) > 0)
