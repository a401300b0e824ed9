"""How long a sweep is expected to take, and what of it: training, evaluations, labels, compiling
and checkpoints. The parts add up to the whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isojax.core.config import CellConfig
from isojax.core.nouns import Cell
from isojax.launch.checkpoint_plan import CheckpointPlan
from isojax.launch.device_sizes import DeviceSizes
from isojax.launch.time_estimate import Pair, ProgramTimes, rollout_rates, sampling_seconds

# Programs of a sweep that take long to compile: sampling for training and for evaluations, and the
# update. A task that the device verifies has two, of which the first does both.
TEXT_PROGRAMS = 3
DEVICE_PROGRAMS = 2
# Seconds of compiling one, on a host of the devices. docs/performance.md has what was measured.
COMPILE_SECONDS = {"cpu": 15.0, "gpu": 60.0, "tpu": 60.0}


@dataclass(frozen=True)
class TimePart:
    """A part of a sweep's time."""

    name: str
    seconds: float
    detail: str = ""  # what it consists of, such as "119,568 rollouts"


@dataclass(frozen=True)
class Forecast:
    """How long a sweep is expected to take."""

    rollouts_per_second: Mapping[Pair, float]  # of training
    # By the cell's kind, from a run's first update to its end, evaluations included.
    cell_seconds: Mapping[str, float]
    parts: Sequence[TimePart]  # of the sweep, one after the other
    source: str  # what they come from

    @property
    def sweep_seconds(self) -> float:
        return sum(part.seconds for part in self.parts)


@dataclass(frozen=True)
class RunOverheads:
    """What a sweep's runs take besides training."""

    evaluation_seconds: float = 0.0  # of all evaluations of a run
    evaluations: str = ""  # a text that counts them
    # of the sweep, before its first run begins and at the ends of its runs
    before: Sequence[TimePart] = ()
    at_ends: Sequence[TimePart] = ()


def make_forecast(
    cells: Sequence[Cell],
    final_target: int,
    concurrent_cells: int,
    rates: Mapping[Pair, float],
    overheads: RunOverheads,
    source: str,
) -> Forecast:
    """The times of cells that run up to C = `final_target` in whole updates.

    concurrent_cells: how many train at the same time. rates: rollouts/s of training at each
    (B_p, n) that the cells have. source: what the forecast comes from, a text for its reader.
    """
    training_seconds = {}
    for cell in cells:
        updates_by_span = cell.updates_by_span(cell.updates_to_reach(final_target))
        training_seconds[cell.kind] = sum(
            updates * span.B / rates[span.B_p, span.n] for span, updates in updates_by_span
        )
    cell_seconds = {
        kind: training + overheads.evaluation_seconds for kind, training in training_seconds.items()
    }

    # Cells that run side by side share the work, but no cell is faster than alone.
    seconds = [cell_seconds[cell.kind] for cell in cells]
    runs_seconds = max(sum(seconds) / concurrent_cells, *seconds)
    # Of what all runs take together, the time that passes.
    share = runs_seconds / sum(seconds)
    parts = [
        *overheads.before,
        TimePart("training", share * sum(training_seconds[cell.kind] for cell in cells)),
        TimePart(
            "evaluations", share * len(cells) * overheads.evaluation_seconds, overheads.evaluations
        ),
        *overheads.at_ends,
    ]
    return Forecast(rates, cell_seconds, parts, source)


def forecast_sweep_times(
    s: DeviceSizes,
    cells: Sequence[Cell],
    budget: int,
    concurrent_cells: int,
    times: ProgramTimes,
    source: str,
    labels: int = 0,
    checkpoints: CheckpointPlan | None = None,
) -> Forecast:
    """The times of cells that run up to C = `budget`, by what the parts of their programs take.

    s: the sizes of the sweep. labels: rollouts that label problems before the first run.
    checkpoints: None: they are not counted. Only for its last one a run waits until it is written.
    """
    # What a run waits for at its end.
    last_checkpoints = []
    if checkpoints is not None:
        detail = f"the last of {checkpoints.runs} run{'s' * (checkpoints.runs > 1)}"
        last_checkpoints.append(TimePart("checkpoints", checkpoints.final_seconds, detail))

    targets = s.cell.eval.evaluation_targets(budget)
    num_evaluations = len(targets) * len(cells)
    rollouts = evaluation_rollouts(s.cell)
    overheads = RunOverheads(
        evaluation_seconds=len(targets) * evaluation_seconds(s, times),
        evaluations=f"{num_evaluations:,} of {rollouts:,} rollouts",
        at_ends=last_checkpoints,
        before=[compiling(s), labelling(s, labels, times)],
    )

    pairs = sorted({pair for cell in cells for pair in cell.pairs})
    return make_forecast(
        cells, targets[-1], concurrent_cells, rollout_rates(s, pairs, times), overheads, source
    )


def _evaluated_problems(cell: CellConfig) -> int:
    """Problems of one evaluation: of validation, of every further problem set, taken to be as
    large, and of the panel of training problems."""
    problem_sets = 1 + len(cell.eval.extra)
    return cell.data.validation * problem_sets + cell.eval.panel


def evaluation_rollouts(cell: CellConfig) -> int:
    """Rollouts of one evaluation, which sample and train nothing."""
    return _evaluated_problems(cell) * cell.eval.samples


def evaluation_seconds(s: DeviceSizes, times: ProgramTimes) -> float:
    """Seconds of one evaluation."""
    return sampling_seconds(s, _evaluated_problems(s.cell), evaluation_rollouts(s.cell), times)


def label_rollouts(cell: CellConfig, has_labels: bool) -> int:
    """Rollouts with which the base policy labels problems before the first run.

    has_labels: whether the problems bring their labels, or were labelled already. A mixture is of
    parts that are labelled.
    """
    if has_labels or cell.data.mixture:
        return 0
    return cell.data.candidates * cell.data.attempts


def labelling(s: DeviceSizes, rollouts: int, times: ProgramTimes) -> TimePart:
    """The time of labels, by one mesh whatever the number of runs at once."""
    attempts = max(1, s.cell.data.attempts)
    seconds = sampling_seconds(s, rollouts / attempts, rollouts, times) if rollouts else 0.0
    return TimePart("labels", seconds, f"{rollouts:,} rollouts" if rollouts else "none")


def compiling(s: DeviceSizes) -> TimePart:
    """The time of compiling, which runs side by side do at the same time."""
    programs = DEVICE_PROGRAMS if s.cell.model.vocab is None else TEXT_PROGRAMS
    seconds = COMPILE_SECONDS[s.backend]
    return TimePart("compiling", programs * seconds, f"{programs} programs, {seconds:g} s each")
