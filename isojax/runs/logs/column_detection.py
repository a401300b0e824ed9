"""Finds the column of each field in a log: by `--map FIELD=COLUMN`, otherwise by the names that the
log's format is known to use. A field that is missing or not unique is an InputError, which names
the --map to type. In a table, `is_unlogged` is bool[rows]: where a row has no value of a column, or
lacks the column."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import filter as glob_filter

import numpy as np

from isojax.core.columns import Column, Mask, parse_number
from isojax.core.errors import InputError
from isojax.core.tabular import RowTable, list_some, nearest_names
from isojax.runs.logs.column_map import (
    DOT_OF_THOUSANDS,
    LOWEST_VALUES,
    METRIC_AT_K,
    TWO_MEANINGS,
    WITHOUT_POINT,
    ColumnMap,
    is_training,
    is_validation,
)
from isojax.runs.logs.log_table import FIELD_HELP, LogTable
from isojax.runs.logs.measured_words import is_of_training
from isojax.runs.logs.named_numbers import number_in_names
from isojax.runs.logs.run_columns import FieldMap, KnownColumns, map_of_names, number_columns
from isojax.runs.logs.typed_options import map_option

# Fields for which a --map may give a number for the whole log instead of a column.
CONSTANT_FIELDS = ("n", "B_p", "B", "sampled_B_p", "seed", "run", "samples", "devices", "scale")
# Fields that every run needs, and the fields from one of which each follows.
REQUIRED_FIELDS = {"n": ("n",), "B_p": ("B_p", "B"), "rollouts": ("rollouts", "step")}
_SUGGESTIONS = {
    "n": (
        "--map n=16 or n=COLUMN, also of the run's config, "
        "or --map n=n{} where the run's or the file's name has it, as run-n16.jsonl, "
        "or --settings TABLE with the columns run and n"
    ),
    "B_p": (
        "--map B_p=512 or B_p=COLUMN, also of the run's config, "
        "or --map B=8192 for rollouts per update"
    ),
    "rollouts": "--map step=COLUMN, for rollouts = step x B_p x n, or --map rollouts=COLUMN",
    "sampled_B_p": "--map sampled_B_p=192 (verl's data.gen_batch_size)",
}
_VALIDATION_COLUMN = re.compile(
    r"val(?!ue)|eval|test|held|acc|avg@|mean@|pass_?(@|at)", re.IGNORECASE
)
_TRAINING_COLUMN = re.compile(
    r"(train|rollout|rewards|(ppo_|grpo_)?actor|critic)[/_.]|reward[/.]", re.IGNORECASE
)
# Columns that show, in a row with a reward, that this is a training reward; the last: in a
# notebook.
TRAINING_SIGNS = ("grad_norm", "loss", "Training Loss")
_CLOCK_COLUMNS = ("wall_time", "_runtime", "_timestamp")  # added by formats; no user means these
# Names of statistics of rewards that are no reward themselves.
_OF_REWARDS = re.compile(r"(?i)(\b|_)(std|min|max|num|len|kl|lr)(\b|_)")
_REWARD = re.compile(r"(?i)acc|reward|score|pass_?@|correct|match|(win|solve|pass|hit)_?rate")
_NO_REWARD = re.compile(
    rf"{_OF_REWARDS.pattern}|length|time|step|epoch|loss|rati|tokens|entropy|grad_|clip"
    "|per_|interval|[^s]_rate"
)


def map_columns(table: LogTable, field_map: FieldMap, known_columns: KnownColumns) -> ColumnMap:
    """The column of each field of a log, or the number that stands for it in all rows.

    field_map: the user's --map, as {"reward": "val/acc", "n": "16"}; known_columns: field -> the
    names that the format is known to use, as {"step": ("step", "_step")}. A B of the --map replaces
    a known B_p, an avg@k a known reward. InputError where a field is missing or not unique, with
    the --map to type.
    """
    if not table.columns:
        raise InputError(
            where=table.source,
            found="no row holds a value",
            expected="some, each with its name",
            fix="Leave it out.",
        )

    # The user's map: columns, and numbers for the whole log.
    columns: dict[str, str] = {}
    constants: dict[str, float | int] = {}
    for field, text in field_map.items():
        # A scale is a number only, also where a column is called so.
        if text in table.columns and field != "scale":
            columns[field] = text
        else:
            constants[field] = _constant(field, text, table)

    detected = _detect_columns(table, field_map, known_columns)
    if "counts" not in columns and "counts" not in detected:
        detected.pop("samples", None)  # without counts, a column of this name is something else

    # The steps: of several known columns, the first that all evaluations have.
    all_columns = {**columns, **detected}
    metrics = [column for field, column in all_columns.items() if is_validation(field)]
    if "step" in detected:
        evaluations = table.cells.take(_is_evaluation(table, table.cells, metrics))
        for name in known_columns["step"]:
            if not table.is_unlogged(evaluations.column(name)).any():
                detected["step"] = name
                break
        all_columns["step"] = detected["step"]
        if detected["step"] == "_step" and "rollouts" not in all_columns:
            _reject_logging_calls(table, all_columns, metrics)
    elif "step" in columns and "_step" in table.columns:
        # In W&B's logs, an evaluation may be a call without the trainer's step, which the user
        # mapped.
        table = _fill_steps(table, all_columns, metrics)

    column_map = ColumnMap(table, all_columns, constants, detected=frozenset(detected))
    _require_fields(column_map, known_columns)
    return column_map


def _detect_columns(
    table: LogTable, field_map: FieldMap, known_columns: KnownColumns
) -> dict[str, str]:
    """Field -> column, for fields that the user has not mapped, by the format's known names."""
    # B and B_p follow from each other, and an avg@k is the reward.
    mapped_fields = {*field_map}
    if mapped_fields & {"B", "B_p"}:
        mapped_fields |= {"B", "B_p"}
    if any(METRIC_AT_K.fullmatch(field.removeprefix("metric:")) for field in field_map):
        mapped_fields.add("reward")

    detected: dict[str, str] = {}
    for field, names in known_columns.items():
        column = None if field in mapped_fields else _detect_column(field, names, table, field_map)
        if column is None:
            continue

        # A trainer's config has 0 for a setting that it does not use, such as n: too low to be one.
        # A column of the rows is not in the config, and is not compared: 1 is never too low.
        setting = parse_number(table.config.get(column, 1)) or 0
        lowest = LOWEST_VALUES.get(field, -math.inf)  # 0 or 1 for a field of whole numbers
        if setting >= lowest:
            detected[field] = column
    return detected


def _constant(field: str, text: str, table: LogTable) -> float | int:
    """The number for a whole log that a --map gives, as n=16.

    Or the number that the name of the run or file has in the place of {}, as n=n{} with
    run-n16.jsonl. text: what the map has after "=". InputError where it is neither, such as a
    column that does not exist, or where the field needs a column (it is not in CONSTANT_FIELDS).
    """
    number = parse_number(text)
    if field == "scale" and number is None:
        raise InputError(
            where=f"--map scale={text}",
            expected="a number, such as scale=0.01 for percent, or auto",
        )
    if number is None and "{}" not in text:
        columns = [name for name in table.columns if name not in _CLOCK_COLUMNS] or table.columns
        (nearest,) = nearest_names(text, columns)  # always one
        raise InputError(
            where=table.source,
            found=f"no column {text!r} for {field}",
            fix=(
                f"The nearest is {nearest!r} ({map_option(field, nearest)}). The columns are "
                f"{list_some(table.columns)}."
            ),
        )
    if field not in CONSTANT_FIELDS:
        raise InputError(
            where=f"--map {field}={text}",
            found=f"a number for the whole file cannot stand for {field}",
            fix=(
                f"Type {_mapping_hint(field, table)}. The columns are {list_some(table.columns)}."
            ),
        )

    if number is None:
        return number_in_names(field, text, table)
    # "1.000" for a field of whole numbers: one, or a thousand?
    if field in LOWEST_VALUES and DOT_OF_THOUSANDS.fullmatch(text):
        raise InputError(
            where=f"--map {field}={text}",
            found=TWO_MEANINGS,
            expected=WITHOUT_POINT,
        )
    return int(number) if number.is_integer() else number


def _is_evaluation(table: LogTable, rows: RowTable, metrics: Sequence[str]) -> Mask:
    """bool[rows]: where a row has a value of one of the validation columns (`metrics`)."""
    is_evaluation = np.zeros(len(rows), np.bool_)
    for name in metrics:
        is_evaluation |= ~table.is_unlogged(rows.column(name))
    return is_evaluation


def _reject_logging_calls(
    table: LogTable, columns: Mapping[str, str], metrics: Sequence[str]
) -> None:
    """InputError where W&B's _step seems to be no count of updates.

    It counts calls of wandb.log, of which a trainer may make several per update. It is so where
    another column counts steps differently, or where evaluations are separate calls. columns:
    field -> column; metrics: the validation columns.
    """
    # Ray's own counters (ray/tune/training_iteration) count what Ray does, not the trainer.
    counters = [
        name for name in table.columns if re.search("^(?!ray/).*(step|update|iter)", name.lower())
    ]

    # In each run: a counter of whole numbers that never fall, and that differ from _step.
    for run in _rows_by_run(table, columns):
        for name in counters:
            logged = run.take(~table.is_unlogged(run.column(name)))
            steps = logged.column(name).numbers
            calls = logged.column("_step").numbers
            are_counts = np.isfinite(steps).all() and (steps == np.trunc(steps)).all()
            is_clock = are_counts and len(set(steps.tolist())) > 1 and (np.diff(steps) >= 0).all()
            if is_clock and not np.array_equal(steps, calls):
                raise InputError(
                    where=table.label,
                    found=f"_step counts calls of wandb.log, and {name} has other numbers",
                    fix=(
                        f"Name the one that counts updates: {map_option('step', name)} or "
                        "--map step=_step."
                    ),
                )

        if _evaluates_in_own_calls(table, run, metrics):
            raise InputError(
                where=table.label,
                found="_step counts calls of wandb.log, and evaluations are calls of their own",
                fix=(
                    "Name a column that counts updates: --map step=COLUMN; or, if it is one, "
                    "--map step=_step."
                ),
            )


def _rows_by_run(table: LogTable, columns: Mapping[str, str]) -> Iterator[RowTable]:
    """The rows that have the same setting, which may be of several seeds."""
    settings = [columns[field] for field in ("run", "n", "B_p", "B", "seed") if field in columns]
    if not settings:
        return iter([table.cells])
    texts = [map(str, table.cells.column(name)) for name in settings]
    return iter(table.cells.group_by(zip(*texts, strict=True)).values())


def _evaluates_in_own_calls(table: LogTable, run: RowTable, metrics: Sequence[str]) -> bool:
    """Whether a trainer logs its evaluations by separate calls, which W&B's _step counts too.

    It does where _step has no gaps, evaluations come between rows of training, and the two kinds of
    rows share no columns but those that all rows have. run: the rows of one run; metrics: the
    validation columns.
    """
    steps = np.nan_to_num(run.column("_step").numbers, nan=0.0)
    if not (np.diff(steps) == 1).all():
        return False
    is_evaluation = _is_evaluation(table, run, metrics)
    kinds = "".join("e" if is_one else "t" for is_one in is_evaluation.tolist())
    if not re.search("te+t", kinds):  # e: a row of an evaluation, t: one of training
        return False

    # bool[columns, rows], and then bool[columns]
    logged = np.stack([~table.is_unlogged(run.column(name)) for name in run.names])
    in_both_kinds = logged[:, is_evaluation].any(axis=1) & logged[:, ~is_evaluation].any(axis=1)
    in_all_rows = logged.all(axis=1)
    shares_only_columns_of_all_rows = (in_both_kinds == in_all_rows).all()
    # Each training row also has a column that no evaluation has.
    columns_per_training_row = logged[:, ~is_evaluation].sum(axis=0)
    has_columns_alone = (columns_per_training_row > in_both_kinds.sum()).all()
    return bool(shares_only_columns_of_all_rows and has_columns_alone)


def _fill_steps(table: LogTable, columns: Mapping[str, str], metrics: Sequence[str]) -> LogTable:
    """The log of one run, with steps in all rows of evaluations.

    Where such a row has none, it gets the step that was logged last before it, or 0 before the
    first. Logs that may hold several runs stay as they are. columns: field -> column; metrics: the
    validation columns.
    """
    # A format with many runs in a log, and a column for a field in which runs differ, such as n or
    # the seed: the step before may be another run's.
    if not table.one_run and any(field in columns for field in CONSTANT_FIELDS):
        return table

    # A column stores for each row a code, the index of its value in `cells`; filling a row copies
    # the code of an earlier row. `or_else` keeps all codes and appends the value 0 with a new code,
    # so that codes of `steps` and of `logged_steps` both hold in `logged_steps.cells`.
    steps = table.cells.column(columns["step"])
    is_unlogged = table.is_unlogged(steps)
    logged_steps = steps.where(~is_unlogged).or_else(0)
    # int[rows]: the last row with a step, up to this one; row 0 before the first, where
    # `logged_steps` has the 0 then.
    last_logged = np.maximum.accumulate(np.where(is_unlogged, 0, np.arange(len(steps))))
    codes = np.where(
        _is_evaluation(table, table.cells, metrics), logged_steps.codes[last_logged], steps.codes
    )

    other_columns = {name: table.cells.column(name) for name in table.cells.names}
    filled = other_columns | {columns["step"]: Column(codes, logged_steps.cells)}
    return replace(table, rows=table.cells.with_columns(filled))


def _detect_column(
    field: str, names: Sequence[str], table: LogTable, field_map: FieldMap
) -> str | None:
    """The column of a field: the first of its known names that the log has; None without one.

    names: may be patterns, such as "val-core/*/mean@*". InputError where several columns match one
    of the reward's.
    """
    for name in names:
        matches = glob_filter(table.columns, name)
        # A column called reward may be the training reward: with others, the user has to choose.
        if field == name == "reward" and matches:
            matches = [*_validation_metrics_beside_reward(table, field_map), name]
        if len(matches) > 1 and field == "reward":
            choices = " or ".join(map_option("reward", match) for match in matches)
            raise InputError(
                where=table.source,
                found=f"has {len(matches)} possible validation metrics",
                fix=f"Choose one: {choices}.",
            )
        if matches:
            return matches[0]
    # A table of one metric, such as a chart's, has no other column for the reward.
    return table.only_metric if field == "reward" and _is_reward(table.only_metric) else None


def _validation_metrics_beside_reward(table: LogTable, field_map: FieldMap) -> list[str]:
    """Other columns that may be the validation reward, in a log that also has one called reward.

    InputError where there are none, and rows with a reward also have a loss or grad_norm: it is
    then probably the training reward.
    """
    others = [
        name
        for name in table.columns
        if name not in field_map.values() and _may_be_validation(name, table)
    ]

    # What is logged in the rows with a reward shows whether they are training steps.
    rows = table.cells.take(~table.is_unlogged(table.cells.column("reward")))
    signs = [name for name in TRAINING_SIGNS if not table.is_unlogged(rows.column(name)).all()]
    has_train_reward = "train_reward" in table.columns or "train_reward" in field_map
    if signs and not others and not has_train_reward:
        raise InputError(
            where=table.source,
            found=f"with {' and '.join(signs)}, reward may be a training reward",
            fix=(
                "Name a validation metric: --map reward=COLUMN; or fit the training reward: "
                "--map reward=reward."
            ),
        )
    return others


def _is_reward(name: str) -> bool:
    """Whether the only metric of a log, as one of a chart, may be its validation reward."""
    if not name or _OF_REWARDS.search(name):
        return False
    if _TRAINING_COLUMN.match(name) or is_of_training(name):
        return False
    return _REWARD.search(name) is not None or _NO_REWARD.search(name) is None


def rewards_within_one(table: LogTable) -> str:
    """A sentence with what to type for a validation reward in [0, 1]; "" where there is none.

    Such as one part of a sum of rewards that exceeds 1.
    """
    names = [
        name
        for name in table.columns
        if "reward" in name.lower() and _may_be_validation(name, table, highest=1)
    ]
    if not names:
        return ""
    return f"Name one that is: {' or '.join(map_option('reward', name) for name in names)}. "


def _may_be_validation(name: str, table: LogTable, highest: float = 100) -> bool:
    """Whether a column may be a validation reward, by its name and its numbers.

    The numbers are from 0 to `highest` (100: percent), and not all of them whole.
    """
    if not _VALIDATION_COLUMN.search(name):
        return False
    if _TRAINING_COLUMN.match(name) or _NO_REWARD.search(name) or is_of_training(name):
        return False
    numbers = table.cells.column(name).numbers
    numbers = numbers[np.isfinite(numbers)]
    is_in_range = (numbers >= 0) & (numbers <= highest)
    return bool(is_in_range.all() and (numbers != np.trunc(numbers)).any())


def _require_fields(column_map: ColumnMap, known_columns: KnownColumns) -> None:
    """InputError where a field that every run needs has no column; it names the --map to type.

    Also where two metrics would get the same name in the ledger, or counts come without samples.
    """
    table = column_map.table
    missing = _missing_fields(column_map)
    columns = f"The columns are {list_some(table.columns)}."
    runs = _columns_that_may_be_runs(table, known_columns) if missing[:1] == ["reward"] else []
    if runs:
        # "n=n{},B_p=32" where the columns' names hold n, else ""
        n_and_B_p = map_of_names(runs)
        maps = ",".join(filter(None, ["reward=*", n_and_B_p]))
        raise InputError(
            where=table.source,
            found=(
                f"no column is known to be reward ({FIELD_HELP['reward']}); where each column "
                f"is a run, add --map '{maps}', else name it"
            ),
            fix=columns,
        )
    if missing:
        hints = [
            f"no column is known to be {field} ({FIELD_HELP[field]}); "
            f"type {_mapping_hint(field, table)}"
            for field in missing
        ]
        raise InputError(
            where=table.source,
            found=f"{'; '.join(hints)}",
            fix=columns,
        )

    field_of_name: dict[tuple[str, bool], str] = {}
    for field in column_map.metric_fields:
        name = column_map.ledger_name(field)
        other = field_of_name.setdefault((name, is_training(field)), field)
        if other != field:
            prefix = "train" if is_training(field) else "metric"
            rename = map_option(f"{prefix}:NAME", column_map.columns[field])
            raise InputError(
                where=table.source,
                found=f"{other} and {field} are both called {name} in a ledger",
                fix=f"Type {rename}.",
            )
    if "counts" in column_map and "samples" not in column_map:
        raise InputError(
            where=table.source,
            found="say of how many rollouts per problem counts are, as --map samples=4",
        )


def _missing_fields(column_map: ColumnMap) -> list[str]:
    """The fields that every run needs and that have no column or number, the reward first."""
    missing = []
    if not any(map(is_validation, column_map.columns)):
        missing.append("reward")
    for field, sources in REQUIRED_FIELDS.items():
        if not any(source in column_map for source in sources):
            missing.append(field)
    says_C = "sampled_B_p" in column_map or "rollouts" in column_map
    if "sampled_batches" in column_map and not says_C:
        missing.append("sampled_B_p")
    return missing


def _columns_that_may_be_runs(table: LogTable, known_columns: KnownColumns) -> list[str]:
    """The columns of numbers, where each may be a run; else [].

    They may where none is named like a metric, or all are named alike but for digits (acc_n4,
    acc_n8).
    """
    names = [] if table.run else number_columns(table, {}, known_columns)
    metric_names = (_VALIDATION_COLUMN, _TRAINING_COLUMN, _REWARD, _NO_REWARD)
    is_metric = any(pattern.search(name) for pattern in metric_names for name in names)
    are_alike = len({re.sub(r"\d+", "", name) for name in names}) == 1
    return names if len(names) > 1 and (not is_metric or are_alike) else []


def _mapping_hint(field: str, table: LogTable) -> str:
    """The --map options to suggest for a missing field, joined by ", or ".

    Those with the columns whose names are nearest, and general ones (_SUGGESTIONS).
    """
    nearest = [name for name in table.columns if name.lower() == field.lower()]
    if not nearest:
        columns = [
            name for name in table.columns if field != "reward" or _may_be_validation(name, table)
        ]
        # A name need not resemble "reward" at all, as these columns may be one.
        cutoff = 0.0 if field == "reward" else 0.6
        nearest = nearest_names(field, columns, cutoff) if columns else []

    suggestions = [f"{map_option(field, name)} (the nearest)" for name in nearest]
    if field in _SUGGESTIONS:
        suggestions.append(_SUGGESTIONS[field])
    if not suggestions:
        is_chart = table.only_metric != "" and field == "reward"
        column = f"{table.only_metric} if it is one" if is_chart else "COLUMN"
        suggestions.append(f"--map {field}={column}")
    return ", or ".join(suggestions)
