"""Finds the column of each field in a log: by --map, else by the names that the format is known to write."""

import difflib
import re
from collections.abc import Mapping, Sequence
from fnmatch import filter as glob_filter

from isojax.core.errors import InputError
from isojax.core.tabular import parse_number
from isojax.runs.logs.column_map import CONSTANT_FIELDS, FIELD_HELP, METRIC_AT_K, ColumnMap, is_validation
from isojax.runs.logs.log_table import LogTable

MAX_LISTED_COLUMNS = 40
_SUGGESTIONS = {
    "n": ["--map n=16", "--map n=n{} where the file's name has it, as run-n16.jsonl"],
    "B_p": ["--map B_p=512", "--map B=8192 for rollouts per update"],
    "rollouts": ["--map step=COLUMN, for rollouts = step x B_p x n"],
}
_VALIDATION_COLUMN = re.compile(r"val|eval|test|held|acc|avg@|mean@", re.IGNORECASE)


def map_columns(table: LogTable, field_map: Mapping[str, str], known_columns: Mapping[str, Sequence[str]]) -> ColumnMap:
    """The columns of a log's fields; InputError, which shows the --map to type, where one is not there or not unique.

    A --map gives a column's name, a number for the whole log, or a pattern such as n{} for the number in the log's own
    name. A mapped B replaces a known B_p, a mapped avg@k replaces a known reward."""
    columns: dict[str, str] = {}
    constants: dict[str, float | int] = {}
    for field, column in field_map.items():
        if column in table.columns and field != "scale":
            columns[field] = column
        else:
            constants[field] = _constant(field, column, table)
    excluded_fields = {*field_map}
    if excluded_fields & {"B", "B_p"}:
        excluded_fields |= {"B", "B_p"}
    if any(METRIC_AT_K.fullmatch(field.removeprefix("metric:")) for field in field_map):
        excluded_fields.add("reward")
    detected = {
        field: column
        for field, names in known_columns.items()
        if field not in excluded_fields and (column := _detect_column(field, names, table)) is not None
    }
    column_map = ColumnMap({**columns, **detected}, constants, frozenset(detected), table.config)
    _require_fields(column_map, table)
    return column_map


def _constant(field: str, text: str, table: LogTable) -> float | int:
    """The number that a --map gives for the whole log."""
    number = parse_number(text)
    if field == "scale" and number is None:
        raise InputError(f"--map scale={text}: expected a number, such as scale=0.01 for percent.")
    if number is None and "{}" not in text:
        nearest = difflib.get_close_matches(text, table.columns, n=1, cutoff=0)[0]
        raise InputError(
            f"{table.source} has no column {text!r} for {field}; the nearest is {nearest!r} (--map {field}={nearest})."
            f" {_list_columns(table.columns)}"
        )
    if field not in CONSTANT_FIELDS:
        raise InputError(
            f"--map {field}={text}: a number for the whole file cannot stand for {field};"
            f" {_mapping_hint(field, table.columns)}"
        )
    if number is None:
        return _number_from_path(field, text, table.source)
    return int(number) if number.is_integer() else number


def _number_from_path(field: str, pattern: str, source: str) -> int:
    """The number that stands at {} of a pattern in a log's path: n{} finds 8 in runs/n8.jsonl and in
    gsm8k-n8-s0.jsonl."""
    prefix, _, suffix = pattern.partition("{}")
    numbers = set(re.findall(rf"(?<![A-Za-z0-9]){re.escape(prefix)}(\d+)(?!\d){re.escape(suffix)}", source))
    if len(numbers) != 1:
        raise InputError(
            f"--map {field}={pattern}: {source} has {', '.join(sorted(numbers)) or 'no number'} there; expected one, as"
            f" {field}{{}} finds 8 in {field}8.jsonl or in run-{field}8-a.jsonl."
        )
    return int(numbers.pop())


def _detect_column(field: str, names: Sequence[str], table: LogTable) -> str | None:
    """The first known name that the log has; of validation metrics there may be one only."""
    for name in names:
        matches = glob_filter(table.columns, name)
        if len(matches) > 1 and field == "reward":
            choices = " or ".join(f"--map reward={match}" for match in matches[:4])
            raise InputError(
                f"{table.source} has {len(matches)} validation metrics ({', '.join(matches)}), expected one; say which:"
                f" {choices}."
            )
        if matches:
            return matches[0]
    return None


def _require_fields(column_map: ColumnMap, table: LogTable) -> None:
    for field, is_mapped in (
        ("reward", any(is_validation(name) for name in column_map.columns)),
        ("n", "n" in column_map),
        ("B_p", "B_p" in column_map or "B" in column_map),
        ("rollouts", "rollouts" in column_map or "step" in column_map),
    ):
        if not is_mapped:
            raise InputError(
                f"{table.source}: no column is known to be {field} ({FIELD_HELP[field]});"
                f" {_mapping_hint(field, table.columns)}"
            )
    if "counts" in column_map and "samples" not in column_map:
        raise InputError(
            f"{table.source}: counts are of so many rollouts per problem; say how many with --map samples=4, or name"
            " their column."
        )


def _mapping_hint(field: str, table_columns: Sequence[str]) -> str:
    """What to type, and the columns there are."""
    likely_columns = [name for name in table_columns if _VALIDATION_COLUMN.search(name)] if field == "reward" else []
    cutoff = 0.0 if field == "reward" else 0.5
    nearest = difflib.get_close_matches(field, likely_columns or table_columns, n=1, cutoff=cutoff)
    suggestions = [f"--map {field}={name} (the nearest)" for name in nearest] + _SUGGESTIONS.get(field, [])
    return f"type {', or '.join(suggestions or [f'--map {field}=COLUMN'])}. {_list_columns(table_columns)}"


def _list_columns(table_columns: Sequence[str]) -> str:
    further = len(table_columns) - MAX_LISTED_COLUMNS
    more = f" and {further} more" if further > 0 else ""
    return f"The columns are {', '.join(table_columns[:MAX_LISTED_COLUMNS])}{more}."
