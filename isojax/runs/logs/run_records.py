"""Runs of logs as records: a seed for each, one validation metric for all, and no run counted
twice."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

from isojax.core.errors import InputError
from isojax.core.limits import MAX_CELLS
from isojax.core.nouns import Cell, RunRecord
from isojax.core.tabular import list_some
from isojax.runs.logs.log_evaluations import read_run_record
from isojax.runs.logs.log_run import LogRun, NotedRuns
from isojax.runs.logs.measured_words import other_settings, other_words
from isojax.runs.logs.reward_scale import scale_runs
from isojax.runs.logs.run_rows import SEPARATE_RUNS_HINT
from isojax.runs.logs.source_words import describe_training_runs, reject_mixed_sources
from isojax.runs.logs.unlogged_cells import UnloggedCells

# settings that seeds share: runs that differ in one were made to compare its values
_NO_SEED = re.compile(r"(^|[._])(lr|learning_rate|model_name_or_path|model\.path)$")


@dataclass(frozen=True)
class ImportedRuns:
    """What was read: the runs by cell, and what had to be assumed or left out."""

    runs: tuple[RunRecord, ...]
    notes: tuple[str, ...]
    # logs of a folder that cannot be used, and numbers that are not finite
    skipped: tuple[str, ...]


def to_run_records(runs: Sequence[LogRun], refusals: Sequence[InputError] = ()) -> ImportedRuns:
    """The runs of logs as records to fit, sorted by cell (B_p, n and seed), and notes.

    The notes say what was assumed or left out.
    Runs of one (B_p, n) without a seed get 0, 1, ... in order, and so do runs in separate logs that
    all state the same seed. A run that cannot be used is skipped if the user named only a folder
    (`may_be_skipped`), else it is an InputError for all. `refusals`: those of logs that were
    skipped before, which the result lists too."""
    if len(runs) > MAX_CELLS:
        raise InputError(
            found=f"the logs hold {len(runs):,} runs",
            expected=f"at most {MAX_CELLS:,}",
            fix=SEPARATE_RUNS_HINT,
        )
    _reject_different_metrics(runs)
    scaled = scale_runs(runs)

    # Each run as a record, its evaluations by rollouts.
    used_runs: list[LogRun] = []
    records: list[RunRecord] = []  # of these, all with the seed 0
    refusals = list(refusals)
    not_finite: list[str] = []
    unlogged: list[Counter[UnloggedCells]] = []
    runs_of_note: dict[str, list[str]] = {}
    for run in scaled.runs:
        cell = Cell(run.B_p, run.n, seed=0)
        try:
            evaluated = read_run_record(run.rows, run.column_map, cell, run.named_location)
        except InputError as e:
            if not run.may_be_skipped:
                raise
            refusals.append(e)
            continue
        used_runs.append(run)
        records.append(evaluated.record)
        not_finite += evaluated.not_finite
        unlogged.append(evaluated.unlogged)
        for text in evaluated.notes:
            runs_of_note.setdefault(text, []).append(run.named_location)
    if not records:
        if len(refusals) > 1:
            raise refusals[0].with_fix(f"{len(refusals)} logs or runs cannot be used.")
        raise refusals[0]

    reject_mixed_sources(used_runs)
    seeded = _assign_seeds(used_runs)
    records = [
        replace(record, cell=replace(record.cell, seed=run.seed))
        for run, record in zip(seeded.runs, records, strict=True)
    ]
    _reject_copies(records)

    notes = [*seeded.notes, *_describe_unlogged(unlogged), *scaled.notes]
    # A note of many runs is given once, for the first of them.
    for text, (first, *others) in runs_of_note.items():
        more = f" and {len(others)} more run{'s' * (len(others) > 1)}" if others else ""
        notes.append(f"{first}{more}: {text}")
    if training_note := describe_training_runs(used_runs):
        notes.append(training_note)

    # A log with the base policy's evaluation alone has no curve to fit.
    trained = [record for record in records if record.points[-1].rollouts]
    if trained and len(trained) < len(records):
        others = ", ".join(record.source for record in records if not record.points[-1].rollouts)
        notes.append(f"left out, as the only evaluation is of the base policy (C = 0): {others}")
    in_order = sorted(trained or records, key=lambda record: record.cell)
    return ImportedRuns(tuple(in_order), tuple(notes), (*map(str, refusals), *not_finite))


def _describe_unlogged(unlogged_of_runs: Sequence[Counter[UnloggedCells]]) -> Iterator[str]:
    """A sentence about each kind of unlogged cell, for all runs of a log together.

    unlogged_of_runs: for each run, at how many steps it has which cells.
    """
    for cells, step_count in sum(unlogged_of_runs, Counter()).items():
        run_count = sum(cells in unlogged for unlogged in unlogged_of_runs)
        of_runs = f" of {run_count} runs" if run_count > 1 else ""
        where = f"at {step_count:,} step{'s' * (step_count > 1)}{of_runs}"
        yield f"{cells.source}: {cells.column} is {cells.text} {where}: taken as not logged there"


class _Metric(NamedTuple):
    """What a run's main metric is called in the ledger, and in the log where it is a reward."""

    name: str
    column: str


def _reject_different_metrics(runs: Sequence[LogRun]) -> None:
    """InputError where the runs have different validation metrics: their curves cannot be compared.

    Metrics differ by what the ledger calls them or, for a plain reward, by its column. The message
    names the first run of each.
    """
    run_of_metric: dict[_Metric, LogRun] = {}
    for run in reversed(runs):  # so that the first run of each metric stays
        field = run.column_map.main_metric
        column = run.column_map.columns[field] if field == "reward" else ""
        run_of_metric[_Metric(run.column_map.ledger_name(field), column)] = run
    if len(run_of_metric) <= 1:
        return

    metrics = []
    for metric, run in run_of_metric.items():
        column = f"{metric.column}, " if metric.column else ""
        metrics.append(f"{metric.name} ({column}{run.rows[0].source})")
    raise InputError(
        where="validation metrics",
        found=f"{' and '.join(metrics)}",
        fix=(
            "Name one for all: --map avg@4=COLUMN; where they are one, import each log on its "
            "own under one name, and join them: isojax records merge."
        ),
    )


def _assign_seeds(runs: Sequence[LogRun]) -> NotedRuns:
    """The runs in their order, each with a seed, and notes where seeds had to be numbered."""
    indices_of_setting: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, run in enumerate(runs):
        indices_of_setting[run.B_p, run.n].append(i)

    seeded = list(runs)
    notes: list[str] = []
    for indices in indices_of_setting.values():
        numbered = _number_seeds([runs[i] for i in indices])
        notes += numbered.notes
        for i, run in zip(indices, numbered.runs, strict=True):
            seeded[i] = run
    return NotedRuns(seeded, notes)


def _number_seeds(runs: Sequence[LogRun]) -> NotedRuns:
    """The runs of one (B_p, n), in their order, each with a different seed, and notes.

    The notes say where seeds had to be numbered. InputError where the logs give two runs one seed.
    """
    # A seed that several logs of one run each repeat is a trainer's default, which does not
    # distinguish them.
    seed_counts = Counter(run.seed for run in runs)
    known_seeds = [
        None if _may_be_default(run) and seed_counts[run.seed] > 1 else run.seed for run in runs
    ]

    run_of_seed: dict[int, LogRun] = {}
    for run, seed in zip(runs, known_seeds, strict=True):
        if seed is None:
            continue
        earlier = run_of_seed.setdefault(seed, run)
        if earlier is not run:
            places = f"{earlier.location} and {run.location} (runs {earlier.label} and {run.label})"
            raise InputError(
                found=f"two runs with B_p = {run.B_p}, n = {run.n}, seed = {seed}: {places}",
                fix="Keep one, or number their seeds by --settings TABLE.",
            )

    # Runs without a known seed get the lowest numbers that no other run has.
    free_seeds = (seed for seed in range(len(runs)) if seed not in run_of_seed)
    seeds = [next(free_seeds) if seed is None else seed for seed in known_seeds]
    seeded = [replace(run, seed=seed) for run, seed in zip(runs, seeds, strict=True)]
    numbered = [run for run, seed in zip(seeded, known_seeds, strict=True) if seed is None]
    notes = list(_describe_numbering(numbered)) if numbered and len(runs) > 1 else []
    return NotedRuns(seeded, notes)


def _may_be_default(run: LogRun) -> bool:
    """Whether a run's seed may be a trainer's default that nobody set.

    It may where it is in a log of one run, and no --map names it.
    """
    return run.column_map.table.one_run and "seed" in run.column_map.detected


def _describe_numbering(runs: Sequence[LogRun]) -> Iterator[str]:
    """Sentences for notes on runs of one (B_p, n) whose seeds were numbered.

    Which run has which seed, and each sign that they differ in more than the seed, so that they
    should not count as repeated measurements of one setting.
    """
    B_p, n = runs[0].B_p, runs[0].n
    numbering = ", ".join(f"{run.label} is {run.seed}" for run in runs)
    yield f"seeds of B_p = {B_p}, n = {n} are numbered in the order given: {numbering}"

    doubt = "so are they no seeds of one setting?"
    labels = [run.label for run in runs]
    if words := other_words(labels):
        yield f"the names of these differ in {list_some(words)}, {doubt}"
    for name, values in other_settings(labels).items():
        yield f"the names of these differ in {name} ({', '.join(values)}), {doubt}"

    configs = [run.column_map.table.config for run in runs]
    setting_names = set[str]().union(*configs)
    for name in sorted(filter(_NO_SEED.search, setting_names)):
        values = {str(config.get(name)) for config in configs}
        if len(values) > 1:
            yield f"these differ in {name} ({', '.join(sorted(values))}), {doubt}"

    # A run whose first row is late may be the second part of another.
    first_clocks = [run.column_map.read(run.column_map.clock_field, run.rows[0]) for run in runs]
    if any(clock > 1 for clock in first_clocks):
        yield (
            "some begin late: where one goes on with another, add --resumed, "
            "without one name --map seed=0"
        )


def _reject_copies(runs: Sequence[RunRecord]) -> None:
    """InputError where two records hold the same run.

    Counted as two seeds, it would make every confidence interval too narrow. One may end before the
    other, as a log that was copied while the run went on.
    """
    # Comparing each with each takes too long for thousands of runs; copies begin alike.
    runs_by_start: dict[object, list[RunRecord]] = defaultdict(list)
    for run in runs:
        runs_by_start[run.cell.B_p, run.cell.n, repr(run.points[:2])].append(run)

    for similar in runs_by_start.values():
        for a, b in combinations(similar, 2):
            shared = min(len(a.points), len(b.points))
            # Two different runs may agree by chance where every reward is the same, as all 0.
            is_constant = len({repr(point.metrics) for point in a.points[:shared]}) == 1
            if shared > 1 and not is_constant and a.points[:shared] == b.points[:shared]:
                run = f"run of B_p = {a.cell.B_p}, n = {a.cell.n}"
                raise InputError(
                    where=b.source,
                    found=f"holds the same {run} as {a.source}",
                    fix="Leave one out.",
                )
