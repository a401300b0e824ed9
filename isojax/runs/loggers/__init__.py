"""Loggers send the curves of a cell to other tools: each of `run.loggers`, a file of this folder or
a module of yours by its path, with `begin(folder, cell, config) -> Logger`, which has the decorator
`@logger`. What a logger writes is a function of the ledger: it gets all of it when the cell is
opened and after each further point, so no kill loses a point or writes one twice."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from isojax.core.config import Config
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.core.plugins import PluginKind
from isojax.core.schedule import schedule_text
from isojax.core.terminal import warn
from isojax.core.yaml_files import flatten
from isojax.runs.ledger import Ledger, read_run


@dataclass(frozen=True)
class LoggerTraits:
    """What a logger says of itself in its decorator."""

    # called before any work; InputError where the logger cannot work here
    check: Callable[[], None] | None = None


logger = PluginKind("logger", "runs.loggers", LoggerTraits)


class Logger(Protocol):
    """Follows one cell; an exception it raises disables this logger only."""

    def update(self, run: RunRecord) -> None:
        """Write what is new in the run: at first any number of points, then further ones."""

    def close(self) -> None:
        """Called when the run ends, or stops until it is resumed."""


def check_loggers(names: Iterable[str]) -> None:
    """InputError where one of `run.loggers` is not known, or cannot work here."""
    for name in names:
        check = logger.load(name).traits.check
        if check is not None:
            check()


@contextmanager
def cell_loggers(ledger: Ledger, cell: Cell, config: Config) -> Iterator[None]:
    """A context in which the loggers of config.run.loggers follow a running cell.

    They get all of its ledger after each new point. A logger that fails is left out from then on,
    with a warning: no curve is worth the run.
    """
    active: dict[str, Logger] = {}

    # Captures `active` and `cell`: around each call of a logger, by its name.
    @contextmanager
    def left_out_if_it_fails(name: str) -> Iterator[None]:
        try:
            yield
        except Exception as e:  # of a library, its network or its disk
            active.pop(name, None)
            warn(
                f"{cell.name}: the logger {name} failed ({e}); "
                "the run goes on without it, its ledger has every point"
            )

    def update() -> None:
        for name, active_logger in list(active.items()):
            with left_out_if_it_fails(name):
                active_logger.update(read_run(ledger.folder))

    for name in config.run.loggers:
        with left_out_if_it_fails(name):
            active[name] = logger.load(name)(ledger.folder, cell, config)

    ledger.on_append = update
    if ledger.targets:  # points of a run that is resumed
        update()
    try:
        yield
    finally:
        for name, active_logger in list(active.items()):
            with left_out_if_it_fails(name):
                active_logger.close()


def point_scalars(point: EvalPoint) -> dict[str, float]:
    """A point's numbers by the names of their curves: metrics, train/NAME, M and tokens."""
    train = {f"train/{name}": value for name, value in point.train.items()}
    return {**point.metrics, **train, "M": point.M, "tokens": point.tokens}


def cell_hparams(cell: Cell, config: Config) -> dict[str, object]:
    """The settings of this cell by name, such as {"B_p": 16, "n": 8, "seed": 0, "rl.kl": 0.0}.

    Of a schedule its text in place of B_p and n; then its seed, and `cell` of the config.
    """
    hparams: dict[str, object]
    if cell.schedule:
        hparams = {"schedule": schedule_text(cell.stages, cell.n_max)}
    else:
        hparams = {"B_p": cell.B_p, "n": cell.n}
    settings = dict(flatten(config.cell.model_dump(mode="json")))
    return {**hparams, "seed": cell.seed, **settings}
