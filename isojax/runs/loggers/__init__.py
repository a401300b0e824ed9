"""Loggers send the curves of a cell to other tools: each of `run.loggers` gets the cell's ledger as it grows.

A logger is a file of this folder, or a module of yours by its path, with `begin(folder, cell, config) -> Logger` and,
where it may be unusable here, `check()`, which raises InputError before any work. It gets all recorded points when the
cell is opened, and the whole ledger again after each further point: what it writes is a function of the ledger, so that
no kill loses a point or writes one twice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType, TracebackType
from typing import Protocol

from isojax.core.config import Config
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.core.registry import load
from isojax.core.yaml_files import flatten
from isojax.runs.ledger import Ledger
from isojax.runs.ledger_reader import read_run


class Logger(Protocol):
    """Follows one cell; an exception it raises disables this logger only."""

    def update(self, run: RunRecord) -> None:
        """Write what is new in the run: at first any number of points, then further ones."""
        ...

    def close(self) -> None:
        """Called when the run ends, or stops until it is resumed."""
        ...


def check_loggers(names: Iterable[str]) -> None:
    """InputError where one of `run.loggers` is not known, or cannot work here."""
    for name in names:
        vars(_logger_module(name)).get("check", lambda: None)()


def point_scalars(point: EvalPoint) -> dict[str, float]:
    """A point's numbers by the names of their curves: metrics as in the ledger, train/NAME, M and tokens."""
    return {**point.metrics, **{f"train/{k}": v for k, v in point.train.items()}, "M": point.M, "tokens": point.tokens}


class CellLoggers:
    """The loggers of a cell that is running; one that fails is left out from then on, with one warning."""

    def __init__(self, ledger: Ledger, cell: Cell, config: Config):
        self.ledger, self.cell, self.config = ledger, cell, config
        self.loggers: dict[str, Logger] = {}

    def __enter__(self) -> CellLoggers:
        for name in self.config.run.loggers:
            self._attempt_call(name, lambda name=name: self._begin_logger(name))
        self.ledger.on_append = self._update_loggers
        if self.ledger.targets:
            self._update_loggers()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, logger in list(self.loggers.items()):
            self._attempt_call(name, logger.close)

    def _begin_logger(self, name: str) -> None:
        self.loggers[name] = _logger_module(name).begin(self.ledger.folder, self.cell, self.config)

    def _update_loggers(self) -> None:
        for name, logger in list(self.loggers.items()):
            self._attempt_call(name, lambda logger=logger: logger.update(read_run(self.ledger.folder)))

    def _attempt_call(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as e:  # of a library, its network or its disk; no curve is worth the run
            self.loggers.pop(name, None)
            print(
                f"warning: {self.cell.name}: the logger {name} failed ({e}); the run goes on without it, its ledger has"
                " every point",
                file=sys.stderr,
            )


def _logger_module(name: str) -> ModuleType:
    return load("runs.loggers", name, "begin")


def cell_hparams(cell: Cell, config: Config) -> dict[str, object]:
    """The settings of this cell: B_p, n, its seed, and `cell` of the config by dotted names."""
    return {"B_p": cell.B_p, "n": cell.n, "seed": cell.seed, **dict(flatten(config.cell.model_dump(mode="json")))}
