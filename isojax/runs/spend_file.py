"""spend.json: what `isojax spend` trains next, written before it is trained, and what it has found at the end."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError
from isojax.core.nouns import Spending

SPEND_FILE = "spend.json"
_ADAPTER = TypeAdapter(Spending)


def write_spending(folder: Path, spending: Spending) -> None:
    write_text(folder / SPEND_FILE, _ADAPTER.dump_json(spending, indent=1).decode() + "\n")


def read_spending(folder: Path) -> Spending | None:
    """None where the folder has none; InputError where it is broken."""
    path = folder / SPEND_FILE
    try:
        return _ADAPTER.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as e:
        first = e.errors()[0]
        raise InputError(
            f"cannot read {path}: {'.'.join(map(str, first['loc']))}: {first['msg']}. Restore it, or remove the run's "
            "folder and start again."
        ) from e
