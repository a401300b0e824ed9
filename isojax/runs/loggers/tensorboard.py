"""TensorBoard: one event file per cell, in cells/<cell>/tensorboard/, with every number of its
evaluations at step C (rollouts). The file is a function of the ledger, of its times and of the
second in the file's name, where time begins: bytes that it lacks are appended, and a file that
begins differently is replaced. tensorboardX's own writer is not used, because a thread of it
decides when an event is on disk."""

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
from isojax.core.nouns import Cell, RunRecord
from isojax.runs.ledger import read_timing
from isojax.runs.loggers import Logger, cell_hparams, logger, point_scalars

Event: Any = vars(event_pb2)["Event"]  # protobuf makes its classes when it is imported
HParams: Any = vars(plugin_hparams_pb2)["HParamsPluginData"]


class TensorBoardLogger(Logger):
    """Keeps the event file of one cell equal to what its ledger says."""

    def __init__(self, folder: Path, hparams: dict[str, object]):
        """folder: the cell's. hparams: its settings by name, of `cell_hparams`."""
        self.folder = folder
        self.hparams = hparams

        event_files = sorted((folder / "tensorboard").glob("events.out.tfevents.*.isojax"))
        new_file = folder / "tensorboard" / f"events.out.tfevents.{int(time.time())}.isojax"
        self.path = event_files[-1] if event_files else new_file

    def update(self, run: RunRecord) -> None:
        data = b"".join(_tfrecord(event) for event in self._events(run))
        existing = self.path.read_bytes() if self.path.exists() else b""
        if not existing or not data.startswith(existing):
            write_bytes(self.path, data)
        elif len(data) > len(existing):
            append_bytes(self.path, data[len(existing) :])

    def _events(self, run: RunRecord) -> Iterator[Any]:
        """All events that the file should have: a header, the settings, and each evaluation.

        They depend only on the run's ledger, its times, and the second in the file's name. run:
        with one evaluation or more.
        """
        # The name is events.out.tfevents.SECOND.isojax: time begins with this second.
        wall_time = float(self.path.name.split(".")[3])
        yield Event(wall_time=wall_time, file_version="brain.Event:2")

        for hparams_summary in self._hparams_summaries(run):
            yield Event(wall_time=wall_time, summary=hparams_summary)

        timing = read_timing(self.folder)
        for point in run.points:
            if point.target in timing:
                wall_time += timing[point.target].seconds
            values = [
                summary.Summary.Value(tag=name, simple_value=value)
                for name, value in point_scalars(point).items()
            ]
            yield Event(
                wall_time=wall_time, step=point.rollouts, summary=summary.Summary(value=values)
            )

    def _hparams_summaries(self, run: RunRecord) -> list[Any]:
        """Two summaries with the cell's settings and the names of its metrics.

        They have the form that TensorBoard's page HParams reads.
        """
        hparams = {
            name: value if isinstance(value, (int, float, str)) else str(value)
            for name, value in self.hparams.items()
            if value is not None
        }
        # Of the first evaluation alone: the beginning of the file must stay the same.
        metrics = dict.fromkeys(run.points[0].metrics)
        # The third would say that the run has ended well, which nobody knows yet.
        experiment, session, _session_end = summary.hparams(hparams, metrics)
        for hparams_summary in (experiment, session):
            # A protobuf map has no order: write it in a fixed one, so that equal settings give
            # equal bytes.
            plugin_data = hparams_summary.value[0].metadata.plugin_data
            message = HParams.FromString(plugin_data.content)
            plugin_data.content = message.SerializeToString(deterministic=True)
        return [experiment, session]


@logger
def begin(folder: Path, cell: Cell, config: Config) -> TensorBoardLogger:
    return TensorBoardLogger(folder, cell_hparams(cell, config))


def _tfrecord(event: Any) -> bytes:
    """An event as a file has it: its length, that length's checksum, the event, its checksum."""
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))
