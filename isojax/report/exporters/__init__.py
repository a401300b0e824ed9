"""A recommendation as a trainer's config: one file for each framework, or a fork's own module
(`--for my_fork.my_trainer`), with `render(recommendation, sweep_config) -> str`, which has the
decorator `@exporter(how_to_run=...)`. sweep_config is None for imported logs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.nouns import Allocation
from isojax.core.plugins import Plugin, PluginKind
from isojax.core.schedule import FittedSchedule, GradientSchedule, parse_schedule, stage_spans
from isojax.scaling.allocate.recommendation import GrowingRun, Recommendation


@dataclass(frozen=True)
class ExporterTraits:
    # The command that uses the written file; {file}, {folder} and {name} are its path, its folder,
    # and its name less .yaml.
    how_to_run: str

    # For --growing: (recommendation, sweep_config, name) -> texts, one config or a series of runs,
    # each of which goes on from the checkpoint of the one before.
    render_growing: Callable[[Recommendation, Config | None, str], list[str]] | None = None
    how_to_go_on: str | None = None  # where the commands of later runs differ from the first's


Exporter = Plugin[..., str, ExporterTraits]

exporter = PluginKind("exporter", "report.exporters", ExporterTraits)


@dataclass(frozen=True)
class GrowingStage:
    """A run of one n, in a series that makes up a run whose n grows."""

    number: int  # from 1
    recommendation: Recommendation  # with the stage's allocation
    M_end: int  # updates since the beginning of the series
    note: str


def recommended_growth(recommendation: Recommendation) -> GrowingRun:
    """The recommended schedule; InputError where there is none."""
    if recommendation.growing is None:
        raise InputError(
            found="no growing n is expected to gain at this budget",
            expected="--write without --growing",
        )
    return recommendation.growing


def growing_stages(recommendation: Recommendation) -> Iterator[GrowingStage]:
    """The recommended growing n as a series of runs, one for each n, for trainers whose runs have
    one n: each begins where the one before ended. InputError where no growing n is recommended."""
    growing = recommended_growth(recommendation)
    parts = _stage_allocations(growing, recommendation.allocation.C)
    M_ends = accumulate(part.allocation.M for part in parts)
    series = (
        f"one run whose n grows ({growing.schedule}), "
        f"expected to end at {growing.expected_reward:.3f}"
    )
    for number, (part, M_end) in enumerate(zip(parts, M_ends, strict=True), 1):
        note = (
            f"Run {number} of {len(parts)}, from C = {part.C_start} on: together they are {series}."
        )
        yield GrowingStage(number, replace(recommendation, allocation=part.allocation), M_end, note)


@dataclass(frozen=True)
class StageAllocation:
    """A stage of a schedule that has an update."""

    C_start: int
    allocation: Allocation


def _stage_allocations(growing: GrowingRun, C_end: int) -> list[StageAllocation]:
    """The stages of a growing run, each as an allocation of whole updates, up to a total of C_end
    rollouts; stages without an update are left out."""
    stages = parse_schedule(growing.schedule)
    # A recommendation has explicit stages.
    assert not isinstance(stages, GradientSchedule | FittedSchedule)
    if not growing.batches:  # no dynamic sampling: an update takes one batch of B_p n rollouts
        # A span is a stage as it is run: it begins after M whole updates, which took C rollouts. A
        # span without room for an update is left out; the last one goes on until none fits.
        spans = [span for span in stage_spans(stages) if span.C + span.B <= C_end]
        last = spans[-1]
        last_M = last.M + (C_end - last.C) // last.B
        M_ends = [*(span.M for span in spans[1:]), last_M]
        return [
            StageAllocation(span.C, Allocation(span.B_p, span.n, M_end - span.M))
            for span, M_end in zip(spans, M_ends, strict=True)
        ]

    # With dynamic sampling, an update of a stage takes `batches` of B_p n rollouts on average.
    C_ends = [*(stage.C for stage in stages[1:]), C_end]
    parts = []
    for stage, C_stop, batches in zip(stages, C_ends, growing.batches, strict=True):
        M = int((C_stop - stage.C) // (stage.B_p * stage.n * batches))
        if M > 0:
            parts.append(StageAllocation(stage.C, Allocation(stage.B_p, stage.n, M, batches)))
    return parts


# Of trainers that go on sampling until no group of equal rewards is left.
KEPT_GROUPS = (
    "isojax keeps groups that are still equal after the last batch that its recipe allows."
)


@dataclass(frozen=True)
class DynamicSampling:
    """That updates replace groups of equal rewards by those of further problems (DAPO)."""

    # batches of an update at most, after which equal groups stay; None: not known, as of a log
    limit: int | None
    batches: float  # of an update, on average

    def epochs(self, M: int) -> int:
        """For trainers that end after so many passes over their dataset: twice as many as M updates
        take where it holds one batch, so that they end after M updates."""
        return ceil(2 * M * self.batches)


def dynamic_sampling(
    recommendation: Recommendation, sweep_config: Config | None
) -> DynamicSampling | None:
    """As the measured runs had it; None where they had none."""
    limit = None if sweep_config is None else sweep_config.cell.rl.dynamic_sampling
    batches = recommendation.allocation.batches
    if limit is None and batches == 1.0:
        return None
    return DynamicSampling(limit, batches)


@dataclass(frozen=True)
class OneBatch:
    """A recommendation for a trainer without dynamic sampling, and what its user should know of
    that."""

    recommendation: Recommendation
    notes: tuple[str, ...]


def without_dynamic_sampling(
    recommendation: Recommendation, sweep_config: Config | None, trainer: str
) -> OneBatch:
    """A recommendation changed for a trainer that cannot replace groups of equal rewards: the same
    number of rollouts, in updates of one batch each, and a note that explains it. Unchanged where
    the measured runs had no dynamic sampling. `trainer`: its name, for the note."""
    sampling = dynamic_sampling(recommendation, sweep_config)
    allocation = recommendation.allocation
    if sampling is None:
        return OneBatch(recommendation, ())

    M = allocation.C // allocation.B
    note = (
        f"{trainer} has no dynamic sampling: groups of equal rewards stay, "
        f"and an update takes one batch, so that these {allocation.C} rollouts are M = {M} "
        "updates. The expected reward is that of runs with dynamic sampling."
    )
    plain = Allocation(allocation.B_p, allocation.n, M)
    return OneBatch(replace(recommendation, allocation=plain), (note,))


def header_comments(
    recommendation: Recommendation,
    sweep_config: Config | None,
    learning_rate_key: str,
    notes: Sequence[str],
    how_to_run: str = "",
    stage: GrowingStage | None = None,
) -> str:
    """The comments ("# ...") above a written config: the allocation, its expected reward and
    reasons, risks and warnings, the learning rate, the exporter's notes, and the command to run.

    `learning_rate_key`: what the trainer calls the rate, which the config leaves to the user.
    `how_to_run`: a command with {file}; "" for none. `stage`: of a series of runs, the one that the
    config is for; its note stands in place of the reward and reasons."""
    lines: list[str] = []
    caveat = recommendation.nothing_learnt or recommendation.tie
    if caveat:
        lines.append(f"{caveat[:1].upper()}{caveat[1:]}.")

    allocation = recommendation.allocation
    batches = ""
    if allocation.batches != 1.0:
        batches = f" of {allocation.batches:.2f} batches on average"
    lines.append(
        f"isojax recommend: B_p = {allocation.B_p} problems per batch, "
        f"n = {allocation.n} rollouts per problem, M = {allocation.M} updates{batches}; "
        f"C = {allocation.C} rollouts."
    )
    if stage is None:
        lines += [_reward_text(recommendation), *recommendation.reasons]
    else:
        lines.append(stage.note)
    if recommendation.risks:
        lines.append(f"Risk: {recommendation.risk_summary}.")
    # the warnings that the line on the risks does not have
    lines += [f"warning: {warning}" for warning in recommendation.further_warnings]

    # The config itself has no learning rate, as its model and optimizer are the user's.
    warmup = ""
    if sweep_config:
        updates = sweep_config.cell.rl.warmup
        warmup = f" The rate is constant after {updates} updates of warm-up."
    rate = _learning_rate_text(allocation.B, sweep_config)
    lines.append(f"{rate} The key is {learning_rate_key}.{warmup}")

    lines += notes
    if how_to_run:
        lines.append(f"Run: {how_to_run.format(file='FILE')}")
    # a line break would end the comment
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


def _reward_text(recommendation: Recommendation) -> str:
    interval = ""
    if recommendation.interval:
        low, high = recommendation.interval
        interval = f", {low:.3f} to {high:.3f}"
    return f"Expected {recommendation.metric}: {recommendation.expected_reward:.3f}{interval}."


def small_dataset_note(allocation: Allocation, epochs_key: str, other_settings: str = "") -> str:
    """For trainers that end after so many passes over their dataset, also before M updates."""
    prompts = allocation.C // allocation.n
    formula = "B_p M" if allocation.batches == 1.0 else "C / n"
    return (
        f"With a dataset of D < {formula} = {prompts} prompts, "
        f"{other_settings}{epochs_key} is {prompts} / D."
    )


def _learning_rate_text(B: int, sweep_config: Config | None) -> str:
    """A sentence on the learning rate for updates of B rollouts: the rate by the sweep's rule, or,
    for imported logs, whose rate is unknown, the rule to follow (IsoCompute Playbook, section
    3)."""
    if sweep_config is None:
        return (
            "Learning rate: if your runs scaled it with sqrt(B), do so; "
            f"here B = B_p n = {B} rollouts per update."
        )
    rl = sweep_config.cell.rl
    if rl.lr_scaling == "constant":
        return f"Learning rate: {rl.learning_rate:g}, the sweep's for every B; here B = {B}."

    root = "sqrt" if rl.lr_scaling == "sqrt" else ""
    rule = f"{rl.learning_rate:g} * {root}(B / {rl.lr_reference_batch})"
    scaled_rate = rl.learning_rate * rl.rate_factor(B)
    return f"Learning rate: the sweep's rule, {rule}, gives {scaled_rate:.4g} at B = {B}."
