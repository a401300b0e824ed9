"""TensorBoard: one event file per cell, in cells/<cell>/tensorboard/, with every number of its evaluations at step C
(rollouts).

The file is a function of the ledger, of its times and of the second in the file's name: the time of a point is that
second plus what the run had taken until then. Bytes that the file does not have yet are appended; a file that begins
differently is replaced. Classes and checksum come from tensorboardX; its own writer is not used, because a thread of it
decides when an event is on disk.
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

from isojax.core.atomic_files import append_bytes, write_bytes
from isojax.core.config import Config
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.runs.ledger_reader import read_timing
from isojax.runs.loggers import cell_hparams, point_scalars

Event: Any = vars(event_pb2)["Event"]  # protobuf makes its classes when it is imported
HParams: Any = vars(plugin_hparams_pb2)["HParamsPluginData"]


def begin(folder: Path, cell: Cell, config: Config) -> TensorBoardLogger:
    """A cell's event file."""
    return TensorBoardLogger(folder, cell_hparams(cell, config))


class TensorBoardLogger:
    """An event file that grows with a ledger."""

    def __init__(self, folder: Path, hparams: dict[str, object]):
        self.folder, self.hparams = folder, hparams
        event_files = sorted((folder / "tensorboard").glob("events.out.tfevents.*.isojax"))
        self.path = (
            event_files[-1]
            if event_files
            else folder / "tensorboard" / f"events.out.tfevents.{int(time.time())}.isojax"
        )
        self.points_written = 0

    def update(self, run: RunRecord) -> None:
        """Bring the file to what the ledger has."""
        start_time, clock_by_target = float(self.path.name.split(".")[3]), read_timing(self.folder)
        header_events = (
            [] if self.points_written else list(self._header_events(start_time, list(run.points[0].metrics)))
        )
        wall_time, events = start_time, list(header_events)
        for i, point in enumerate(run.points):
            wall_time += clock_by_target.get(point.target, (0.0, 0))[0]
            if i >= self.points_written:
                events.append(_point_event(point, wall_time))
        data = b"".join(map(_tfrecord, events))
        if not self.points_written:
            existing = self.path.read_bytes() if self.path.exists() else b""
            if not data.startswith(existing) or not existing:
                write_bytes(self.path, data)
                existing = data
            data = data[len(existing) :]
        if data:
            append_bytes(self.path, data)
        self.points_written = len(run.points)

    def _header_events(self, start_time: float, metrics: list[str]) -> Iterator[Any]:
        """The format's version, and the cell's settings as hyperparameters."""
        yield Event(wall_time=start_time, file_version="brain.Event:2")
        plain_hparams = {
            k: v if isinstance(v, (int, float, str)) else str(v) for k, v in self.hparams.items() if v is not None
        }
        experiment, session, _ = summary.hparams(plain_hparams, dict.fromkeys(metrics))
        for hparams_summary in (experiment, session):
            plugin_data = hparams_summary.value[0].metadata.plugin_data  # a protobuf map has no order of its own
            plugin_data.content = HParams.FromString(plugin_data.content).SerializeToString(deterministic=True)
            yield Event(wall_time=start_time, summary=hparams_summary)

    def close(self) -> None:
        """All is on disk."""


def _point_event(point: EvalPoint, wall_time: float) -> Any:
    """A point's numbers in one event; TensorBoard keeps them in float32."""
    values = [summary.Summary.Value(tag=name, simple_value=value) for name, value in point_scalars(point).items()]
    return Event(wall_time=wall_time, step=point.rollouts, summary=summary.Summary(value=values))


def _tfrecord(event: Any) -> bytes:
    """An event in TensorFlow's TFRecord framing."""
    event_bytes, length_bytes = event.SerializeToString(), struct.pack("<Q", event.ByteSize())
    return (
        length_bytes
        + struct.pack("<I", masked_crc32c(length_bytes))
        + event_bytes
        + struct.pack("<I", masked_crc32c(event_bytes))
    )
