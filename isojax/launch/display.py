"""What a person sees while a sweep runs: the plan before it, a live line, and a line for each
finished cell."""

import shutil
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Self

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from isojax.core.config import Config
from isojax.core.nouns import Cell, CellProgress, StartWarning
from isojax.core.start_file import describe_warning
from isojax.core.terminal import format_hours, warn
from isojax.launch.planner import DeviceBudget, format_bytes, format_sizes
from isojax.launch.time_estimate import GIB, Forecast
from isojax.report.console import SafeConsole, TextTable
from isojax.runs.ledger import INCLUDE_FLAGGED

console = SafeConsole(stderr=True)
SECONDS_BETWEEN_LINES = 30.0  # of progress, where no terminal shows the live line


def print_line(text: str) -> None:
    """A line on standard error, without colours, and not wrapped."""
    console.print(text, soft_wrap=True, markup=False)


def print_plan(
    config: Config,
    cells: list[Cell],
    folder: Path | str,
    devices: str,
    budget: DeviceBudget,
    forecast: Forecast | None = None,
) -> None:
    """The sweep in a table; what it takes of a device; and, where that is known, how long."""
    print_cells(config, cells, folder, forecast)
    sweep, targets = config.sweep, config.run_targets(config.sweep.budget)
    console.print(f"{devices}; {len(targets)} evaluations per run, the last at C = {targets[-1]}")
    if unused := describe_unused_budget(config):
        console.print(unused, markup=False)
    console.print(f"sizes of each shard, chosen where they are not set: {format_sizes(sweep)}")
    memory = budget.estimate(sweep)
    breakdown = ", ".join(
        f"{name} {format_bytes(number)}" for name, number in memory.breakdown.items() if number
    )
    console.print(
        f"memory of a device, the same for every run: {breakdown}; {format_bytes(memory.sampling_peak)} at the peak "
        f"of sampling and {format_bytes(memory.update_peak)} at the update's, of {format_bytes(budget.device_memory)}"
    )
    if forecast:
        is_spend = config.sweep.strategy == "spend"
        seconds = max(forecast.cell_seconds.values()) if is_spend else forecast.sweep_seconds
        scope = "at most, with the slowest n" if is_spend else "for the sweep"
        scope += " if all runs went to their end; sweep.strategy=adaptive spends less" * (
            sweep.strategy == "adaptive"
        )
        without = "without base policy, labels, compilation and fit"
        console.print(
            f"time: {format_hours(seconds / 3600)} {scope}, from {forecast.source}; {without}"
        )


def describe_unused_budget(config: Config) -> str:
    """A run ends with its last evaluation within the budget: what is left of the budget after it,
    or "" where less than a hundredth is."""
    budget = config.sweep.budget
    last_target = config.run_targets(budget)[-1]
    if budget - last_target < budget / 100:
        return ""

    next_target = config.cell.eval.next_target(budget)
    return (
        f"of sweep.budget = {budget:,} the last {budget - last_target:,} rollouts are not trained, as no evaluation is "
        f"due there: sweep.budget={last_target} leaves none, sweep.budget={next_target} has one more evaluation"
    )


def print_disk_use(
    config: Config, cells: Sequence[Cell], folder: Path, checkpoint_bytes: int
) -> None:
    """What the checkpoints of all runs take, where that is much, and a warning where the disk has
    no room for them."""
    kept = config.run.keep_checkpoints
    needed = len(cells) * kept * checkpoint_bytes
    if needed < GIB or console.quiet:  # of the processes of a run, the first one prints
        return
    written = checkpoint_bytes * len(list(folder.glob("cells/*/checkpoint/[0-9]*")))
    free = shutil.disk_usage(
        next(p for p in (folder, *folder.absolute().parents) if p.exists())
    ).free
    sizes = f"{format_bytes(checkpoint_bytes)} each, {kept} kept per run, up to {format_bytes(needed)} for the sweep"
    console.print(f"checkpoints: {sizes}; the disk has {format_bytes(free)} free")
    if needed - written > free:
        warn("the disk may become full; run.keep_checkpoints=1 keeps one checkpoint per run")


def print_cells(
    config: Config, cells: list[Cell], folder: Path | str, forecast: Forecast | None = None
) -> None:
    final_target, rl = config.run_targets(config.sweep.budget)[-1], config.cell.rl
    columns = (
        "B_p",
        "n",
        "B",
        "M",
        "C",
        "lr",
        "seeds",
        *(("rollouts/s", "a run takes") if forecast else ()),
    )
    rows = []
    for cell in sorted(
        {replace(c, seed=0) for c in cells}, key=lambda c: (c.schedule in config.sweep.schedules, c)
    ):
        M = cell.updates_to_reach(final_target)
        first, last = cell.spans[0], cell.span_at(max(M - 1, 0))
        sizes = ((first.B_p, last.B_p), (first.n, last.n), (first.B, last.B))
        B_p, n, B = (f"{a}" if a == b else f"{a} to {b}" for a, b in sizes)
        C = cell.rollouts_after(M)
        rates = [f"{rl.learning_rate * rl.rate_factor(span.B):.2g}" for span in (first, last)]
        rate = rates[0] if rates[0] == rates[1] else " to ".join(rates)
        M_text = str(M) if rl.dynamic_sampling is None else f"at most {M}"
        row = [B_p, n, B, M_text, str(C), rate, str(config.sweep.seeds)]
        if forecast:
            seconds = forecast.cell_seconds[cell.kind]
            speed = (
                C / max(seconds, 1e-9)
                if cell.stages
                else forecast.rollouts_per_second[cell.B_p, cell.n]
            )
            row += [f"{speed:,.{0 if speed >= 10 else 2}f}", format_hours(seconds / 3600)]
        rows.append([*([cell.schedule or "–"] if config.sweep.schedules else []), *row])
    columns = ("schedule", *columns) if config.sweep.schedules else columns
    title = f"{config.name}: {len(cells)} run{'s' * (len(cells) > 1)} in {folder}"
    if config.sweep.strategy == "spend":
        title = (
            f"{config.name}: the budget with each n alone, of which one policy is made in {folder}"
        )
    console.print(TextTable(title, columns, rows))
    sweep = config.sweep
    if over_limit := [
        f"{B_p} x {n}" for B_p, n in product(sweep.B_p, sweep.n) if B_p * n > sweep.B_max
    ]:
        console.print(f"sweep.B_max = {sweep.B_max} leaves out {', '.join(over_limit)}")


def describe_minutes_left(minutes: float) -> str:
    """How long the rollouts that are left take; of the last evaluation and save, which come after
    them, no estimate."""
    if minutes <= 0:
        return "last evaluation and save"
    return "less than a minute left" if minutes < 1 else f"{minutes:.1f} min left"


class Display:
    """Live progress of the sweep on standard error, and a line for each finished cell; `isojax
    status` shows more."""

    def __init__(self, config: Config, shown: Iterable[StartWarning] = ()) -> None:
        """`shown`: what the plan has said already."""
        self._config = config
        self._target_rollouts: dict[Cell, int] = {}
        self._rollouts_done: dict[Cell, int] = {}
        self._rollouts_at_resume: dict[Cell, int] = {}
        self._rewards: dict[Cell, float] = {}
        self._ended_cells: set[Cell] = set()
        self._shown_failures: set[str] = set()
        self._shown_symptoms = {warning.name for warning in shown}
        self._lock = threading.Lock()
        self._started_at = self._last_line_at = time.monotonic()
        note_column = TextColumn("{task.fields[note]}")
        columns = (TextColumn("{task.description}"), BarColumn(), note_column, TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._base_task = self._progress.add_task("base", total=1.0, note="")
        self._sweep_task = self._progress.add_task("sweep", total=None, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def set_targets(self, target_rollouts: Mapping[Cell, int]) -> None:
        """Add what is to be trained, each cell up to so many rollouts."""
        with self._lock:
            self._target_rollouts |= target_rollouts
            self._ended_cells -= target_rollouts.keys()

    def show_preparation(self, text: str, fraction: float) -> None:
        self._progress.update(self._base_task, note=text, completed=fraction)
        if not console.is_terminal and (fraction * 10) % 1 < 1e-9:
            print_line(text)
        self._started_at = time.monotonic()

    def update_cell(self, progress: CellProgress) -> None:
        """A cell has made progress; its first report is where it goes on from."""
        with self._lock:
            self._rollouts_at_resume.setdefault(progress.cell, progress.rollouts)
            self._rollouts_done[progress.cell] = progress.rollouts
            if progress.reward is not None:
                self._rewards[progress.cell] = progress.reward
            sweep_line = self._update_sweep_line()

            # A terminal has the live line. A file gets one now and then, so that its reader sees
            # that the run goes on.
            if (
                not console.is_terminal
                and time.monotonic() - self._last_line_at >= SECONDS_BETWEEN_LINES
            ):
                self._print_line(
                    f"run {progress.cell.name}: C = {progress.rollouts:,}; {sweep_line}"
                )

    def show_verifier_failure(self, kind: str, what_happened: str) -> None:
        """Print the first failure of each kind; several processes may report the same kind."""
        with self._lock:
            if kind not in self._shown_failures:
                self._shown_failures.add(kind)
                is_reply, name = kind.startswith("reply "), kind.removeprefix("reply ")
                effect = "the response ends there" if is_reply else "reward 0"
                counted = f"{effect}; the first of its kind, all are counted as verifier_{name}"
                print_line(
                    f"warning: {kind if is_reply else f'verifier {kind}'}: {what_happened} ({counted})"
                )

    def show_start(self, cell: Cell, warnings: Sequence[StartWarning]) -> None:
        """Print what is doubtful before the first update, each symptom once: the runs of a sweep
        begin alike."""
        with self._lock:
            for warning in warnings:
                if warning.name not in self._shown_symptoms:
                    self._shown_symptoms.add(warning.name)
                    print_line(f"warning: {describe_warning(cell.name, warning.text)}")

    def show_flags(self, cell: Cell, flags: Sequence[str]) -> None:
        for flag in flags:
            print_line(
                f"warning: run {cell.name} {flag}. Fits leave it out, except with {INCLUDE_FLAGGED}."
            )

    def finish_cell(self, cell: Cell, failed: bool) -> None:
        with self._lock:
            self._ended_cells.add(cell)
            self._rollouts_done[cell] = self._target_rollouts[cell]
            outcome = "failed" if failed else "done before"
            if cell not in self._rewards:
                self._rollouts_at_resume[cell] = self._target_rollouts[cell]
            elif not failed:
                outcome = f"reward {self._rewards[cell]:.3f}"
            self._print_line(f"run {cell.name}: {outcome}; {self._update_sweep_line()}")

    def _print_line(self, text: str) -> None:
        print_line(text)
        self._last_line_at = time.monotonic()

    def _update_sweep_line(self) -> str:
        done = sum(self._rollouts_done.values())
        total = sum(self._target_rollouts.values())
        if self._config.sweep.strategy == "spend":
            total = self._config.sweep.budget
        new_rollouts = done - sum(self._rollouts_at_resume.values())
        note = f"{len(self._ended_cells)} of {len(self._target_rollouts)} runs"
        if self._rewards:
            note += f", best reward {max(self._rewards.values()):.3f}"
        if new_rollouts > 0:
            rate = new_rollouts / max(1e-9, time.monotonic() - self._started_at)
            note += f", {rate:,.{0 if rate >= 10 else 1}f} rollouts/s"
            if len(self._ended_cells) < len(self._target_rollouts):
                note += f", {describe_minutes_left((total - done) / rate / 60)}"
        self._progress.update(self._sweep_task, completed=done, total=total, note=note)
        return note
