"""What a person sees while a sweep runs: the plan before it, a live line for the sweep and one for each cell at work."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from isojax.config import Config
from isojax.launch.fitting import Room, size
from isojax.launch.speed import Forecast
from isojax.records import INCLUDE_FLAGGED
from isojax.storage import shown
from isojax.types import Cell
from isojax.types import Progress as CellProgress

console = Console(stderr=True)


def print_plan(
    config: Config, cells: list[Cell], folder: Path, devices: str, at_once: int, room: Room, expected: Forecast | None = None
) -> None:
    """The sweep in a table; what it takes of a device; and, where that is known, how long."""
    print_cells(config, cells, folder, expected)
    grid = config.cell.eval.grid(config.sweep.budget)
    console.print(
        f"{at_once} at once, {devices}; R = {config.sweep.slots} slots and m = {config.sweep.microbatch} rows a microbatch, "
        f"g = {config.sweep.prompts} prompts at once on each shard; {len(grid)} evaluations a cell, the last at C = {grid[-1]}"
    )
    taken = room.takes(config.sweep)
    parts = ", ".join(f"{name} {size(number)}" for name, number in taken.parts.items() if number)
    console.print(
        f"memory of a device, the same for every cell: {parts}; {size(taken.sampling)} at the peak of sampling and {size(taken.update)} at "
        f"the update's, of {size(room.device_memory)}",
        highlight=False,
    )
    if expected:
        console.print(f"time: {duration(expected.sweep)} for the sweep, from {expected.source}", highlight=False)


def print_cells(config: Config, cells: list[Cell], folder: Path, expected: Forecast | None = None) -> None:
    """One row for each (B_p, n)."""
    last = config.cell.eval.grid(config.sweep.budget)[-1]
    table = Table(title=f"{config.name}: {len(cells)} cells in {shown(folder)}", title_justify="left")
    for head in ("B_p", "n", "B", "M", "C", "seeds", *(("rollouts/s", "a cell takes") if expected else ())):
        table.add_column(head, justify="right")
    for B_p, n in sorted({(c.B_p, c.n) for c in cells}):
        M = -(-last // (B_p * n))
        times = (
            (f"{expected.rates[B_p, n]:,.{0 if expected.rates[B_p, n] >= 10 else 2}f}", duration(expected.seconds[B_p, n]))
            if expected
            else ()
        )
        table.add_row(*map(str, (B_p, n, B_p * n, M, M * B_p * n, config.sweep.seeds)), *times)
    console.print(table)


def duration(seconds: float) -> str:
    """Seconds for a person: 2.5 min."""
    for unit, one in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * one:
            return f"{seconds / one:,.1f} {unit}"
    return f"{seconds:.1f} s"


class Shows(Protocol):
    """What is told of a sweep while it runs."""

    def step(self, text: str, fraction: float) -> None: ...

    def failures(self, examples: Mapping[str, str]) -> None: ...


class Display:
    """Live progress on standard error; where that is no terminal, a line for each finished cell."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._goal: dict[Cell, int] = {}
        self._done: dict[Cell, int] = {}
        self._resumed: dict[Cell, int] = {}
        self._reward: dict[Cell, float] = {}
        self._tasks: dict[Cell, TaskID] = {}
        self._ended: set[Cell] = set()
        self._failures: set[str] = set()
        self._lock = threading.Lock()
        self._began = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
        self._live = Progress(*columns, console=console, disable=not console.is_terminal)
        self._base = self._live.add_task("base", total=1.0, note="")
        self._sweep = self._live.add_task("sweep", total=None, note="")

    def __enter__(self) -> Display:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def aim(self, goals: Sequence[tuple[Cell, int]]) -> None:
        """What is to be trained, each cell up to C rollouts, beside what has been."""
        with self._lock:
            self._goal |= {cell: -(-self._config.cell.eval.grid(C)[-1] // cell.B) * cell.B for cell, C in goals}
            self._ended -= {cell for cell, _ in goals}
            self._live.update(self._sweep, total=sum(self._goal.values()))

    def step(self, text: str, fraction: float) -> None:
        """What is being prepared before the first cell."""
        self._live.update(self._base, note=text, completed=fraction)
        if not console.is_terminal and (fraction * 10) % 1 < 1e-9:
            console.print(text)
        self._began = time.monotonic()

    def start(self, cell: Cell) -> None:
        """A worker took this cell."""
        with self._lock:
            self._tasks[cell] = self._live.add_task(
                f"B_p {cell.B_p}, n {cell.n}, seed {cell.seed}", total=self._goal[cell], note="compiling"
            )

    def update(self, progress: CellProgress) -> None:
        """News of a cell."""
        cell = progress.cell
        with self._lock:
            self._resumed.setdefault(cell, progress.rollouts)  # the first news of a cell is where it goes on from
            self._done[cell] = progress.rollouts
            if progress.reward is not None:
                self._reward[cell] = progress.reward
            note = f"reward {self._reward[cell]:.3f}" if cell in self._reward else ""
            self._live.update(self._tasks[cell], completed=progress.rollouts, note=note)
            self._live.update(self._sweep, completed=sum(self._done.values()), note=self._sweep_note())

    def failures(self, examples: Mapping[str, str]) -> None:
        """The first failure of each kind that a verifier has met, {kind: what happened}, each shown once."""
        with self._lock:
            for kind, text in examples.items():
                if kind not in self._failures:
                    self._failures.add(kind)
                    said = f"warning: verifier {kind}: {text} (reward 0; the first of its kind, all are counted as verifier_{kind})"
                    console.print(said, soft_wrap=True, highlight=False, markup=False)

    def flagged(self, cell: Cell, flags: Sequence[str]) -> None:
        """What says that a run broke, once it has ended."""
        with self._lock:
            for flag in flags:
                said = f"warning: cell {cell.name} {flag}. Fits leave it out unless told {INCLUDE_FLAGGED}."
                console.print(said, soft_wrap=True, highlight=False, markup=False)

    def lost(self, cell: Cell, said: str) -> None:
        """A cell at work was lost; it will be taken again."""
        with self._lock:
            task = self._tasks.pop(cell, None)
            if task is not None:
                self._live.remove_task(task)
            console.print(f"warning: cell {cell.name}: {said}", soft_wrap=True, highlight=False, markup=False)

    def finish(self, cell: Cell, failed: bool) -> None:
        """A cell is done, was done before, or failed."""
        with self._lock:
            self._ended.add(cell)
            self._done[cell] = self._goal[cell]
            if cell not in self._reward:
                self._resumed[cell] = self._goal[cell]
            task = self._tasks.pop(cell, None)
            if task is not None:
                self._live.remove_task(task)
            self._live.update(self._sweep, completed=sum(self._done.values()), note=self._sweep_note())
            if not console.is_terminal:
                what = "failed" if failed else f"reward {self._reward[cell]:.3f}" if cell in self._reward else "done before"
                console.print(f"cell {cell.name}: {what}; {self._sweep_note()}", highlight=False)

    def _sweep_note(self) -> str:
        new = sum(self._done.values()) - sum(self._resumed.values())
        rate = new / max(1e-9, time.monotonic() - self._began)
        finished = f"{len(self._ended)} of {len(self._goal)} cells"
        if new <= 0:
            return finished
        left = (sum(self._goal.values()) - sum(self._done.values())) / rate
        return f"{finished}, {rate:,.0f} rollouts/s, {left / 60:.1f} min left"
