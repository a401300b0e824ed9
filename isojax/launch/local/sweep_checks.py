"""What of a sweep is refused, or doubtful, before its programs are compiled: engines, problems,
labels, precision and numbers that contradict one another."""

from collections.abc import Sequence
from pathlib import Path

from isojax.core.config import CellConfig, Config, DataConfig, PrecisionConfig
from isojax.core.config.load import LEARNING_RATE
from isojax.core.config.sweep import LOCAL_ROLLOUTS
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.core.table_files import paths_below
from isojax.core.terminal import note
from isojax.distributed import multiprocess
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.resume import BASE_FOLDER
from isojax.models.describe_sizes import count_parameters
from isojax.rl.engines import load_engine
from isojax.runs.ledger import RECORDS_FILE
from isojax.tasks.problem_selection import LabelsNeeded, require_settings, select_problems
from isojax.tasks.reference_check import check_references
from isojax.tasks.task import Task, is_on_device, tokenize
from isojax.train.label_settings import warn_of_other_labels
from isojax.train.verifier_copies import check_verifier_files


def check_engine(config: Config, num_cells: int) -> None:
    """InputError where the engines of training and evaluations cannot sample for this sweep.

    num_cells: how many runs it has. Also where run.rollouts names an engine that is not there.
    """
    run = config.run
    max_staleness = config.cell.rl.max_staleness
    load_engine(run.rollouts)
    if run.rollouts != LOCAL_ROLLOUTS and max_staleness is not None:
        raise InputError(
            where="run.rollouts",
            found=(
                f"given {run.rollouts} and cell.rl.max_staleness = {max_staleness}: isojax's "
                "own engine alone samples ahead of the trainer"
            ),
            fix="Leave one of them out.",
        )

    settings = {"run.rollouts": run.rollouts, "run.eval_server": run.eval_server or LOCAL_ROLLOUTS}
    for name, engine in settings.items():
        if engine == LOCAL_ROLLOUTS:
            continue
        if multiprocess.is_multiprocess():
            raise InputError(
                where=name,
                found=f"given {engine} in a run of several processes",
                expected="one process, or local",
            )
        if num_cells > 1 and run.cells_at_once != 1:
            raise InputError(
                where=name,
                found=(
                    f"given {engine}, which holds one policy at a time, and the sweep has "
                    f"{num_cells} runs"
                ),
                fix="Add run.cells_at_once=1, so that they train one after the other.",
            )


def check_problems(
    config: Config, task: Task, pairs: list[tuple[int, int]], is_new_run: bool = True
) -> None:
    """InputError where problems do not fit the sampler, are too few for a batch or not gradable.

    pairs: every (B_p, n) of the sweep. is_new_run: whether references that no response can match
    are refused; a run that goes on gets a warning of them.
    """
    cell = config.cell
    data = cell.data
    if not is_on_device(task):
        # Its default suits no language model; the error suggests one for the model's size.
        require_settings(cell, task, count_parameters, LEARNING_RATE)

    # problem_sets: a list of problems for each of training, validation and extra evaluations.
    try:
        selection = select_problems(cell, task)
    except LabelsNeeded as e:
        # How many are of the wanted difficulty, only labels tell: all candidates are looked at. The
        # exception carries the problem sets that were read, the candidates of training first.
        (problem_sets,) = e.args
        held_out = 0 if data.held_out else data.validation
        remaining = len(problem_sets[0]) - held_out
        check_batch(pairs, min(remaining, data.size or remaining))
    else:
        check_batch(pairs, len(selection.training))
        note_problem_counts(selection.training, selection.validation)
        problem_sets = [selection.training, selection.validation, *selection.extra_sets.values()]

    if not is_on_device(task):
        check_references(cell, task, problem_sets, refuse=is_new_run)
    for problems in problem_sets:
        if not is_on_device(task):
            task.check_problems(problems)
        elif problems:
            tokenize(task, cell.sampling, problems)  # for its InputError: one does not fit


def check_text_settings(cell: CellConfig, folder: Path) -> None:
    """Warn of labels made with other settings, and refuse a verifier that has changed meanwhile.

    InputError only where the sweep in the folder has recorded an evaluation. Before, the verifier
    may be mended: nothing was judged by the old one but problems, which are then chosen once more
    (`SweepSetup.prepare`).
    """
    warn_of_other_labels(cell)
    if has_evaluations(folder):
        check_verifier_files(folder / BASE_FOLDER, cell.verifier.use)


def has_evaluations(folder: Path) -> bool:
    """Whether a run of the sweep in this folder has recorded an evaluation.

    That is a line after the header of its ledger.
    """
    ledgers = paths_below(folder / "cells", RECORDS_FILE)
    return any(path.read_bytes().count(b"\n") > 1 for path in ledgers)


def note_problem_counts(training: Sequence[Problem], validation: Sequence[Problem]) -> None:
    if multiprocess.is_primary():
        note(
            f"{len(training):,} problems train, {len(validation):,} validate (cell.data.validation)"
        )


def check_precision(precision: PrecisionConfig, mesh_shape: MeshShape, backend: str) -> None:
    """InputError for bfloat16 on a CPU's mesh with several devices on `sequence` or `fsdp`.

    XLA:CPU would abort: it cannot compile all bfloat16 sums over devices of these axes. backend:
    "cpu", "gpu" or "tpu".
    """
    if backend != "cpu" or precision.compute != "bfloat16":
        return
    sizes = {"sequence": mesh_shape.sequence, "fsdp": mesh_shape.fsdp}
    axis = max(sizes, key=sizes.__getitem__)
    if sizes[axis] > 1:
        raise InputError(
            where=f"cell.precision.compute=bfloat16 on a mesh with {axis}={sizes[axis]}",
            found="a CPU cannot train so",
            expected=f"float32 (or auto, which is float32 on a CPU), or a mesh without {axis}",
        )


def check_data(data: DataConfig) -> None:
    """InputError where no training and validation set can be made of these numbers.

    Problem sets that are held out or mixed from several sources have no such bound.
    """
    low, high = data.difficulty
    if low > high:
        raise InputError(
            where="cell.data.difficulty",
            found=f"given [{low}, {high}]",
            expected="the lower end first",
        )
    if data.candidates < 2 * data.validation and not (data.held_out or data.mixture):
        raise InputError(
            where="cell.data.candidates",
            found=f"given {data.candidates} and cell.data.validation = {data.validation}",
            expected="at least twice as many candidates as are held out",
        )


def check_batch(pairs: list[tuple[int, int]], problems: int) -> None:
    """InputError where a batch takes more problems than there are, or can be, to train on.

    pairs: every (B_p, n) of the sweep. problems: how many there are at most; may be negative where
    more are held out than there are.
    """
    B_p = max(B_p for B_p, _ in pairs)
    if B_p > problems:
        raise InputError(
            where="sweep.B_p",
            found=(
                f"holds {B_p}, and the training set has {max(problems, 0)} problems, of which "
                "a batch takes each once"
            ),
            fix=(
                "Lower B_p or cell.data.validation, or raise cell.data.candidates or "
                "cell.data.size."
            ),
        )
