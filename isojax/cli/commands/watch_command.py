"""Forecast the reward that a run will have at its end, and advise whether to stop it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Argument, Option

from isojax.cli.formatting import json_text, print_line
from isojax.cli.nothing_learnt import print_nothing_learnt
from isojax.cli.options import FormatOption, JsonOption, MapOption, ResumedOption, complete_run
from isojax.cli.run_end import find_end, span_at
from isojax.cli.saved_fits import read_fit
from isojax.cli.watched_log import FileStamp, WatchedLog
from isojax.core import terminal
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.core.terminal import format_hours
from isojax.report.console import SafeConsole, TextTable
from isojax.report.wording import format_percent
from isojax.runs.ledger import default_metric
from isojax.runs.logs.column_map import parse_field_map
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble, load_rollout_ensemble
from isojax.scaling.allocate.growing_n import NOption, compare_n, n_to_raise_to
from isojax.scaling.checks.run_health import health_flags
from isojax.scaling.intervals import LEVEL
from isojax.scaling.learning import find_nothing_learnt_by_run
from isojax.scaling.reward_metric import check_reward
from isojax.scaling.run_watch import RunWatch, WatchedRun
from isojax.scaling.tracks import RunTrack

POLL_SECONDS = 2.0  # between two looks at the size of a log
GOAL_HELP = "Stop a run that will not reach it."
SWEEP_HELP = "A sweep of the same problem: what another n would give from here on."
RUN_ADVICE = (
    "one run cannot tell what another n would give; name a sweep of the same problem: --sweep RUN"
)
SPEND_ADVICE = "isojax spend chooses the n of this run on the way, and may end it earlier"


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
      isojax watch log.csv --map reward=val_acc --end 250000 --goal 0.60 --follow
      isojax watch log.csv --end 250000 --sweep runs/pilot
    """
    if end is not None and updates is not None:
        raise InputError(
            found="given both --end and --updates",
            expected="one",
            fix="Leave one out.",
        )
    if goal is not None and not 0 <= goal <= 1:
        raise InputError(
            where="--goal",
            found=f"given {goal:g}",
            expected="a reward from 0 to 1, such as .60",
        )
    watched_log = WatchedLog(log, log_format, parse_field_map(map_options or []), run_name, resumed)

    # Taken before the log is read: what is written in between then counts as new.
    signature = watched_log.signature() if log.exists() else ()
    run = watched_log.read(is_first=True)
    metric = default_metric([run])
    run_end = find_end(run, log, end, updates)
    question = WatchQuestion(
        run_watch=RunWatch(run_end.C, goal),
        metric=metric,
        end_source=run_end.source,
        sweep=None if sweep is None else load_rollout_ensemble(read_fit(sweep)),
    )

    # One look, printed; captures `question`, which counts the looks.
    def show(run: RunRecord) -> WatchedRun:
        answer = look(run, question)
        if as_json:
            print(json_text(answer.to_json(run, question)), flush=True)
        else:
            _print_answer(question, answer)
        return answer.watched

    watched = show(run)
    goes_on = watched.rollouts_left > 0
    if not as_json and goes_on and sweep is None:
        terminal.note(_advice_without_sweep(run))
    if follow and goes_on:
        _follow(watched_log, signature, len(run.points), show)


def _follow(
    watched_log: WatchedLog,
    signature: tuple[FileStamp, ...],
    num_points: int,
    show: Callable[[RunRecord], WatchedRun],
) -> None:
    """Show the run at each new evaluation, until it ends or Ctrl-C.

    signature: of the log before it was read for the last time (`WatchedLog.signature`).
    num_points: evaluations of the run that were there then.
    show: prints one look at a run, and returns what it says.
    """
    problem = ""  # with the log as it was last read
    try:
        while True:
            time.sleep(POLL_SECONDS)
            new_signature = watched_log.signature()
            if new_signature == signature:
                continue
            signature = new_signature

            try:
                run = watched_log.read()
            except InputError as e:  # Its writer may not be done with it.
                if str(e) != problem:
                    problem = str(e)
                    terminal.note(f"the log cannot be read as it is now: {problem}")
                continue

            if len(run.points) > num_points:
                num_points = len(run.points)
                if show(run).rollouts_left == 0:
                    return
    except KeyboardInterrupt:
        terminal.note("stopped watching; the run goes on")


@dataclass(frozen=True)
class WatchQuestion:
    """What is asked of a run, the same at every look."""

    run_watch: RunWatch  # where the run ends, the goal, and the looks that were made
    metric: str
    end_source: str  # how its end is known
    sweep: CurveEnsemble | None  # of the same problem, to compare n with

    @property
    def sweep_nothing_learnt(self) -> str:
        """Why the sweep cannot tell one n from another, in words; "" where it can."""
        return "" if self.sweep is None else self.sweep.fit.nothing_learnt


@dataclass(frozen=True)
class WatchAnswer:
    """What one look at a run says."""

    watched: WatchedRun
    n_now: int  # of the newest update
    n_options: list[NOption]  # what each n of the sweep would give; empty where nothing compares

    def to_json(self, run: RunRecord, question: WatchQuestion) -> dict[str, Any]:
        """The run, its forecast (the fields of WatchedRun), and what another n would give.

        With a sweep "n_options", a list of NOption's fields; without one "n_advice", a sentence.
        """
        document: dict[str, Any] = {"level": LEVEL, "cell": run.cell.to_json()}
        document |= asdict(self.watched)
        document |= {
            "end_source": question.end_source,
            "metric": question.metric,
            "goal": question.run_watch.goal,
        }

        if question.sweep_nothing_learnt:
            document["sweep_nothing_learnt"] = question.sweep_nothing_learnt
        if question.sweep is None:
            document["n_advice"] = _advice_without_sweep(run)
        else:
            document["n_options"] = [asdict(option) for option in self.n_options]
        return document


def look(run: RunRecord, question: WatchQuestion) -> WatchAnswer:
    """Forecast the end of a run, compare values of n, and advise.

    run: as its log has it now. It counts as a look in `question.run_watch`, whose intervals hold
    for all looks together. InputError for a reward that is none, and for a sweep that has not
    measured the run's B_p and n.
    """
    points = tuple(point for point in run.points if question.metric in point.metrics)
    # float[points], by rising C.
    C = np.array([point.rollouts for point in points], dtype=float)  # 0 for the base policy
    R = np.array([point.metrics[question.metric] for point in points])
    for point in points:
        check_reward(point, question.metric, point.metrics[question.metric], run.source)

    track = RunTrack(replace(run, points=points), C, R)
    # The level at which the reward has stayed; None where it has risen, or it is too early to say.
    nothing = find_nothing_learnt_by_run(track, question.metric)
    watched = question.run_watch.update(C, R, nothing)
    flags = health_flags(run)
    if flags:
        # The curve of a run that broke says nothing of its end.
        watched = replace(
            watched,
            advice="stop",
            reason=f"the run broke: {flags[0]}",
            interval=None,
            forecast=None,
        )

    # Where a schedule changes B_p and n, those of the newest update go on. `span_at(run, M)` is
    # that of update M + 1, hence the 1; before the first update there is none to go back to.
    now = span_at(run, max(points[-1].M - 1, 0))
    n_options: list[NOption] = []
    goes_on = watched.rollouts_left > 0 and C[-1] > 0 and not flags
    if question.sweep is not None and goes_on and not question.sweep_nothing_learnt:
        is_update = C > 0  # The sweep's curves begin with the first update.
        # One for each n that the sweep measured at this B_p, the run's own n included.
        n_options = compare_n(
            question.sweep, now.B_p, now.n, C[is_update], R[is_update], watched.C_end
        )
        if not run.cell.schedule:  # which raises n itself, as planned
            watched = _with_larger_n(watched, n_options, now.n, question.run_watch.goal)
    return WatchAnswer(watched, now.n, n_options)


def _with_larger_n(
    watched: WatchedRun, n_options: list[NOption], n: int, goal: float | None
) -> WatchedRun:
    """With the advice to raise n, where a larger one surely gains and may reach the goal."""
    larger = n_to_raise_to(n_options, n)
    if larger is None:
        return watched
    may_reach_goal = goal is None or larger.interval is None or larger.interval[1] >= goal
    if not may_reach_goal:
        return watched

    gain = f"ends {larger.gain:+.3f} higher, with probability {larger.p_better:.0%}"
    return replace(watched, advice="raise n", reason=f"from here on n = {larger.n} {gain}")


def _advice_without_sweep(run: RunRecord) -> str:
    return SPEND_ADVICE if run.cell.is_of_spend else RUN_ADVICE


def _print_answer(question: WatchQuestion, answer: WatchAnswer) -> None:
    """Print a look at a run: a line of what was measured and forecast, and the advice; then when
    the next forecast comes, or a table of what each n would give."""
    watched = answer.watched
    print_nothing_learnt(SafeConsole(), watched.nothing_learnt)
    print_nothing_learnt(SafeConsole(), question.sweep_nothing_learnt, "the sweep")

    line = f"C = {watched.C:,.0f}: {question.metric} {watched.measured:.3f}; "
    if watched.interval is not None:
        low, high = watched.interval
        forecast = f"{watched.forecast:.3f} ({low:.3f} to {high:.3f})"
        line += f"at C = {watched.C_end:,.0f} ({question.end_source}) {forecast}, "
        line += f"in {watched.rollouts_left:,.0f} rollouts; "
    print_line(f"{line}{watched.advice}: {watched.reason}")

    # `looks` are the forecasts that were made so far, each when a set share of C_end was reached.
    has_forecast = len(watched.looks) > 0
    if not has_forecast and watched.next_look is not None:
        print_line(f"the next forecast is at C = {watched.next_look:,.0f}")
    if answer.n_options:
        SafeConsole().print(_n_table(answer.n_options, answer.n_now, watched.C_end))


def _n_table(options: Sequence[NOption], n_now: int, C_end: float) -> TextTable:
    """The table of what each n would reach at C_end, one row each; with hours where any of them
    has times.

    options: an option's `gain` is of reward over going on with `n_now`, the n of the newest update,
    whose row is marked; `hours` are those of the rollouts that are left.
    """
    has_times = any(option.hours is not None for option in options)
    columns = ["n", "reward", "interval", "gain", "P(gain)"]
    if has_times:
        columns += ["wall clock", "of all devices"]

    rows = []
    for option in options:
        # Without an interval, nothing is known but the range of a reward.
        low, high = (0.0, 1.0) if option.interval is None else option.interval
        row = [
            f"{option.n}{' (now)' if option.n == n_now else ''}",
            f"{option.reward:.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{option.gain:+.3f}",
            format_percent(option.p_better),
        ]
        if has_times:
            row += [format_hours(option.hours), format_hours(option.device_hours)]
        rows.append(row)
    return TextTable(f"with another n from here on, at C = {C_end:,.0f}", columns, rows)
