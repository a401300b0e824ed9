"""Where a sweep stands, from its files alone. status.json is written by the driver of a sweep on a
Ray cluster every few seconds, and by a sweep on one machine once nobody reads what it prints.
Without a driver's, cells that have begun are running if a process holds the folder's lock."""

import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isojax.core import terminal
from isojax.core.atomic_files import read_file, write_text
from isojax.core.config import Config, load_config
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT
from isojax.core.nouns import Cell, EvalPoint
from isojax.core.start_file import describe_start
from isojax.core.table_files import paths_below, read_json_object
from isojax.launch.planner import plan_cells
from isojax.runs.ledger import HEALTH_FILE, RECORDS_FILE, read_timing, recorded_points
from isojax.runs.mirror import is_url, is_written
from isojax.runs.progress_file import read_progress
from isojax.runs.spend_file import read_spending

# Of a sweep's folder; the last is what an adaptive sweep writes at its end.
CONFIG_FILE, STATUS_FILE, SUMMARY_FILE = "config.yaml", "status.json", "frontier.json"
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
OUTPUT_CHECK_SECONDS = 1.0  # between two looks at whether somebody reads what this process prints


class CellStatus(BaseModel):
    """What a driver knows of a cell."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    state: Literal["waiting", "running", "failed", "done"] = "waiting"
    rollouts: Count = 0  # C, by the newest report of the cell
    reward: float | None = None  # of the newest evaluation
    attempts: Count = 0  # how often its training was started
    where: str = ""  # the nodes that it runs on
    log: str = ""  # the file that its first process prints to
    error: str = ""  # why it failed


class DriverStatus(BaseModel):
    """What a driver says of its sweep; `host` and `pid` are the driver's process. Without cells it
    is the process of a sweep on one machine, of which the ledgers and the folder's lock say the
    rest."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    time: float  # of writing, in Unix seconds
    host: str
    pid: int
    ended: bool  # whether the driver has ended
    cells: dict[str, CellStatus]  # by the cell's name
    # since when nobody reads what the driver prints, in Unix seconds
    output_lost: float | None = None


def driver_status(ended: bool, cells: dict[str, CellStatus]) -> DriverStatus:
    host, pid, lost = socket.gethostname(), os.getpid(), terminal.output_lost
    return DriverStatus(
        time=time.time(), host=host, pid=pid, ended=ended, cells=cells, output_lost=lost
    )


@contextmanager
def lost_output_recorded(folder: Path) -> Iterator[None]:
    """While a sweep runs here, and at its end: write status.json once nobody reads what this
    process prints."""
    before, ended = read_status(folder), threading.Event()
    if before is not None and before.output_lost is not None:
        write_status(folder, before.model_copy(update={"ended": True, "output_lost": None}))

    def watch() -> None:
        while not ended.wait(OUTPUT_CHECK_SECONDS):
            if terminal.output_lost is not None:
                return write_status(folder, driver_status(ended=False, cells={}))

    watcher = threading.Thread(target=watch, daemon=True, name="lost output")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        if terminal.output_lost is not None:
            write_status(folder, driver_status(ended=True, cells={}))


def write_status(folder: Path, status: DriverStatus) -> None:
    write_text(folder / STATUS_FILE, status.model_dump_json(indent=1) + "\n")


def read_status(folder: Path) -> DriverStatus | None:
    """The newest status of the driver; None where none has written one. InputError where it cannot
    be read."""
    path = folder / STATUS_FILE
    try:
        return DriverStatus.model_validate_json(read_file(path))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as e:
        fix = "Remove it: the driver writes it again every few seconds"
        raise InputError(f"cannot read {path}: {str(e).splitlines()[0]}. {fix}.") from e


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


def read_sweep_status(
    folder: Path, now: float | None = None, planned: Config | None = None
) -> SweepStatus:
    """Where the sweep in a folder stands at a time (Unix; None: now), as `planned` goes on with it
    (None: as it began); InputError where it cannot be read."""
    if not (folder / CONFIG_FILE).is_file():
        problem = f"{folder} is no sweep's folder, it has no {CONFIG_FILE}; expected one such as runs/quickstart"
        raise InputError(
            f"{problem}. A sweep that has just begun writes it once its base policy is ready."
        )
    config = planned or load_config(str(folder / CONFIG_FILE))
    now = time.time() if now is None else now
    driver, locked = read_status(folder), is_written(folder)
    driver_cells = driver.cells if driver is not None else {}  # none of a sweep on one machine
    driver_alive = bool(
        driver is not None
        and driver_cells
        and not driver.ended
        and now - driver.time < STALE_SECONDS
    )
    strategy, spending = config.sweep.strategy, read_spending(folder)
    last_target = config.cell.eval.evaluation_targets(config.sweep.budget)[-1]
    cells = []
    for cell in _known_cells(folder, config, driver_cells):
        goal = _grid_goal(folder, cell, last_target) if strategy == "grid" else None
        if spending:
            goal = spending.rollouts(cell)
            if goal == 0:  # its n had no pilot
                continue
            # the end of a leg is not the run's
            if cell.name == spending.cell.name and not spending.is_ended:
                goal = None
        cells.append(
            _cell_summary(
                folder, cell, goal, driver_cells.get(cell.name), driver_alive, locked, now
            )
        )
    if spending and not spending.is_ended:  # between two legs
        state = "running" if locked or driver_alive else "interrupted"
        name = spending.cell.name
        cells = [
            replace(c, state=state) if (c.state, c.cell.name) == ("done", name) else c
            for c in cells
        ]
    if strategy == "adaptive" and not locked and (summary := folder / SUMMARY_FILE).exists():
        # seconds ago
        ended = now - summary.stat().st_mtime
        failed = read_json_object(summary).get("failed")
        for i, cell in enumerate(cells):
            if cell.state == "interrupted" and (cell.age or 0) >= ended:
                reason = str(failed.get(cell.cell.name, "")) if isinstance(failed, dict) else ""
                cells[i] = replace(cell, state="failed" if reason else "done", reason=reason)
    rollouts = sum(cell.rollouts for cell in cells)
    budget = sum(cell.rollouts_to_reach(last_target) for cell in plan_cells(config.sweep))
    if strategy != "grid":
        budget = (
            config.sweep.budget
            if strategy == "spend"
            else config.sweep.total_rollouts or budget // 2
        )
    if spending and spending.is_ended:
        budget = rollouts
    known_rates = [cell.rate for cell in cells if cell.rate]
    # of a running cell without a rate so far
    mean_rate = sum(known_rates) / len(known_rates) if known_rates else 0.0
    rate = sum(cell.rate or mean_rate for cell in cells if cell.state == "running") or None
    failed_rollouts = sum(
        cell.goal - cell.rollouts for cell in cells if cell.state == "failed" and cell.goal
    )
    seconds_left = max(0, budget - rollouts - failed_rollouts) / rate if rate else None
    running, lost, unread = driver_alive or locked, "", ""
    if driver is not None and not driver.ended:
        driver_name = f"process {driver.pid} on {driver.host}"
        if driver_cells and not running:
            lost = f"its driver ({driver_name}) has not written its status for {now - driver.time:.0f} s"
        if running and driver.output_lost is not None:
            age = terminal.format_hours((now - driver.output_lost) / 3600)
            unread = f"nobody reads what {driver_name} prints, for {age}; it goes on. kill {driver.pid} saves its state"
    totals = rollouts, budget, rate, seconds_left
    command = resume_command(folder, config)
    start = tuple(describe_start(folder))
    return SweepStatus(
        config.name, folder, command, running, tuple(cells), *totals, lost, unread, start
    )


def resume_command(folder: Path, config: Config) -> str:
    """What goes on with the sweep; empty where its folder was renamed, as `launch` would look for
    the old name."""
    is_there = (
        is_url(config.run.dir) or Path(config.run.dir, config.name).resolve() == folder.resolve()
    )
    if not is_there and folder.resolve().name != config.name:
        return ""
    command = [
        "isojax",
        "spend" if config.sweep.strategy == "spend" else "launch",
        f"{folder}/{CONFIG_FILE}",
    ]
    return shlex.join([*command, *([] if is_there else [f"run.dir={folder.parent}"]), "--resume"])


def _known_cells(folder: Path, config: Config, driver_cell_names: Iterable[str]) -> list[Cell]:
    """The cells of a grid's plan, those that a driver names, and those that have a ledger."""
    names = {path.parent.name for path in paths_below(folder / "cells", RECORDS_FILE)} | set(
        driver_cell_names
    )
    matches = filter(None, map(CELL_NAME_PATTERN.fullmatch, names))
    cells = {Cell(int(match[1]), int(match[2]), int(match[3])) for match in matches}
    return sorted(
        cells | set(plan_cells(config.sweep) if config.sweep.strategy != "adaptive" else ())
    )


def _grid_goal(folder: Path, cell: Cell, last_target: int) -> int:
    """The rollouts of a cell of a grid at its end: as counted where it is there, until then as
    planned."""
    points, _ = recorded_points(folder / "cells" / cell.name)
    if points and points[-1].target >= last_target:
        return points[-1].rollouts
    return cell.rollouts_to_reach(last_target)


def _cell_summary(
    folder: Path,
    cell: Cell,
    goal: int | None,
    status: CellStatus | None,
    driver_alive: bool,
    locked: bool,
    now: float,
) -> CellSummary:
    cell_folder = folder / "cells" / cell.name
    points, reason = recorded_points(cell_folder)
    point = points[-1] if points else None
    has_ledger = (cell_folder / RECORDS_FILE).exists()
    rollouts = point.rollouts if point else 0
    reward = status.reward if status else None
    if point:  # avg@k, else its first metric
        reward = point.metrics.get(f"avg@{point.samples}", next(iter(point.metrics.values()), None))
    state = "interrupted" if has_ledger else "waiting"
    if goal is not None and rollouts >= goal:
        state = "done"
    elif status is not None and (
        driver_alive
        or (status.state == "done" and goal is None)
        or (status.state == "failed" and not locked)
    ):
        state = status.state
        rollouts = max(rollouts, status.rollouts)
        reason = status.error or reason
    elif reason:
        state = "failed"
    elif locked and has_ledger:
        state = "running"
        rollouts = max(rollouts, read_progress(cell_folder) or 0)
    return CellSummary(
        cell=cell,
        state=state,
        rollouts=rollouts,
        goal=goal,
        reward=reward,
        rate=_cell_rate(cell_folder, points),
        age=now - (cell_folder / RECORDS_FILE).stat().st_mtime if point else None,
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
    seconds, _ = read_timing(folder).get(last.target, (0.0, 1))
    return (last.rollouts - before.rollouts) / seconds if seconds > 0 else None


def _health_flags(path: Path) -> tuple[str, ...]:
    try:
        return (
            tuple(str(flag["name"]) for flag in read_json_object(path)["flags"])
            if path.exists()
            else ()
        )
    except (ValueError, KeyError, TypeError) as e:
        raise InputError(
            f"cannot read {path}: {e}. Remove it; `isojax launch ... --resume` writes it again."
        ) from e
