"""Show where sweeps stand."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text
from typer import Argument, Option

from isojax.cli.formatting import json_text
from isojax.cli.options import JsonOption, complete_run
from isojax.core.errors import InputError
from isojax.core.terminal import format_hours, format_number
from isojax.launch.sweep_status import CellSummary, SweepStatus, read_sweep_status
from isojax.report.console import SafeConsole, TextTable
from isojax.runs.mirror import refresh

RUNS_HELP = "Sweeps' folders, such as runs/quickstart."
REFRESH_SECONDS = 2.0  # between two readings
STATE_COLORS = {
    "done": "green",
    "running": "cyan",
    "failed": "red",
    "interrupted": "yellow",
    "waiting": "dim",
}


def status(
    runs: Annotated[
        list[Path], Argument(metavar="RUN", help=RUNS_HELP, autocompletion=complete_run)
    ],
    watch: Annotated[
        bool, Option("--watch", help="Refresh every 2 seconds until nothing runs, or Ctrl-C.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show where sweeps stand: each run's state, C of its budget, newest reward and speed; the time
    left.

    It only reads the sweep's files: from any terminal, and from any machine that sees the folder. A
    run is waiting, running, interrupted (nothing runs it; --resume goes on with it), failed or
    done. Curves: tensorboard --logdir RUN.

    \b
    Examples
      isojax status runs/quickstart
      isojax status runs/quickstart runs/hard --watch
      isojax status runs/quickstart --json | jq '.sweeps[0].seconds_left'
    """
    if watch and as_json:
        raise InputError(
            where="--watch and --json",
            found="both are given",
            expected="one of them",
            fix="Call --json as often as you like.",
        )

    sweeps = [read_sweep_status(run) for run in runs]
    if as_json:
        print(json_text({"sweeps": [sweep.to_json() for sweep in sweeps]}))
    elif watch:
        _watch(runs, sweeps)
    else:
        SafeConsole().print(_render_sweeps(sweeps))


def _watch(runs: Sequence[Path], sweeps: Sequence[SweepStatus]) -> None:
    """Show sweeps, and again every few seconds, until none of them runs or Ctrl-C."""
    with (
        suppress(KeyboardInterrupt),
        Live(_render_sweeps(sweeps), console=SafeConsole(), auto_refresh=False) as live,
    ):
        while any(sweep.running for sweep in sweeps):
            time.sleep(REFRESH_SECONDS)
            for run in runs:
                refresh(run)  # of a folder that is a URL, whose files are copied here
            sweeps = [read_sweep_status(run) for run in runs]
            live.update(_render_sweeps(sweeps), refresh=True)


def _render_sweeps(sweeps: Sequence[SweepStatus]) -> RenderableType:
    """For each sweep its table of runs, and what is to be said below."""
    renderables: list[RenderableType] = []
    for sweep in sweeps:
        renderables += [_cells_table(sweep), *_summary_lines(sweep)]
    return Group(*renderables)


def _cells_table(sweep: SweepStatus) -> TextTable:
    columns = ["run", "state", "C", "of budget", "reward", "rollouts/s", "last point"]
    # Only a cluster says on which attempt, and on which machines, a run is.
    has_placement = any(cell.attempts is not None for cell in sweep.cells)
    if has_placement:
        columns += ["attempts", "where"]

    rows = [_cell_row(cell, has_placement) for cell in sweep.cells]
    title = f"{sweep.name} in {sweep.folder}"
    return TextTable(title, columns, rows, text_columns=2, last_is_text=has_placement)


def _cell_row(cell: CellSummary, has_placement: bool) -> list[str | Text]:
    """A run's row of `_cells_table`, in the order of its columns.

    cell: its `goal` is the C at its end, None where a strategy decides that on the way; `age` is
    the seconds since its newest evaluation, below 0 where another machine's clock is ahead.
    has_placement: whether the table has the columns of a cluster.
    """
    state = Text(cell.state, STATE_COLORS[cell.state])
    state.append(" (flagged)" if cell.flags else "", "default")

    row: list[str | Text] = [
        cell.cell.name,
        state,
        f"{cell.rollouts:,}",
        "-" if cell.goal is None else f"{cell.rollouts / cell.goal:.0%}",
        "-" if cell.reward is None else f"{cell.reward:.3f}",
        format_number(cell.rate),
        "-" if cell.age is None else f"{format_hours(max(0.0, cell.age) / 3600)} ago",
    ]
    if has_placement:
        row += [format_number(cell.attempts), cell.where]
    return row


def _summary_lines(sweep: SweepStatus) -> Iterator[str]:
    """The lines below the table, as rich's markup, so that texts from elsewhere are escaped.

    How many runs are done, how much of the rollouts, how long; then what went wrong, and how to go
    on.
    """
    yield _summary(sweep)

    # A driver that prints to nobody, one that has ended without a word, and what was doubtful
    # before the first updates: sentences, "" and () where there is nothing to say.
    if sweep.unread:
        yield f"[yellow]note:[/yellow] {escape(sweep.unread)}"
    if sweep.lost:
        yield f"[yellow]warning:[/yellow] {escape(sweep.lost)}"
    for sentence in sweep.start:
        yield f"[yellow]warning:[/yellow] {escape(sentence)}"

    for cell in sweep.cells:
        if cell.state == "failed":
            log = f" (log: {cell.log})" if cell.log else ""
            yield f"[red]failed:[/red] {cell.cell.name}: {escape(cell.reason + log)}"
        if cell.flags:
            yield f"[yellow]flagged:[/yellow] {cell.cell.name}: {escape(', '.join(cell.flags))}"

    can_go_on = any(cell.state in ("interrupted", "waiting") for cell in sweep.cells)
    if can_go_on and not sweep.running:
        # "" where the folder has another name than its sweep: no command goes on with such a one.
        if sweep.resume_command:
            advice = f"go on by: {sweep.resume_command}"
        else:
            advice = (
                f"rename the folder to {sweep.name}, as its config.yaml calls the sweep, to go on"
            )
        yield escape(f"nothing runs here; {advice}")


def _summary(sweep: SweepStatus) -> str:
    """How many runs are done, running or broken off, the share of the budget, and the time left."""
    counts = [f"{sweep.count('done')} of {len(sweep.cells)} runs done"]
    for state in ("running", "interrupted", "failed"):
        count = sweep.count(state)
        if count:
            counts.append(f"{count} {state}")

    share = f"{sweep.rollouts / sweep.budget:.0%} of {sweep.budget:,} rollouts"
    summary = f"{', '.join(counts)}; {share}"
    if sweep.rate and sweep.seconds_left is not None:
        time_left = format_hours(sweep.seconds_left / 3600)
        summary += f"; {format_number(sweep.rate)} rollouts/s, {time_left} left"
    return summary
