"""rounds.json: what the strategy of a sweep has had trained round after round, each written before
it is trained, and why it has stopped."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from isojax.core.atomic_files import read_file
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT

ROUNDS_FILE = "rounds.json"

RoundTargets = Mapping[str, Annotated[int, Field(ge=1, le=MAX_COUNT)]]


@dataclass(frozen=True)
class RecordedStop:
    """Why nothing more is trained."""

    reason: str  # "done", or "failed" where --resume may help
    explanation: str
    failed: Mapping[str, str]  # why runs failed, by the names of their cells


@dataclass(frozen=True)
class RoundsRecord:
    """The rounds so far."""

    strategy: str  # as sweep.strategy names it
    # Of each round the C to which it trains runs, by the names of their cells: {"8x2-s0": 4096}.
    rounds: tuple[RoundTargets, ...] = ()
    stop: RecordedStop | None = None  # None while it goes on


_ADAPTER = TypeAdapter(RoundsRecord)


def rounds_text(record: RoundsRecord) -> str:
    """The content of rounds.json."""
    return _ADAPTER.dump_json(record, indent=1).decode() + "\n"


def read_rounds(folder: Path) -> RoundsRecord | None:
    """What rounds.json in a sweep's folder holds; None without one, InputError for a broken one."""
    path = folder / ROUNDS_FILE
    try:
        return _ADAPTER.validate_json(read_file(path))
    except FileNotFoundError:
        return None
    except ValidationError as e:
        first = e.errors()[0]
        location = ".".join(map(str, first["loc"]))
        problem = f"{location}: {first['msg']}" if location else first["msg"]
        raise InputError(
            where=path,
            found=f"cannot be read: {problem}",
            fix="Restore it; without it, --resume goes on with another round.",
        ) from e
