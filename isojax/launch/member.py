"""A process of a gang: it joins the others, makes the sweep ready, and trains the cells that it is given, one at a time.

Whoever starts it (ray.py) calls its methods from elsewhere and gets plain data back: `open` and `train` take as long as they take, and
meanwhile `news` says how far they are. What it prints goes to a file of its own, which outlives it. jax is loaded by `open`.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from isojax import stopping
from isojax.config import Config
from isojax.launch.gang import Gang, together
from isojax.launch.rounds import Goal
from isojax.launch.workers import tell_failures
from isojax.stopping import Stopped
from isojax.storage import Busy, alone, folder_of, fresh, is_url, working
from isojax.types import Cell, InputError, Progress, RunFailed

TOKEN = ".sweep"  # a file that only who sees the driver's folder can read
DEVICES = "--xla_force_host_platform_device_count"
LOCKED = 150.0  # seconds in which the process that had a cell before is gone, and what an NFS server kept for it
WELL, STOPPED, BROKEN, REFUSED, LOST = "well", "stopped", "broken", "refused", "lost"


@dataclass
class News:
    """What has become known since the last time: of the base policy's making, of the cell at work, of the verifier's failures."""

    step: tuple[str, float] | None = None
    progress: Progress | None = None
    failures: dict[str, str] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)


class Teller:
    """Takes what display.Display shows, for somebody else to show."""

    def __init__(self) -> None:
        self.news = News()

    def step(self, text: str, fraction: float) -> None:
        self.news.step = text, fraction

    def failures(self, examples: Mapping[str, str]) -> None:
        self.news.failures |= examples

    def update(self, progress: Progress) -> None:
        self.news.progress = progress

    def flagged(self, cell: Cell, flags: Sequence[str]) -> None:
        self.news.flags += flags

    def take(self) -> News:
        """What there is, once."""
        taken, self.news = self.news, News()
        return taken


@dataclass(frozen=True)
class Outcome:
    """How a call has ended: WELL, STOPPED (its state is saved), BROKEN (the cell's own fault, which it would meet again), REFUSED (the
    user's), or LOST (this process is of no more use)."""

    kind: str = WELL
    said: str = ""


class Member:
    """One process of a gang."""

    def __init__(self, folder: str, log: str):
        """`folder`: where the sweep was started. `log`: the file that what this process prints is appended to."""
        if Path(folder).is_dir():
            os.chdir(folder)  # where relative paths begin
        sys.path.insert(0, "")  # where a fork's modules are found (cli.py)
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
        self._teller, self._ending, self._name = Teller(), ExitStack(), Path(log).stem

    def host(self) -> str:
        """This node, as others of the cluster reach it."""
        import ray

        return ray.util.get_node_ip_address()

    def address(self) -> str:
        """HOST:PORT with a port that is free here, for the processes to meet."""
        with socket.create_server(("", 0)) as free:
            return f"{self.host()}:{free.getsockname()[1]}"

    def open(self, config: Config, cells: list[Cell], token: str, devices: int | None, gang: Gang) -> Outcome:
        """Join the others and make the sweep ready, as far as that was not done before. `devices`: how many a CPU simulates."""
        try:
            self._ending.enter_context(working(config.run.dir, config.name, gang.several, cell=self._name))
            folder = folder_of(config.run.dir, config.name)
            if not is_url(config.run.dir) and (not (folder / TOKEN).exists() or (folder / TOKEN).read_text() != token):
                raise InputError(
                    f"run.dir: the node {self.host()} does not see {folder} as the driver does; expected a folder that all nodes share "
                    "(NFS, a mounted bucket). Choose one by run.dir=FOLDER."
                )
            if devices is not None:
                os.environ["JAX_PLATFORMS"] = "cpu"  # of its cores alone, whatever else the node has
                words = [word for word in os.environ.get("XLA_FLAGS", "").split() if not word.startswith(DEVICES)]
                os.environ["XLA_FLAGS"] = " ".join([*words, f"{DEVICES}={devices}"])
            from isojax.launch.site import opened, start_jax

            jax = start_jax(config)
            self._ending.enter_context(together(gang))
            self._site = self._ending.enter_context(opened(jax, config, cells, resume=True))
            self._base = self._site.prepare(self._teller)
        except InputError as e:
            return Outcome(REFUSED, str(e))
        return Outcome()

    def train(self, goal: Goal) -> Outcome:
        """Train a cell up to its goal, from where it stands."""
        from isojax import hosts
        from isojax.launch.workers import one_cell

        site, cell = self._site, goal.cell
        fresh(site.folder, cell.name)

        def report(progress: Progress) -> None:
            self._teller.update(progress)
            tell_failures(self._teller, site.task)

        with ExitStack() as held:
            if hosts.writes():
                last = time.monotonic() + LOCKED
                while True:
                    try:
                        held.enter_context(alone(site.folder / "cells" / cell.name))
                        break
                    except Busy:
                        if time.monotonic() > last:
                            return Outcome(LOST, f"another process still writes to {site.folder / 'cells' / cell.name}")
                        time.sleep(0.5)
                    except InputError as e:
                        return Outcome(BROKEN, str(e))
            try:
                error = one_cell(site, site.programs[0], self._base, goal, report, self._teller.flagged)
            except Stopped as e:
                return Outcome(STOPPED, str(e))
        if error is None:
            return Outcome()
        print(f"{cell.name}: {type(error).__name__}: {error}", file=sys.stderr)
        own = isinstance(error, (FloatingPointError, InputError, RunFailed))
        return Outcome(BROKEN if own else LOST, str(error) or type(error).__name__)

    def news(self) -> News:
        """What has become known since the last call."""
        return self._teller.take()

    def stop(self) -> None:
        """The cell at work is to save its state and end."""
        stopping.ask()

    def close(self) -> None:
        """Parts from the others; ends the verifier."""
        self._ending.close()
