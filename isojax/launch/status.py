"""Where a sweep stands, from its files alone: config.yaml, the cells' ledgers and clocks, and status.json, which the driver of a sweep on a
Ray cluster writes every few seconds. No jax here: it is asked while the sweep runs, and from other machines.

Without a status.json that is fresh, cells that have begun run if a process holds the folder's lock (launch/local.py).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from isojax.config import Config, read_saved
from isojax.files import write_text
from isojax.launch.planner import plan
from isojax.launch.resume import CONFIG, STATUS
from isojax.records import HEALTH, RECORDS, clocks, newest
from isojax.storage import held
from isojax.types import Cell, EvalPoint, InputError

STALE = 60.0  # seconds without news after which a driver counts as gone
CELL = re.compile(r"(\d+)x(\d+)-s(\d+)")


class CellStatus(BaseModel):
    """What a driver knows of a cell: C, the newest reward, how often it was begun, on which node, its log, and why it failed."""

    model_config = ConfigDict(frozen=True)

    state: Literal["waiting", "running", "failed", "done"]
    rollouts: int = 0
    reward: float | None = None
    attempts: int = 0
    where: str = ""
    log: str = ""
    error: str = ""


class Status(BaseModel):
    """What a driver says of its sweep: when (Unix time), who it is, whether it has ended, and each cell by its name."""

    model_config = ConfigDict(frozen=True)

    time: float
    host: str
    pid: int
    ended: bool
    cells: dict[str, CellStatus]


def write(folder: Path, status: Status) -> None:
    """`folder`/status.json, whole or not at all; raises as `files.write_bytes`."""
    write_text(folder / STATUS, status.model_dump_json(indent=1) + "\n")


def read(folder: Path) -> Status | None:
    """What the driver last said; None where none has.

    Raises:
        InputError: the file cannot be read.
    """
    path = folder / STATUS
    try:
        return Status.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as e:
        raise InputError(f"cannot read {path}: {str(e).splitlines()[0]}. Remove it: the driver writes it again every few seconds.") from e


@dataclass(frozen=True)
class Standing:
    """A cell: C of `goal` rollouts (None: no fixed one), the newest reward, rollouts/s, seconds since its newest point, flags of a run that
    broke, and from status.json where there is one: attempts, node, log. `reason`: why it failed."""

    cell: Cell
    state: Literal["waiting", "begun", "running", "failed", "done"]
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
class Sweep:
    """A sweep: its cells, C in all and of how much (rollouts), the rate of the cells at work and the seconds left at that rate. `lost`:
    what was the matter with a driver that is not heard of any more."""

    name: str
    folder: Path
    running: bool
    cells: tuple[Standing, ...]
    rollouts: int
    budget: int
    rate: float | None
    seconds_left: float | None
    lost: str

    def count(self, state: str) -> int:
        """Cells in a state."""
        return sum(cell.state == state for cell in self.cells)


def look(folder: Path, now: float | None = None) -> Sweep:
    """Where the sweep in a folder stands at a time (Unix; None: now).

    Raises:
        InputError: no sweep's folder, or a file in it that cannot be read.
    """
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"{folder} is no sweep's folder, it has no {CONFIG}; expected one such as runs/quickstart. A sweep that has just begun writes "
            "it once its base policy is ready."
        )
    config, now = read_saved(folder / CONFIG), time.time() if now is None else now
    told, busy = read(folder), held(folder)
    live = told is not None and not told.ended and now - told.time < STALE
    names = told.cells if told is not None else {}
    fixed = config.sweep.strategy == "grid"
    cells = tuple(_standing(folder, config, cell, names.get(cell.name), live, busy, now) for cell in _cells(folder, config, names))
    goals = [_goal(config, cell) for cell in plan(config.sweep)]
    budget = sum(goals) if fixed else config.sweep.rollouts or sum(goals) // 2
    rollouts = sum(cell.rollouts for cell in cells)
    rate = _rate(cells)
    failed = sum((cell.goal or 0) - cell.rollouts for cell in cells if cell.state == "failed" and cell.goal is not None)
    left = max(0, budget - rollouts - failed) / rate if rate else None
    lost = ""
    if told is not None and not (told.ended or live or busy):
        lost = f"its driver (process {told.pid} on {told.host}) has not been heard of for {now - told.time:.0f} s"
    return Sweep(config.name, folder, live or busy, cells, rollouts, budget, rate, left, lost)


def _cells(folder: Path, config: Config, told: Iterable[str]) -> list[Cell]:
    """The cells of the plan (of a sweep that chooses them as it goes: none), those that a driver names, and those that have a ledger."""
    names = {path.parent.name for path in folder.glob(f"cells/*/{RECORDS}")} | set(told)
    found = {Cell(*map(int, match.groups())) for match in map(CELL.fullmatch, names) if match}
    return sorted(found | set(plan(config.sweep) if config.sweep.strategy == "grid" else ()))


def _goal(config: Config, cell: Cell) -> int:
    """C at a cell's end, where its budget is fixed: its last evaluation, in whole updates."""
    return -(-config.cell.eval.grid(config.sweep.budget)[-1] // cell.B) * cell.B


def _standing(folder: Path, config: Config, cell: Cell, told: CellStatus | None, live: bool, busy: bool, now: float) -> Standing:
    own = folder / "cells" / cell.name
    point, reason = newest(own)
    begun = (own / RECORDS).exists()
    goal = _goal(config, cell) if config.sweep.strategy == "grid" else None
    rollouts = point.rollouts if point else 0
    state = "begun" if begun else "waiting"
    if goal is not None and rollouts >= goal:
        state = "done"
    elif told is not None and (live or (told.state == "done" and goal is None) or (told.state == "failed" and not busy)):
        state, rollouts, reason = told.state, max(rollouts, told.rollouts), told.error or reason
    elif reason:
        state = "failed"
    elif busy and begun:
        state = "running"
    return Standing(
        cell=cell,
        state=state,
        rollouts=rollouts,
        goal=goal,
        reward=_reward(point) if point else told.reward if told else None,
        rate=_speed(own, cell),
        age=now - (own / RECORDS).stat().st_mtime if point else None,
        attempts=told.attempts if told else None,
        where=told.where if told else "",
        log=told.log if told else "",
        reason=reason if state == "failed" else "",
        flags=_flags(own / HEALTH),
    )


def _reward(point: EvalPoint) -> float | None:
    """avg@k of an evaluation, else its first metric."""
    return point.metrics.get(f"avg@{point.samples}", next(iter(point.metrics.values()), None))


def _speed(folder: Path, cell: Cell) -> float | None:
    """Rollouts a second between a cell's last two points."""
    spent = clocks(folder)
    targets = sorted(spent)[-2:]
    seconds = spent[targets[-1]][0] if targets else 0.0
    if len(targets) < 2 or seconds <= 0:
        return None
    before, after = (-(-target // cell.B) * cell.B for target in targets)
    return (after - before) / seconds


def _rate(cells: Iterable[Standing]) -> float | None:
    """Rollouts a second of the cells at work in all; one that has no clock yet counts as the mean of those that have."""
    known = [cell.rate for cell in cells if cell.rate]
    working = [cell for cell in cells if cell.state == "running"]
    if not known or not working:
        return None
    return sum(cell.rate or sum(known) / len(known) for cell in working)


def _flags(path: Path) -> tuple[str, ...]:
    """What health.json holds against a run, by the names of the criteria."""
    try:
        return tuple(str(flag["name"]) for flag in json.loads(path.read_bytes())["flags"])
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as e:
        raise InputError(f"cannot read {path}: {e}. Remove it; `isojax launch ... --resume` writes it again.") from e
