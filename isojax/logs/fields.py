"""Which column of a log is what: `--map FIELD=COLUMN`, the names a format is known to write, and a refusal that teaches what to type."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from isojax.logs.table import Row, Table
from isojax.types import InputError

# What a log's columns can be; HELP is what a refusal and --help say of each.
HELP = {
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
# `metric:NAME=COLUMN` is a further validation metric; `train:NAME=COLUMN` a further training metric; avg@4=COLUMN is metric:avg@4=COLUMN.
PREFIXES = ("metric:", "train:")
CONSTANTS = ("n", "B_p", "B", "seed", "run", "samples", "scale")  # may be a number for a whole file
_AT_K = re.compile(r"(avg|best|worst|pass)@[1-9]\d*")

# Names as in a ledger of our own need no map. Where a format's own `reward` is the training reward, the plug-in takes BY_NAME and says
# which is which.
BY_NAME = {name: (name,) for name in ("rollouts", "step", "n", "B_p", "B", "seed", "tokens", "device_hours", "samples")}
OWN_NAMES = {name: (name,) for name in HELP if name != "scale"} | {
    "step": ("step", "global_step"),
    "train:entropy": ("entropy",),
    "train:kl": ("kl",),
}


@dataclass(frozen=True)
class Bound:
    """Fields of one log -> its column, or the constant that stands for it. `found` holds the names of those that nobody asked for."""

    columns: Mapping[str, str]
    constants: Mapping[str, float | int]
    found: frozenset[str]

    def value(self, field: str, row: Row, table: Table) -> Any:
        """The raw value of a field in a row; None where neither the row nor the log has it."""
        if field in self.constants:
            return self.constants[field]
        column = self.columns.get(field)
        return None if column is None else row.values.get(column, table.config.get(column))

    def __contains__(self, field: str) -> bool:
        return field in self.columns or field in self.constants


def parse_map(texts: Iterable[str]) -> dict[str, str]:
    """["n=16,reward=val/acc", "metric:ood=val/ood"] -> {"n": "16", "reward": "val/acc", "metric:ood": "val/ood"}.

    Raises:
        InputError: no FIELD=COLUMN, an unknown field (with the nearest), a field given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        for part in re.split(r",(?=[^,=]*=)", text):  # a comma within a column's name is no separator
            name, equals, column = (piece.strip() for piece in part.partition("="))
            field = f"metric:{name}" if _AT_K.fullmatch(name) else name
            if not equals or not column:
                raise InputError(f"--map: given {part!r}, expected FIELD=COLUMN or FIELD=NUMBER, such as reward=val/acc or n=16.")
            if field not in HELP and not (field.startswith(PREFIXES) and field.partition(":")[2]):
                near = difflib.get_close_matches(field, HELP, n=1, cutoff=0)[0]
                known = ", ".join([*HELP, "metric:NAME", "train:NAME"])
                raise InputError(f"--map: no field {field!r}; the nearest is {near!r}, expected one of {known}.")
            if field in found:
                raise InputError(f"--map: {name} is given twice ({found[field]!r} and {column!r}), expected once.")
            found[field] = column
    return found


def bind(table: Table, asked: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> Bound:
    """A log's columns for the fields: as asked with --map, else by the names the format is known to write.

    What is asked is a column's name, a number for the whole log, or a pattern such as n{} for the number in the log's own name. B that is
    asked for stands instead of a known B_p, avg@k instead of a known reward.

    Raises:
        InputError: a column that is not there, a constant where a column is needed, several columns that would do, or a field that is
            needed and not found; lists the columns there are and shows the --map to type.
    """
    columns: dict[str, str] = {}
    constants: dict[str, float | int] = {}
    there = table.columns
    for field, text in asked.items():
        number = _from_name(field, text, table.source) if "{}" in text and text not in there else _number(text)
        if number is not None and text not in there:
            if field not in CONSTANTS:
                raise InputError(f"--map {field}={text}: a number for the whole file says nothing here; {_hint(field, there, table)}")
            constants[field] = number
        elif field == "scale":
            raise InputError(f"--map scale={text}: expected a number, such as scale=0.01 for percent.")
        elif text in there:
            columns[field] = text
        else:
            near = difflib.get_close_matches(text, there, n=1, cutoff=0)[0]
            typed = f"--map {field}={near}"
            raise InputError(f"{table.source} has no column {text!r} for {field}; the nearest is {near!r} ({typed}). {_list(there)}")
    instead = {"B": "B_p", "B_p": "B"} | dict.fromkeys((name for name in asked if _AT_K.fullmatch(name.removeprefix("metric:"))), "reward")
    taken = {*asked, *(other for field, other in instead.items() if field in asked)}
    found = {field: column for field, names in known.items() if field not in taken and (column := _known(field, names, table)) is not None}
    bound = Bound({**columns, **found}, constants, frozenset(found))
    _require(bound, table)
    return bound


def _known(field: str, names: Sequence[str], table: Table) -> str | None:
    """The first known name that the log has; validation metrics may not be ambiguous."""
    for name in names:
        hits = [column for column in table.columns if fnmatchcase(column, name)]
        if len(hits) > 1 and field == "reward":
            choices = " or ".join(f"--map reward={hit}" for hit in hits[:4])
            raise InputError(f"{table.source} has {len(hits)} validation metrics ({', '.join(hits)}), expected one; say which: {choices}.")
        if hits:
            return hits[0]
    return None


def _require(bound: Bound, table: Table) -> None:
    there = table.columns
    metric = "reward" in bound or "counts" in bound or any(name.startswith("metric:") for name in bound.columns)
    for field, given in (
        ("reward", metric),
        ("n", "n" in bound),
        ("B_p", "B_p" in bound or "B" in bound),
        ("rollouts", "rollouts" in bound or "step" in bound),
    ):
        if not given:
            what = f"{table.source}: no column is known to be {field} ({HELP[field]})"
            raise InputError(f"{what}; {_hint(field, there, table)}")
    if "counts" in bound and "samples" not in bound:
        raise InputError(f"{table.source}: counts need the rollouts a problem they are of; say --map samples=4 or name its column.")


def _hint(field: str, there: Sequence[str], table: Table) -> str:
    """What to type, and the columns there are."""
    likely = [name for name in there if _VALIDATION.search(name)] if field == "reward" else []
    near = difflib.get_close_matches(field, likely or there, n=1, cutoff=0.0 if field == "reward" else 0.5)
    typed = [f"--map {field}={near[0]} (the nearest)"] if near else []
    if field in CONSTANTS:
        number = {"n": 16, "B_p": 512}.get(field, 0)
        typed += [f"--map {field}={number}", f"--map {field}={field}{{}} where the file's name has it, as run-{field}{number}.jsonl"]
    if field == "B_p":
        typed.append("--map B=8192 for rollouts an update")
    if field == "rollouts":
        typed.append("--map step=COLUMN, for rollouts = step x B_p x n")
    return f"type {', or '.join(typed or [f'--map {field}=COLUMN'])}. {_list(there)}"


_VALIDATION = re.compile(r"val|eval|test|held|acc|avg@|mean@", re.IGNORECASE)


def _from_name(field: str, pattern: str, source: str) -> int:
    """The number that stands at {} of a pattern in a log's path: n{} finds 8 in runs/n8.jsonl and in gsm8k-n8-s0.jsonl.

    Raises:
        InputError: the field takes no number, or the path has none there, or several.
    """
    if field not in CONSTANTS:
        raise InputError(f"--map {field}={pattern}: a number from the file's name says nothing of {field}; expected a column.")
    before, _, after = pattern.partition("{}")
    found = re.findall(rf"(?<![A-Za-z0-9]){re.escape(before)}(\d+)(?!\d){re.escape(after)}", source)
    if len(set(found)) != 1:
        given = f"{source} has {', '.join(sorted(set(found))) or 'no number'} there"
        raise InputError(
            f"--map {field}={pattern}: {given}; expected one, as {field}{{}} finds 8 in {field}8.jsonl or in run-{field}8-a.jsonl."
        )
    return int(found[0])


def _list(there: Sequence[str]) -> str:
    shown = ", ".join(there[:40])
    return f"Columns there are: {shown}{f' and {len(there) - 40} more' if len(there) > 40 else ''}."


def _number(text: str) -> float | int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else value
