"""The curves of a cell where others draw them: each of `run.loggers` is told of the cell's ledger as it grows. No jax
here.

A logger is a file of this folder, or a module of your own by its path, with `begin(folder, cell, config) -> Logger`
and, where it may turn out to be of no use, `check()`, which raises InputError before any work. It hears of all recorded
points when the cell is opened and of the whole ledger again after each further one: what it writes is a function of
that, so that no kill loses a point or doubles one.
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
from isojax.runs.ledger import Ledger, read_run


class Logger(Protocol):
    """What follows one cell; whatever it raises costs the run nothing but this logger."""

    def tell(self, run: RunRecord) -> None:
        """The run as recorded: at first with any number of points, then with more."""
        ...

    def close(self) -> None:
        """The run is at its end, or goes on another time."""
        ...


def check_loggers(names: Iterable[str]) -> None:
    """InputError where one of `run.loggers` is not known, or cannot work here."""
    for name in names:
        vars(_logger_module(name)).get("check", lambda: None)()


def point_scalars(point: EvalPoint) -> dict[str, float]:
    """A point's numbers by the names of their curves: metrics as in the ledger, train/NAME, M updates and response
    tokens.
    """
    return {**point.metrics, **{f"train/{k}": v for k, v in point.train.items()}, "M": point.M, "tokens": point.tokens}


class CellLoggers:
    """The loggers of a cell at work, from its ledger; one that fails is left out from there on, with one warning."""

    def __init__(self, ledger: Ledger, cell: Cell, config: Config):
        self.ledger, self.cell, self.config = ledger, cell, config
        self.loggers: dict[str, Logger] = {}

    def __enter__(self) -> CellLoggers:
        for name in self.config.run.loggers:
            self._attempt_call(name, lambda name=name: self._begin_logger(name))
        self.ledger.on_append = self._tell_loggers
        if self.ledger.targets:
            self._tell_loggers()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, logger in list(self.loggers.items()):
            self._attempt_call(name, logger.close)

    def _begin_logger(self, name: str) -> None:
        self.loggers[name] = _logger_module(name).begin(self.ledger.folder, self.cell, self.config)

    def _tell_loggers(self) -> None:
        for name, logger in list(self.loggers.items()):
            self._attempt_call(name, lambda logger=logger: logger.tell(read_run(self.ledger.folder)))

    def _attempt_call(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except (
            Exception
        ) as e:  # a library, its network or its disk; the run is worth more than its curves, and the ledger has them
            self.loggers.pop(name, None)
            warning = f"warning: {self.cell.name}: the logger {name} failed ({e}); the run goes on without it, its ledger has every point"
            print(warning, file=sys.stderr)


def _logger_module(name: str) -> ModuleType:
    return load("runs.loggers", name, "begin")


def cell_hparams(cell: Cell, config: Config) -> dict[str, object]:
    """What tells this cell from others, those of other sweeps too: B_p, n, its seed, and `cell` of the config by dotted
    names.
    """
    return {"B_p": cell.B_p, "n": cell.n, "seed": cell.seed, **dict(flatten(config.cell.model_dump(mode="json")))}
