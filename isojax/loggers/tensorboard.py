"""TensorBoard: an event file a cell, cells/<cell>/tensorboard/, with every number of its evaluations at step C (rollouts).

The file is a function of the ledger, of its clocks and of the second in the file's name: the time of a point is that second and what the
run had taken until then. Of the bytes that come of it those that are not there yet are appended; a file that begins otherwise is written
anew. Classes and checksum come from tensorboardX; its own writer leaves to a thread when an event is on disk.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorboardX import summary
from tensorboardX.proto import event_pb2, plugin_hparams_pb2
from tensorboardX.record_writer import masked_crc32c

from isojax.config import Config
from isojax.files import append_bytes, write_bytes
from isojax.loggers import scalars, settings
from isojax.records import clocks
from isojax.types import Cell, EvalPoint, RunRecord

Event: Any = vars(event_pb2)["Event"]  # protobuf makes its classes when it is imported
HParams: Any = vars(plugin_hparams_pb2)["HParamsPluginData"]


def begin(folder: Path, cell: Cell, config: Config) -> TensorBoard:
    """A cell's event file."""
    return TensorBoard(folder, settings(cell, config))


class TensorBoard:
    """An event file that grows with a ledger."""

    def __init__(self, folder: Path, settings: dict[str, object]):
        self.folder, self.settings = folder, settings
        there = sorted((folder / "tensorboard").glob("events.out.tfevents.*.isojax"))
        self.path = there[-1] if there else folder / "tensorboard" / f"events.out.tfevents.{int(time.time())}.isojax"
        self.points = 0

    def tell(self, run: RunRecord) -> None:
        """Bring the file to what the ledger has."""
        began, spent = float(self.path.name.split(".")[3]), clocks(self.folder)
        head = [] if self.points else list(self._head(began, list(run.points[0].metrics)))
        at, events = began, list(head)
        for i, point in enumerate(run.points):
            at += spent.get(point.target, (0.0, 0))[0]
            if i >= self.points:
                events.append(_event(point, at))
        data = b"".join(map(_record, events))
        if not self.points:
            old = self.path.read_bytes() if self.path.exists() else b""
            if not data.startswith(old) or not old:
                write_bytes(self.path, data)
                old = data
            data = data[len(old) :]
        if data:
            append_bytes(self.path, data)
        self.points = len(run.points)

    def _head(self, began: float, metrics: list[str]) -> Iterator[Any]:
        """The format's version, and the cell's settings as hyperparameters."""
        yield Event(wall_time=began, file_version="brain.Event:2")
        plain = {k: v if isinstance(v, (int, float, str)) else str(v) for k, v in self.settings.items() if v is not None}
        experiment, session, _ = summary.hparams(plain, dict.fromkeys(metrics))
        for made in (experiment, session):
            said = made.value[0].metadata.plugin_data  # a protobuf map has no order of its own
            said.content = HParams.FromString(said.content).SerializeToString(deterministic=True)
            yield Event(wall_time=began, summary=made)

    def close(self) -> None:
        """All is on disk."""


def _event(point: EvalPoint, at: float) -> Any:
    """A point's numbers in one event; TensorBoard keeps them in float32."""
    values = [summary.Summary.Value(tag=name, simple_value=value) for name, value in scalars(point).items()]
    return Event(wall_time=at, step=point.rollouts, summary=summary.Summary(value=values))


def _record(event: Any) -> bytes:
    """An event in TensorFlow's TFRecord framing."""
    data, length = event.SerializeToString(), struct.pack("<Q", event.ByteSize())
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))
