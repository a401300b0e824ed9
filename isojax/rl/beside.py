"""How the half of a pipeline that samples (rl/ahead.py) works beside the half that trains (rl/pipeline.py).

By turns, the trainer's own thread calls it (`Turns`). A sampler that works at the same time (`Beside`) runs `serve`, which does what it is
asked and visits in between: in a thread, on devices of its own (`InThread`), or in another process (rl/process.py). Both get the same
messages, in the same order; when they come decides with which weights a token is drawn, and nothing else.
"""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from isojax.models.decoder import Params
from isojax.rl.ahead import Found, Sampler, Taken
from isojax.sampling.batch import Problems, Rollouts

Told = Callable[[Found], None]


class Half(Protocol):
    """A sampler as the trainer sees it. `busy`: seconds that it has worked so far."""

    @property
    def busy(self) -> float: ...

    def begin(self, b: int, problems: Problems, key: np.ndarray) -> None:
        """As `Sampler.begin`."""
        ...

    def publish(self, version: int, params: Params) -> None:
        """As `Sampler.publish`; the parameters may be donated afterwards, once the next have come."""
        ...

    def take(self, b: int) -> Taken:
        """The batch, as soon as it has been sampled; raises what has gone wrong."""
        ...

    def compile(self, params: Params) -> Rollouts:
        """As `Sampler.compile`."""
        ...

    def close(self) -> None:
        """Ends it, whatever it is at."""
        ...


class Turns:
    """A sampler that works while the trainer waits for a batch."""

    def __init__(self, sampler: Sampler, told: Told):
        self.begin, self.publish, self.compile = sampler.begin, sampler.publish, sampler.compile
        self.sampler, self.told, self.busy = sampler, told, 0.0

    def take(self, b: int) -> Taken:
        """The batch, after as many visits as it takes."""
        began = time.monotonic()
        while b not in self.sampler.ready:
            for found in self.sampler.visit():
                self.told(found)
        self.busy += time.monotonic() - began
        return self.sampler.take(b)

    def close(self) -> None:
        """Nothing is at work."""


class Begin(NamedTuple):
    """See `Sampler.begin`."""

    b: int
    problems: Problems
    key: np.ndarray


class Publish(NamedTuple):
    """See `Sampler.publish`."""

    version: int
    params: Params


class Compile(NamedTuple):
    """See `Sampler.compile`; what it gives is told."""

    params: Params


class Stop(NamedTuple):
    """The cell is over."""


class Visited(NamedTuple):
    """A visit: the seconds it took, what it has finished, and the batches that are whole now."""

    seconds: float
    found: list[Found]
    taken: list[Taken]


Asked = Begin | Publish | Compile | Stop


def serve(sampler: Sampler, inbox: SimpleQueue[Any], tell: Callable[[Visited | Rollouts], None]) -> None:
    """Does what is asked, and visits in between as long as anything is left to sample, until it is to stop."""
    while True:
        while not sampler.working or not inbox.empty():
            match inbox.get():
                case Begin() as asked:
                    sampler.begin(*asked)
                case Publish() as asked:
                    sampler.publish(*asked)
                case Compile(params):
                    tell(sampler.compile(params))
                case Stop():
                    return
        began = time.monotonic()
        found = sampler.visit()
        taken = [sampler.take(b) for b in sampler.ready]
        tell(Visited(time.monotonic() - began, found, taken))


class Link(Protocol):
    """The way to a sampler that works elsewhere."""

    def open(self, hear: Callable[[Visited | Rollouts], None], fail: Callable[[BaseException], None]) -> None:
        """Starts it. What it tells is heard in another thread, and so is why it ended, where it did."""
        ...

    def carry(self, params: Params) -> Params:
        """Parameters that can be sent, of their own memory."""
        ...

    def post(self, asked: Asked) -> None:
        """Asks for something."""
        ...

    def close(self) -> None:
        """Ends it; it is at the end of a visit then."""
        ...


class Beside:
    """A sampler that works at the same time as the trainer."""

    def __init__(self, link: Link, told: Told):
        self.link, self.told, self.busy = link, told, 0.0
        self.turn = threading.Condition()  # of what has been heard
        self.batches: dict[int, Taken] = {}
        self.compiled: Rollouts | None = None
        self.failure: BaseException | None = None
        link.open(self._hear, self._fail)

    def begin(self, b: int, problems: Problems, key: np.ndarray) -> None:
        """As `Half` says, and so are the others."""
        self.link.post(Begin(b, problems, key))

    def publish(self, version: int, params: Params) -> None:
        self.link.post(Publish(version, self.link.carry(params)))

    def compile(self, params: Params) -> Rollouts:
        self.link.post(Compile(self.link.carry(params)))
        self._wait(lambda: self.compiled is not None)
        assert self.compiled is not None
        return self.compiled

    def take(self, b: int) -> Taken:
        self._wait(lambda: b in self.batches)
        return self.batches.pop(b)

    def close(self) -> None:
        self.link.close()

    def _wait(self, there: Callable[[], bool]) -> None:
        with self.turn:
            self.turn.wait_for(lambda: self.failure is not None or there())
        if self.failure is not None:
            raise self.failure

    def _hear(self, message: Visited | Rollouts) -> None:
        if isinstance(message, Visited):
            for found in message.found:
                self.told(found)
        with self.turn:
            if isinstance(message, Visited):
                self.busy += message.seconds
                self.batches |= {taken.batch: taken for taken in message.taken}
            else:
                self.compiled = message
            self.turn.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self.turn:
            self.failure = self.failure or error
            self.turn.notify_all()


class InThread:
    """The link to a sampler in a thread of this process, on devices of its own."""

    def __init__(self, sampler: Sampler):
        self.sampler, self.inbox = sampler, SimpleQueue[Asked]()

    def open(self, hear: Callable[[Visited | Rollouts], None], fail: Callable[[BaseException], None]) -> None:
        def run() -> None:
            try:
                serve(self.sampler, self.inbox, hear)
            except BaseException as e:  # told to the thread that trains, which raises it
                fail(e)

        self.thread = threading.Thread(target=run, daemon=True, name="sampler")
        self.thread.start()

    def carry(self, params: Params) -> Params:
        return jax.device_put(params, self.sampler.programs.params)

    def post(self, asked: Asked) -> None:
        self.inbox.put(asked)

    def close(self) -> None:
        self.post(Stop())
        self.thread.join()
