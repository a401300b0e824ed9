"""TensorBoard's event files (torch's SummaryWriter, tensorboardX, TensorFlow): scalars, joined by step; a folder of them is one run.

A file is a row of records, each its length, the length's masked CRC-32C, an Event and the Event's masked CRC-32C (TensorFlow's TFRecord).
Classes and checksum come from tensorboardX (extra tensorboard). Where a folder holds several files, a tag that a later one logs again from
some step on is taken from there, as TensorBoard does after a restart.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isojax.logs import trl, verl
from isojax.logs.fields import BY_NAME
from isojax.logs.table import Row, Table, Tick, file_size, other_format
from isojax.types import InputError

PATTERN = "*tfevents*"
HEAD, TAIL = struct.Struct("<QI"), struct.Struct("<I")
FLOAT, DOUBLE, STRING = 1, 2, 7  # tensorboard.DataType
SETTINGS = "args/text_summary"  # where transformers writes the training arguments, as JSON
HPARAMS = "_hparams_/session_start_info"  # where SummaryWriter.add_hparams and isojax write a run's settings

FIELDS = {
    **BY_NAME,
    "step": ("M", "step"),  # isojax's own files have C for the step
    "n": ("n", *trl.CONFIG["n"]),
    "B": ("B", *trl.CONFIG["B"]),
    "reward": ("avg@*", *verl.METRICS, *trl.CALLBACKS["reward"]),
    **{name: (*columns, *trl.CALLBACKS[name]) for name, columns in verl.TRAIN.items()},
}

Series = dict[str, list[tuple[int, float]]]  # tag -> (step, value) in the order written


def read(path: Path, tick: Tick) -> list[Table]:
    """An event file, or every folder of event files below a folder, as one run each.

    Raises:
        InputError: tensorboardX is missing, no such file, or one that is damaged before its end.
    """
    if not path.is_dir():
        return [_table(str(path), [path], tick)]
    folders: dict[Path, list[Path]] = defaultdict(list)
    for file in sorted(path.rglob(PATTERN)):
        folders[file.parent].append(file)
    if not folders:
        raise InputError(f"{path} holds no event file ({PATTERN}); expected a SummaryWriter's folder.")
    return [_table(str(folder), files, tick) for folder, files in folders.items()]


def _classes() -> Any:
    """(class Event, the CRC-32C of bytes)."""
    try:
        from tensorboardX.crc32c import crc32c
        from tensorboardX.proto import event_pb2
    except ImportError as e:
        raise InputError(f"--from tensorboard needs tensorboardX ({e}); install it with: pip install 'isojax[tensorboard]'.") from e
    return vars(event_pb2)["Event"], crc32c  # protobuf makes its classes when it is imported


def _table(source: str, files: list[Path], tick: Tick) -> Table:
    series: Series = defaultdict(list)
    config: dict[str, Any] = {}
    notes: list[str] = []
    for file in files:
        again = 0
        for tag, points in _series(file, tick, config, notes).items():
            first = points[0][0]
            kept = [point for point in series[tag] if point[0] < first]
            again += len(series[tag]) - len(kept)
            series[tag] = kept + points
        if again:
            notes.append(f"{again} values that {file.name} logs again, after a restart, are taken from there")
    if not series:
        raise InputError(f"{source} holds no scalar: nothing was logged in this run. Leave it out.")
    return Table(source, _by_step(series), config | trl.rollouts_a_step(config), notes=tuple(notes))


def _by_step(series: Series) -> tuple[Row, ...]:
    """One row a step, and a further one for a tag that was logged twice at a step."""
    joined: dict[int, list[dict[str, float]]] = defaultdict(list)
    for tag, points in series.items():
        for step, value in points:
            free = next((values for values in joined[step] if tag not in values), None)
            if free is None:
                joined[step].append({"step": step, tag: value})
            else:
                free[tag] = value
    return tuple(Row(f"step {step}", values) for step in sorted(joined) for values in joined[step])


def _series(file: Path, tick: Tick, config: dict[str, Any], notes: list[str]) -> Series:
    """A file's scalars by tag; `config` gets the training arguments it holds, `notes` what was left out."""
    found: Series = defaultdict(list)
    for event in _events(file, tick, notes):
        for value in event.summary.value:
            number = _scalar(value)
            if number is not None:
                found[value.tag].append((event.step, number))
            elif value.tag == SETTINGS and value.tensor.dtype == STRING:
                config |= _settings(value.tensor.string_val)
            elif value.tag == HPARAMS:
                config |= _hparams(value.metadata.plugin_data.content)
    return found


def _scalar(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return value.simple_value
    tensor = value.tensor
    if kind != "tensor" or tensor.dtype not in (FLOAT, DOUBLE) or any(d.size != 1 for d in tensor.tensor_shape.dim):
        return None
    listed = tensor.float_val if tensor.dtype == FLOAT else tensor.double_val
    if len(listed):
        return float(listed[0])
    packed = struct.Struct("<f" if tensor.dtype == FLOAT else "<d")
    return packed.unpack(tensor.tensor_content)[0] if len(tensor.tensor_content) == packed.size else None


def _settings(texts: Any) -> dict[str, Any]:
    """The training arguments that transformers' callback writes as a text."""
    try:
        found = json.loads(texts[0])
    except (IndexError, ValueError):
        return {}
    numbers = found.items() if isinstance(found, dict) else ()
    return {key: value for key, value in numbers if isinstance(value, (int, float, str)) and not isinstance(value, bool)}


def _hparams(content: bytes) -> dict[str, Any]:
    """The numbers among a run's hyperparameters."""
    from tensorboardX.proto import plugin_hparams_pb2

    found = vars(plugin_hparams_pb2)["HParamsPluginData"].FromString(content).session_start_info.hparams
    return {key: value.number_value for key, value in found.items() if value.WhichOneof("kind") == "number_value"}


def _events(file: Path, tick: Tick, notes: list[str]) -> Iterator[Any]:
    """The events of a file; one that is torn at the end is left out, and `notes` hears of it."""
    event_class, crc32c = _classes()
    from google.protobuf.message import DecodeError

    size = file_size(file)
    with file.open("rb") as f:
        while head := f.read(HEAD.size):
            at = f.tell() - len(head)
            length, checksum = HEAD.unpack(head) if len(head) == HEAD.size else (0, None)
            if checksum is not None and _masked(crc32c(head[:8])) != checksum:
                hint = other_format(file, "tensorboard") or " Copy it again from where the run was."
                raise InputError(f"{file} is no event file, or damaged at byte {at}.{hint}")
            data, tail = (f.read(length), f.read(TAIL.size)) if at + len(head) + length <= size else (b"", b"")
            tick(f.tell() - at)
            if checksum is None or len(tail) < TAIL.size:
                notes.append(f"the last event of {file.name} is torn (the run was stopped while it was written) and is left out")
                return
            try:
                event = event_class.FromString(data)
            except DecodeError as e:
                raise InputError(f"{file} is damaged at byte {at} ({e}); copy it again from where the run was.") from e
            if event.summary.value and TAIL.unpack(tail)[0] != _masked(crc32c(data)):
                raise InputError(f"{file} is damaged at byte {at} (step {event.step}); copy it again from where the run was.")
            yield event


def _masked(crc: int) -> int:
    """TFRecord's mask of a checksum."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
