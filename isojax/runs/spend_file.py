"""spend.json: what `isojax spend` trains next, written before it is trained, and what it has found
at the end."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from isojax.core.atomic_files import read_file, write_text
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT
from isojax.core.nouns import Spending

SPEND_FILE = "spend.json"
_ADAPTER = TypeAdapter(Spending)


def write_spending(folder: Path, spending: Spending) -> None:
    write_text(folder / SPEND_FILE, _ADAPTER.dump_json(spending, indent=1).decode() + "\n")


def read_spending(folder: Path) -> Spending | None:
    """None where the folder has none; InputError where it is broken."""
    path = folder / SPEND_FILE
    try:
        spending = _ADAPTER.validate_json(read_file(path))
        sizes = [
            spending.budget,
            *(size for leg in spending.legs for size in (leg.cell.B_p, leg.cell.n, leg.n)),
        ]
        if spending.legs and all(1 <= size <= MAX_COUNT for size in sizes):
            return spending
        problem, cause = "it has no legs, or sizes that no run has", None
    except FileNotFoundError:
        return None
    except ValidationError as e:
        problem = f"{'.'.join(map(str, e.errors()[0]['loc']))}: {e.errors()[0]['msg']}"
        cause = e
    raise InputError(
        f"cannot read {path}: {problem}. Restore it, or remove the folder and begin again."
    ) from cause
