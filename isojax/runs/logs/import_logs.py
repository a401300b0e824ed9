"""`isojax records import`: logs in, a sweep's folder of ledgers out, whole or not at all. Rows are
grouped into runs, and runs become records: a seed for each, one validation metric for all, and no
run counted twice."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations, compress, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from isojax.core.atomic_files import atomic_folder, write_text
from isojax.core.columns import Mask
from isojax.core.cycle_collection import cycle_collection_paused
from isojax.core.errors import InputError
from isojax.core.limits import MAX_CELLS
from isojax.core.nouns import Cell, RunRecord
from isojax.core.tabular import RowTable, is_blank, list_some
from isojax.runs import importers
from isojax.runs.importers import Importer, csv
from isojax.runs.ledger import write_run
from isojax.runs.logs.column_map import ColumnMap, is_validation, map_columns
from isojax.runs.logs.find_logs import detect_format, logs_of_folder
from isojax.runs.logs.log_evaluations import UnloggedCells, read_run_record
from isojax.runs.logs.log_table import LogTable, RunSettings, name_in_settings, settings_of
from isojax.runs.logs.measured_words import (
    BENCHMARKS,
    HELD_OUT,
    TRAINING,
    other_settings,
    other_words,
    words_of_source,
)
from isojax.runs.logs.resumed_runs import LogRun, join_resumed_runs
from isojax.runs.logs.reward_scale import AUTO_SCALE, scale_runs
from isojax.runs.logs.run_columns import MappedTable, split_run_columns
from isojax.runs.logs.source_words import (
    TAKE_ALL,
    SourceChoice,
    depth_of_shared_folder,
    describe_training_runs,
    path_below,
    reject_mixed_sources,
)
from isojax.runs.logs.tag_files import LogFiles, group_tag_files, join_tags


@dataclass(frozen=True)
class ImportedRuns:
    """What was read: the runs by cell, and what had to be assumed or left out."""

    runs: tuple[RunRecord, ...]
    notes: tuple[str, ...]
    # logs of a folder that cannot be used, and numbers that are not finite
    skipped: tuple[str, ...]


@cycle_collection_paused()
def read_logs(
    paths: Sequence[Path],
    log_format: str | None,
    field_map: Mapping[str, str],
    settings: RunSettings | None = None,
    resumed: bool = False,
    whole_lines: bool = False,
    choice: SourceChoice = TAKE_ALL,
) -> ImportedRuns:
    """Logs of one format (an importer's name or module path; None: as they look) as runs;
    InputError, with its place, for what has no use. Of a folder, a log that has none is skipped.
    `settings`: what the logs do not say; `resumed`: runs of one name (or seed) are one run, and so
    are the parts of a log whose steps fall. `whole_lines`: of CSV, whose end shows no tear, a last
    line without a line end is left out. `choice`: which logs and runs are taken."""
    _check_paths(paths)
    log_format = log_format or detect_format(paths)
    importer = importers.importer.load(log_format)
    log_runs = list[LogRun]()
    notes = list[str]()
    refusals = list[InputError]()
    left_out = 0
    depth = depth_of_shared_folder([path if path.is_dir() else path.parent for path in paths])
    for log, may_be_skipped in _logs_of_paths(paths, importer):
        source = path_below(depth, str(log.source))
        if not choice.may_take(source):
            left_out += 1
            continue
        try:
            tables = [
                table for file in log.files for table in _read_tables(file, importer, whole_lines)
            ]
            tables = join_tags(log, tables, field_map)
            takes_run = None if choice == TAKE_ALL else partial(choice.takes, source)
            gathered = gather_runs(tables, field_map, settings or {}, importer, takes_run)
        except InputError as e:
            if not choice.takes(source):  # it need not be usable
                left_out += 1
                continue
            if not may_be_skipped:
                raise
            refusals.append(e)
            continue
        taken = [
            run for run in gathered.runs if choice.takes(source, run.name, run.column_map.table.run)
        ]
        left_out += gathered.left_out + len(gathered.runs) - len(taken)
        log_runs += [replace(run, may_be_skipped=may_be_skipped) for run in taken]
        tables_of_runs = [run.column_map.table for run in taken]
        notes += [
            f"{table.source}: {note}"
            for table in (*tables, *tables_of_runs)
            for note in table.notes
        ]
    if not log_runs and not refusals:
        if left_out:
            raise InputError(
                f"--only and --leave-out take none of the {left_out} logs or runs; expected one or more."
            )
        raise InputError(f"the format {log_format} found no run in {paths[0]}.")
    if left_out:
        which = "1 log or run is" if left_out == 1 else f"{left_out} logs or runs are"
        notes.append(f"{which} left out, as --only and --leave-out say")
    elif settings and not refusals:
        notes += _describe_unused_settings([run.column_map.table for run in log_runs], settings)
    log_runs, resumed_notes = join_resumed_runs(log_runs, resumed)
    imported = to_run_records(log_runs, refusals)
    return replace(imported, notes=(*dict.fromkeys(notes), *resumed_notes, *imported.notes))


def _logs_of_paths(paths: Sequence[Path], importer: Importer) -> Iterator[tuple[LogFiles, bool]]:
    """The logs that the paths name, and whether each is skipped where it has no use, as one of
    several in a folder."""
    is_one_of_several: dict[Path, bool] = {}
    for path in paths:
        files = logs_of_folder(path, importer) if path.is_dir() else [path]
        is_one_of_several |= dict.fromkeys(files, len(files) > 1)
    files = list(is_one_of_several)
    for log in (
        group_tag_files(files)
        if importer is csv.read
        else [LogFiles((file,), file) for file in files]
    ):
        yield log, all(is_one_of_several[file] for file in log.files)


def _check_paths(paths: Sequence[Path]) -> None:
    path_by_target: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise InputError(f"no such log: {path}. Expected a file that exists; check its name.")
        if (earlier_path := path_by_target.setdefault(path.resolve(), path)) is not path:
            raise InputError(
                f"{path} is given twice (as {earlier_path} too), expected once; leave one out."
            )


def _read_tables(log: Path, importer: Importer, whole_lines: bool) -> list[LogTable]:
    try:
        return csv.read(log, whole_lines) if importer is csv.read else importer(log) or []
    except OSError as e:
        raise InputError(f"cannot read {log}: {e.strerror or e}. Check who may read it.") from e


def _describe_unused_settings(tables: Sequence[LogTable], settings: RunSettings) -> list[str]:
    """A note of the rows of the user's table that no run has."""
    used = {name_in_settings(table, settings) for table in tables}
    unused = [name for name in settings if name not in used]
    if not unused:
        return []
    return [f"--settings: no run, or none with a value, is called {list_some(unused)}"]


@dataclass(frozen=True)
class GatheredRuns:
    runs: list[LogRun]
    left_out: int  # runs that the user does not take


def gather_runs(
    tables: Sequence[LogTable],
    field_map: Mapping[str, str],
    settings: RunSettings,
    importer: Importer,
    takes_run: Callable[[str], bool] | None = None,
) -> GatheredRuns:
    """The runs of a log's tables; each is taken for itself where its name says its settings;
    InputError as above. `takes_run`: whether a run of this name is taken (None: all are); nothing
    is asked of those that are not."""
    mapped_tables, left_out = list[MappedTable](), 0
    for table in tables:
        for part in split_run_columns(
            table, field_map, settings, importer.traits.fields, takes_run
        ):
            taken, count = _leave_out_runs(part, importer.traits.fields, takes_run)
            mapped_tables += [taken] if taken.table.rows or not count else []
            left_out += count
    if settings or any("{}" in text for text in field_map.values()):
        mapped_tables = [
            replace(mapped, table=part)
            for mapped in mapped_tables
            for part in _split_by_run(mapped.table, mapped.field_map, importer.traits.fields)
        ]
    log_runs = list[LogRun]()
    for mapped in mapped_tables:
        own_settings = settings_of(mapped.table, settings)
        own_map = {**own_settings, **mapped.field_map}
        is_auto = own_map.get("scale") == AUTO_SCALE
        if is_auto:
            del own_map["scale"]
        runs = group_rows(map_columns(mapped.table, own_map, importer.traits.fields))
        for run in runs:
            run.seed_is_stated = "seed" in own_settings
            run.scale_is_stated = "scale" in own_settings and "scale" not in mapped.field_map
            run.scale_is_auto = is_auto
        log_runs += runs
    return GatheredRuns(log_runs, left_out)


def _leave_out_runs(
    mapped: MappedTable,
    known_columns: Mapping[str, Sequence[str]],
    takes_run: Callable[[str], bool] | None,
) -> tuple[MappedTable, int]:
    """The table without the rows of the runs that are not taken, and how many runs these are."""
    table = mapped.table
    if takes_run is None:
        return mapped, 0
    column = _column_of_runs(table, mapped.field_map, known_columns)
    if column is None:
        is_left_out = table.run != "" and "run" not in mapped.field_map and not takes_run(table.run)
        return (replace(mapped, table=replace(table, rows=())), 1) if is_left_out else (mapped, 0)

    names = table.cells.column(column)
    is_left_out = names.ask(lambda name: not is_blank(name) and not takes_run(str(name)))
    count = len({str(name) for name in names.take(is_left_out)})
    return replace(mapped, table=replace(table, rows=table.cells.take(~is_left_out))), count


def _column_of_runs(
    table: LogTable, field_map: Mapping[str, str], known_columns: Mapping[str, Sequence[str]]
) -> str | None:
    names = [field_map["run"]] if "run" in field_map else known_columns.get("run", ())
    return next((name for name in names if name in table.cells.names), None)


def _split_by_run(
    table: LogTable, field_map: Mapping[str, str], known_columns: Mapping[str, Sequence[str]]
) -> list[LogTable]:
    column = _column_of_runs(table, field_map, known_columns)
    if column is None:
        return [table]
    names = ("" if name is None else str(name) for name in table.cells.column(column))
    return [
        replace(table, rows=rows, run=name) for name, rows in table.cells.group_by(names).items()
    ]


def check_output_folder(out: Path) -> None:
    """InputError where the folder to write is a file, or holds something."""
    is_empty_folder = out.is_dir() and not out.is_symlink() and not any(out.iterdir())
    if (out.exists() or out.is_symlink()) and not is_empty_folder:
        raise InputError(
            f"--out {out} is there and is no empty folder; it is kept. Give another name, or remove it."
        )


@cycle_collection_paused()
def write_ledgers(imported: ImportedRuns, out: Path, manifest: Mapping[str, object]) -> None:
    """Write the ledgers below `out`, and import.json: `manifest` (files, format, map), the log of
    each cell, the notes. InputError where `out` holds something, or cannot be written; it is then
    as it was."""
    check_output_folder(out)
    with atomic_folder(out) as temp:
        for run in imported.runs:
            write_run(temp / "cells" / run.cell.name, run)
        cells = {run.cell.name: run.source for run in imported.runs}
        document = {
            **manifest,
            "cells": cells,
            "notes": imported.notes,
            "skipped": imported.skipped,
        }
        write_text(temp / "import.json", json.dumps(document, indent=1) + "\n")


_SEPARATE_RUNS_HINT = (
    "Give each run its own file, or name the column that separates them: --map run=COLUMN."
)
_SAYS_WHETHER = re.compile(r"(?i)is_?(val|valid|validation|eval|train|training|test)")
_MOST_KINDS = 100  # of one column, that are looked at
_KIND_COLUMN = re.compile(
    r"(?i)split|mode|phase|stage|subset|data_?(set|source)|benchmark|is_?(val|eval|train|test)"
)


def group_rows(column_map: ColumnMap) -> list[LogRun]:
    """The runs of one log, in the order they begin, by the values of a `run` column; without one,
    the log is one run where its format says so, else the rows of one (B_p, n, seed) are. InputError
    where these change within a run."""
    table = column_map.table
    metric_columns = [column_map.columns[name] for name in column_map.metric_fields]
    rows = _rows_of_runs(column_map)
    if not _has_any(rows, metric_columns).any():
        missing = ", ".join(metric_columns)
        raise InputError(
            f"{table.rows[0].location}: no row from there on has {missing}. Name columns with --map."
        )

    settings = _read_settings(rows, column_map)
    names = column_map.read_all("run", rows) if "run" in column_map else [""] * len(rows)
    keys = names if "run" in column_map or table.one_run else settings
    first_row_of_key: dict[object, int] = {}
    first_rows = [first_row_of_key.setdefault(key, row) for row, key in enumerate(keys)]
    for row, first in enumerate(first_rows):
        if settings[row] != settings[first]:
            before, after = settings[first]._asdict(), settings[row]._asdict()
            changes = ", ".join(
                f"{k} from {before[k]} to {after[k]}" for k in before if before[k] != after[k]
            )
            run_label = f"the run {names[row]!r}" if names[row] else "one run"
            problem = f"{rows.place(row).location}: {run_label} (from {rows.place(first).position}) changes {changes}"
            raise InputError(f"{problem}; expected one setting. {_SEPARATE_RUNS_HINT}")
    if "run" not in column_map and len(first_row_of_key) > 1:
        _reject_mixed_settings(rows, first_rows, settings, column_map)

    runs = []
    for first, run_rows in rows.group_by(first_rows).items():
        run = LogRun(column_map, names[first], *settings[first], rows=run_rows)
        _reject_kinds_of_rows(
            run, is_only_run=len(first_row_of_key) == 1 and "run" not in column_map
        )
        run.rows = _join_metrics(run.rows, column_map)
        runs += [run] if _has_any(run.rows, metric_columns).any() else []
    return runs


def _has_any(rows: RowTable, columns: Sequence[str]) -> Mask:
    """bool[rows]: where a row has one of these columns, if only a blank cell of it."""
    has_any = np.zeros(len(rows), np.bool_)
    for column in columns:
        has_any |= rows.column(column).is_present
    return has_any


def _rows_of_runs(column_map: ColumnMap) -> RowTable:
    """The rows that say their run's settings and have a value of a step. A row with neither a
    validation metric nor the step is a training row whose steps are in another column."""
    rows = column_map.table.cells
    needed = [
        name for name in column_map.columns if is_validation(name) or name == column_map.clock_field
    ]
    settings = [
        name
        for name in ("n", "B_p", "B", "sampled_B_p", "devices", "seed", "run")
        if name in column_map
    ]
    metric_columns = [column_map.columns[name] for name in column_map.metric_fields]

    lacks_setting = np.zeros(len(rows), np.bool_)
    lacks_needed = np.ones(len(rows), np.bool_)
    for name in settings:
        lacks_setting |= column_map.cells(name, rows).is_blank
    for name in needed:
        lacks_needed &= column_map.is_unlogged(name, rows)
    says_its_run = ~lacks_setting | _has_any(rows, metric_columns)
    return rows.take(says_its_run & ~lacks_needed & _has_any(rows, column_map.step_columns))


def _reject_kinds_of_rows(run: LogRun, is_only_run: bool) -> None:
    """Refuse a `split` of a run's evaluations, train or val, and the like: they are two curves,
    whose rows alternate, or come one after another, each from its first step."""
    column_map = run.column_map
    if column_map.table.one_run:
        return
    rows = run.rows.take(~column_map.is_unlogged(column_map.main_metric, run.rows))
    steps_fall = np.diff(column_map.cells(column_map.clock_field, rows).numbers) <= 0
    used = set(column_map.columns.values())
    for column in (name for name in column_map.table.columns if name not in used):
        names_kinds = _KIND_COLUMN.fullmatch(column) is not None
        if not names_kinds and not steps_fall.any():
            continue  # most columns of most logs: their values need not be looked at
        kind_of_row = [
            str(x) if isinstance(x, str | bool) and not is_blank(x) else ""
            for x in rows.column(column)
        ]
        kinds_of_rows = [kind for kind in kind_of_row if kind]
        kinds = list(dict.fromkeys(kinds_of_rows))
        changes = sum(a != b for a, b in pairwise(kinds_of_rows))
        alternate = names_kinds and 2 <= len(kinds) <= changes
        changes_where_steps_fall = any(
            a != b for a, b in compress(pairwise(kind_of_row), steps_fall)
        )
        if not alternate and not (changes_where_steps_fall and _are_measurements(column, kinds)):
            continue
        # what most will want to fit first
        kinds.sort(key=lambda kind: not _is_held_out(column, kind))
        order = "by turns" if alternate else "one after another"
        problem = f"{rows.place(0).location}: from there on, {column} is {' or '.join(kinds[:4])} {order} within a run"
        fix = f"Keep the rows of one, as {column} = {kinds[0]}"
        fix += ", or remove the column if it distinguishes none" if alternate else ""
        fix += f"; in pandas: df[df[{column!r}].astype(str) == {kinds[0]!r}].to_csv(OTHER, index=False)"
        separate = f" Where each is a run of its own: --map run={column}." if is_only_run else ""
        raise InputError(f"{problem}; expected one curve. {fix}.{separate}")


def _is_held_out(column: str, kind: str) -> bool:
    if _SAYS_WHETHER.fullmatch(column):
        return (kind.lower() in ("true", "1")) != ("train" in column.lower())
    return bool(words_of_source(kind) & HELD_OUT)


def _are_measurements(column: str, kinds: Sequence[str]) -> bool:
    """Whether the words of a column differ in what was measured: train or val, gsm8k or aime. Where
    others differ, as the phases of a run, its steps may fall because it was resumed."""
    words_of_kinds = {
        words_of_source(kind) & (TRAINING | HELD_OUT | BENCHMARKS) for kind in kinds[:_MOST_KINDS]
    }
    return len(words_of_kinds) > 1 or (
        _SAYS_WHETHER.fullmatch(column) is not None and len(kinds) > 1
    )


def _join_metrics(rows: RowTable, column_map: ColumnMap) -> RowTable:
    """The rows of a run by their steps where these rise in each metric, and a file has one metric
    after another."""
    clocks = np.array(column_map.read_all(column_map.clock_field, rows))
    if (np.diff(clocks) >= 0).all():
        return rows
    for column in column_map.step_columns:
        steps = clocks[~column_map.table.is_unlogged(rows.column(column))]
        if (np.diff(steps) <= 0).any():
            return rows
    return rows.take(np.argsort(clocks, kind="stable"))


class _Settings(NamedTuple):
    B_p: int
    n: int
    seed: int | None


def _read_settings(rows: RowTable, column_map: ColumnMap) -> list[_Settings]:
    """The setting of each row; InputError where it lacks one, or where two of them contradict each
    other."""
    ns = column_map.read_all("n", rows)
    seeds = column_map.read_all("seed", rows) if "seed" in column_map else [None] * len(rows)
    Bs = column_map.read_all("B", rows) if "B" in column_map else []
    if "B_p" not in column_map:
        for row, (B, n) in enumerate(zip(Bs, ns, strict=True)):
            if B % n:
                problem = f"{rows.place(row).location}: B = {B} is no multiple of n = {n}"
                raise InputError(f"{problem}; expected B = B_p n, rollouts per update.")
        return [_Settings(B // n, n, seed) for B, n, seed in zip(Bs, ns, seeds, strict=True)]

    B_ps = column_map.read_all("B_p", rows)
    for row, B in enumerate(Bs):
        if B != B_ps[row] * ns[row]:
            problem = f"{rows.place(row).location}: B = {B}, but B_p n = {B_ps[row] * ns[row]}"
            raise InputError(
                f"{problem}. Correct one, or name one that is right: --map B_p=COLUMN or B=COLUMN."
            )
    return list(map(_Settings, B_ps, ns, seeds))


def _reject_mixed_settings(
    rows: RowTable, first_rows: Sequence[int], settings: Sequence[_Settings], column_map: ColumnMap
) -> None:
    """Refuse settings that change while the steps go on rising, as one run's rows do, not several
    runs'. `first_rows`: for each row, the first one of its run."""
    clock_field = column_map.clock_field
    clocks = column_map.read_all(clock_field, rows)
    rises = [a < b for a, b in pairwise(clocks)]
    all_rise = all(rises)
    last_row_of_run = {first: row for row, first in enumerate(first_rows)}
    for i in list(last_row_of_run)[1:]:  # the rows that begin a run, but for the first
        run_before = first_rows[i - 1]
        last = last_row_of_run[i]
        is_enclosed = last + 1 < len(rows) and first_rows[last + 1] == run_before
        goes_there_and_back = is_enclosed and rises[i - 1] and rises[last]
        if all_rise or goes_there_and_back:
            position_before = rows.place(run_before).position
            before = f"n = {settings[run_before].n}, B_p = {settings[run_before].B_p} (from {position_before})"
            after = (
                f"n = {settings[i].n}, B_p = {settings[i].B_p}, while {clock_field} goes on rising"
            )
            problem = (
                f"two settings are mixed in one run: {before}, then {after}; expected one setting"
            )
            hint = f"{_SEPARATE_RUNS_HINT} Where each n is a run of its own: --map run=n."
            raise InputError(f"{rows.place(i).location}: {problem}. {hint}")


def to_run_records(runs: Sequence[LogRun], refusals: Sequence[InputError] = ()) -> ImportedRuns:
    """Every run that can be used as a record, by cell; others refuse all or are skipped. Runs of
    one (B_p, n) without a seed get 0, 1, ... in order; so do runs in logs of their own whose
    settings repeat one seed."""
    if len(runs) > MAX_CELLS:
        raise InputError(
            f"the logs hold {len(runs):,} runs, expected at most {MAX_CELLS:,}. {_SEPARATE_RUNS_HINT}"
        )
    _reject_different_metrics(runs)
    runs, notes = scale_runs(runs)
    places_by_note: dict[str, list[str]] = {}
    refusals = list(refusals)
    not_finite = list[str]()
    used = list[tuple[LogRun, RunRecord]]()
    unlogged: list[Counter[UnloggedCells]] = []
    for run in runs:
        try:
            read = read_run_record(
                run.rows, run.column_map, Cell(run.B_p, run.n, 0), run.named_location
            )
        except InputError as e:
            if not run.may_be_skipped:
                raise
            refusals.append(e)
            continue
        used.append((run, read.record))
        for text in read.notes:
            places_by_note.setdefault(text, []).append(run.named_location)
        not_finite += read.not_finite
        unlogged.append(read.unlogged)
    if not used:
        in_all = f" {len(refusals)} logs or runs cannot be used." if len(refusals) > 1 else ""
        raise InputError(f"{refusals[0]}{in_all}")
    for text, (place, *others) in places_by_note.items():
        more = f" and {len(others)} more run{'s' * (len(others) > 1)}" if others else ""
        notes.append(f"{place}{more}: {text}")
    reject_mixed_sources([run for run, _ in used])
    training_note = describe_training_runs([run for run, _ in used])
    notes += [training_note] if training_note else []
    notes = [*_assign_seeds([run for run, _ in used]), *_describe_unlogged(unlogged), *notes]
    run_records = [
        replace(record, cell=replace(record.cell, seed=run.seed)) for run, record in used
    ]
    _reject_copies(run_records)
    if trained := [run for run in run_records if run.points[-1].rollouts]:
        others = ", ".join(run.source for run in run_records if not run.points[-1].rollouts)
        notes += (
            [f"left out, as the only evaluation is of the base policy (C = 0): {others}"]
            if others
            else []
        )
    in_order = sorted(trained or run_records, key=lambda run: run.cell)
    return ImportedRuns(tuple(in_order), tuple(notes), (*map(str, refusals), *not_finite))


def _describe_unlogged(unlogged_of_runs: Sequence[Counter[UnloggedCells]]) -> Iterator[str]:
    """A sentence for all runs of a log, and not one for each."""
    for cells, step_count in sum(unlogged_of_runs, Counter()).items():
        run_count = sum(cells in unlogged for unlogged in unlogged_of_runs)
        of_runs = f" of {run_count} runs" if run_count > 1 else ""
        where = f"at {step_count:,} step{'s' * (step_count > 1)}{of_runs}"
        yield f"{cells.source}: {cells.column} is {cells.text} {where}: taken as not logged there"


def _reject_different_metrics(runs: Sequence[LogRun]) -> None:
    run_by_metric = {}
    for run in reversed(runs):
        field = run.column_map.main_metric
        column = f"{run.column_map.columns[field]}, " if field == "reward" else ""
        run_by_metric[run.column_map.ledger_name(field), column] = run
    if len(run_by_metric) > 1:
        metrics_text = " and ".join(
            f"{n} ({column}{run.rows[0].source})" for (n, column), run in run_by_metric.items()
        )
        problem = f"the runs have different validation metrics: {metrics_text}. Name one for all: --map avg@4=COLUMN"
        fix = "where they are one, import each log on its own under one name, and join them: isojax records merge"
        raise InputError(f"{problem}; {fix}.")


# what seeds have in common
_NO_SEED = re.compile(r"(^|[._])(lr|learning_rate|model_name_or_path|model\.path)$")


def _assign_seeds(runs: Sequence[LogRun]) -> Iterator[str]:
    """Give each run its seed; notes where the seeds had to be numbered."""
    cells: dict[tuple[int, int], list[LogRun]] = defaultdict(list)
    for run in runs:
        cells[run.B_p, run.n].append(run)
    for (B_p, n), cell_runs in cells.items():
        seed_counts = Counter(run.seed for run in cell_runs)
        for run in cell_runs:
            # A seed that several logs of one run each repeat is a trainer's default, which does not
            # distinguish them.
            if (
                run.column_map.table.one_run
                and "seed" in run.column_map.detected
                and seed_counts[run.seed] > 1
            ):
                run.seed = None
        run_by_seed: dict[int, LogRun] = {}
        for run in cell_runs:
            if run.seed is not None and (a := run_by_seed.setdefault(run.seed, run)) is not run:
                places = f"{a.location} and {run.location} (runs {a.label} and {run.label})"
                problem = f"two runs with B_p = {B_p}, n = {n}, seed = {a.seed}: {places}"
                raise InputError(f"{problem}; keep one, or number their seeds by --settings TABLE.")
        unseeded_runs = [run for run in cell_runs if run.seed is None]
        free_seeds = (seed for seed in range(len(cell_runs)) if seed not in run_by_seed)
        for run, seed in zip(unseeded_runs, free_seeds, strict=False):
            run.seed = seed
        if unseeded_runs and len(cell_runs) > 1:
            numbering = ", ".join(f"{run.label} is {run.seed}" for run in unseeded_runs)
            yield f"seeds of B_p = {B_p}, n = {n} are numbered in the order given: {numbering}"
            if words := other_words([run.label for run in unseeded_runs]):
                yield f"the names of these differ in {list_some(words)}, so are they no seeds of one setting?"
            for name, values in other_settings([run.label for run in unseeded_runs]).items():
                yield f"the names of these differ in {name} ({', '.join(values)}), so are they no seeds of one setting?"
            configs = [run.column_map.table.config for run in unseeded_runs]
            for name in sorted(filter(_NO_SEED.search, set[str]().union(*configs))):
                if len(values := {str(config.get(name)) for config in configs}) > 1:
                    yield f"these differ in {name} ({', '.join(sorted(values))}), so are they no seeds of one setting?"
            if any(
                run.column_map.read(run.column_map.clock_field, run.rows[0]) > 1
                for run in unseeded_runs
            ):
                yield "some begin late: where one goes on with another, add --resumed, without one name --map seed=0"


def _reject_copies(runs: Sequence[RunRecord]) -> None:
    """One run counted as two seeds, be it from two of its checkpoints, would make every interval
    too narrow."""
    alike: dict[object, list[RunRecord]] = defaultdict(list)
    for run in runs:
        alike[run.cell.B_p, run.cell.n, repr(run.points[:2])].append(run)
    for a, b in chain.from_iterable(combinations(similar, 2) for similar in alike.values()):
        shared = min(len(a.points), len(b.points))
        # so may be two runs of all 0
        is_constant = len({repr(point.metrics) for point in a.points[:shared]}) == 1
        if shared > 1 and not is_constant and a.points[:shared] == b.points[:shared]:
            run = f"run of B_p = {a.cell.B_p}, n = {a.cell.n}"
            raise InputError(f"{a.source} and {b.source} hold the same {run}; leave one out.")
