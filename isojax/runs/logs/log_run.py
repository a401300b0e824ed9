"""One run of a log, between the log's rows and the run's record."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from isojax.core.tabular import RowTable
from isojax.runs.logs.column_map import ColumnMap


@dataclass
class LogRun:
    """The rows of one run, as they are gathered; `seed` is None until one is known or assigned."""

    column_map: ColumnMap
    name: str
    B_p: int
    n: int
    seed: int | None
    rows: RowTable
    may_be_skipped: bool = False  # in a folder with other logs, where it cannot be used
    seed_is_stated: bool = False  # by the user's table of settings, for this run
    scale_is_stated: bool = False  # likewise
    scale_is_auto: bool = False  # the run's own rewards decide whether they are percent
    parts: tuple[str, ...] = ()  # of a run that was resumed: the logs that it was joined from

    @property
    def location(self) -> str:
        return self.rows.place(0).location

    @property
    def named_location(self) -> str:
        name = self.name or self.column_map.table.run
        return f"{self.location} (run {name!r})" if name else self.location

    @property
    def sources(self) -> tuple[str, ...]:
        """The log that it was read from; of a run that was resumed, the logs."""
        return self.parts or (self.column_map.table.source,)

    @property
    def label(self) -> str:
        """Its name, or else the name of its run in the log's format, or its file."""
        return self.name or self.column_map.table.label


class NotedRuns(NamedTuple):
    runs: Sequence[LogRun]
    notes: list[str]  # what was assumed or changed
