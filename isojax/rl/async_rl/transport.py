"""How the half of a pipeline that samples (rl/async_rl/rollout_worker.py) works beside the half that trains
(rl/async_rl/async_rollouts.py).

By turns, the trainer's own thread calls it (`Turns`). A sampler that works at the same time (`Beside`) runs `serve`,
which does what it is asked and visits in between: in a thread, on devices of its own (`InThread`), or in another
process (rl/async_rl/worker_process.py). Both get the same messages, in the same order; when they come decides with
which weights a token is drawn, and nothing else.
"""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from isojax.models.transformer import Params
from isojax.rl.async_rl.rollout_worker import FinishedRollouts, RolloutBatch, RolloutWorker
from isojax.sampling.batch import ProblemArrays, Rollouts

FinishedCallback = Callable[[FinishedRollouts], None]


class RolloutSource(Protocol):
    """A sampler as the trainer sees it. `busy`: seconds that it has worked so far."""

    @property
    def busy_seconds(self) -> float: ...

    def begin_batch(self, batch: int, problems: ProblemArrays, key: np.ndarray) -> None:
        """As `Sampler.begin`."""
        ...

    def publish_weights(self, version: int, params: Params) -> None:
        """As `Sampler.publish`; the parameters may be donated afterwards, once the next have come."""
        ...

    def take_batch(self, batch: int) -> RolloutBatch:
        """The batch, as soon as it has been sampled; raises what has gone wrong."""
        ...

    def compile_programs(self, params: Params) -> Rollouts:
        """As `Sampler.compile`."""
        ...

    def close(self) -> None:
        """Ends it, whatever it is at."""
        ...


class InlineRollouts:
    """A sampler that works while the trainer waits for a batch."""

    def __init__(self, worker: RolloutWorker, on_finished: FinishedCallback):
        self.begin_batch, self.publish_weights, self.compile_programs = (
            worker.begin_batch,
            worker.publish_weights,
            worker.compile_programs,
        )
        self.worker, self.on_finished, self.busy_seconds = worker, on_finished, 0.0

    def take_batch(self, batch: int) -> RolloutBatch:
        """The batch, after as many visits as it takes."""
        started_at = time.monotonic()
        while batch not in self.worker.ready_batches:
            for finished in self.worker.decode_chunk():
                self.on_finished(finished)
        self.busy_seconds += time.monotonic() - started_at
        return self.worker.take_batch(batch)

    def close(self) -> None:
        """Nothing is at work."""


class BeginBatch(NamedTuple):
    """See `Sampler.begin`."""

    batch: int
    problems: ProblemArrays
    key: np.ndarray


class PublishWeights(NamedTuple):
    """See `Sampler.publish`."""

    version: int
    params: Params


class CompilePrograms(NamedTuple):
    """See `Sampler.compile`; what it gives is told."""

    params: Params


class StopSampling(NamedTuple):
    """The cell is over."""


class ChunkReport(NamedTuple):
    """A visit: the seconds it took, what it has finished, and the batches that are whole now."""

    seconds: float
    finished: list[FinishedRollouts]
    batches: list[RolloutBatch]


WorkerRequest = BeginBatch | PublishWeights | CompilePrograms | StopSampling


def serve_requests(
    worker: RolloutWorker, inbox: SimpleQueue[Any], send_report: Callable[[ChunkReport | Rollouts], None]
) -> None:
    """Does what is asked, and visits in between as long as anything is left to sample, until it is to stop."""
    while True:
        while not worker.has_work or not inbox.empty():
            match inbox.get():
                case BeginBatch() as request:
                    worker.begin_batch(*request)
                case PublishWeights() as request:
                    worker.publish_weights(*request)
                case CompilePrograms(params):
                    send_report(worker.compile_programs(params))
                case StopSampling():
                    return
        started_at = time.monotonic()
        finished = worker.decode_chunk()
        batches = [worker.take_batch(b) for b in worker.ready_batches]
        send_report(ChunkReport(time.monotonic() - started_at, finished, batches))


class Transport(Protocol):
    """The way to a sampler that works elsewhere."""

    def start(
        self, on_message: Callable[[ChunkReport | Rollouts], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        """Starts it. What it tells is heard in another thread, and so is why it ended, where it did."""
        ...

    def sendable_params(self, params: Params) -> Params:
        """Parameters that can be sent, of their own memory."""
        ...

    def post(self, request: WorkerRequest) -> None:
        """Asks for something."""
        ...

    def close(self) -> None:
        """Ends it; it is at the end of a visit then."""
        ...


class AsyncRollouts:
    """A sampler that works at the same time as the trainer."""

    def __init__(self, transport: Transport, on_finished: FinishedCallback):
        self.transport, self.on_finished, self.busy_seconds = transport, on_finished, 0.0
        self.condition = threading.Condition()  # of what has been heard
        self.ready_batches: dict[int, RolloutBatch] = {}
        self.compiled_rollouts: Rollouts | None = None
        self.failure: BaseException | None = None
        transport.start(self._on_message, self._on_failure)

    def begin_batch(self, batch: int, problems: ProblemArrays, key: np.ndarray) -> None:
        """As `Half` says, and so are the others."""
        self.transport.post(BeginBatch(batch, problems, key))

    def publish_weights(self, version: int, params: Params) -> None:
        self.transport.post(PublishWeights(version, self.transport.sendable_params(params)))

    def compile_programs(self, params: Params) -> Rollouts:
        self.transport.post(CompilePrograms(self.transport.sendable_params(params)))
        self._wait_for(lambda: self.compiled_rollouts is not None)
        assert self.compiled_rollouts is not None
        return self.compiled_rollouts

    def take_batch(self, batch: int) -> RolloutBatch:
        self._wait_for(lambda: batch in self.ready_batches)
        return self.ready_batches.pop(batch)

    def close(self) -> None:
        self.transport.close()

    def _wait_for(self, condition_met: Callable[[], bool]) -> None:
        with self.condition:
            self.condition.wait_for(lambda: self.failure is not None or condition_met())
        if self.failure is not None:
            raise self.failure

    def _on_message(self, message: ChunkReport | Rollouts) -> None:
        if isinstance(message, ChunkReport):
            for finished in message.finished:
                self.on_finished(finished)
        with self.condition:
            if isinstance(message, ChunkReport):
                self.busy_seconds += message.seconds
                self.ready_batches |= {taken.batch: taken for taken in message.batches}
            else:
                self.compiled_rollouts = message
            self.condition.notify_all()

    def _on_failure(self, error: BaseException) -> None:
        with self.condition:
            self.failure = self.failure or error
            self.condition.notify_all()


class ThreadTransport:
    """The link to a sampler in a thread of this process, on devices of its own."""

    def __init__(self, worker: RolloutWorker):
        self.worker, self.inbox = worker, SimpleQueue[WorkerRequest]()

    def start(
        self, on_message: Callable[[ChunkReport | Rollouts], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        def run() -> None:
            try:
                serve_requests(self.worker, self.inbox, on_message)
            except BaseException as e:  # told to the thread that trains, which raises it
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
