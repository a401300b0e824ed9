"""W&B's offline runs: wandb/offline-run-*/run-*.wandb, written where WANDB_MODE=offline, and for
every run that was synced too. The file is a log in LevelDB's format (blocks of 32 KiB; chunks of
crc32, length, type; a record may span chunks) of protobuf records. History is joined by step; the
run's config gives columns with dots."""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isojax.core.errors import InputError
from isojax.core.registry import import_extra
from isojax.core.table_files import parse_json, paths_below
from isojax.core.tabular import DataRow
from isojax.core.yaml_files import flatten
from isojax.runs.importers import importer, trl, verl
from isojax.runs.logs.log_table import SAME_NAME_FIELDS, LogTable, check_log_file, parse_message

MAGIC = b":W&B\xe1\xbe"  # and a byte for the version
BLOCK_BYTES, CHUNK_HEADER = 32 * 1024, struct.Struct("<IHB")
CHUNK_FULL, CHUNK_FIRST, CHUNK_MIDDLE, CHUNK_LAST = 1, 2, 3, 4

FIELDS = {
    **SAME_NAME_FIELDS,
    **verl.SAMPLED,
    "n": ("n", *verl.CONFIG_COLUMNS["n"], *trl.CONFIG_COLUMNS["n"]),
    "B_p": ("B_p", *verl.CONFIG_COLUMNS["B_p"]),
    "B": ("B", *trl.CONFIG_COLUMNS["B"]),
    "step": (  # `_step` counts calls of wandb.log, which are several for an update of some trainers
        *(
            "M",
            "training_step",
            "train/global_step",
            "eval/global_step",
            "eval/step",
            "global_step",
            "step",
            "_step",
        ),
    ),
    "reward": ("avg@*", *verl.METRIC_COLUMNS, *trl.CALLBACK_COLUMNS["reward"]),
    **{
        name: (*columns, *trl.CALLBACK_COLUMNS[name])
        for name, columns in verl.TRAIN_COLUMNS.items()
    },
    "step_seconds": verl.STEP_SECONDS,
    "elapsed_seconds": ("_runtime",),
    "devices": ("devices", *verl.CONFIG_COLUMNS["devices"]),
}


def find_logs(folder: Path) -> list[Path]:
    files = paths_below(folder, "run-*.wandb")
    if not files:
        raise InputError(
            f"{folder} holds no run-*.wandb; expected a W&B run's folder, such as wandb/offline-run-*."
        )
    return files


@importer(fields=FIELDS, find_logs=find_logs)
def read(file: Path) -> list[LogTable]:
    """A .wandb file as one run; its id is that of the run, which may go on in another file."""
    record_class = import_extra("wandb", "--from wandb", "wandb.proto.wandb_internal_pb2").Record
    check_log_file(file)
    rows: list[DataRow] = []
    config: dict[str, Any] = {}
    notes: list[str] = []
    run: dict[str, Any] = {}
    for record in _split_records(file, notes):
        entry = parse_message(record_class, record, file)
        kind = entry.WhichOneof("record_type")
        if kind == "history":
            values = _item_values(entry.history.item, file)
            step = (
                entry.history.step.num
                if entry.history.HasField("step")
                else values.get("_step", len(rows))
            )
            rows.append(DataRow(str(file), f"step {step}", {"_step": step, **values}))
        elif kind in ("run", "config"):
            config |= _item_values(
                (entry.run.config if kind == "run" else entry.config).update, file
            )
        if kind == "run":
            started = entry.run.start_time.ToNanoseconds() / 1e9
            run = {"run": entry.run.display_name, "run_id": entry.run.run_id, "started": started}
    if not rows:
        raise InputError(f"{file} holds no step: nothing was logged in this run. Leave it out.")
    derived = trl.rollouts_per_step(config) | verl.derived_settings(config, rows)
    return [LogTable(str(file), tuple(rows), config | derived, notes=tuple(notes), **run)]


def _item_values(items: Any, file: Path) -> dict[str, Any]:
    """Keys (nested ones joined by dots) and values of a record's items; objects within become keys
    with dots."""
    return dict(
        flatten({".".join(x.nested_key) or x.key: parse_json(x.value_json, file) for x in items})
    )


def _split_records(file: Path, notes: list[str]) -> Iterator[bytes]:
    """The records of a log; one that is torn at the end is left out, and noted in `notes`."""
    data = file.read_bytes()
    if not data.startswith(MAGIC):
        raise InputError(f"{file} is no .wandb file (it begins with {data[:6]!r}).")
    position, chunks = len(MAGIC) + 1, []
    while position < len(data):
        block_remaining = BLOCK_BYTES - position % BLOCK_BYTES
        if block_remaining < CHUNK_HEADER.size:
            position += block_remaining
            continue
        if position + CHUNK_HEADER.size > len(data):
            break
        checksum, length, kind = CHUNK_HEADER.unpack_from(data, position)
        chunk = data[position + CHUNK_HEADER.size : position + CHUNK_HEADER.size + length]
        if len(chunk) < length:
            break
        is_kind = kind in (CHUNK_FULL, CHUNK_FIRST, CHUNK_MIDDLE, CHUNK_LAST)
        if not is_kind or zlib.crc32(chunk, zlib.crc32(bytes([kind]))) != checksum:
            raise InputError(
                f"{file} is damaged at byte {position}; copy it again from where the run was."
            )
        position += CHUNK_HEADER.size + length
        if kind not in (CHUNK_MIDDLE, CHUNK_LAST):
            chunks = []
        chunks.append(chunk)
        if kind in (CHUNK_FULL, CHUNK_LAST):
            yield b"".join(chunks)
            chunks = []
    if position < len(data) or chunks:
        notes.append(
            "the last record is torn (the run was stopped while it was written) and is left out"
        )
