"""Where a sweep stands, from its files alone.

The ledgers say what was trained, status.json what a driver knows beyond them. Without a driver's,
cells that have begun are running if a process holds the folder's lock.
"""

import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from isojax.core import terminal
from isojax.core.config import Config, load_config
from isojax.core.errors import InputError
from isojax.core.nouns import Cell, EvalPoint, Spending
from isojax.core.start_file import describe_start
from isojax.core.table_files import paths_below, read_json_object
from isojax.launch.planner import plan_cells
from isojax.launch.status_file import CellStatus, DriverStatus, read_status
from isojax.runs.ledger import HEALTH_FILE, RECORDS_FILE, read_timing, recorded_points
from isojax.runs.mirror import is_url, is_written
from isojax.runs.progress_file import read_progress
from isojax.runs.rounds_file import ROUNDS_FILE, read_rounds
from isojax.runs.spend_file import read_spending

# Of a sweep's folder; the last is what an adaptive sweep writes at its end.
CONFIG_FILE = "config.yaml"
SUMMARY_FILE = "frontier.json"
STALE_SECONDS = 60.0  # age of status.json from which on its driver counts as gone
CELL_NAME_PATTERN = re.compile(r"([1-9]\d{0,9})x([1-9]\d{0,9})-s(\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class CellSummary:
    """A cell; `attempts`, `where` and `log` are those of status.json, where there is one."""

    cell: Cell
    state: Literal["waiting", "interrupted", "running", "failed", "done"]
    rollouts: int  # C so far
    goal: int | None  # C at its end, where that is fixed
    reward: float | None  # of the newest evaluation
    rate: float | None  # rollouts/s
    age: float | None  # seconds since the newest evaluation
    attempts: int | None
    where: str
    log: str
    reason: str  # why it failed
    flags: tuple[str, ...]  # of a run that broke

    def to_json(self) -> dict[str, Any]:
        """The fields of the run itself, and what became of it; times in seconds, `goal` in
        rollouts."""
        outcome = {name: value for name, value in vars(self).items() if name != "cell"}
        return {"name": self.cell.name, **self.cell.to_json(), **outcome}


@dataclass(frozen=True)
class SweepStatus:
    """A sweep, with C and budget of all cells in rollouts."""

    name: str
    folder: Path
    resume_command: str  # empty where the folder must first get its old name
    running: bool
    cells: tuple[CellSummary, ...]
    rollouts: int
    budget: int
    rate: float | None  # rollouts/s of the running cells
    seconds_left: float | None  # at that rate
    lost: str  # a sentence about a driver that has ended without a word; else empty
    unread: str  # a sentence about a driver that prints to nobody; else empty
    start: tuple[str, ...]  # what was doubtful before the first update, a sentence for each symptom

    def count(self, state: str) -> int:
        return sum(cell.state == state for cell in self.cells)

    def to_json(self) -> dict[str, Any]:
        """Its fields; times in seconds, `budget` in rollouts."""
        cells = [cell.to_json() for cell in self.cells]
        return {**vars(self), "folder": str(self.folder), "cells": cells}


@dataclass(frozen=True)
class Writers:
    """Which processes write a sweep's folder, as far as its files say, at a time."""

    driver: DriverStatus | None  # the newest status of a driver
    locked: bool  # whether a process on this machine holds the folder's lock
    now: float  # Unix seconds

    @property
    def driver_cells(self) -> Mapping[str, CellStatus]:
        """By name; none of a sweep on one machine."""
        return {} if self.driver is None else self.driver.cells

    @property
    def driver_alive(self) -> bool:
        """Whether a driver on a cluster writes its status."""
        if self.driver is None or not self.driver.cells or self.driver.ended:
            return False
        return self.now - self.driver.time < STALE_SECONDS

    @property
    def running(self) -> bool:
        return self.driver_alive or self.locked


def read_sweep_status(
    folder: Path, now: float | None = None, planned: Config | None = None
) -> SweepStatus:
    """Where the sweep in a folder stands; nothing is changed.

    now: Unix seconds; None: now. planned: the config with which it is to go on, which may have a
    larger budget; None: the one in the folder. InputError where a file of it cannot be read.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise InputError(
            where=folder,
            found=f"no sweep's folder, it has no {CONFIG_FILE}",
            expected="one such as runs/quickstart",
            fix="A sweep that has just begun writes it once its base policy is ready.",
        )
    config = planned or load_config(str(folder / CONFIG_FILE))
    now = time.time() if now is None else now
    writers = Writers(driver=read_status(folder), locked=is_written(folder), now=now)
    spending = read_spending(folder)
    last_target = config.cell.eval.evaluation_targets(config.sweep.budget)[-1]

    cells = _cell_summaries(folder, config, writers, spending, last_target)
    if spending is not None and not spending.is_ended:
        cells = _between_two_legs(cells, spending, writers.running)
    if config.sweep.chooses_runs and not writers.locked:
        cells = _with_outcomes(cells, _read_end(folder), now)

    rollouts = sum(cell.rollouts for cell in cells)
    budget = _sweep_budget(config, last_target)
    if spending is not None and spending.is_ended:
        budget = rollouts
    rate = _sweep_rate(cells)
    return SweepStatus(
        name=config.name,
        folder=folder,
        resume_command=resume_command(folder, config),
        running=writers.running,
        cells=tuple(cells),
        rollouts=rollouts,
        budget=budget,
        rate=rate,
        seconds_left=_seconds_left(cells, budget - rollouts, rate),
        lost=_describe_lost_driver(writers),
        unread=_describe_unread_output(writers),
        start=tuple(describe_start(folder)),
    )


def _cell_summaries(
    folder: Path,
    config: Config,
    writers: Writers,
    spending: Spending | None,
    last_target: int,
) -> list[CellSummary]:
    """A summary of each cell that is planned or has begun.

    spending: of `isojax spend`, its legs so far; else None. last_target: the last C at which a run
    is evaluated, with which it ends.
    """
    cells = []
    for cell in _known_cells(folder, config, writers.driver_cells):
        goal = None
        if config.sweep.strategy == "grid":
            goal = _grid_goal(folder, cell, last_target)
        if spending is not None:
            goal = spending.rollouts(cell)  # C at the end of its last leg so far
            if goal == 0:  # its n had no pilot
                continue
            # The end of a leg is not the end of the run that goes on.
            if cell.name == spending.cell.name and not spending.is_ended:
                goal = None
        cells.append(_cell_summary(folder, cell, goal, writers))
    return cells


def _between_two_legs(
    cells: Sequence[CellSummary], spending: Spending, running: bool
) -> list[CellSummary]:
    """The cells, of which the run that `isojax spend` goes on with is not done at a leg's end."""
    state = "running" if running else "interrupted"
    return [
        replace(cell, state=state)
        if cell.state == "done" and cell.cell.name == spending.cell.name
        else cell
        for cell in cells
    ]


@dataclass(frozen=True)
class SweepEnd:
    """That the strategy of a sweep has stopped."""

    time: float  # Unix seconds
    failed: Mapping[str, str]  # why runs failed, by the names of their cells


def _read_end(folder: Path) -> SweepEnd | None:
    """The end of a sweep whose strategy chooses its runs, by rounds.json; None: it has none yet.

    An adaptive sweep of an isojax before that file has a summary alone.
    """
    record = read_rounds(folder)
    if record is not None:
        time_written = (folder / ROUNDS_FILE).stat().st_mtime
        return None if record.stop is None else SweepEnd(time_written, record.stop.failed)

    summary_file = folder / SUMMARY_FILE
    if not summary_file.exists():
        return None
    failed = read_json_object(summary_file).get("failed")
    reasons = failed if isinstance(failed, dict) else {}
    return SweepEnd(summary_file.stat().st_mtime, reasons)


def _with_outcomes(
    cells: Sequence[CellSummary], end: SweepEnd | None, now: float
) -> list[CellSummary]:
    """The cells of a sweep whose strategy chooses its runs, done or failed once it has ended.

    Its runs have no fixed C to end at, so that until then they seem interrupted. A run that was
    evaluated after that end, or never (its `age` is None), stays interrupted. now: Unix seconds.
    """
    if end is None:
        return list(cells)

    outcomes = []
    for cell in cells:
        if cell.state == "interrupted" and (cell.age or 0) >= now - end.time:
            reason = str(end.failed.get(cell.cell.name, ""))
            cell = replace(cell, state="failed" if reason else "done", reason=reason)
        outcomes.append(cell)
    return outcomes


def _sweep_budget(config: Config, last_target: int) -> int:
    """The rollouts that a sweep may spend in all, over its cells.

    Of a strategy that chooses its runs sweep.total_rollouts, where that is set; else of adaptive
    half of the grid, as AdaptivePolicy has it.
    """
    sweep = config.sweep
    if sweep.trains_one_policy:
        return sweep.budget
    grid_rollouts = sum(cell.rollouts_to_reach(last_target) for cell in plan_cells(sweep))
    if sweep.chooses_runs and sweep.total_rollouts is not None:
        return sweep.total_rollouts
    return grid_rollouts // 2 if sweep.strategy == "adaptive" else grid_rollouts


def _sweep_rate(cells: Sequence[CellSummary]) -> float | None:
    """Rollouts/s of the running cells; one without a rate so far is taken for an average one."""
    known_rates = [cell.rate for cell in cells if cell.rate]
    mean_rate = sum(known_rates) / len(known_rates) if known_rates else 0.0
    return sum(cell.rate or mean_rate for cell in cells if cell.state == "running") or None


def _seconds_left(
    cells: Sequence[CellSummary], rollouts_left: int, rate: float | None
) -> float | None:
    """Seconds until the sweep ends at `rate` rollouts/s; None where that is not known."""
    if not rate:
        return None
    # Nobody trains what failed cells have left.
    failed_rollouts = sum(
        cell.goal - cell.rollouts for cell in cells if cell.state == "failed" and cell.goal
    )
    return max(0, rollouts_left - failed_rollouts) / rate


def _describe_lost_driver(writers: Writers) -> str:
    """A sentence about a driver on a cluster that has ended without a word; else ""."""
    driver = writers.driver
    if driver is None or driver.ended or not driver.cells or writers.running:
        return ""
    seconds = writers.now - driver.time
    return (
        f"its driver (process {driver.pid} on {driver.host}) has not written its status for"
        f" {seconds:.0f} s"
    )


def _describe_unread_output(writers: Writers) -> str:
    """A sentence about a driver that works and whose output nobody reads any more; else ""."""
    driver = writers.driver
    if driver is None or driver.ended or not writers.running or driver.output_lost is None:
        return ""
    age = terminal.format_hours((writers.now - driver.output_lost) / 3600)
    return (
        f"nobody reads what process {driver.pid} on {driver.host} prints, for {age}; it goes on."
        f" kill {driver.pid} saves its state"
    )


def resume_command(folder: Path, config: Config) -> str:
    """The command that goes on with the sweep; "" where its folder was renamed.

    Then `launch` would look for the name that the config has. config: the one in the folder.
    """
    configured_folder = Path(config.run.dir, config.name)
    is_there = is_url(config.run.dir) or configured_folder.resolve() == folder.resolve()
    if not is_there and folder.resolve().name != config.name:
        return ""

    verb = "spend" if config.sweep.trains_one_policy else "launch"
    command = ["isojax", verb, f"{folder}/{CONFIG_FILE}"]
    if not is_there:  # it was moved
        command.append(f"run.dir={folder.parent}")
    return shlex.join([*command, "--resume"])


def _known_cells(folder: Path, config: Config, driver_cell_names: Iterable[str]) -> list[Cell]:
    """The cells that are planned, that a driver names, or that have a ledger.

    driver_cell_names: such as "16x8-s0". Names of another form are those of schedules or of `isojax
    spend`, whose cells only the plan knows.
    """
    ledgers = paths_below(folder / "cells", RECORDS_FILE)
    names = {path.parent.name for path in ledgers} | set(driver_cell_names)
    cells = set()
    for name in names:
        match = CELL_NAME_PATTERN.fullmatch(name)
        if match:
            B_p, n, seed = map(int, match.groups())
            cells.add(Cell(B_p, n, seed))

    # A strategy that chooses runs need not begin all that are planned.
    planned = plan_cells(config.sweep)
    cells |= {cell for cell in planned if not config.sweep.chooses_runs or cell.name in names}
    return sorted(cells)


def _grid_goal(folder: Path, cell: Cell, last_target: int) -> int:
    """C of a grid's cell at its end: as counted where it is reached, until then as planned."""
    points, _ = recorded_points(folder / "cells" / cell.name)
    if points and points[-1].target >= last_target:
        return points[-1].rollouts
    return cell.rollouts_to_reach(last_target)


def _cell_summary(folder: Path, cell: Cell, goal: int | None, writers: Writers) -> CellSummary:
    """How a cell stands by its ledger and by a driver's status.

    goal: C at its end; None where that is not fixed.
    """
    cell_folder = folder / "cells" / cell.name
    ledger = cell_folder / RECORDS_FILE
    has_ledger = ledger.exists()
    points, reason = recorded_points(cell_folder)  # reason: why the run broke off, or ""
    status = writers.driver_cells.get(cell.name)

    # What the ledger says, else the driver.
    rollouts = 0
    reward = status.reward if status else None
    age = None
    if points:
        newest = points[-1]
        rollouts = newest.rollouts
        first_metric = next(iter(newest.metrics.values()), None)
        reward = newest.metrics.get(f"avg@{newest.samples}", first_metric)
        age = writers.now - ledger.stat().st_mtime

    # A driver's word counts while it writes. Later it does where the ledger cannot say it: that a
    # cell without a fixed end is done, or failed and is not being tried again.
    driver_knows = status is not None and (
        writers.driver_alive
        or (status.state == "done" and goal is None)
        or (status.state == "failed" and not writers.locked)
    )
    state = "interrupted" if has_ledger else "waiting"
    if goal is not None and rollouts >= goal:
        state = "done"
    elif status is not None and driver_knows:
        state = status.state
        rollouts = max(rollouts, status.rollouts)
        reason = status.error or reason
    elif reason:
        state = "failed"
    elif writers.locked and has_ledger:
        state = "running"
        reported_rollouts = read_progress(cell_folder)  # all of C so far; None: no report
        rollouts = max(rollouts, reported_rollouts or 0)

    return CellSummary(
        cell=cell,
        state=state,
        rollouts=rollouts,
        goal=goal,
        reward=reward,
        rate=_cell_rate(cell_folder, points),
        age=age,
        attempts=status.attempts if status else None,
        where=status.where if status else "",
        log=status.log if status else "",
        reason=reason if state == "failed" else "",
        flags=_health_flags(cell_folder / HEALTH_FILE),
    )


def _cell_rate(folder: Path, points: Sequence[EvalPoint]) -> float | None:
    """Rollouts per second between the last two evaluations; None where that is not known."""
    if len(points) < 2:
        return None
    before, last = points[-2:]
    # Without an entry for the last evaluation, 0 seconds: no rate.
    seconds, _ = read_timing(folder).get(last.target, (0.0, 1))
    return (last.rollouts - before.rollouts) / seconds if seconds > 0 else None


def _health_flags(path: Path) -> tuple[str, ...]:
    """The names of the flags in a health.json; () without one; InputError where it is damaged."""
    if not path.exists():
        return ()
    try:
        return tuple(str(flag["name"]) for flag in read_json_object(path)["flags"])
    except (ValueError, KeyError, TypeError) as e:
        advice = "Remove it; `isojax launch ... --resume` writes it again."
        if isinstance(e, InputError):
            raise e.with_fix(advice) from e
        raise InputError(
            where=path,
            found=f"cannot be read: {e}",
            fix=advice,
        ) from e
