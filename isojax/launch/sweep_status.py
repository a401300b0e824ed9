"""Where a sweep stands, from its files alone: config.yaml, the cells' ledgers and clocks, and status.json, which the
driver of a sweep on a Ray cluster writes every few seconds. No jax here: it is asked while the sweep runs, and from
other machines.

Without a status.json that is fresh, cells that have begun run if a process holds the folder's lock
(launch/local/local_runner.py).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from isojax.core.config import Config, read_saved_config
from isojax.core.errors import InputError
from isojax.core.nouns import Cell, EvalPoint
from isojax.launch.planner import plan_cells
from isojax.launch.resume import CONFIG_FILE
from isojax.runs.folder_lock import is_locked
from isojax.runs.ledger import HEALTH_FILE, RECORDS_FILE
from isojax.runs.ledger_reader import latest_point, read_timing
from isojax.runs.status import CellStatus, read_status

STALE_SECONDS = 60.0  # seconds without news after which a driver counts as gone
CELL_NAME_PATTERN = re.compile(r"(\d+)x(\d+)-s(\d+)")


@dataclass(frozen=True)
class CellSummary:
    """A cell: C of `goal` rollouts (None: no fixed one), the newest reward, rollouts/s, seconds since its newest point,
    flags of a run that broke, and from status.json where there is one: attempts, node, log. `reason`: why it failed."""

    cell: Cell
    state: Literal["waiting", "interrupted", "running", "failed", "done"]
    rollouts: int
    goal: int | None
    reward: float | None
    rate: float | None
    age: float | None
    attempts: int | None
    where: str
    log: str
    reason: str
    flags: tuple[str, ...]


@dataclass(frozen=True)
class SweepStatus:
    """A sweep: its cells, C in all and of how much (rollouts), the rate of the cells at work and the seconds left at
    that rate. `lost`: what was the matter with a driver that is not heard of any more."""

    name: str
    folder: Path
    running: bool
    cells: tuple[CellSummary, ...]
    rollouts: int
    budget: int
    rate: float | None
    seconds_left: float | None
    lost: str

    def count(self, state: str) -> int:
        """Cells in a state."""
        return sum(cell.state == state for cell in self.cells)


def read_sweep_status(folder: Path, now: float | None = None) -> SweepStatus:
    """Where the sweep in a folder stands at a time (Unix; None: now).

    Raises:
        InputError: no sweep's folder, or a file in it that cannot be read.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise InputError(
            f"{folder} is no sweep's folder, it has no {CONFIG_FILE}; expected one such as runs/quickstart. "
            "A sweep that has just begun writes it once its base policy is ready."
        )
    config, now = read_saved_config(folder / CONFIG_FILE), time.time() if now is None else now
    driver_status, locked = read_status(folder), is_locked(folder)
    driver_alive = driver_status is not None and not driver_status.ended and now - driver_status.time < STALE_SECONDS
    driver_cells = driver_status.cells if driver_status is not None else {}
    is_grid = config.sweep.strategy == "grid"
    cells = tuple(
        _cell_summary(folder, config, cell, driver_cells.get(cell.name), driver_alive, locked, now)
        for cell in _known_cells(folder, config, driver_cells)
    )
    cell_targets = [_final_rollouts(config, cell) for cell in plan_cells(config.sweep)]
    budget = sum(cell_targets) if is_grid else config.sweep.total_rollouts or sum(cell_targets) // 2
    rollouts = sum(cell.rollouts for cell in cells)
    rate = _sweep_rate(cells)
    failed_rollouts = sum(
        (cell.goal or 0) - cell.rollouts for cell in cells if cell.state == "failed" and cell.goal is not None
    )
    seconds_left = max(0, budget - rollouts - failed_rollouts) / rate if rate else None
    lost = ""
    if driver_status is not None and not (driver_status.ended or driver_alive or locked):
        lost = (
            f"its driver (process {driver_status.pid} on {driver_status.host}) has not been heard of "
            f"for {now - driver_status.time:.0f} s"
        )
    return SweepStatus(config.name, folder, driver_alive or locked, cells, rollouts, budget, rate, seconds_left, lost)


def _known_cells(folder: Path, config: Config, driver_cell_names: Iterable[str]) -> list[Cell]:
    """The cells of the plan (of a sweep that chooses them as it goes: none), those that a driver names, and those that
    have a ledger.
    """
    names = {path.parent.name for path in folder.glob(f"cells/*/{RECORDS_FILE}")} | set(driver_cell_names)
    cells = {Cell(*map(int, match.groups())) for match in map(CELL_NAME_PATTERN.fullmatch, names) if match}
    return sorted(cells | set(plan_cells(config.sweep) if config.sweep.strategy == "grid" else ()))


def _final_rollouts(config: Config, cell: Cell) -> int:
    """C at a cell's end, where its budget is fixed: its last evaluation, in whole updates."""
    return -(-config.cell.eval.evaluation_targets(config.sweep.budget)[-1] // cell.B) * cell.B


def _cell_summary(
    folder: Path,
    config: Config,
    cell: Cell,
    cell_status: CellStatus | None,
    driver_alive: bool,
    locked: bool,
    now: float,
) -> CellSummary:
    cell_folder = folder / "cells" / cell.name
    point, reason = latest_point(cell_folder)
    has_ledger = (cell_folder / RECORDS_FILE).exists()
    goal = _final_rollouts(config, cell) if config.sweep.strategy == "grid" else None
    rollouts = point.rollouts if point else 0
    state = "interrupted" if has_ledger else "waiting"
    if goal is not None and rollouts >= goal:
        state = "done"
    elif cell_status is not None and (
        driver_alive or (cell_status.state == "done" and goal is None) or (cell_status.state == "failed" and not locked)
    ):
        state, rollouts, reason = cell_status.state, max(rollouts, cell_status.rollouts), cell_status.error or reason
    elif reason:
        state = "failed"
    elif locked and has_ledger:
        state = "running"
    return CellSummary(
        cell=cell,
        state=state,
        rollouts=rollouts,
        goal=goal,
        reward=_point_reward(point) if point else cell_status.reward if cell_status else None,
        rate=_cell_rate(cell_folder, cell),
        age=now - (cell_folder / RECORDS_FILE).stat().st_mtime if point else None,
        attempts=cell_status.attempts if cell_status else None,
        where=cell_status.where if cell_status else "",
        log=cell_status.log if cell_status else "",
        reason=reason if state == "failed" else "",
        flags=_health_flags(cell_folder / HEALTH_FILE),
    )


def _point_reward(point: EvalPoint) -> float | None:
    """avg@k of an evaluation, else its first metric."""
    return point.metrics.get(f"avg@{point.samples}", next(iter(point.metrics.values()), None))


def _cell_rate(folder: Path, cell: Cell) -> float | None:
    """Rollouts a second between a cell's last two points."""
    timing = read_timing(folder)
    targets = sorted(timing)[-2:]
    seconds = timing[targets[-1]][0] if targets else 0.0
    if len(targets) < 2 or seconds <= 0:
        return None
    rollouts_before, rollouts_after = (-(-target // cell.B) * cell.B for target in targets)
    return (rollouts_after - rollouts_before) / seconds


def _sweep_rate(cells: Iterable[CellSummary]) -> float | None:
    """Rollouts a second of the cells at work in all; one that has no clock yet counts as the mean of those that
    have.
    """
    known_rates = [cell.rate for cell in cells if cell.rate]
    running_cells = [cell for cell in cells if cell.state == "running"]
    if not known_rates or not running_cells:
        return None
    return sum(cell.rate or sum(known_rates) / len(known_rates) for cell in running_cells)


def _health_flags(path: Path) -> tuple[str, ...]:
    """What health.json holds against a run, by the names of the criteria."""
    try:
        return tuple(str(flag["name"]) for flag in json.loads(path.read_bytes())["flags"])
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as e:
        raise InputError(f"cannot read {path}: {e}. Remove it; `isojax launch ... --resume` writes it again.") from e
