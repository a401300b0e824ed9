"""spend.json: what `isojax spend` trains next, written before it is trained, and what it has found
at the end."""

from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from isojax.core.atomic_files import read_file, write_text
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT
from isojax.core.nouns import Spending

SPEND_FILE = "spend.json"
_ADAPTER = TypeAdapter(Spending)
# Every cell of the file is a run of `isojax spend`, so that none of them has to say so.
_LEFT_OUT = {"legs": {"__all__": {"cell": {"is_of_spend"}}}}


def spending_text(spending: Spending) -> str:
    """The content of spend.json."""
    return _ADAPTER.dump_json(spending, indent=1, exclude=_LEFT_OUT).decode() + "\n"


def write_spending(folder: Path, spending: Spending) -> None:
    write_text(folder / SPEND_FILE, spending_text(spending))


def read_spending(folder: Path) -> Spending | None:
    """What spend.json in a folder holds: the budget of `isojax spend`, and its legs so far.

    A leg is a stretch of a run at one n. None where the folder has no such file; InputError where
    it is broken, or has no legs, or a size below 1.
    """
    path = folder / SPEND_FILE
    try:
        spending = _ADAPTER.validate_json(read_file(path))
    except FileNotFoundError:
        return None
    except ValidationError as e:
        first = e.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise _unreadable(path, f"{place}: {first['msg']}" if place else first["msg"]) from e

    # A leg's n may be higher than that of its cell, with which the run began.
    sizes = [spending.budget]
    for leg in spending.legs:
        sizes += [leg.cell.B_p, leg.cell.n, leg.n]
    if not spending.legs or not all(1 <= size <= MAX_COUNT for size in sizes):
        raise _unreadable(path, "it has no legs, or sizes that no run has")

    # The file leaves this flag out, as it is true of each leg.
    legs = [replace(leg, cell=replace(leg.cell, is_of_spend=True)) for leg in spending.legs]
    return replace(spending, legs=tuple(legs))


def _unreadable(path: Path, problem: str) -> InputError:
    return InputError(
        where=path,
        found=f"cannot be read: {problem}",
        fix="Restore it, or remove the folder and begin again.",
    )
