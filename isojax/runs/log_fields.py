"""Which column of a log is what: `--map FIELD=COLUMN`, the names a format is known to write, and a refusal that teaches
what to type.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from isojax.core.errors import InputError
from isojax.runs.log_table import LogRow, LogTable

# What a log's columns can be; HELP is what a refusal and --help say of each.
FIELD_HELP = {
    "rollouts": "C, rollouts sampled for training so far",
    "step": "updates so far (rollouts = step x B_p x n where no column has them)",
    "reward": "the validation metric, in [0, 1]",
    "n": "rollouts a problem",
    "B_p": "problems a batch",
    "B": "rollouts an update (B_p = B / n)",
    "seed": "the run's seed",
    "run": "what tells several runs of one file apart",
    "tokens": "response tokens sampled for training so far",
    "response_length": "mean response tokens a rollout (tokens are summed from it)",
    "device_hours": "device hours so far",
    "train_reward": "mean training reward",
    "counts": "right answers of each validation problem, as a list",
    "samples": "rollouts a validation problem",
    "scale": "a number the validation metrics are multiplied by, 0.01 for percent",
}
# `metric:NAME=COLUMN` is a further validation metric; `train:NAME=COLUMN` a further training metric; avg@4=COLUMN is
# metric:avg@4=COLUMN.
METRIC_PREFIXES = ("metric:", "train:")
CONSTANT_FIELDS = ("n", "B_p", "B", "seed", "run", "samples", "scale")  # may be a number for a whole file
_METRIC_AT_K = re.compile(r"(avg|best|worst|pass)@[1-9]\d*")

# Names as in a ledger of our own need no map. Where a format's own `reward` is the training reward, the plug-in takes
# BY_NAME and says
# which is which.
SAME_NAME_FIELDS = {
    name: (name,) for name in ("rollouts", "step", "n", "B_p", "B", "seed", "tokens", "device_hours", "samples")
}
LEDGER_FIELDS = {name: (name,) for name in FIELD_HELP if name != "scale"} | {
    "step": ("step", "global_step"),
    "train:entropy": ("entropy",),
    "train:kl": ("kl",),
}


@dataclass(frozen=True)
class ColumnMap:
    """Fields of one log -> its column, or the constant that stands for it. `found` holds the names of those that nobody
    asked for.
    """

    columns: Mapping[str, str]
    constants: Mapping[str, float | int]
    detected: frozenset[str]

    def raw_value(self, field: str, row: LogRow, table: LogTable) -> Any:
        """The raw value of a field in a row; None where neither the row nor the log has it."""
        if field in self.constants:
            return self.constants[field]
        column = self.columns.get(field)
        return None if column is None else row.values.get(column, table.config.get(column))

    def __contains__(self, field: str) -> bool:
        return field in self.columns or field in self.constants


def parse_field_map(map_options: Iterable[str]) -> dict[str, str]:
    """["n=16,reward=val/acc", "metric:ood=val/ood"] -> {"n": "16", "reward": "val/acc", "metric:ood": "val/ood"}.

    Raises:
        InputError: no FIELD=COLUMN, an unknown field (with the nearest), a field given twice.
    """
    field_map: dict[str, str] = {}
    for option in map_options:
        for assignment in re.split(r",(?=[^,=]*=)", option):  # a comma within a column's name is no separator
            name, equals, column = (piece.strip() for piece in assignment.partition("="))
            field = f"metric:{name}" if _METRIC_AT_K.fullmatch(name) else name
            if not equals or not column:
                raise InputError(
                    f"--map: given {assignment!r}, expected FIELD=COLUMN or FIELD=NUMBER, such as reward=val/acc or n=16."
                )
            if field not in FIELD_HELP and not (field.startswith(METRIC_PREFIXES) and field.partition(":")[2]):
                nearest = difflib.get_close_matches(field, FIELD_HELP, n=1, cutoff=0)[0]
                known_fields = ", ".join([*FIELD_HELP, "metric:NAME", "train:NAME"])
                raise InputError(
                    f"--map: no field {field!r}; the nearest is {nearest!r}, expected one of {known_fields}."
                )
            if field in field_map:
                raise InputError(f"--map: {name} is given twice ({field_map[field]!r} and {column!r}), expected once.")
            field_map[field] = column
    return field_map


def map_columns(table: LogTable, field_map: Mapping[str, str], known_columns: Mapping[str, Sequence[str]]) -> ColumnMap:
    """A log's columns for the fields: as asked with --map, else by the names the format is known to write.

    What is asked is a column's name, a number for the whole log, or a pattern such as n{} for the number in the log's
    own name. B that is asked for stands instead of a known B_p, avg@k instead of a known reward.

    Raises:
        InputError: a column that is not there, a constant where a column is needed, several columns that would do, or a
        field that is
            needed and not found; lists the columns there are and shows the --map to type.
    """
    columns: dict[str, str] = {}
    constants: dict[str, float | int] = {}
    table_columns = table.columns
    for field, column in field_map.items():
        constant = (
            _number_from_path(field, column, table.source)
            if "{}" in column and column not in table_columns
            else _parse_number(column)
        )
        if constant is not None and column not in table_columns:
            if field not in CONSTANT_FIELDS:
                raise InputError(
                    f"--map {field}={column}: a number for the whole file says nothing here; {_mapping_hint(field, table_columns, table)}"
                )
            constants[field] = constant
        elif field == "scale":
            raise InputError(f"--map scale={column}: expected a number, such as scale=0.01 for percent.")
        elif column in table_columns:
            columns[field] = column
        else:
            nearest = difflib.get_close_matches(column, table_columns, n=1, cutoff=0)[0]
            suggestion = f"--map {field}={nearest}"
            raise InputError(
                f"{table.source} has no column {column!r} for {field}; the nearest is {nearest!r} ({suggestion}). {_list_columns(table_columns)}"
            )
    alternatives = {"B": "B_p", "B_p": "B"} | dict.fromkeys(
        (name for name in field_map if _METRIC_AT_K.fullmatch(name.removeprefix("metric:"))), "reward"
    )
    excluded_fields = {*field_map, *(alternative for field, alternative in alternatives.items() if field in field_map)}
    detected = {
        field: column
        for field, names in known_columns.items()
        if field not in excluded_fields and (column := _detect_column(field, names, table)) is not None
    }
    column_map = ColumnMap({**columns, **detected}, constants, frozenset(detected))
    _require_fields(column_map, table)
    return column_map


def _detect_column(field: str, names: Sequence[str], table: LogTable) -> str | None:
    """The first known name that the log has; validation metrics may not be ambiguous."""
    for name in names:
        matches = [column for column in table.columns if fnmatchcase(column, name)]
        if len(matches) > 1 and field == "reward":
            choices = " or ".join(f"--map reward={hit}" for hit in matches[:4])
            raise InputError(
                f"{table.source} has {len(matches)} validation metrics ({', '.join(matches)}), expected one; say which: {choices}."
            )
        if matches:
            return matches[0]
    return None


def _require_fields(column_map: ColumnMap, table: LogTable) -> None:
    table_columns = table.columns
    has_metric = (
        "reward" in column_map
        or "counts" in column_map
        or any(name.startswith("metric:") for name in column_map.columns)
    )
    for field, is_mapped in (
        ("reward", has_metric),
        ("n", "n" in column_map),
        ("B_p", "B_p" in column_map or "B" in column_map),
        ("rollouts", "rollouts" in column_map or "step" in column_map),
    ):
        if not is_mapped:
            problem = f"{table.source}: no column is known to be {field} ({FIELD_HELP[field]})"
            raise InputError(f"{problem}; {_mapping_hint(field, table_columns, table)}")
    if "counts" in column_map and "samples" not in column_map:
        raise InputError(
            f"{table.source}: counts need the rollouts a problem they are of; say --map samples=4 or name its column."
        )


def _mapping_hint(field: str, table_columns: Sequence[str], table: LogTable) -> str:
    """What to type, and the columns there are."""
    likely_columns = [name for name in table_columns if _VALIDATION_COLUMN.search(name)] if field == "reward" else []
    nearest = difflib.get_close_matches(
        field, likely_columns or table_columns, n=1, cutoff=0.0 if field == "reward" else 0.5
    )
    suggestions = [f"--map {field}={nearest[0]} (the nearest)"] if nearest else []
    if field in CONSTANT_FIELDS:
        example = {"n": 16, "B_p": 512}.get(field, 0)
        suggestions += [
            f"--map {field}={example}",
            f"--map {field}={field}{{}} where the file's name has it, as run-{field}{example}.jsonl",
        ]
    if field == "B_p":
        suggestions.append("--map B=8192 for rollouts an update")
    if field == "rollouts":
        suggestions.append("--map step=COLUMN, for rollouts = step x B_p x n")
    return f"type {', or '.join(suggestions or [f'--map {field}=COLUMN'])}. {_list_columns(table_columns)}"


_VALIDATION_COLUMN = re.compile(r"val|eval|test|held|acc|avg@|mean@", re.IGNORECASE)


def _number_from_path(field: str, pattern: str, source: str) -> int:
    """The number that stands at {} of a pattern in a log's path: n{} finds 8 in runs/n8.jsonl and in gsm8k-n8-s0.jsonl.

    Raises:
        InputError: the field takes no number, or the path has none there, or several.
    """
    if field not in CONSTANT_FIELDS:
        raise InputError(
            f"--map {field}={pattern}: a number from the file's name says nothing of {field}; expected a column."
        )
    prefix, _, suffix = pattern.partition("{}")
    numbers_in_path = re.findall(rf"(?<![A-Za-z0-9]){re.escape(prefix)}(\d+)(?!\d){re.escape(suffix)}", source)
    if len(set(numbers_in_path)) != 1:
        problem = f"{source} has {', '.join(sorted(set(numbers_in_path))) or 'no number'} there"
        raise InputError(
            f"--map {field}={pattern}: {problem}; expected one, as {field}{{}} finds 8 in {field}8.jsonl or in run-{field}8-a.jsonl."
        )
    return int(numbers_in_path[0])


def _list_columns(table_columns: Sequence[str]) -> str:
    listed = ", ".join(table_columns[:40])
    return f"Columns there are: {listed}{f' and {len(table_columns) - 40} more' if len(table_columns) > 40 else ''}."


def _parse_number(text: str) -> float | int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else value
