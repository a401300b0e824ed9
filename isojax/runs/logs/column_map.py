"""The fields that a log's columns can hold, `--map FIELD=COLUMN`, and the value of a field in a row."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from isojax.core.errors import InputError
from isojax.core.nouns import RewardSums
from isojax.core.tabular import DataRow, check_number, is_blank

# What a log's columns can be, and what a refusal and --help say of each.
FIELD_HELP = {
    "rollouts": "C, rollouts sampled for training so far",
    "step": "updates so far (rollouts = step x B_p x n where no column has them)",
    "reward": "the validation metric, in [0, 1]",
    "n": "rollouts per problem",
    "B_p": "problems per batch",
    "B": "rollouts per update (B_p = B / n)",
    "seed": "the run's seed",
    "run": "a name that separates several runs of one file",
    "tokens": "response tokens sampled for training so far",
    "response_length": "mean response tokens per rollout (tokens are summed from it)",
    "device_hours": "device hours so far",
    "train_reward": "mean training reward",
    "counts": "correct rollouts (or the sum of graded rewards) of each validation problem, as a list",
    "samples": "rollouts per validation problem",
    "scale": "a number that multiplies the validation metrics, 0.01 for percent",
}
# `metric:NAME=COLUMN` is a further validation metric; `train:NAME=COLUMN` a further training metric; avg@4=COLUMN is
# metric:avg@4=COLUMN.
METRIC_PREFIXES = ("metric:", "train:")
CONSTANT_FIELDS = ("n", "B_p", "B", "seed", "run", "samples", "scale")  # may be a number for a whole file
METRIC_AT_K = re.compile(r"(avg|best|worst|pass)@[1-9]\d*")
_MEAN_AT_K = re.compile(r"(?:mean|avg)@([1-9]\d*)$")

# Columns named as in a ledger of our own need no map. Where a format's own `reward` is the training reward, its
# importer takes SAME_NAME_FIELDS and says which column is which.
SAME_NAME_FIELDS = {
    name: (name,) for name in ("rollouts", "step", "n", "B_p", "B", "seed", "tokens", "device_hours", "samples")
}
LEDGER_FIELDS = {name: (name,) for name in FIELD_HELP if name != "scale"} | {
    "step": ("step", "global_step"),
    "train:entropy": ("entropy",),
    "train:kl": ("kl",),
}


def is_validation(field: str) -> bool:
    return field in ("reward", "counts") or field.startswith("metric:")


def is_training(field: str) -> bool:
    return field in ("train_reward", "response_length") or field.startswith("train:")


@dataclass(frozen=True)
class ColumnMap:
    """Where the fields of one log stand."""

    columns: Mapping[str, str]  # field -> column
    constants: Mapping[str, float | int]  # field -> the number that holds for the whole log
    detected: frozenset[str]  # the fields in `columns` that no --map names
    config: Mapping[str, Any]  # what the log says once for all its rows, as further columns

    def __contains__(self, field: str) -> bool:
        return field in self.columns or field in self.constants

    @property
    def clock_field(self) -> str:
        """The field by which the rows of a run are ordered."""
        return "step" if "step" in self.columns else "rollouts"

    @property
    def metric_fields(self) -> list[str]:
        """The fields that hold validation and training metrics."""
        return [field for field in self.columns if is_validation(field) or is_training(field)]

    @property
    def main_metric(self) -> str:
        """The validation metric that makes a row an evaluation: `reward`, else `counts`, else the first further one."""
        return min(filter(is_validation, self.columns), key=lambda field: (field != "reward", field != "counts"))

    def ledger_name(self, field: str) -> str:
        """A validation metric's name in the ledger: NAME of metric:NAME; else the column's, avg@k where it ends in
        mean@k."""
        if field == "counts":
            return "correct counts"
        if field != "reward":
            return field.removeprefix("metric:")
        match = _MEAN_AT_K.search(self.columns[field])
        return f"avg@{match[1]}" if match else self.columns[field]

    def cell_value(self, field: str, row: DataRow) -> Any:
        """What a row, or else the log, has for a field; None where neither has it."""
        if field in self.constants:
            return self.constants[field]
        column = self.columns.get(field)
        return None if column is None else row.values.get(column, self.config.get(column))

    def describe_cell(self, field: str, row: DataRow) -> str:
        """ "runs.csv, line 7: reward (column val/acc)"."""
        column = self.columns.get(field, field)
        return f"{row.location}: {field}" + (f" (column {column})" if column != field else "")

    def read_number(self, field: str, row: DataRow) -> float:
        """A finite number; raises InputError as `check_number`."""
        expected = FIELD_HELP.get(field, "a number")
        return check_number(self.cell_value(field, row), self.describe_cell(field, row), expected=expected)

    def read_integer(self, field: str, row: DataRow, minimum: int) -> int:
        """A whole number of at least `minimum`; raises InputError as `check_number`."""
        value, cell = self.cell_value(field, row), self.describe_cell(field, row)
        return int(check_number(value, cell, expected=FIELD_HELP[field], minimum=minimum, whole=True))

    def read_text(self, field: str, row: DataRow) -> str:
        """A name, such as a run's; InputError where the cell is empty."""
        value = self.cell_value(field, row)
        if is_blank(value):
            raise InputError(f"{self.describe_cell(field, row)} is missing or empty; expected {FIELD_HELP[field]}.")
        return str(value)

    def read_counts(self, row: DataRow) -> RewardSums:
        """The correct rollouts of each problem, each in 0..samples, from a list or its text ("[1, 0, 4]"); floats where
        one is not whole, as sums of graded rewards are."""
        samples, value = self.read_integer("samples", row, 1), self.cell_value("counts", row)
        try:
            counts: Any = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            counts = None
        is_list = isinstance(counts, list) and len(counts) > 0
        if not is_list or not all(type(x) in (int, float) and 0 <= x <= samples for x in counts):
            raise InputError(
                f"{self.describe_cell('counts', row)} is {str(value)[:60]!r}, expected a list of numbers in"
                f" 0..{samples}, one for each problem, such as [1, 0, 4]."
            )
        return tuple(map(int if all(x == int(x) for x in counts) else float, counts))


def parse_field_map(map_options: Iterable[str]) -> dict[str, str]:
    """["n=16,reward=val/acc", "metric:ood=val/ood"] -> {"n": "16", "reward": "val/acc", "metric:ood": "val/ood"}."""
    field_map: dict[str, str] = {}
    for option in map_options:
        for assignment in re.split(r",(?=[^,=]*=)", option):  # a comma within a column's name is no separator
            name, equals, column = (piece.strip() for piece in assignment.partition("="))
            field = f"metric:{name}" if METRIC_AT_K.fullmatch(name) else name
            if not equals or not column:
                raise InputError(
                    f"--map: given {assignment!r}, expected FIELD=COLUMN or FIELD=NUMBER, such as reward=val/acc or"
                    " n=16."
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
