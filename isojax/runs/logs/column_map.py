"""The column of each field in a log, by `--map FIELD=COLUMN`, else by its format's names; a field's
value in a row."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import filter as glob_filter
from pathlib import Path
from typing import Any

import numpy as np

from isojax.core.columns import Column, Mask, rows_where
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT, MAX_NUMBER
from isojax.core.nouns import RewardSums
from isojax.core.tabular import (
    DataRow,
    RowTable,
    check_number,
    is_blank,
    list_some,
    nearest_names,
    parse_number,
)
from isojax.runs.logs.log_table import FIELD_HELP, STEP_FIELDS, LogTable
from isojax.runs.logs.measured_words import is_of_training
from isojax.runs.logs.reward_rounding import clip_rounding
from isojax.runs.logs.run_columns import map_of_names, number_columns
from isojax.runs.logs.typed_options import leave_out_option, map_option

# The lowest value of each field that is a whole number.
LOWEST_VALUES = {
    "rollouts": 0,
    "step": 0,
    "tokens": 0,
    "seed": 0,
    "n": 1,
    "B_p": 1,
    "B": 1,
    "samples": 1,
    "devices": 1,
}
# Of a further validation metric, metric:NAME (avg@4 is short for metric:avg@4), and of a further
# training metric.
METRIC_PREFIXES = ("metric:", "train:")
# may be a number
CONSTANT_FIELDS = ("n", "B_p", "B", "sampled_B_p", "seed", "run", "samples", "devices", "scale")
_RUN_SETTINGS = ("n", "B_p", "B")
METRIC_AT_K = re.compile(r"(avg|best|worst|pass)@[1-9]\d*")
_DOT_OF_THOUSANDS = re.compile(r"\s*[1-9]\d{0,2}(\.\d{3})+\s*")
_DECIMALS = re.compile(r"\s*(0|\d{4,})\.\d{3}\s*")
_TWO_MEANINGS = (
    ", where the point may divide thousands or decimals; expected a whole number, without a point."
)
NOT_LOGGED_HINT = "Correct it; where nothing was logged, write NaN."
_MEAN_AT_K = re.compile(r"(?:mean|avg)@([1-9]\d*)$")


def _may_divide_thousands(value: Any) -> bool:
    """ "1.000", which is 1 or 1000"""
    return isinstance(value, str) and _DOT_OF_THOUSANDS.fullmatch(value) is not None


def _has_decimals(value: Any) -> bool:
    return _DECIMALS.fullmatch(str(value)) is not None


def is_validation(field: str) -> bool:
    return field in ("reward", "counts") or field.startswith("metric:")


def is_training(field: str) -> bool:
    return field in ("train_reward", "response_length") or field.startswith("train:")


@dataclass(frozen=True)
class ColumnMap:
    table: LogTable
    columns: Mapping[str, str]  # field -> column
    constants: Mapping[str, float | int]  # field -> the number that holds for the whole log
    detected: frozenset[str]  # the fields in `columns` that no --map names

    def __contains__(self, field: str) -> bool:
        return field in self.columns or field in self.constants

    @property
    def mapped(self) -> frozenset[str]:
        """The fields in `columns` that a --map names."""
        return frozenset(self.columns) - self.detected

    @property
    def clock_field(self) -> str:
        """The field by which the rows of a run are ordered."""
        return "step" if "step" in self.columns else "rollouts"

    @property
    def metric_fields(self) -> list[str]:
        return [field for field in self.columns if is_validation(field) or is_training(field)]

    @property
    def step_columns(self) -> list[str]:
        """The columns that have one value of each step: metrics, its seconds and its sampled
        batches."""
        return [
            self.columns[field]
            for field in (*self.metric_fields, *STEP_FIELDS)
            if field in self.columns
        ]

    @property
    def main_metric(self) -> str:
        """The validation metric that makes a row an evaluation: `reward`, else `counts`, else the
        first further one."""
        return min(
            filter(is_validation, self.columns),
            key=lambda field: (field != "reward", field != "counts"),
        )

    @property
    def validation_fields(self) -> list[str]:
        """The main metric, which is fitted by default, and the others."""
        names = filter(is_validation, self.columns)
        return sorted(names, key=lambda name: name != self.main_metric)

    def ledger_name(self, field: str) -> str:
        """A metric's name in the ledger: NAME of metric:NAME, else the reward's column, with avg@k
        for mean@k."""
        if field != "reward":
            other_names = {"counts": "correct counts", "train_reward": "reward"}
            return other_names.get(field, field.removeprefix("metric:").removeprefix("train:"))
        match = _MEAN_AT_K.search(self.columns[field])
        return f"avg@{match[1]}" if match else self.columns[field]

    def cell_value(self, field: str, row: DataRow) -> Any:
        """What a row, or else the log, has for a field; None where neither has it."""
        if field in self.constants:
            return self.constants[field]
        column = self.columns.get(field)
        return None if column is None else row.values.get(column, self.table.config.get(column))

    def cells(self, field: str, rows: RowTable) -> Column:
        """`cell_value` of every row."""
        if field in self.constants:
            return Column.constant(self.constants[field], len(rows))
        name = self.columns.get(field)
        if name is None:
            return Column.absent(len(rows))
        column = rows.column(name)
        is_everywhere = name not in self.table.config or column.is_present.all()
        return column if is_everywhere else column.or_else(self.table.config[name])

    def describe_cell(self, field: str, row: DataRow) -> str:
        """ "runs.csv, line 7: reward (column val/acc)"; where each column is a run, its run too."""
        column = self.columns.get(field, field)
        names = [f"column {column}"] if column != field else []
        if self.table.run and self.table.is_export and self.table.one_run:
            names.append(f"run {self.table.run}")
        return f"{row.location}: {field}" + (f" ({', '.join(names)})" if names else "")

    def is_unlogged(self, field: str, rows: RowTable) -> Mask:
        """bool[rows]: where neither a row nor the log has a value of a field."""
        return self.table.is_unlogged(self.cells(field, rows))

    def read(self, field: str, row: DataRow) -> Any:
        """A row's number (finite, or whole), counts, or name of its run; InputError where there is
        none."""
        value = self.cell_value(field, row)
        cell = self.describe_cell(field, row)
        expected = FIELD_HELP.get(field)
        if field == "run" and not is_blank(value):
            return str(value)
        if field == "counts" and not is_blank(value):
            return self._read_counts(value, row)
        if field == "step" and isinstance(value, str):
            value = re.sub(r"/\d+$", "", value)  # of all of them, as ms-swift's "10/560"
        lowest = LOWEST_VALUES.get(field)
        if lowest is not None and _may_divide_thousands(value) and not self._has_decimals(field):
            raise InputError(f"{cell} is {value}{_TWO_MEANINGS}")
        if field in _RUN_SETTINGS and is_blank(value) and (remedy := self._say_once(row)):
            raise InputError(f"{cell} is missing or empty; expected {expected}. {remedy}")
        is_metric = is_validation(field) or is_training(field)
        number = check_number(
            value,
            cell,
            expected=expected or "a number",
            minimum=lowest,
            whole=lowest is not None,
            remedy=NOT_LOGGED_HINT
            if is_metric and self.table.is_export
            else "Correct it, or remove the row.",
        )
        return number if lowest is None else int(number)

    def _say_once(self, row: DataRow) -> str:
        """What to type for the settings that a row lacks and others have, as where a trainer logs
        them once a run."""
        run = str(self.cell_value("run", row) or self.table.run)
        options = list[str]()
        for field in _RUN_SETTINGS:
            if field not in self.columns or not is_blank(self.cell_value(field, row)):
                continue
            values = {
                str(x).strip() for x in self.cells(field, self.table.cells) if not is_blank(x)
            }
            if not values:
                return ""
            is_in_name = re.search(rf"(?<![A-Za-z]){field}\d", run) is not None
            constant = (
                next(iter(values)) if len(values) == 1 and parse_number(*values) is not None else ""
            )
            options.append(
                f"{field}={constant}" if constant else f"{field}={field}{{}}" if is_in_name else ""
            )
        if all(options):
            return f"Fill the cell in, or say it for all rows by --map {','.join(options)}, or remove the row."
        if not run:  # of several runs, which nothing names
            return ""
        table = "a table with the columns run, n and B_p"
        return f"Fill the cell in, or say it once for each run by --settings TABLE, {table}, or remove the row."

    def _has_decimals(self, field: str) -> bool:
        """Whether a cell of the log has a point that can divide no thousands."""
        return bool(self.cells(field, self.table.cells).ask(_has_decimals).any())

    def read_all(self, field: str, rows: RowTable) -> list[Any]:
        """`read` of every row: plain numbers as a column, any other cell by itself."""
        if field == "counts":
            return [self.read(field, row) for row in rows]
        column, lowest = self.cells(field, rows), LOWEST_VALUES.get(field)
        if field == "run":
            for row in rows_where(column.is_blank):
                self.read(field, rows[row])
            return list(map(str, column))

        numbers = column.numbers
        if lowest is None:
            is_plain = np.abs(numbers) <= MAX_NUMBER
            values = numbers.tolist()
        else:
            is_whole = (numbers >= lowest) & (numbers <= MAX_COUNT) & (numbers == np.trunc(numbers))
            is_plain = is_whole & ~column.ask(_may_divide_thousands)
            values = np.where(is_plain, numbers, 0).astype(np.int64).tolist()
        for row in rows_where(~is_plain):
            values[row] = self.read(field, rows[row])
        return values

    def _read_counts(self, value: Any, row: DataRow) -> RewardSums:
        """The correct rollouts of each problem, of a list or its text ("[1, 0, 4]"); floats where
        one is not whole."""
        samples = self.read("samples", row)
        try:
            counts: Any = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            counts = None
        is_list = (
            isinstance(counts, list)
            and len(counts) > 0
            and all(type(x) in (int, float) for x in counts)
        )
        if is_list:
            counts = [x if isinstance(x, int) else clip_rounding(x, samples) for x in counts]
        if not is_list or not all(0 <= x <= samples for x in counts):
            problem = f"{self.describe_cell('counts', row)} is {str(value)[:60]!r}"
            raise InputError(
                f"{problem}, expected a list of numbers in 0..{samples}, one per problem, as [1, 0, 4]."
            )
        return tuple(map(int if all(x == int(x) for x in counts) else float, counts))


def parse_field_map(map_options: Iterable[str]) -> dict[str, str]:
    """["n=16,reward=val/acc", "metric:ood=val/ood"] -> {"n": "16", "reward": "val/acc",
    "metric:ood": "val/ood"}."""
    field_map: dict[str, str] = {}
    for option in map_options:
        # a comma within a column's name is no separator
        for assignment in re.split(r",(?=[^,=]*=)", option):
            name, equals, column = (piece.strip() for piece in assignment.partition("="))
            field = f"metric:{name}" if METRIC_AT_K.fullmatch(name) else name
            if not equals or not column:
                raise InputError(
                    f"--map: given {assignment!r}, expected FIELD=COLUMN, as reward=val/acc, or n=16."
                )
            if field not in FIELD_HELP and not (
                field.startswith(METRIC_PREFIXES) and field.partition(":")[2]
            ):
                (nearest,) = nearest_names(field, list(FIELD_HELP))
                known = ", ".join([*FIELD_HELP, "metric:NAME", "train:NAME"])
                raise InputError(
                    f"--map: no field {field!r}; the nearest is {nearest!r}, expected one of {known}."
                )
            if field in field_map:
                raise InputError(
                    f"--map: {name} is given twice ({field_map[field]!r} and {column!r}), expected once."
                )
            field_map[field] = column
    return field_map


# and what each follows from
REQUIRED_FIELDS = {"n": ("n",), "B_p": ("B_p", "B"), "rollouts": ("rollouts", "step")}
_SUGGESTIONS = {
    "n": "--map n=16 or n=COLUMN, also of the run's config, or --map n=n{} where the run's or the file's name has it,"
    " as run-n16.jsonl, or --settings TABLE with the columns run and n",
    "B_p": "--map B_p=512 or B_p=COLUMN, also of the run's config, or --map B=8192 for rollouts per update",
    "rollouts": "--map step=COLUMN, for rollouts = step x B_p x n, or --map rollouts=COLUMN",
    "sampled_B_p": "--map sampled_B_p=192 (verl's data.gen_batch_size)",
}
_VALIDATION_COLUMN = re.compile(
    r"val(?!ue)|eval|test|held|acc|avg@|mean@|pass_?(@|at)", re.IGNORECASE
)
_TRAINING_COLUMN = re.compile(
    r"(train|rollout|rewards|(ppo_|grpo_)?actor|critic)[/_.]|reward[/.]", re.IGNORECASE
)
# in a row with the reward; the last: in a notebook
TRAINING_SIGNS = ("grad_norm", "loss", "Training Loss")
_CLOCK_COLUMNS = ("wall_time", "_runtime", "_timestamp")  # which formats add, and nobody misspells
# by which torch and transformers name a folder
_DATE_AND_HOST = re.compile(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_")
# no reward, though it may be of rewards
_OF_REWARDS = re.compile(r"(?i)(\b|_)(std|min|max|num|len|kl|lr)(\b|_)")
_REWARD = re.compile(r"(?i)acc|reward|score|pass_?@|correct|match|(win|solve|pass|hit)_?rate")
_NO_REWARD = re.compile(
    rf"{_OF_REWARDS.pattern}|length|time|step|epoch|loss|rati|tokens|entropy|grad_|clip|per_|interval|[^s]_rate"
)


def map_columns(
    table: LogTable, field_map: Mapping[str, str], known_columns: Mapping[str, Sequence[str]]
) -> ColumnMap:
    """The columns of a log's fields; InputError, which shows the --map to type, where one is not
    there or not unique. A mapped B replaces a known B_p, a mapped avg@k replaces a known reward."""
    if not table.columns:
        raise InputError(
            f"{table.source}: no row holds a value; expected some, each with its name. Leave it out."
        )
    columns = {
        field: text
        for field, text in field_map.items()
        if text in table.columns and field != "scale"
    }
    constants = {
        field: _constant(field, text, table)
        for field, text in field_map.items()
        if field not in columns
    }
    excluded_fields = {*field_map}
    if excluded_fields & {"B", "B_p"}:
        excluded_fields |= {"B", "B_p"}
    if any(METRIC_AT_K.fullmatch(field.removeprefix("metric:")) for field in field_map):
        excluded_fields.add("reward")
    detected = {
        field: column
        for field, names in known_columns.items()
        if field not in excluded_fields
        and (column := _detect_column(field, names, table, field_map)) is not None
        # 0: it is not used
        if (parse_number(table.config.get(column, 1)) or 0) >= LOWEST_VALUES.get(field, -math.inf)
    }
    if "counts" not in {**columns, **detected}:
        detected.pop("samples", None)  # it counts something else
    metrics = [column for field, column in {**columns, **detected}.items() if is_validation(field)]
    if "step" in detected:  # the first that all evaluations have
        evaluations = table.cells.take(_is_evaluation(table, table.cells, metrics))
        steps = (
            x for x in known_columns["step"] if not table.is_unlogged(evaluations.column(x)).any()
        )
        detected["step"] = next(steps, detected["step"])
        if detected["step"] == "_step" and "rollouts" not in {**columns, **detected}:
            _reject_logging_calls(table, {**columns, **detected}, metrics)
    elif "step" in columns and "_step" in table.columns:
        table = _fill_steps(table, {**columns, **detected}, metrics)
    column_map = ColumnMap(table, {**columns, **detected}, constants, frozenset(detected))
    _require_fields(column_map, table, known_columns)
    return column_map


def _constant(field: str, text: str, table: LogTable) -> float | int:
    """The number that a --map gives for the whole log, or that stands at {} of its pattern in the
    run's name, else in the file's, else (but where a word of these ends so, as gen4 with n4) in the
    log's path: 8 in runs/n8/log.jsonl."""
    number = parse_number(text)
    if field == "scale" and number is None:
        raise InputError(
            f"--map scale={text}: expected a number, such as scale=0.01 for percent, or auto."
        )
    if number is None and "{}" not in text:
        columns = [name for name in table.columns if name not in _CLOCK_COLUMNS] or table.columns
        (nearest,) = nearest_names(text, columns)
        problem = f"{table.source} has no column {text!r} for {field}; the nearest is {nearest!r}"
        raise InputError(
            f"{problem} ({map_option(field, nearest)}). The columns are {list_some(table.columns)}."
        )
    if field not in CONSTANT_FIELDS:
        problem = f"--map {field}={text}: a number for the whole file cannot stand for {field}"
        raise InputError(
            f"{problem}; type {_mapping_hint(field, table)}. The columns are {list_some(table.columns)}."
        )
    if number is not None:
        if field in LOWEST_VALUES and _DOT_OF_THOUSANDS.fullmatch(text):
            raise InputError(f"--map {field}={text}{_TWO_MEANINGS}")
        return int(number) if number.is_integer() else number
    template = re.escape(text).replace(r"\{\}", r"(\d+)(?!\d)", 1)
    before = (
        "(?<![A-Za-z])"
        if text[0].isalpha()
        else "(?<![A-Za-z0-9])"
        if text[0] in "{0123456789"
        else ""
    )
    pattern = re.compile(before + template)
    names = [
        name
        for name in (table.run, Path(table.source).name)
        if name and not _DATE_AND_HOST.match(name)
    ]
    numbers = set(next(filter(None, map(pattern.findall, names)), ()))
    if not numbers and not any(re.search(template, name, re.IGNORECASE) for name in names):
        numbers = set(pattern.findall(table.source))
    if len(numbers) != 1:
        elsewhere = (
            ", ".join(re.findall(r"[A-Za-z]+[=: ]*\d+", "".join(names[:1])))
            or "no word with a number"
        )
        hint = " Where a column names the runs, add --map run=COLUMN. Where each column is a run: --map 'reward=*'."
        hint = "" if table.one_run or table.run else hint
        found = f"{', '.join(sorted(numbers)) or 'no number'} there, and in its name {elsewhere}"
        expected = f"expected one, as {field}{{}} finds 8 in {field}8.jsonl or run-{field}8-a.jsonl"
        if table.run:
            in_table = f"a table of it in place of this option: --settings TABLE (run,{field})"
            leave_out = leave_out_option(table.run, [table.source])
            other_ways = (
                f" Where it is no run of the sweep: {leave_out}; where no name has it, {in_table}."
            )
            hint += _pattern_hint(field, table.run) or other_ways
        raise InputError(f"--map {field}={text}: {table.label} has {found}; {expected}.{hint}")
    return int(numbers.pop())


def _pattern_hint(field: str, name: str) -> str:
    """The pattern that finds the one number in a run's name; "" where it has several, or none."""
    numbers = list(re.finditer(r"(?<![\d.])\d+(?![\d.])", name))
    if len(numbers) != 1:
        return ""
    word = re.search(r"[A-Za-z]*[=: _-]?$", name[: numbers[0].start()])
    after = re.match(r"[A-Za-z]*", name[numbers[0].end() :]) if word and not word[0] else None
    pattern = f"{word[0] if word else ''}{{}}{after[0] if after else ''}"
    return f" For this name: --map '{field}={pattern}'."


def _is_evaluation(table: LogTable, rows: RowTable, metrics: Sequence[str]) -> Mask:
    """bool[rows]: where a row of a log has a value of one of these columns."""
    is_evaluation = np.zeros(len(rows), np.bool_)
    for name in metrics:
        is_evaluation |= ~table.is_unlogged(rows.column(name))
    return is_evaluation


def _reject_logging_calls(
    table: LogTable, columns: Mapping[str, str], metrics: Sequence[str]
) -> None:
    """InputError where, in a run, W&B's _step, which counts calls of wandb.log, is no count of
    updates."""
    settings = [columns[field] for field in ("run", "n", "B_p", "B", "seed") if field in columns]
    texts = [map(str, table.cells.column(name)) for name in settings]
    runs = table.cells.group_by(zip(*texts, strict=True)) if settings else {(): table.cells}
    for run in runs.values():
        for name in (
            x for x in table.columns if re.search("^(?!ray/).*(step|update|iter)", x.lower())
        ):
            logged = run.take(~table.is_unlogged(run.column(name)))
            steps, calls = logged.column(name).numbers, logged.column("_step").numbers
            are_counts = np.isfinite(steps).all() and (steps == np.trunc(steps)).all()
            is_clock = are_counts and len(set(steps.tolist())) > 1 and (np.diff(steps) >= 0).all()
            if is_clock and not np.array_equal(steps, calls):
                problem = (
                    f"{table.label}: _step counts calls of wandb.log, and {name} has other numbers"
                )
                raise InputError(
                    f"{problem}; name the one that counts updates: {map_option('step', name)} or --map step=_step."
                )
        if _evaluates_in_own_calls(table, run, metrics):
            problem = f"{table.label}: _step counts calls of wandb.log, and evaluations are calls of their own"
            fix = "Name a column that counts updates: --map step=COLUMN; or, if it is one, --map step=_step"
            raise InputError(f"{problem}. {fix}.")


def _evaluates_in_own_calls(table: LogTable, run: RowTable, metrics: Sequence[str]) -> bool:
    """Whether evaluations lie between rows of training, have only those columns in common with them
    that all rows have, and are counted with them by a _step that leaves no number out."""
    steps = np.nan_to_num(run.column("_step").numbers, nan=0.0)
    if not (np.diff(steps) == 1).all():
        return False
    is_evaluation = _is_evaluation(table, run, metrics)
    if not re.search("te+t", "".join("e" if x else "t" for x in is_evaluation.tolist())):
        return False

    # bool[columns, rows]
    logged = np.stack([~table.is_unlogged(run.column(name)) for name in run.names])
    shared = logged[:, is_evaluation].any(axis=1) & logged[:, ~is_evaluation].any(axis=1)
    of_all_rows = logged.all(axis=1)
    columns_of_training = logged[:, ~is_evaluation].sum(axis=0)
    return bool((shared == of_all_rows).all() and (columns_of_training > shared.sum()).all())


def _fill_steps(table: LogTable, columns: Mapping[str, str], metrics: Sequence[str]) -> LogTable:
    """A log of one run with the step logged last, or 0, in the rows of metrics that have none."""
    if not table.one_run and any(field in columns for field in CONSTANT_FIELDS):
        return table
    steps = table.cells.column(columns["step"])
    is_unlogged = table.is_unlogged(steps)
    logged_steps = steps.where(~is_unlogged).or_else(0)
    last_logged = np.maximum.accumulate(np.where(is_unlogged, 0, np.arange(len(steps))))
    codes = np.where(
        _is_evaluation(table, table.cells, metrics), logged_steps.codes[last_logged], steps.codes
    )

    other_columns = {name: table.cells.column(name) for name in table.cells.names}
    filled = other_columns | {columns["step"]: Column(codes, logged_steps.cells)}
    return replace(table, rows=table.cells.with_columns(filled))


def _detect_column(
    field: str, names: Sequence[str], table: LogTable, field_map: Mapping[str, str]
) -> str | None:
    """The first known name that the log has and no --map names; of validation metrics there may be
    one only."""
    for name in names:
        matches = glob_filter(table.columns, name)
        # which may be the training reward, the last to choose
        if field == name == "reward" and matches:
            others = [
                x
                for x in table.columns
                if x not in field_map.values() and _may_be_validation(x, table)
            ]
            matches = [*others, name]
            rows = table.cells.take(~table.is_unlogged(table.cells.column(name)))
            signs = [x for x in TRAINING_SIGNS if not table.is_unlogged(rows.column(x)).all()]
            if signs and not others and "train_reward" not in {*table.columns, *field_map}:
                problem = (
                    f"{table.source}: with {' and '.join(signs)}, reward may be a training reward"
                )
                fix = "Name a validation metric: --map reward=COLUMN; or fit the training reward: --map reward=reward"
                raise InputError(f"{problem}. {fix}.")
        if len(matches) > 1 and field == "reward":
            choices = " or ".join(map_option("reward", match) for match in matches)
            raise InputError(
                f"{table.source} has {len(matches)} possible validation metrics; choose one: {choices}."
            )
        if matches:
            return matches[0]
    name = table.only_metric
    is_reward = not _OF_REWARDS.search(name) and (
        _REWARD.search(name) or not _NO_REWARD.search(name)
    )
    is_training_metric = _TRAINING_COLUMN.match(name) or is_of_training(name)
    return name or None if field == "reward" and is_reward and not is_training_metric else None


def rewards_within_one(table: LogTable) -> str:
    """What to type for a validation reward in [0, 1], such as a part of a sum of rewards; "" where
    there is none."""
    names = [
        x
        for x in table.columns
        if "reward" in x.lower() and _may_be_validation(x, table, highest=1)
    ]
    return (
        f"Name one that is: {' or '.join(map_option('reward', name) for name in names)}. "
        if names
        else ""
    )


def _may_be_validation(name: str, table: LogTable, highest: float = 100) -> bool:
    """By its name, and by numbers in [0, 1] or percent, not all of them whole."""
    names_other = _TRAINING_COLUMN.match(name) or _NO_REWARD.search(name) or is_of_training(name)
    if not _VALIDATION_COLUMN.search(name) or names_other:
        return False
    numbers = table.cells.column(name).numbers
    numbers = numbers[np.isfinite(numbers)]
    is_in_range = (numbers >= 0) & (numbers <= highest)
    return bool(is_in_range.all() and (numbers != np.trunc(numbers)).any())


def _require_fields(
    column_map: ColumnMap, table: LogTable, known_columns: Mapping[str, Sequence[str]]
) -> None:
    missing = [] if any(map(is_validation, column_map.columns)) else ["reward"]
    missing += [
        field
        for field, sources in REQUIRED_FIELDS.items()
        if not any(name in column_map for name in sources)
    ]
    if "sampled_batches" in column_map and not any(
        name in column_map for name in ("sampled_B_p", "rollouts")
    ):
        missing.append("sampled_B_p")
    if missing:
        if missing[0] == "reward" and (runs := _columns_that_may_be_runs(table, known_columns)):
            maps = ",".join(filter(None, ["reward=*", map_of_names(runs)]))
            problem = f"{table.source}: no column is known to be reward ({FIELD_HELP['reward']})"
            columns = f"The columns are {list_some(table.columns)}"
            raise InputError(
                f"{problem}; where each column is a run, add --map '{maps}', else name it. {columns}."
            )
        hints = [
            f"no column is known to be {x} ({FIELD_HELP[x]}); type {_mapping_hint(x, table)}"
            for x in missing
        ]
        raise InputError(
            f"{table.source}: {'; '.join(hints)}. The columns are {list_some(table.columns)}."
        )
    field_by_name: dict[tuple[str, bool], str] = {}
    for field in column_map.metric_fields:
        name = column_map.ledger_name(field)
        if (other := field_by_name.setdefault((name, is_training(field)), field)) != field:
            rename = map_option(
                f"{'train' if is_training(field) else 'metric'}:NAME", column_map.columns[field]
            )
            raise InputError(
                f"{table.source}: {other} and {field} are both called {name} in a ledger; type {rename}."
            )
    if "counts" in column_map and "samples" not in column_map:
        raise InputError(
            f"{table.source}: say of how many rollouts per problem counts are, as --map samples=4."
        )


def _columns_that_may_be_runs(
    table: LogTable, known_columns: Mapping[str, Sequence[str]]
) -> list[str]:
    """The columns of numbers where each may be a run: none is named like a metric, or all are named
    alike but for digits (acc_n4, acc_n8)."""
    names = [] if table.run else number_columns(table, {}, known_columns)
    metric_names = (_VALIDATION_COLUMN, _TRAINING_COLUMN, _REWARD, _NO_REWARD)
    is_metric = any(pattern.search(name) for pattern in metric_names for name in names)
    are_alike = len({re.sub(r"\d+", "", name) for name in names}) == 1
    return names if len(names) > 1 and (not is_metric or are_alike) else []


def _mapping_hint(field: str, table: LogTable) -> str:
    in_other_case = [name for name in table.columns if name.lower() == field.lower()]
    columns = [
        name for name in table.columns if field != "reward" or _may_be_validation(name, table)
    ]
    cutoff = 0.0 if field == "reward" else 0.6
    nearest = in_other_case or (columns and nearest_names(field, columns, cutoff))
    suggestions = [f"{map_option(field, name)} (the nearest)" for name in nearest]
    suggestions += [_SUGGESTIONS[field]] if field in _SUGGESTIONS else []
    only_metric = (
        f"{table.only_metric} if it is one" if table.only_metric and field == "reward" else "COLUMN"
    )
    return ", or ".join(suggestions or [f"--map {field}={only_metric}"])
