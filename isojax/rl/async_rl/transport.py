"""How the trainer (rl/async_rl/async_rollouts.py) reaches the rollout worker (rl/async_rl/rollout_worker.py).

InlineWorker: the trainer's own thread runs the worker while it waits for a batch. BackgroundWorker: the worker serves
requests and decodes between them, at the same time as the trainer; in a thread with devices of its own
(ThreadTransport), or in another process (rl/async_rl/worker_process.py). Both receive the same requests in the same
order. Only the moment of their arrival differs, which decides with which weights a token is drawn.
"""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from isojax.models.transformer import Params
from isojax.rl.async_rl.rollout_worker import FinishedRollouts, RolloutWorker, SampledBatch
from isojax.sampling.batch import ProblemArrays

FinishedCallback = Callable[[FinishedRollouts], None]


class WorkerHandle(Protocol):
    """A rollout worker as the trainer calls it. `busy_seconds`: how long it has sampled so far."""

    @property
    def busy_seconds(self) -> float: ...

    def begin_batch(self, batch: int, problems: ProblemArrays, key_data: np.ndarray) -> None:
        """As `RolloutWorker.begin_batch`."""
        ...

    def publish_weights(self, version: int, params: Params) -> None:
        """As `RolloutWorker.publish_weights`; the caller may donate the parameters after the next call of this."""
        ...

    def take_batch(self, batch: int) -> SampledBatch:
        """Waits until the batch is sampled, and returns it; raises what the worker has raised."""
        ...

    def close(self) -> None:
        """Ends the worker, whatever it does."""
        ...


class InlineWorker:
    """A worker that samples while the trainer waits for a batch."""

    def __init__(self, worker: RolloutWorker, on_finished: FinishedCallback):
        self.worker, self.on_finished, self.busy_seconds = worker, on_finished, 0.0
        self.begin_batch, self.publish_weights = worker.begin_batch, worker.publish_weights

    def take_batch(self, batch: int) -> SampledBatch:
        """Decodes chunks until the batch is sampled."""
        started_at = time.monotonic()
        while batch not in self.worker.ready_batches:
            for finished in self.worker.decode_chunk():
                self.on_finished(finished)
        self.busy_seconds += time.monotonic() - started_at
        return self.worker.take_batch(batch)

    def close(self) -> None:
        """Nothing runs."""


class BeginBatch(NamedTuple):
    """Asks for `RolloutWorker.begin_batch`."""

    batch: int
    problems: ProblemArrays
    key_data: np.ndarray


class PublishWeights(NamedTuple):
    """Asks for `RolloutWorker.publish_weights`."""

    version: int
    params: Params


class StopSampling(NamedTuple):
    """The cell is over."""


WorkerRequest = BeginBatch | PublishWeights | StopSampling


class ChunkReport(NamedTuple):
    """One chunk: the seconds it took, the rollouts that finished, and the batches that are completely sampled now."""

    seconds: float
    finished: list[FinishedRollouts]
    batches: list[SampledBatch]


def serve_requests(worker: RolloutWorker, inbox: SimpleQueue[Any], send_report: Callable[[ChunkReport], None]) -> None:
    """Serves the requests of one cell until StopSampling, and decodes between them as long as rollouts are left."""
    while True:
        while not worker.has_work or not inbox.empty():
            match inbox.get():
                case BeginBatch() as request:
                    worker.begin_batch(*request)
                case PublishWeights() as request:
                    worker.publish_weights(*request)
                case StopSampling():
                    return
        started_at = time.monotonic()
        finished = worker.decode_chunk()
        batches = [worker.take_batch(b) for b in worker.ready_batches]
        send_report(ChunkReport(time.monotonic() - started_at, finished, batches))


class Transport(Protocol):
    """The connection to a worker in another thread or process."""

    def start(self, on_report: Callable[[ChunkReport], None], on_failure: Callable[[BaseException], None]) -> None:
        """Starts the worker. Both callbacks run in another thread than the trainer's."""
        ...

    def sendable_params(self, params: Params) -> Params:
        """A copy of the parameters that can be sent."""
        ...

    def post(self, request: WorkerRequest) -> None:
        """Sends a request."""
        ...

    def close(self) -> None:
        """Ends the worker after its current chunk."""
        ...


class BackgroundWorker:
    """A worker that samples at the same time as the trainer."""

    def __init__(self, transport: Transport, on_finished: FinishedCallback):
        self.transport, self.on_finished, self.busy_seconds = transport, on_finished, 0.0
        self.condition = threading.Condition()  # guards what the callbacks change
        self.ready_batches: dict[int, SampledBatch] = {}
        self.failure: BaseException | None = None
        transport.start(self._on_report, self._on_failure)

    def begin_batch(self, batch: int, problems: ProblemArrays, key_data: np.ndarray) -> None:
        self.transport.post(BeginBatch(batch, problems, key_data))

    def publish_weights(self, version: int, params: Params) -> None:
        self.transport.post(PublishWeights(version, self.transport.sendable_params(params)))

    def take_batch(self, batch: int) -> SampledBatch:
        with self.condition:
            self.condition.wait_for(lambda: self.failure is not None or batch in self.ready_batches)
        if self.failure is not None:
            raise self.failure
        return self.ready_batches.pop(batch)

    def close(self) -> None:
        self.transport.close()

    def _on_report(self, report: ChunkReport) -> None:
        for finished in report.finished:
            self.on_finished(finished)
        with self.condition:
            self.busy_seconds += report.seconds
            self.ready_batches |= {sampled.batch: sampled for sampled in report.batches}
            self.condition.notify_all()

    def _on_failure(self, error: BaseException) -> None:
        with self.condition:
            self.failure = self.failure or error
            self.condition.notify_all()


class ThreadTransport:
    """The connection to a worker in a thread of this process, on devices of its own."""

    def __init__(self, worker: RolloutWorker):
        self.worker, self.inbox = worker, SimpleQueue[WorkerRequest]()

    def start(self, on_report: Callable[[ChunkReport], None], on_failure: Callable[[BaseException], None]) -> None:
        def run() -> None:
            try:
                serve_requests(self.worker, self.inbox, on_report)
            except BaseException as e:  # the thread that trains raises it
                on_failure(e)

        self.thread = threading.Thread(target=run, daemon=True, name="sampler")
        self.thread.start()

    def sendable_params(self, params: Params) -> Params:
        return jax.device_put(params, self.worker.programs.param_shardings)

    def post(self, request: WorkerRequest) -> None:
        self.inbox.put(request)

    def close(self) -> None:
        self.post(StopSampling())
        self.thread.join()
