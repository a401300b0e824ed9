"""How the trainer (rl/async_rl/async_rollouts.py) reaches the rollout worker (rl/async_rl/rollout_worker.py).

An InlineWorker samples in the trainer's thread while that waits for a batch; a BackgroundWorker in a thread of its own,
on other devices, while the trainer trains. Both receive the same requests in the same order; only the moment of their
arrival differs, which decides with which weights a token is drawn.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

import jax
import numpy as np

from isojax.models.transformer import Params
from isojax.rl.async_rl.rollout_worker import FinishedRollouts, RolloutWorker, SampledBatch
from isojax.sampling.batch import ProblemArrays

FinishedCallback = Callable[[FinishedRollouts], None]


class InlineWorker:
    """A worker that samples while the trainer waits for a batch. `busy_seconds`: how long it has sampled so far."""

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


class BackgroundWorker:
    """A worker that samples at the same time as the trainer; it calls `on_finished` in its own thread."""

    def __init__(self, worker: RolloutWorker, on_finished: FinishedCallback):
        self.worker, self.on_finished, self.busy_seconds = worker, on_finished, 0.0
        self.requests = SimpleQueue[Callable[[], None] | None]()  # None ends the thread
        self.condition = threading.Condition()  # guards what the thread changes
        self.ready_batches: dict[int, SampledBatch] = {}
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True, name="sampler")
        self.thread.start()

    def begin_batch(self, batch: int, problems: ProblemArrays, key_data: np.ndarray) -> None:
        self.requests.put(partial(self.worker.begin_batch, batch, problems, key_data))

    def publish_weights(self, version: int, params: Params) -> None:
        # A copy on the sampler's devices: the trainer's next update donates its own.
        params = jax.device_put(params, self.worker.programs.param_shardings)
        self.requests.put(partial(self.worker.publish_weights, version, params))

    def take_batch(self, batch: int) -> SampledBatch:
        """Waits until the batch is sampled; raises what the worker or `on_finished` has raised."""
        with self.condition:
            self.condition.wait_for(lambda: self.failure is not None or batch in self.ready_batches)
        if self.failure is not None:
            raise self.failure
        return self.ready_batches.pop(batch)

    def close(self) -> None:
        """Ends the thread after its current chunk."""
        self.requests.put(None)
        self.thread.join()

    def _run(self) -> None:
        """Serves requests, and decodes a chunk between them as long as rollouts are left."""
        try:
            while True:
                while not self.worker.has_work or not self.requests.empty():
                    request = self.requests.get()
                    if request is None:
                        return
                    request()
                self._decode_chunk()
        except BaseException as e:  # the thread that trains raises it
            with self.condition:
                self.failure = e
                self.condition.notify_all()

    def _decode_chunk(self) -> None:
        started_at = time.monotonic()
        finished_rollouts = self.worker.decode_chunk()
        batches = {batch: self.worker.take_batch(batch) for batch in self.worker.ready_batches}
        seconds = time.monotonic() - started_at
        for finished in finished_rollouts:
            self.on_finished(finished)
        with self.condition:
            self.busy_seconds += seconds
            self.ready_batches |= batches
            self.condition.notify_all()
