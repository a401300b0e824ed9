"""The cells of a sweep, taken by threads that each have compiled programs and their devices; and what a user is told of those that fail."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from isojax import stopping
from isojax.config import SweepConfig, config_hash
from isojax.launch.display import Display, Shows
from isojax.launch.fitting import Room, fitting_microbatch, size
from isojax.launch.health import judge
from isojax.launch.rounds import Goal
from isojax.stopping import Stopped
from isojax.types import Cell, InputError, Progress, RunFailed, lacks_memory

if TYPE_CHECKING:
    from isojax.base import Base
    from isojax.launch.site import Site
    from isojax.tasks.base import Task
    from isojax.train import Programs


def tell_failures(display: Shows, task: Task) -> None:
    """Show a person the first failure of each kind that the verifier has met since; the ledger counts them all."""
    from isojax.tasks.base import on_device

    if not on_device(task):
        display.failures(task.examples())


def one_cell(
    site: Site, mine: Programs, base: Base, goal: Goal, report: Callable[[Progress], None], flagged: Callable[[Cell, list[str]], None]
) -> Exception | None:
    """Trains a cell up to its goal, and judges it; what ended it before, where something did.

    Raises:
        Stopped: this process was told to end.
    """
    from isojax import hosts
    from isojax.train import run_cell

    cell, error = goal.cell, None
    folder, name = site.folder / "cells" / cell.name, config_hash(site.config.cell)
    config = site.config.model_copy(update={"sweep": site.config.sweep.model_copy(update={"budget": goal.C})})
    parts: list[Callable[[], None]] = [partial(run_cell, mine, config, base, cell, folder, name, report)]
    parts += [partial(judge, folder, cell, flagged)] if hosts.writes() else []
    for part in parts:
        try:
            part()
        except Stopped:
            raise
        except FloatingPointError as e:  # in all processes
            error = error or e
        except Exception as e:  # one cell's failure must not cost the others; all are raised together at the end
            error = error or (RunFailed(out_of_memory(site.config.sweep, site.room)) if lacks_memory(e) else e)
            if hosts.several():  # the others may wait for this one
                return error
    return error


def work(site: Site, base: Base, goals: list[Goal], display: Display) -> list[tuple[Cell, Exception]]:
    """One thread for each of the site's `programs`, taking cells until none is left; the cells that failed, with their errors.

    Raises:
        Stopped: the process was told to end (`stopping`), and cells are left.
    """
    from isojax import hosts

    todo: queue.SimpleQueue[Goal] = queue.SimpleQueue()
    for goal in goals:
        todo.put(goal)
    failed: list[tuple[Cell, Exception]] = []
    stopped: list[Stopped] = []
    told: list[bool] = []
    display.aim(goals)

    def report(progress: Progress) -> None:
        display.update(progress)
        tell_failures(display, site.task)

    def worker(mine: Programs) -> None:
        while not any(hosts.everyone(stopping.asked())):
            try:
                goal = todo.get_nowait()
            except queue.Empty:
                return
            display.start(cell := goal.cell)
            try:
                error = one_cell(site, mine, base, goal, report, display.flagged)
            except Stopped as e:
                stopped.append(e)
                return
            if error is not None:
                failed.append((cell, error))
            display.finish(cell, failed=error is not None)
            if error is not None and hosts.several() and not isinstance(error, FloatingPointError):
                return
        told.append(True)

    _in_threads([lambda p=p: worker(p) for p in site.programs])
    if stopped or (told and not todo.empty()):
        before = "".join(f"; {cell.name} had failed before ({error})" for cell, error in failed)
        raise Stopped(
            f"{site.folder} was told to end (SIGTERM); {len(stopped)} cells at work have saved their state{before}. Go on by --resume."
        )
    return failed


def raise_failures(failed: Sequence[tuple[Cell, Exception]], cells: int, folder: Path) -> None:
    """What a user is told at the end where some of so many cells failed."""
    if failed and len(failed) == cells and all(isinstance(error, InputError) for _, error in failed):
        raise InputError(" ".join(dict.fromkeys(str(error) for _, error in failed)))  # nothing was trained: something given is of no use
    if failed:
        errors = [f"{cell.name}: {error}" for cell, error in failed]
        several = f"{len(failed)} of {cells} cells failed; the others are recorded in {folder}."
        raise RunFailed(errors[0] if cells == 1 else "\n  ".join([several, *errors]))


def out_of_memory(sweep: SweepConfig, room: Room) -> str:
    """What to do where memory was not enough: the microbatch that would fit, as far as the planner can tell."""
    fits, takes = fitting_microbatch(sweep, room), room.takes(sweep).peak
    smaller = 2 ** (fits.bit_length() - 1) if fits else 0
    would = f"sweep.microbatch={smaller} would fit" if fits else "no smaller one would fit; lower sweep.slots, or use more devices"
    saving = "" if sweep.remat == "layer" else ", and sweep.remat=layer takes less"
    return (
        f"out of memory: with sweep.microbatch = {sweep.microbatch} and sweep.slots = {sweep.slots} a device was estimated to need "
        f"{size(takes)}. By the same estimate {would}{saving}. Both are settings of a whole sweep: start it under another name=NAME. What "
        "is recorded stays, and goes on by --resume where there is more memory."
    )


def _in_threads(jobs: list[Callable[[], None]]) -> None:
    """Run the jobs side by side; raises what one of them has raised. Ctrl-C ends the process at once, and a later --resume goes on."""
    raised: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as e:  # for the main thread to raise
            raised.append(e)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)
    if raised:
        raise raised[0]
