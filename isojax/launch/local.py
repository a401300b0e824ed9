"""The in-process runner: the cells of a sweep on this machine's devices, as many side by side as the mesh fits into them.

Each worker thread has a part of the devices and a set of compiled programs (cells of one CPU device each: all threads the same set), and
takes the next cell when it has finished one.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from isojax import stopping
from isojax.config import Config
from isojax.launch.display import Display, console, print_plan
from isojax.launch.forecast import expect
from isojax.launch.gang import ALONE, Gang, check_shared, together
from isojax.launch.planner import plan
from isojax.launch.rounds import rounds
from isojax.launch.site import Site, opened, start_jax
from isojax.launch.workers import raise_failures, tell_failures, work
from isojax.storage import alone
from isojax.types import Cell, InputError


def launch(config: Config, resume: bool, dry_run: bool, gang: Gang = ALONE) -> Path | None:
    """Run every cell of the sweep that is not finished; returns the sweep's folder, runs/<name>, or nothing in a process of several that
    only helps: process 0 fits and reports.

    Raises:
        InputError: before any work, when the recipe contradicts itself, the mesh does not fit, the folder holds another sweep, or the
            grid is over B_max.
        RunFailed: after all other cells are done, naming the cells that failed.
    """
    cells = plan(config.sweep)
    jax = start_jax(config)
    with together(gang):
        from isojax import hosts

        console.quiet = not hosts.writes()
        folder = _launch(jax, config, cells, resume, dry_run)
        return folder if hosts.writes() else None


def _launch(jax: Any, config: Config, cells: list[Cell], resume: bool, dry_run: bool) -> Path:
    """`launch`, in each of its processes."""
    from isojax import hosts

    with opened(jax, config, cells, resume or dry_run) as site:
        at_once, folder = len(site.programs), site.folder
        expected = expect(site.config, cells, site.room, at_once, folder, site.devices) if dry_run else None
        print_plan(site.config, cells, folder, site.here, at_once, site.room, expected)
        if not dry_run:
            with alone(folder) if hosts.writes() else nullcontext():
                check_shared(folder)
                run_cells(site)
    return folder


def train(config: Config, resume: bool, gang: Gang = ALONE) -> Path | None:
    """One run: a config whose sweep is a single cell; returns its folder, runs/<name>.

    Raises:
        InputError: as `launch`, and where the sweep has more than one cell.
    """
    cells = plan(config.sweep)
    if len(cells) > 1:
        a = cells[0]
        raise InputError(
            f"this config holds {len(cells)} cells and `isojax train` runs one; choose it, for example by "
            f"sweep.B_p=[{a.B_p}] sweep.n=[{a.n}] sweep.seeds=1, or run them all by `isojax launch`."
        )
    return launch(config, resume, dry_run=False, gang=gang)


def run_cells(site: Site) -> None:
    """The base policy, then all cells."""
    from isojax import hosts

    config, cells = site.config, site.cells
    with Display(config) as display:
        base, failed = site.prepare(display), []
        todo = rounds(config, cells, site.folder, failed)
        with stopping.heeding_sigterm():  # between two rounds too
            while goals := hosts.by_first(lambda: next(todo, [])):
                failed += work(site, base, goals, display)
                tell_failures(display, site.task)
                if failed and hosts.several():
                    break  # the processes may be at different places
    raise_failures(failed, len(cells), site.folder)
