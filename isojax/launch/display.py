"""What a person sees while a sweep runs: the plan before it, a live line for the sweep and one for each cell at
work.
"""

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

from isojax.core.config import Config
from isojax.core.nouns import Cell
from isojax.core.nouns import CellProgress as CellProgress
from isojax.launch.autosize import DeviceBudget, format_bytes
from isojax.launch.time_estimate import Forecast
from isojax.runs.ledger import INCLUDE_FLAGGED
from isojax.runs.workspace import display_path

console = Console(stderr=True)


def print_plan(
    config: Config,
    cells: list[Cell],
    folder: Path,
    devices: str,
    concurrent_cells: int,
    device_budget: DeviceBudget,
    forecast: Forecast | None = None,
) -> None:
    """The sweep in a table; what it takes of a device; and, where that is known, how long."""
    print_cells(config, cells, folder, forecast)
    targets = config.cell.eval.evaluation_targets(config.sweep.budget)
    console.print(
        f"{concurrent_cells} at once, {devices}; R = {config.sweep.decode_slots} slots and "
        f"m = {config.sweep.microbatch} rows a microbatch, "
        f"g = {config.sweep.prefill_batch} prompts at once on each shard; "
        f"{len(targets)} evaluations a cell, the last at C = {targets[-1]}"
    )
    memory = device_budget.estimate(config.sweep)
    breakdown = ", ".join(f"{name} {format_bytes(number)}" for name, number in memory.breakdown.items() if number)
    console.print(
        f"memory of a device, the same for every cell: {breakdown}; {format_bytes(memory.sampling_peak)} at the peak "
        f"of sampling and {format_bytes(memory.update_peak)} at the update's, "
        f"of {format_bytes(device_budget.device_memory)}",
        highlight=False,
    )
    if forecast:
        console.print(
            f"time: {format_duration(forecast.sweep_seconds)} for the sweep, from {forecast.source}", highlight=False
        )


def print_cells(config: Config, cells: list[Cell], folder: Path, forecast: Forecast | None = None) -> None:
    """One row for each (B_p, n)."""
    final_target = config.cell.eval.evaluation_targets(config.sweep.budget)[-1]
    table = Table(title=f"{config.name}: {len(cells)} cells in {display_path(folder)}", title_justify="left")
    for heading in ("B_p", "n", "B", "M", "C", "seeds", *(("rollouts/s", "a cell takes") if forecast else ())):
        table.add_column(heading, justify="right")
    for B_p, n in sorted({(c.B_p, c.n) for c in cells}):
        M = -(-final_target // (B_p * n))
        time_columns = (
            (
                f"{forecast.rollouts_per_second[B_p, n]:,.{0 if forecast.rollouts_per_second[B_p, n] >= 10 else 2}f}",
                format_duration(forecast.cell_seconds[B_p, n]),
            )
            if forecast
            else ()
        )
        table.add_row(*map(str, (B_p, n, B_p * n, M, M * B_p * n, config.sweep.seeds)), *time_columns)
    console.print(table)


def format_duration(seconds: float) -> str:
    """Seconds for a person: 2.5 min."""
    for unit, unit_seconds in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * unit_seconds:
            return f"{seconds / unit_seconds:,.1f} {unit}"
    return f"{seconds:.1f} s"


class ProgressReporter(Protocol):
    """What is told of a sweep while it runs."""

    def show_preparation(self, text: str, fraction: float) -> None: ...

    def show_verifier_failures(self, examples: Mapping[str, str]) -> None: ...


class Display:
    """Live progress on standard error; where that is no terminal, a line for each finished cell."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._target_rollouts: dict[Cell, int] = {}
        self._rollouts_done: dict[Cell, int] = {}
        self._rollouts_at_resume: dict[Cell, int] = {}
        self._rewards: dict[Cell, float] = {}
        self._cell_tasks: dict[Cell, TaskID] = {}
        self._ended_cells: set[Cell] = set()
        self._shown_failures: set[str] = set()
        self._lock = threading.Lock()
        self._started_at = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._base_task = self._progress.add_task("base", total=1.0, note="")
        self._sweep_task = self._progress.add_task("sweep", total=None, note="")

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def set_targets(self, targets: Sequence[tuple[Cell, int]]) -> None:
        """What is to be trained, each cell up to C rollouts, beside what has been."""
        with self._lock:
            self._target_rollouts |= {
                cell: -(-self._config.cell.eval.evaluation_targets(C)[-1] // cell.B) * cell.B for cell, C in targets
            }
            self._ended_cells -= {cell for cell, _ in targets}
            self._progress.update(self._sweep_task, total=sum(self._target_rollouts.values()))

    def show_preparation(self, text: str, fraction: float) -> None:
        """What is being prepared before the first cell."""
        self._progress.update(self._base_task, note=text, completed=fraction)
        if not console.is_terminal and (fraction * 10) % 1 < 1e-9:
            console.print(text)
        self._started_at = time.monotonic()

    def start_cell(self, cell: Cell) -> None:
        """A worker took this cell."""
        with self._lock:
            self._cell_tasks[cell] = self._progress.add_task(
                f"B_p {cell.B_p}, n {cell.n}, seed {cell.seed}", total=self._target_rollouts[cell], note="compiling"
            )

    def update_cell(self, progress: CellProgress) -> None:
        """News of a cell."""
        cell = progress.cell
        with self._lock:
            self._rollouts_at_resume.setdefault(
                cell, progress.rollouts
            )  # the first news of a cell is where it goes on from
            self._rollouts_done[cell] = progress.rollouts
            if progress.reward is not None:
                self._rewards[cell] = progress.reward
            note = f"reward {self._rewards[cell]:.3f}" if cell in self._rewards else ""
            self._progress.update(self._cell_tasks[cell], completed=progress.rollouts, note=note)
            self._progress.update(
                self._sweep_task, completed=sum(self._rollouts_done.values()), note=self._sweep_note()
            )

    def show_verifier_failures(self, examples: Mapping[str, str]) -> None:
        """The first failure of each kind that a verifier has met, {kind: what happened}, each shown once."""
        with self._lock:
            for kind, text in examples.items():
                if kind not in self._shown_failures:
                    self._shown_failures.add(kind)
                    warning = (
                        f"warning: verifier {kind}: {text} "
                        f"(reward 0; the first of its kind, all are counted as verifier_{kind})"
                    )
                    console.print(warning, soft_wrap=True, highlight=False, markup=False)

    def show_flags(self, cell: Cell, flags: Sequence[str]) -> None:
        """What says that a run broke, once it has ended."""
        with self._lock:
            for flag in flags:
                warning = f"warning: cell {cell.name} {flag}. Fits leave it out unless told {INCLUDE_FLAGGED}."
                console.print(warning, soft_wrap=True, highlight=False, markup=False)

    def show_lost_cell(self, cell: Cell, reason: str) -> None:
        """A cell at work was lost; it will be taken again."""
        with self._lock:
            task = self._cell_tasks.pop(cell, None)
            if task is not None:
                self._progress.remove_task(task)
            console.print(f"warning: cell {cell.name}: {reason}", soft_wrap=True, highlight=False, markup=False)

    def finish_cell(self, cell: Cell, failed: bool) -> None:
        """A cell is done, was done before, or failed."""
        with self._lock:
            self._ended_cells.add(cell)
            self._rollouts_done[cell] = self._target_rollouts[cell]
            if cell not in self._rewards:
                self._rollouts_at_resume[cell] = self._target_rollouts[cell]
            task = self._cell_tasks.pop(cell, None)
            if task is not None:
                self._progress.remove_task(task)
            self._progress.update(
                self._sweep_task, completed=sum(self._rollouts_done.values()), note=self._sweep_note()
            )
            if not console.is_terminal:
                outcome = (
                    "failed"
                    if failed
                    else f"reward {self._rewards[cell]:.3f}"
                    if cell in self._rewards
                    else "done before"
                )
                console.print(f"cell {cell.name}: {outcome}; {self._sweep_note()}", highlight=False)

    def _sweep_note(self) -> str:
        new_rollouts = sum(self._rollouts_done.values()) - sum(self._rollouts_at_resume.values())
        rate = new_rollouts / max(1e-9, time.monotonic() - self._started_at)
        cells_note = f"{len(self._ended_cells)} of {len(self._target_rollouts)} cells"
        if new_rollouts <= 0:
            return cells_note
        seconds_left = (sum(self._target_rollouts.values()) - sum(self._rollouts_done.values())) / rate
        return f"{cells_note}, {rate:,.0f} rollouts/s, {seconds_left / 60:.1f} min left"
