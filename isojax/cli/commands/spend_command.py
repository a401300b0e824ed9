"""Spend a budget of rollouts on one policy, whose n is chosen during training."""

import importlib
import math
import re
from collections.abc import Sequence
from typing import Annotated

from typer import Option

from isojax.cli import options
from isojax.cli.budgets import parse_budget
from isojax.cli.commands.launch_command import run_cells
from isojax.cli.formatting import print_line, warn_of_start
from isojax.core import preemption
from isojax.core.atomic_files import write_text
from isojax.core.config import Config, load_config
from isojax.core.errors import InputError, RunFailed
from isojax.core.limits import MAX_COUNT
from isojax.core.terminal import format_hours, warn
from isojax.launch.planner import plan_cells
from isojax.launch.process_group import ProcessGroup, parse_process_group
from isojax.launch.sweep_status import CONFIG_FILE
from isojax.runs.ledger import read_runs
from isojax.runs.mirror import remote_workspace, working_folder
from isojax.runs.spend_file import read_spending

IS_RUN = True  # for command_files.py

PAGE_FILE = "spend.html"
# The settings of `sweep` that are forced, whatever the config says, because one policy is trained.
SPEND_SETTINGS = {"strategy": "spend", "seeds": 1, "schedules": {}, "total_rollouts": None}
BUDGET_HELP = (
    "Rollouts (5e5), or a time on these devices (2h, 30m); with --resume: as the run began."
)


def spend(
    words: options.ConfigArguments = None,
    budget: Annotated[str | None, Option(metavar="C|TIME", help=BUDGET_HELP)] = None,
    mesh: options.MeshOption = None,
    ray: options.RayOption = None,
    resume: options.ResumeOption = False,
    dry_run: options.DryRunOption = False,
    processes: options.ProcessCountOption = None,
    process: options.ProcessIndexOption = None,
    coordinator: options.CoordinatorOption = None,
) -> None:
    """Spend a budget of rollouts on one policy, whose n is chosen during training.

    A tenth of the budget goes to short runs, one for each n of sweep.n that can make eight updates
    with its share. The best of them goes on from its checkpoint. As C grows, the curves of all n
    are fitted again: they decide which n comes next, or that the run ends because the rest of the
    budget is unlikely to gain 0.001 of reward. B_p is the first of sweep.B_p. All n have the
    learning rate that the config gives the geometric mean of the smallest and the largest B, unless
    cell.rl.lr_scaling= is given. The run is runs/<config>-spend, unless name= says another.

    \b
    Examples
      isojax spend quickstart --budget 139000 --resume    go on after a kill
      isojax spend my.yaml --budget 2h 'sweep.n=[4,8,16]' 'sweep.B_p=[64]'
      isojax spend my.yaml --budget 5e5 --ray auto        pilots side by side on a cluster
    """
    process_group = parse_process_group(coordinator, processes, process)
    config = options.read_config(words, mesh, None, ray)
    unused = _unused_settings(config, words or ())
    config = _spend_config(config, words or ())

    with remote_workspace(config.run.dir, config.name, process_group.is_multi_process, dry_run):
        rollouts = _budget_in_rollouts(config, budget, resume, process_group)
        config = config.with_settings(sweep={"budget": rollouts})

        _describe_pilots(config)
        if unused:
            print_line(
                "without effect, as `isojax spend` trains one policy: "
                f"{', '.join(unused)} of the config"
            )
        _run(config, resume, dry_run, process_group)


def _spend_config(config: Config, words: Sequence[str]) -> Config:
    """The config of the run: one policy, one learning rate, and another name."""
    # The config.yaml of an earlier run of `spend` has its name and its learning rate already.
    if config.sweep.trains_one_policy:
        return config.with_settings(sweep=SPEND_SETTINGS)

    is_named = any(word.startswith("name=") for word in words)
    name = config.name if is_named else f"{config.name}-spend"
    config = config.with_settings(name=name, sweep=SPEND_SETTINGS)
    return _with_one_learning_rate(config, words)


def _with_one_learning_rate(config: Config, words: Sequence[str]) -> Config:
    """The config with one learning rate for every n: what its scaling gives the middle B.

    B = B_p n is the rollouts of an update; the middle one is the geometric mean of the smallest and
    the largest. An update of a larger n then has less noise, and not a larger step, so that n can
    be changed on the way. Where a word of the command sets cell.rl.lr_scaling, that decides, and
    the config stays as it is.
    """
    rl = config.cell.rl
    sweep = config.sweep

    if any(word.startswith("cell.rl.lr_scaling=") for word in words):
        return config
    # A text task must set its learning rate; where it has not, that is refused later.
    has_rate = "learning_rate" in rl.model_fields_set or not config.cell.model.path
    if not (has_rate and sweep.B_p and sweep.n):
        return config

    middle_B = sweep.B_p[0] * math.sqrt(min(sweep.n) * max(sweep.n))
    # What lr_scaling multiplies rates by at that B, such as (middle_B / lr_reference_batch)^0.5.
    factor = rl.rate_factor(middle_B)
    critic = rl.critic and rl.critic.with_settings(learning_rate=rl.critic.learning_rate * factor)
    return config.with_settings(
        cell={
            "rl": {
                "lr_scaling": "constant",
                "learning_rate": rl.learning_rate * factor,
                "critic": critic,
            }
        }
    )


def _unused_settings(config: Config, words: Sequence[str]) -> list[str]:
    """The settings of a config's sweep that have no effect here, such as ["sweep.seeds"].

    words: of the command, such as ["quickstart", "sweep.seeds=3"]; `config` is what they mean.
    InputError where one of them sets such a setting, or sweep.budget (the option --budget does
    that): what was just typed is not ignored.
    """
    unused = [
        f"sweep.{key}"
        for key, value in SPEND_SETTINGS.items()
        if getattr(config.sweep, key) != value
    ]

    for word in words:
        # sweep.schedules.NAME=... sets an entry of sweep.schedules.
        if any(re.match(rf"{re.escape(key)}[.=]", word) for key in (*unused, "sweep.budget")):
            raise InputError(
                found=(
                    f"{word} has no effect: `isojax spend` trains one policy with the rollouts "
                    "of --budget"
                ),
                fix="Leave it out; another seed is sweep.seed=NUMBER with another name=NAME.",
            )
    # A config for other commands has another strategy in any case: that is not worth a message.
    return [key for key in unused if key != "sweep.strategy"]


def _budget_in_rollouts(
    config: Config, budget: str | None, resume: bool, process_group: ProcessGroup
) -> int:
    """The rollouts to spend, of a `budget` as typed: rollouts, a time, or None.

    Rollouts, such as "5e5", are taken as they are. Otherwise a run that is resumed keeps those that
    it began with; and of a new one a time, such as "2h", is converted by an estimate for this
    machine. InputError for None, money, and a time on several machines.
    """
    if budget is not None and budget.lower().endswith(("usd", "eur")):
        raise InputError(
            where="--budget",
            found=f"given {budget}, which is money",
            expected="rollouts, such as 5e5, or a time, such as 2h",
        )
    amount = None if budget is None else parse_budget(budget, None)
    saved_config = working_folder(config.run.dir, config.name) / CONFIG_FILE

    if isinstance(amount, int):
        rollouts = amount
    elif resume and saved_config.exists():
        # A time would be estimated once more, and its rollouts be others.
        rollouts = load_config(str(saved_config)).sweep.budget
    elif amount is None:
        raise InputError(
            found="no budget given",
            expected="one in rollouts, such as --budget 5e5, or in time, --budget 2h",
        )
    elif config.run.ray is not None or process_group.is_multi_process:
        raise InputError(
            where="--budget",
            found=f"given {budget}, which is measured on one machine",
            expected="rollouts with --ray and --processes",
        )
    else:
        amount.check()  # InputError for a time that is too long
        seconds = amount.seconds
        limit = config.run.time_limit_seconds
        left = math.inf if limit is None else max(0.0, preemption.seconds_left(limit))
        if seconds > left:
            seconds = left
            budget = f"the {format_hours(left / 3600)} that are left of run.time_limit"
        local_runner = importlib.import_module("isojax.launch.local.local_runner")
        rollouts = local_runner.rollouts_within(config, seconds)
        print_line(
            f"{budget} are estimated to suffice for {rollouts:,} rollouts with the slowest n"
        )

    # Only a time can lead to others: `parse_budget` has checked a count.
    if not 1 <= rollouts <= MAX_COUNT:
        raise InputError(
            where="--budget",
            found=f"given {budget}, which is {rollouts:,} rollouts",
            expected=f"a time for 1 to {MAX_COUNT:,} of them",
        )
    return rollouts


def _describe_pilots(config: Config) -> None:
    """Print which short runs come first, their share of the budget, and the learning rate."""
    strategy = importlib.import_module("isojax.launch.strategies.spend")
    legs = strategy.spend_policy(config, plan_cells(config.sweep)).pilots()

    budget = config.sweep.budget
    C_of_pilots = sum(leg.C_end for leg in legs)
    share = f"{C_of_pilots / budget:.0%} of {budget:,} rollouts"
    pilots = ", ".join(f"{leg.cell.B_p}x{leg.n}" for leg in legs)
    print_line(f"pilots, {share}: {pilots} (B_p x n) to C = {legs[0].C_end:,} each")

    if config.cell.rl.lr_scaling == "constant":
        print_line(f"learning rate: {config.cell.rl.learning_rate:g} for every n")


def _run(config: Config, resume: bool, dry_run: bool, process_group: ProcessGroup) -> None:
    """Train, then write the page and say what was done; nothing of that in a dry run, and in a
    process that does not write the folder. RunFailed where a run failed, last."""
    outcome = run_cells(config, resume, dry_run, process_group)
    folder = outcome.folder
    if dry_run or folder is None:
        return

    # A pilot may fail while the others go on: only a run that has not ended is a failure.
    spending = read_spending(folder)  # None where nothing is recorded
    runs = [run for run in read_runs([folder], warn) if run.points]
    if spending is None or not runs or (outcome.failure and not spending.is_ended):
        raise outcome.failure or RunFailed(f"{folder} has no run to report")

    page = importlib.import_module("isojax.report.page.spend_page")
    write_text(folder / PAGE_FILE, page.render_spending(folder, spending, runs))
    for sentence in page.describe_spending(spending, runs):
        print_line(sentence)
    print_line(f"policy: {folder / 'cells' / spending.cell.name}")
    print_line(f"page: {folder / PAGE_FILE}")
    warn_of_start(folder)

    if outcome.failure:
        raise outcome.failure
