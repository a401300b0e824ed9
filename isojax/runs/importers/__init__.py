"""Other trainers' logs: one file per format, or a fork's own module (`--from my_fork.my_format`),
with `read(path) -> list[LogTable]`, which has the decorator `@importer(fields=...)`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isojax.core.plugins import Plugin, PluginKind


@dataclass(frozen=True)
class ImporterTraits:
    # for a field, the columns that the format is known to write it in
    fields: Mapping[str, Sequence[str]]

    # Which files of a folder are logs; where both are None, the folder itself is one.
    suffixes: Sequence[str] | None = None
    find_logs: Callable[[Path], list[Path]] | None = None


Importer = Plugin[..., Any, ImporterTraits]

importer = PluginKind("importer", "runs.importers", ImporterTraits)
