"""W&B's offline runs: wandb/offline-run-*/run-*.wandb, written where WANDB_MODE=offline, and beside every run that was synced.

The file is a log in LevelDB's format (blocks of 32 KiB; chunks of crc32, length, type; a record may span chunks) of protobuf records,
whose classes come with the wandb package (extra wandb). History is joined by step; the run's config gives columns with dots.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isojax.files import leaves
from isojax.logs import trl, verl
from isojax.logs.fields import BY_NAME
from isojax.logs.table import Row, Table, Tick, file_size, other_format
from isojax.types import InputError

MAGIC = b":W&B\xe1\xbe"  # and a byte for the version
BLOCK, CHUNK = 32 * 1024, struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

FIELDS = {
    **BY_NAME,
    "n": ("n", *verl.CONFIG["n"], *trl.CONFIG["n"]),
    "B_p": ("B_p", *verl.CONFIG["B_p"]),
    "B": ("B", *trl.CONFIG["B"]),
    "step": ("M", "train/global_step", "global_step", "step", "_step"),
    "reward": ("avg@*", *verl.METRICS, *trl.CALLBACKS["reward"]),
    **{name: (*columns, *trl.CALLBACKS[name]) for name, columns in verl.TRAIN.items()},
}


def read(path: Path, tick: Tick) -> list[Table]:
    """A .wandb file, or every one below a folder, as one run each.

    Raises:
        InputError: the wandb package is missing, no such file, or one that is damaged before its end.
    """
    files = sorted(path.rglob("run-*.wandb")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path} holds no run-*.wandb; expected a W&B run's folder, such as wandb/offline-run-*.")
    return [_table(file, tick) for file in files]


def _record_class() -> Any:
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError as e:
        raise InputError(f"--from wandb needs the wandb package ({e}); install it with: pip install 'isojax[wandb]'.") from e
    return vars(wandb_internal_pb2)["Record"]  # protobuf makes its classes when it is imported


def _table(file: Path, tick: Tick) -> Table:
    record_class = _record_class()
    from google.protobuf.message import DecodeError

    rows: list[Row] = []
    config: dict[str, Any] = {}
    data, notes = _bytes(file, tick), []
    for number, record in enumerate(_records(data, file, notes), 1):
        try:
            entry = record_class.FromString(record)
            kind = entry.WhichOneof("record_type")
            if kind == "history":
                values = _items(entry.history.item)
                step = entry.history.step.num if entry.history.HasField("step") else values.get("_step", len(rows))
                rows.append(Row(f"step {step}", {"_step": step, **values}))
            elif kind in ("run", "config"):
                config |= _items(entry.run.config.update if kind == "run" else entry.config.update)
        except (DecodeError, ValueError) as e:
            raise InputError(f"{file}, record {number} is damaged ({e}); copy the file again from where the run was.") from e
    config.pop("_wandb", None)
    if not rows:
        raise InputError(f"{file} holds no step: nothing was logged in this run. Leave it out.")
    settings = dict(leaves(config))
    return Table(str(file), tuple(rows), settings | trl.rollouts_a_step(settings), notes=tuple(notes))


def _items(items: Any) -> dict[str, Any]:
    """Keys (nested ones joined by dots) and values of a record's items; objects within become keys with dots."""
    found = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
    return dict(leaves(found))


def _bytes(file: Path, tick: Tick) -> bytes:
    tick(file_size(file))
    data = file.read_bytes()
    if not data.startswith(MAGIC):
        raise InputError(f"{file} is no .wandb file (it begins with {data[:6]!r}).{other_format(file, 'wandb')}")
    return data


def _records(data: bytes, file: Path, notes: list[str]) -> Iterator[bytes]:
    """The records of a log; one that is torn at the end is left out, and `notes` hears of it."""
    position, pieces = len(MAGIC) + 1, []
    while position < len(data):
        room = BLOCK - position % BLOCK
        if room < CHUNK.size:
            position += room
            continue
        if position + CHUNK.size > len(data):
            break
        checksum, length, kind = CHUNK.unpack_from(data, position)
        chunk = data[position + CHUNK.size : position + CHUNK.size + length]
        if len(chunk) < length:
            break
        if kind not in (FULL, FIRST, MIDDLE, LAST) or zlib.crc32(chunk, zlib.crc32(bytes([kind]))) != checksum:
            raise InputError(f"{file} is damaged at byte {position}; copy it again from where the run was.")
        position += CHUNK.size + length
        pieces = [*(pieces if kind in (MIDDLE, LAST) else []), chunk]
        if kind in (FULL, LAST):
            yield b"".join(pieces)
            pieces = []
    if position < len(data) or pieces:
        notes.append("the last record is torn (the run was stopped while it was written) and is left out")
