"""What a person sees while a sweep runs: the plan before it, a live line, and a line for each
finished cell."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Self

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from isojax.core.config import Config
from isojax.core.nouns import Cell, CellProgress, StartWarning
from isojax.core.start_file import describe_warning
from isojax.core.terminal import format_hours
from isojax.launch.device_budget import DeviceBudget, format_bytes, format_sizes
from isojax.launch.forecast import Forecast, TimePart
from isojax.report.console import SafeConsole, TextTable
from isojax.runs.ledger import INCLUDE_FLAGGED

console = SafeConsole(stderr=True)
SECONDS_BETWEEN_LINES = 30.0  # of progress, where no terminal shows the live line


@dataclass(frozen=True)
class Rent:
    """Devices that are paid for while a sweep runs."""

    count: int
    unit: str  # such as "chip"
    price: float | None = None  # of an hour of one of them; None: not known


def print_line(text: str) -> None:
    """A line on standard error, without colours, and not wrapped."""
    console.print(text, soft_wrap=True, markup=False)


def print_text(content: str | TextTable) -> None:
    """A text, wrapped to the width of the terminal, or a table, on standard error."""
    console.print(content, markup=False)


def silence(is_silent: bool) -> None:
    """Whether nothing is printed by this module, as of the processes of a run but the first."""
    console.quiet = is_silent


def print_plan(
    config: Config,
    cells: list[Cell],
    folder: Path | str,
    devices: str,
    budget: DeviceBudget,
    forecast: Forecast | None = None,
    rent: Rent | None = None,
) -> None:
    """Print the sweep in a table, what it takes of a device and, with a forecast, how long.

    config: with all sizes chosen. folder: to be named. devices: a text such as "2 runs at once, 4
    of 8 gpu devices per run". rent: what the time is paid for; None: nothing.
    """
    print_cells(config, cells, folder, forecast)
    sweep = config.sweep
    targets = config.run_targets(sweep.budget)
    console.print(f"{devices}; {len(targets)} evaluations per run, the last at C = {targets[-1]}")
    unused = describe_unused_budget(config)
    if unused:
        console.print(unused, markup=False)
    console.print(f"sizes of each shard, chosen where they are not set: {format_sizes(sweep)}")

    memory = budget.estimate(sweep)
    breakdown = ", ".join(
        f"{name} {format_bytes(number)}" for name, number in memory.breakdown.items() if number
    )
    console.print(
        f"memory of a device, the same for every run: {breakdown};"
        f" {format_bytes(memory.sampling_peak)} at the peak of sampling and"
        f" {format_bytes(memory.update_peak)} at the update's, of"
        f" {format_bytes(budget.device_memory)}"
    )
    if forecast:
        _print_time(config, forecast, rent)


def _print_time(config: Config, forecast: Forecast, rent: Rent | None) -> None:
    """Print a table of the parts of the sweep's time, with their sum, and what it comes from."""
    if config.sweep.trains_one_policy:
        seconds = max(forecast.cell_seconds.values())
        console.print(
            f"time: {format_hours(seconds / 3600)} at most, with the slowest n, from"
            f" {forecast.source}"
        )
        return

    rows = [_time_row(part, rent) for part in forecast.parts]
    rows.append(_time_row(TimePart("the sweep", forecast.sweep_seconds), rent))
    columns = ["time of", "", "hours"]
    title = "time"
    if rent:
        columns.append(f"{rent.unit} hours")
        title += f" and {rent.unit} hours of {rent.count} {rent.unit}s"
    if rent and rent.price is not None:
        columns.append("price")
        title += f", at {rent.price:g} for an hour of each"
    console.print(TextTable(title, columns, rows, text_columns=2))
    if config.sweep.chooses_runs:
        console.print(
            f"that is if all runs went to their end; sweep.strategy={config.sweep.strategy} spends"
            " less"
        )
    console.print(f"from {forecast.source}; without training a base policy, and the fit")


def _time_row(part: TimePart, rent: Rent | None) -> list[str]:
    """A row of the table of times: name, detail, hours, and what they cost."""
    hours = part.seconds / 3600
    row = [part.name, part.detail, format_hours(hours)]
    if rent:
        row.append(f"{rent.count * hours:,.3g}")
    if rent and rent.price is not None:
        row.append(f"{rent.price * rent.count * hours:,.2f}")
    return row


def describe_unused_budget(config: Config) -> str:
    """A sentence about what is left of the budget after a run's last evaluation, where it ends.

    "" where less than a hundredth is left, which is not worth a line.
    """
    budget = config.sweep.budget
    last_target = config.run_targets(budget)[-1]
    if budget - last_target < budget / 100:
        return ""

    next_target = config.cell.eval.next_target(budget)
    return (
        f"of sweep.budget = {budget:,} the last {budget - last_target:,} rollouts are not trained,"
        f" as no evaluation is due there: sweep.budget={last_target} leaves none,"
        f" sweep.budget={next_target} has one more evaluation"
    )


def print_cells(
    config: Config, cells: list[Cell], folder: Path | str, forecast: Forecast | None = None
) -> None:
    """Print a table with a row for each (B_p, n) and each schedule, and what B_max leaves out.

    cells: of all seeds, which share a row.
    """
    sweep = config.sweep
    columns = ["B_p", "n", "B", "M", "C", "lr", "seeds"]
    if sweep.schedules:
        columns.insert(0, "schedule")
    if forecast:
        columns += ["rollouts/s", "a run takes"]

    # Captures `sweep`. The runs of `isojax spend` have a schedule too, but none of the config's.
    def schedules_last(cell: Cell) -> tuple[bool, Cell]:
        return cell.schedule in sweep.schedules, cell

    rows = []
    for cell in sorted({replace(cell, seed=0) for cell in cells}, key=schedules_last):
        row = _cell_row(config, cell)
        if sweep.schedules:
            row.insert(0, cell.schedule or "–")
        if forecast:
            row += _speed_and_time(config, cell, forecast)
        rows.append(row)

    title = f"{config.name}: {len(cells)} run{'s' * (len(cells) > 1)} in {folder}"
    if sweep.trains_one_policy:
        title = (
            f"{config.name}: the budget with each n alone, of which one policy is made in {folder}"
        )
    console.print(TextTable(title, columns, rows))

    over_limit = [f"{B_p} x {n}" for B_p, n in product(sweep.B_p, sweep.n) if B_p * n > sweep.B_max]
    if over_limit:
        console.print(f"sweep.B_max = {sweep.B_max} leaves out {', '.join(over_limit)}")


def _cell_row(config: Config, cell: Cell) -> list[str]:
    """The texts of a row: B_p, n, B, M, C, the learning rate and the number of seeds.

    Of a schedule "FIRST to LAST" of its values. M and C are those of the last evaluation.
    """
    rl = config.cell.rl
    M = _final_updates(config, cell)
    first = cell.spans[0]
    last = cell.span_at(max(M - 1, 0))  # that of the last update; updates are counted from 0

    # Groups without a signal are drawn again, so that an update may take more rollouts than B.
    M_text = str(M) if rl.dynamic_sampling is None else f"at most {M}"
    first_rate, last_rate = (
        f"{rl.learning_rate * rl.rate_factor(span.B):.2g}" for span in (first, last)
    )
    return [
        _from_to(str(first.B_p), str(last.B_p)),
        _from_to(str(first.n), str(last.n)),
        _from_to(str(first.B), str(last.B)),
        M_text,
        str(cell.rollouts_after(M)),
        _from_to(first_rate, last_rate),
        str(config.sweep.seeds),
    ]


def _speed_and_time(config: Config, cell: Cell, forecast: Forecast) -> list[str]:
    """The texts of a row: rollouts/s, and how long a run takes."""
    seconds = forecast.cell_seconds[cell.kind]
    if cell.stages:  # at several speeds: the average
        C = cell.rollouts_after(_final_updates(config, cell))
        speed = C / max(seconds, 1e-9)  # no division by 0
    else:
        speed = forecast.rollouts_per_second[cell.B_p, cell.n]
    decimals = 0 if speed >= 10 else 2
    return [f"{speed:,.{decimals}f}", format_hours(seconds / 3600)]


def _final_updates(config: Config, cell: Cell) -> int:
    """M at the last evaluation."""
    final_target = config.run_targets(config.sweep.budget)[-1]
    return cell.updates_to_reach(final_target)


def _from_to(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def describe_minutes_left(minutes: float) -> str:
    """A text such as "3.2 min left", of the rollouts that are left.

    For the last evaluation and save, which come after them, there is no estimate.
    """
    if minutes <= 0:
        return "last evaluation and save"
    if minutes < 1:
        return "less than a minute left"
    return f"{minutes:.1f} min left"


class Display:
    """Live progress of the sweep on standard error, and a line for each finished cell.

    A cell is one run of the sweep. Threads that train cells call these methods; as a context, it
    shows the live line from its beginning to its end. `isojax status` shows more.
    """

    def __init__(self, config: Config, shown: Iterable[StartWarning] = ()) -> None:
        """`shown`: what the plan has said already."""
        self._config = config
        self._lock = threading.Lock()  # cells are trained in threads

        # C of each cell: at its end, so far, and where this process found it.
        self._target_rollouts: dict[Cell, int] = {}
        self._rollouts_done: dict[Cell, int] = {}
        self._rollouts_at_resume: dict[Cell, int] = {}
        self._rewards: dict[Cell, float] = {}  # of the newest evaluations
        self._ended_cells: set[Cell] = set()

        # Names of what is printed once.
        self._shown_failures: set[str] = set()
        self._shown_symptoms = {warning.name for warning in shown}

        # By time.monotonic().
        self._started_at = time.monotonic()
        self._last_line_at = self._started_at

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
        """Add what is to be trained, each cell up to so many rollouts in all (C)."""
        with self._lock:
            self._target_rollouts |= target_rollouts
            self._ended_cells -= target_rollouts.keys()

    def show_preparation(self, text: str, fraction: float) -> None:
        """Show what is prepared before the first cell, and which fraction of it is done (0 to 1).

        Where output goes to a file, there is a line at each tenth. Training counts from the last
        such call on.
        """
        self._progress.update(self._base_task, note=text, completed=fraction)
        if not console.is_terminal and (fraction * 10) % 1 < 1e-9:
            print_line(text)
        self._started_at = time.monotonic()

    def update_cell(self, progress: CellProgress) -> None:
        """Show that a cell has made progress.

        Its first report in this process says where the cell goes on from: rollouts up to there do
        not count towards rollouts/s.
        """
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
        """Print the first failure of each kind; several processes may report the same kind.

        kind: such as "timeout" of a verifier, or "reply timeout" of a task with turns, whose reply
        to the policy failed.
        """
        with self._lock:
            if kind in self._shown_failures:
                return
            self._shown_failures.add(kind)

            # Of a task with turns, it may be the reply to the policy that failed, not the grading.
            is_reply = kind.startswith("reply ")
            source = kind if is_reply else f"verifier {kind}"
            effect = "the response ends there" if is_reply else "reward 0"
            name = kind.removeprefix("reply ")
            counted = f"{effect}; the first of its kind, all are counted as verifier_{name}"
            print_line(f"warning: {source}: {what_happened} ({counted})")

    def show_start(self, cell: Cell, warnings: Sequence[StartWarning]) -> None:
        """Print what is doubtful before the first update, each symptom once for all cells.

        Cells begin alike, so that the others would only repeat it.
        """
        with self._lock:
            for warning in warnings:
                if warning.name not in self._shown_symptoms:
                    self._shown_symptoms.add(warning.name)
                    print_line(f"warning: {describe_warning(cell.name, warning.text)}")

    def show_flags(self, cell: Cell, flags: Sequence[str]) -> None:
        """Print why a run that has ended counts as broken: sentences of scaling/checks."""
        for flag in flags:
            print_line(
                f"warning: run {cell.name} {flag}. Fits leave it out, except with"
                f" {INCLUDE_FLAGGED}."
            )

    def finish_cell(self, cell: Cell, failed: bool) -> None:
        """Print that a cell has ended; its target must have been set by `set_targets`."""
        with self._lock:
            self._ended_cells.add(cell)
            self._rollouts_done[cell] = self._target_rollouts[cell]
            outcome = "failed" if failed else "done before"
            # Without a report, this process has trained nothing of it: what counts as done now must
            # not count towards rollouts/s.
            if cell not in self._rewards:
                self._rollouts_at_resume[cell] = self._target_rollouts[cell]
            elif not failed:
                outcome = f"reward {self._rewards[cell]:.3f}"
            self._print_line(f"run {cell.name}: {outcome}; {self._update_sweep_line()}")

    def _print_line(self, text: str) -> None:
        print_line(text)
        self._last_line_at = time.monotonic()

    def _update_sweep_line(self) -> str:
        """Show where the sweep stands on the live line; returns its text. The lock must be held."""
        done = sum(self._rollouts_done.values())
        total = sum(self._target_rollouts.values())
        if self._config.sweep.trains_one_policy:  # its targets are those of the next leg
            total = self._config.sweep.budget

        num_ended = len(self._ended_cells)
        num_cells = len(self._target_rollouts)
        note = f"{num_ended} of {num_cells} runs"
        if self._rewards:
            note += f", best reward {max(self._rewards.values()):.3f}"

        new_rollouts = done - sum(self._rollouts_at_resume.values())
        if new_rollouts > 0:
            rate = new_rollouts / max(1e-9, time.monotonic() - self._started_at)
            decimals = 0 if rate >= 10 else 1
            note += f", {rate:,.{decimals}f} rollouts/s"
            if num_ended < num_cells:
                minutes_left = (total - done) / rate / 60
                note += f", {describe_minutes_left(minutes_left)}"

        self._progress.update(self._sweep_task, completed=done, total=total, note=note)
        return note
