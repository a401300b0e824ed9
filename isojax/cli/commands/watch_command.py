"""`isojax watch LOG`: where a running run will end, and whether to stop it."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Argument, Option

from isojax.cli.formatting import json_text, parse_count, print_line
from isojax.cli.nothing_learnt import print_nothing_learnt
from isojax.cli.options import FormatOption, JsonOption, MapOption, ResumedOption, complete_run
from isojax.cli.saved_fits import read_fit
from isojax.core import terminal
from isojax.core.config.load import load_config
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord, Spending
from isojax.core.schedule import Span
from isojax.core.terminal import format_hours
from isojax.launch.planner import plan_cells
from isojax.launch.spend_rounds import current_spending
from isojax.report.console import SafeConsole, TextTable
from isojax.report.wording import format_percent
from isojax.runs.importers import importer
from isojax.runs.ledger import RECORDS_FILE, default_metric, read_runs
from isojax.runs.logs.column_map import parse_field_map
from isojax.runs.logs.find_logs import detect_format
from isojax.runs.logs.import_logs import read_logs
from isojax.runs.spend_file import read_spending
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble, load_rollout_ensemble
from isojax.scaling.allocate.growing_n import NOption, compare_n, n_to_raise_to
from isojax.scaling.checks.learning import find_nothing_learnt_by_run
from isojax.scaling.checks.run_health import health_flags
from isojax.scaling.intervals import LEVEL
from isojax.scaling.run_watch import RunWatch, WatchedRun
from isojax.scaling.tracks import RunTrack, check_reward
from isojax.scaling.update_counts import UpdateCounts, count_updates

POLL_SECONDS = 2.0  # between two looks at the size of a log
DEFAULT_END = 2  # times the C of the newest evaluation
Signature = tuple[tuple[str, int, int], ...]
GOAL_HELP = "Stop a run that will not reach it."
SWEEP_HELP = "A sweep of the same problem: what another n would give from here on."
RUN_ADVICE = (
    "one run cannot tell what another n would give; name a sweep of the same problem: --sweep RUN"
)
SPEND_ADVICE = "isojax spend chooses the n of this run on the way, and may end it earlier"


@dataclass(frozen=True)
class WatchedLog:
    path: Path
    log_format: str | None
    field_map: dict[str, str]
    run_name: str | None
    resumed: bool = False

    def read(self, is_first: bool = False) -> RunRecord:
        """The run as it is now; InputError where the log holds several, or none of that name."""
        path = self.path
        is_ledger = path.name == RECORDS_FILE or any(
            (path / name).exists() for name in (RECORDS_FILE, "cells")
        )
        if self.log_format is None and (is_ledger or not self.path.exists()):
            runs = read_runs([self.path])
        else:
            log_format = self.log_format or detect_format([self.path])
            imported = read_logs(
                [path], log_format, self.field_map, resumed=self.resumed, whole_lines=True
            )
            runs = list(imported.runs)
            for text in imported.skipped if is_first else ():
                terminal.warn(f"skipped: {text}")
            may_be_torn = importer.load(log_format).traits.read_growing is not None
            is_plain = may_be_torn and path.is_file() and path.suffix != ".gz"
            if is_first and is_plain and not path.read_bytes().endswith(b"\n"):
                terminal.note(
                    f"the last line of {path} has no line end, so it is left out: it may not be whole yet"
                )
        names, run_name = [run.cell.name for run in runs], self.run_name
        if (
            run_name is None
            and path.is_dir()
            and (spending := read_spending(path))
            and spending.legs[-1].expected
        ):
            run_name = spending.cell.name
        chosen = [run for run in runs if run_name in (None, run.cell.name)]
        if len(chosen) != 1:
            given = "no --run" if run_name is None else f"--run {run_name}"
            raise InputError(
                f"{self.path} holds {len(runs)} runs, given {given}; expected one of {', '.join(names)}."
            )
        return chosen[0]

    def signature(self) -> Signature:
        """What changes when the log grows: the files' sizes and times."""
        files = sorted(self.path.rglob("*")) if self.path.is_dir() else [self.path]
        signature: list[tuple[str, int, int]] = []
        for file in files:
            with suppress(FileNotFoundError):  # it may go at any time
                signature.append((str(file), (stat := file.stat()).st_size, stat.st_mtime_ns))
        return tuple(signature)


def watch(
    log: Annotated[
        Path, Argument(metavar="LOG", help="A ledger's folder, or another trainer's log.")
    ],
    log_format: FormatOption = None,
    map_options: MapOption = None,
    run_name: Annotated[
        str | None, Option("--run", metavar="CELL", help="The run, where LOG holds several.")
    ] = None,
    resumed: ResumedOption = False,
    end: Annotated[str | None, Option(metavar="C", help="Where the run ends, in rollouts.")] = None,
    updates: Annotated[
        str | None, Option(metavar="M", help="Where the run ends, in updates.")
    ] = None,
    goal: Annotated[
        float | None, Option("--goal", "--stop-below", metavar="REWARD", help=GOAL_HELP)
    ] = None,
    sweep: Annotated[
        Path | None, Option(metavar="RUN", help=SWEEP_HELP, autocompletion=complete_run)
    ] = None,
    follow: Annotated[
        bool, Option("--follow/--once", help="Look again when the log has grown, or look once.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Forecast the reward that a run will have at its end, and advise whether to stop it.

    With probability 90%, all intervals that it prints during a run hold the final reward, however
    often you look. This assumes that the final C stays the same. Without --end and --updates, it is
    that of the last evaluation within the budget of the ledger's sweep, or what `isojax spend` has
    left for the run, else twice the rollouts so far. With --sweep, it says what every n of that
    sweep would reach from here on, and whether to raise n.

    \b
    Examples
      isojax watch runs/quickstart/cells/16x8-s0 --updates 400
      isojax watch log.csv --map reward=val_acc --end 250000 --goal .60 --follow
      isojax watch log.csv --end 250000 --sweep runs/pilot
    """
    if end is not None and updates is not None:
        raise InputError("given both --end and --updates, expected one. Leave one out.")
    if goal is not None and not 0 <= goal <= 1:
        raise InputError(f"--goal: given {goal:g}, expected a reward from 0 to 1, such as .60.")
    watched_log = WatchedLog(log, log_format, parse_field_map(map_options or []), run_name, resumed)
    signature = watched_log.signature() if log.exists() else ()
    run = watched_log.read(is_first=True)
    metric = default_metric([run])
    C_end, end_source = find_end(run, log, end, updates)
    ensemble = None if sweep is None else load_rollout_ensemble(read_fit(sweep))
    run_watch = RunWatch(C_end, goal)
    show = partial(
        _show,
        run_watch=run_watch,
        metric=metric,
        end_source=end_source,
        sweep=ensemble,
        as_json=as_json,
    )
    shown = show(run)
    if not as_json and shown.rollouts_left > 0 and ensemble is None:
        terminal.note(SPEND_ADVICE if run.cell.is_of_spend else RUN_ADVICE)
    if follow and shown.rollouts_left > 0:
        _follow(watched_log, signature, len(run.points), show)


def _follow(
    watched_log: WatchedLog,
    signature: Signature,
    points: int,
    show: Callable[[RunRecord], WatchedRun],
) -> None:
    problem = ""
    try:
        while True:
            time.sleep(POLL_SECONDS)
            if (new_signature := watched_log.signature()) == signature:
                continue
            signature = new_signature
            try:
                run = watched_log.read()
            except InputError as e:  # its writer may not be done with it
                if str(e) != problem:
                    terminal.note(f"the log cannot be read as it is now: {(problem := str(e))}")
                continue
            if len(run.points) > points:
                points = len(run.points)
                if show(run).rollouts_left == 0:
                    return
    except KeyboardInterrupt:
        terminal.note("stopped watching; the run goes on")


def find_end(run: RunRecord, log: Path, end: str | None, updates: str | None) -> tuple[float, str]:
    """(C at the end, where that comes from)."""
    if end is not None:
        return float(parse_count(end, "--end")), "--end"
    if updates is not None:
        return _rollouts_at(run, parse_count(updates, "--updates")), "--updates"
    config_path = next(
        (p / "config.yaml" for p in (log, *log.resolve().parents[:3]) if (p / "cells").is_dir()),
        None,
    )
    if config_path is not None and config_path.exists():
        config = load_config(str(config_path))
        if run.cell.is_of_spend:
            return _end_of_spend(
                run, current_spending(config, plan_cells(config.sweep), config_path.parent)
            )
        # runs end there, not at the budget itself
        target = config.run_targets(config.sweep.budget)[-1]
        return float(
            run.cell.rollouts_to_reach(target)
        ), "the last evaluation within the sweep's budget"
    return float(
        max(DEFAULT_END * run.points[-1].rollouts, run.cell.B)
    ), f"{DEFAULT_END} x the rollouts so far"


def _end_of_spend(run: RunRecord, spending: Spending) -> tuple[float, str]:
    if spending.is_ended:
        return float(run.points[-1].rollouts), "where isojax spend ended it"
    if run.cell != spending.cell or spending.legs[-1].expected is None:
        return float(spending.rollouts(run.cell)), "the end of its pilot"
    others = {leg.cell for leg in spending.legs} - {run.cell}
    return float(
        spending.budget - sum(map(spending.rollouts, others))
    ), "what the pilots left of the budget"


def _rollouts_at(run: RunRecord, M: int) -> float:
    """C after M updates, if the further ones are as those so far."""
    if run.cell.schedule:
        span = _span_at(run, M)
        return float(span.C + (M - span.M) * span.B)
    if (counted := count_updates(run)) is not None:
        return float(UpdateCounts.of(run.cell.B, [counted]).rollouts(M))
    last, planned = run.points[-1], run.cell.rollouts_after(run.points[-1].M)
    # as M of a log without steps is rounded
    if abs(last.rollouts - planned) <= run.cell.B / 2 or not planned:
        return float(run.cell.rollouts_after(M))
    return M / last.M * last.rollouts  # a step that is a part of a batch


def _span_at(run: RunRecord, M: int) -> Span:
    """That of update M + 1; of a run whose n is chosen on the way, which its ledger does not say,
    with the newest n."""
    cell, last = run.cell, run.points[-1]
    if not cell.schedule or cell.rollouts_after(last.M) == last.rollouts:
        return cell.span_at(M)
    n = (last.rollouts - run.points[-2].rollouts) / (last.M - run.points[-2].M) / cell.B_p
    if cell.n_max:  # by gradient it doubles, also between evaluations
        n = cell.n * 2 ** math.ceil(math.log2(n / cell.n))
    return Span(last.M, last.rollouts, cell.B_p, round(n))


def _show(
    run: RunRecord,
    run_watch: RunWatch,
    metric: str,
    end_source: str,
    sweep: CurveEnsemble | None,
    as_json: bool,
) -> WatchedRun:
    points = [point for point in run.points if metric in point.metrics]
    C = np.array([point.rollouts for point in points], dtype=float)
    R = np.array([point.metrics[metric] for point in points])
    for point in points:
        check_reward(point, metric, point.metrics[metric], run.source)
    nothing = find_nothing_learnt_by_run(RunTrack(replace(run, points=tuple(points)), C, R), metric)
    watched, options = run_watch.update(C, R, nothing), []
    if broken := health_flags(run):  # its curve says nothing of the end
        watched = replace(
            watched,
            advice="stop",
            reason=f"the run broke: {broken[0]}",
            interval=None,
            forecast=None,
        )
    # of the newest update, where a schedule changes B_p and n
    now = _span_at(run, max(points[-1].M - 1, 0))
    sweep_shows_nothing = "" if sweep is None else sweep.fit.nothing_learnt
    can_compare = watched.rollouts_left > 0 and C[-1] > 0 and not broken and not sweep_shows_nothing
    if sweep is not None and can_compare:
        options = compare_n(sweep, now.B_p, now.n, C[C > 0], R[C > 0], watched.C_end)
        if not run.cell.schedule:  # whose n is raised as planned
            larger, goal = n_to_raise_to(options, now.n), run_watch.goal
            if larger is not None and (
                goal is None or larger.interval is None or larger.interval[1] >= goal
            ):
                gain = f"ends {larger.gain:+.3f} higher, with probability {larger.p_better:.0%}"
                watched = replace(
                    watched, advice="raise n", reason=f"from here on n = {larger.n} {gain}"
                )
    if as_json:
        note = {"end_source": end_source, "metric": metric, "goal": run_watch.goal}
        run_advice = SPEND_ADVICE if run.cell.is_of_spend else RUN_ADVICE
        n_advice = run_advice if sweep is None else [asdict(option) for option in options]
        note |= {"sweep_nothing_learnt": sweep_shows_nothing} if sweep_shows_nothing else {}
        document: dict[str, Any] = {
            "level": LEVEL,
            "cell": asdict(run.cell),
            **asdict(watched),
            **note,
        }
        print(
            json_text(document | {"n_advice" if sweep is None else "n_options": n_advice}),
            flush=True,
        )
        return watched
    print_nothing_learnt(SafeConsole(), watched.nothing_learnt)
    print_nothing_learnt(SafeConsole(), sweep_shows_nothing, "the sweep")
    line = f"C = {watched.C:,.0f}: {metric} {watched.measured:.3f}; "
    if watched.interval is not None:
        low, high = watched.interval
        line += f"at C = {watched.C_end:,.0f} ({end_source}) {watched.forecast:.3f} ({low:.3f} to {high:.3f}), in "
        line += f"{watched.rollouts_left:,.0f} rollouts; "
    print_line(f"{line}{watched.advice}: {watched.reason}")
    if len(watched.looks) == 0 and watched.next_look is not None:
        print_line(f"the next forecast is at C = {watched.next_look:,.0f}")
    if options:
        SafeConsole().print(_n_table(options, now.n, watched.C_end))
    return watched


def _n_table(options: Sequence[NOption], n: int, C_end: float) -> TextTable:
    timed = any(option.hours is not None for option in options)
    rows = []
    for option in options:
        low, high = (0.0, 1.0) if option.interval is None else option.interval
        row = [
            f"{option.n}{' (now)' if option.n == n else ''}",
            f"{option.reward:.3f}",
            f"{low:.3f} to {high:.3f}",
        ]
        row += [f"{option.gain:+.3f}", format_percent(option.p_better)]
        rows.append(row + [format_hours(option.hours), format_hours(option.device_hours)] * timed)
    columns = ["n", "reward", "interval", "gain", "P(gain)"] + [
        "wall clock",
        "of all devices",
    ] * timed
    return TextTable(f"with another n from here on, at C = {C_end:,.0f}", columns, rows)
