"""`isojax difficulty`: label problems by the base model's avg@k (`labels.jsonl`, appended to;
`labels.csv`), show some responses (`samples.txt`), draw the histogram (the paper's Fig. 2), and
write `splits/`, a TFDS data set of the parts of difficulty_parts.py to train on.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from isojax.core import preemption
from isojax.core.atomic_files import write_text
from isojax.core.config import CellConfig, Config, DataConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.core.terminal import warn
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.launch.display import print_line
from isojax.launch.local.difficulty_parts import (
    DIFFICULTY_RANGES,
    EXTREMELY_HARD,
    difficulty_part,
    labels_csv,
    split_into_parts,
)
from isojax.launch.local.label_samples import SAMPLES_FILE, LabelSamples
from isojax.launch.local.setup import open_task, print_warnings, resolve_config, start_jax
from isojax.launch.planner import resolve_sweep_sizes
from isojax.launch.prompt_date import describe_date, store_date, with_new_date
from isojax.models.attention_autotune import select_attention
from isojax.models.safetensors_io import fingerprint
from isojax.models.transformer import Params
from isojax.report.command_figures.difficulty_histogram import (
    UNUSED,
    DifficultyLabel,
    draw_difficulty,
)
from isojax.rl.servers.detect import detect
from isojax.rl.servers.http_json import JsonClient, ServerOptions
from isojax.runs.storage import exclusive_lock
from isojax.tasks.problem_selection import drop_long_prompts
from isojax.tasks.reference_check import check_references
from isojax.tasks.sources.tfds import import_tfds, write_dataset
from isojax.tasks.task import Task, is_on_device
from isojax.train.base_policy import BasePolicy, LabelPrograms, compute_label_key, label_problems
from isojax.train.label_settings import (
    describe_engine,
    describe_label_settings,
    engine_difference,
    label_differences,
    read_label_settings,
)
from isojax.train.outputs import ProgressCallback
from isojax.train.programs import SweepPrograms
from isojax.train.server_labels import ServerLabelling, fingerprint_if_there

LABELS_FILE = "labels.jsonl"
EXTRA_LABELS_FILE = "labels-128.jsonl"
TABLE_FILE = "labels.csv"
SPLITS_FOLDER = "splits"
EXTREMELY_HARD_ATTEMPTS = 128


def label_difficulty(
    config: Config,
    folder: Path,
    held_out: int,
    extremely_hard: bool,
    on_progress: ProgressCallback,
    server: ServerOptions | None = None,
) -> dict[str, list[Problem]]:
    """Label at most `cell.data.candidates` problems by avg@k, and write the files named above.

    folder: where they are written; labels that it has already are not sampled again. held_out: how
    many problems of each part are for validation at most. extremely_hard: whether problems that are
    not solved are sampled 128 times more. on_progress: called with a text and the fraction done.
    server: who samples, instead of isojax.

    Returns the splits: the problems by "all", "easy_train", "easy_validation" and so on, for each
    part that has some. InputError, before any work, where the problems, the model or the folder
    cannot be used; RunFailed where the server does not answer, and Preempted where the time limit
    of `config.run` is reached: the next call goes on.
    """
    engine = None if server is None else name_engine(server)
    config = _prepare(config, folder, engine)
    cell = config.cell
    with (
        open_task(config) as task,
        exclusive_lock(folder),
        preemption.end_after(config.run.time_limit_seconds),
    ):
        print_warnings(task)
        # A call that goes on tomorrow writes the same day into its prompts.
        store_date(cell, folder)
        # A task on the device has no verifier: the program that samples computes its rewards.
        if not is_on_device(task):
            task.start_verifier().on_failure = lambda kind, what_happened: warn(
                f"verifier {kind}, each of reward 0; the first: {what_happened}"
            )

        labels = Labels(config, task, folder, engine)
        # A function (file name, problems, attempts) that samples and returns the problems labelled.
        on_block = _ending_in_time(on_progress, folder)
        if server is None:
            label_subset = labels.by_model(on_block)
        else:
            label_subset = labels.by_server(server, on_block)
        labelled = label_subset(LABELS_FILE, labels.problems, cell.data.attempts)
        unsolved: list[Problem] = []
        if extremely_hard:
            unsolved = _sample_unsolved(labelled, labels, label_subset)

    splits = split_into_parts(labelled, unsolved, held_out, cell.data.seed)
    write_text(folder / TABLE_FILE, labels_csv(labelled))
    _draw_histogram(labelled, unsolved, extremely_hard, folder)
    write_dataset(folder / SPLITS_FOLDER, splits, describe_label_settings(cell, engine))
    return splits


def _ending_in_time(on_progress: ProgressCallback, folder: Path) -> ProgressCallback:
    """`on_progress`, which is called before each block of problems and ends the labelling there, by
    a Preempted, once the time limit is reached. All labels before that block are in `folder`."""

    def report(text: str, fraction: float) -> None:
        on_progress(text, fraction)
        if preemption.REQUESTED.is_set():
            raise preemption.Preempted(
                f"{folder} was asked to end ({preemption.describe_request()}); the labels made so"
                " far are in it."
            )

    return report


def _draw_histogram(
    labelled: Sequence[Problem], unsolved: Sequence[Problem], extremely_hard: bool, folder: Path
) -> None:
    """Draw the histogram, with each problem once.

    unsolved: those that are unsolved in 128 attempts too, drawn by these attempts as extremely
    hard instead of by their first ones. extremely_hard: whether there is such a part.
    """
    ranges = DIFFICULTY_RANGES | ({EXTREMELY_HARD: (0.0, 0.0)} if extremely_hard else {})
    unsolved_ids = {p.id for p in unsolved}
    labels = [DifficultyLabel(p.solved, p.attempts, EXTREMELY_HARD) for p in unsolved]
    for p in labelled:
        if p.id not in unsolved_ids:
            labels.append(DifficultyLabel(p.solved, p.attempts, difficulty_part(p) or UNUSED))
    draw_difficulty(labels, ranges, folder)


def print_labelling_plan(config: Config, folder: Path, server: ServerOptions | None = None) -> None:
    """Print what `label_difficulty` would do and what is doubtful of it; nothing is written.

    Nothing is sampled either. InputError where `label_difficulty` would refuse.
    """
    engine = None if server is None else name_engine(server)
    config = _prepare(config, folder, engine)
    cell = config.cell
    with open_task(config) as task:
        problems = _read_problems(cell, task, folder)
        rollouts = len(problems) * cell.data.attempts

        print_line(
            f"{len(problems):,} problems by avg@{cell.data.attempts}, {rollouts:,} rollouts: labels"
            f" in {folder}"
        )
        if engine is not None:
            print_line(f"sampled by {describe_engine(engine)}")
        date_line = describe_date(cell)
        if date_line:
            print_line(date_line)
        print_warnings(task)


def name_engine(server: ServerOptions) -> dict[str, str]:
    """What is recorded of the server that samples: {"server": "vllm", "model": NAME}.

    Its URL is not, as another server may be there another day.
    """
    served = detect(JsonClient(server))
    return {"server": served.project, "model": served.model}


def _prepare(config: Config, folder: Path, engine: Mapping[str, str] | None) -> Config:
    """The config with all that labels depend on: shape, attempts, precision and prompts' day.

    engine: what `name_engine` returns; None where isojax samples, for which the weights must be
    here. InputError where the model or the folder cannot be used.
    """
    start_jax(config)
    config = resolve_config(config, reads_weights=engine is None)
    attempts = config.cell.data.attempts or DataConfig().attempts
    config = config.with_settings(cell={"data": {"attempts": attempts}})
    if not config.cell.model.path:
        raise InputError(
            where="cell.model.path",
            found="not set: `isojax difficulty` labels problems in text with a language model",
            fix=f"The task {config.cell.task} labels its own problems when it is launched.",
        )

    config = with_new_date(config, folder)
    if (folder / SPLITS_FOLDER).exists():
        raise _labelled_already(folder / SPLITS_FOLDER, config.cell, engine)
    import_tfds()  # a missing package is reported before hours of labelling
    return config


def _labelled_already(
    splits_folder: Path, cell: CellConfig, engine: Mapping[str, str] | None
) -> InputError:
    """The error for a folder with splits: it says whether they are those that were asked for.

    engine: what `name_engine` returns; None where isojax would sample.
    """
    # Such as {"task": ..., "attempts": 16, "engine": ...}; {} where isojax has not written them.
    stored = read_label_settings(splits_folder)
    differences: list[str] = []  # each such as "cell.sampling.top_p = 1.0 (now 0.95)"
    if stored:
        differences += label_differences(stored, cell)
        differences += engine_difference(stored, engine)
    for key, value in (("cell.task", cell.task), ("cell.data.attempts", cell.data.attempts)):
        # Stored by the last part of the name alone; what is not stored counts as equal.
        stored_value = stored.get(key.rpartition(".")[2], value)
        if stored_value != value:
            differences.append(f"{key} = {stored_value} (now {value})")

    read_them = f"read them by cell.task=tfds:{splits_folder}#all"
    if differences:
        return InputError(
            where=splits_folder,
            found=(
                "exists, and its labels are others than these: they were made with "
                f"{'; '.join(differences)}"
            ),
            fix=f"Choose another folder by --out, or {read_them}.",
        )
    return InputError(
        where=splits_folder,
        found="exists, and its problems are labelled already",
        fix=f"{read_them[0].upper()}{read_them[1:]}, or choose another folder by --out.",
    )


def _read_problems(cell: CellConfig, task: Task, folder: Path) -> list[Problem]:
    """The problems to label: at most `cell.data.candidates`, without those whose prompts are long.

    InputError where they cannot be read or graded. In a folder that has labels, references that
    cannot be graded are a warning, so that a call can go on.
    """
    candidates = task.problems(cell.data.candidates, np.random.default_rng([cell.data.seed, 0]))
    fitting = drop_long_prompts(cell, task, candidates, description="problems")
    problems = fitting.problems
    for note in fitting.notes:  # how many were dropped
        warn(note)
    if not is_on_device(task):
        check_references(cell, task, [problems], refuse=not (folder / LABELS_FILE).exists())
        task.check_problems(problems)
    return problems


# (file name, problems, attempts) -> labelled
LabelSubset = Callable[[str, list[Problem], int], list[Problem]]


class Labels:
    """The problems to label in a folder, and who labels them."""

    def __init__(
        self, config: Config, task: Task, folder: Path, engine: Mapping[str, str] | None
    ) -> None:
        """engine: the server that samples, of `name_engine`; None: isojax does."""
        self.config = config
        self.task = task
        self.folder = folder
        self.engine = engine
        self.problems = _read_problems(config.cell, task, folder)
        if not (folder / LABELS_FILE).exists():
            (folder / SAMPLES_FILE).unlink(missing_ok=True)  # of other labels
        self.samples = LabelSamples(
            folder / SAMPLES_FILE, task, lambda problem: difficulty_part(problem) or UNUSED
        )

    def by_model(self, on_progress: ProgressCallback) -> LabelSubset:
        """The function that labels problems by rollouts that isojax samples here.

        It compiles on its first call. on_progress: called with a text and the fraction done.
        """
        config = self.config
        cell = config.cell
        devices = jax.local_devices()
        mesh_shape = parse_mesh(config.run.mesh, len(devices))
        mesh = make_mesh(mesh_shape, devices)

        # The programs are those of a sweep of one cell, of this B_p and n: so many problems, and
        # rollouts of each, are sampled at once, unless sweep.decode_slots and sweep.prefill_batch
        # say otherwise.
        problems, rollouts = (8, 8) if jax.default_backend() == "cpu" else (16, 16)
        sweep = config.sweep.model_copy(
            update={
                "B_p": (problems,),
                "n": (rollouts,),
                "B_max": problems * rollouts,
                "schedules": {},
            }
        )
        sweep = select_attention(cell, resolve_sweep_sizes(sweep, mesh_shape.shards, cell), mesh)
        programs = SweepPrograms(cell, sweep, [(problems, rollouts)], mesh, self.task)

        # Its folder and problems are not used to load parameters.
        model_only = BasePolicy(self.folder, cell.model, training=[], validation=[], extra_sets={})
        base_params = model_only.load_params(programs.decoder.base, programs.mesh)
        params = programs.initial_params(base_params)
        checkpoint = fingerprint(Path(str(cell.model.path)))
        return self._label_subset(programs, params, checkpoint, on_progress)

    def by_server(self, server: ServerOptions, on_progress: ProgressCallback) -> LabelSubset:
        """The function that labels problems by a server's rollouts, which isojax grades.

        on_progress: called with a text and the fraction done.
        """
        cell = self.config.cell
        mesh = make_mesh(parse_mesh("data=1", 1), jax.local_devices()[:1])
        programs = ServerLabelling(cell, mesh, self.task, server)
        checkpoint = fingerprint_if_there(Path(str(cell.model.path)))
        return self._label_subset(programs, {}, checkpoint, on_progress)

    def _label_subset(
        self,
        programs: LabelPrograms,
        params: Params,
        checkpoint: str,
        on_progress: ProgressCallback,
    ) -> LabelSubset:
        """The function that labels problems with these programs.

        params: the policy's parameters; {} where a server has them. checkpoint: the fingerprint of
        the model's files, by which labels of another model are recognized.
        """
        programs.labeller.on_counts = self.samples.add  # called with each batch that is labelled
        # It names what labels depend on: those of another key are refused, not used.
        label_key = compute_label_key(self.config.cell, checkpoint, self.problems, self.engine)

        def label_subset(file_name: str, subset: list[Problem], attempts: int) -> list[Problem]:
            # file_name: in the folder, of labels done, to which new ones are added. attempts: at
            # least so many rollouts of each problem. Captured: label_key and all arguments above.
            path = self.folder / file_name
            return label_problems(path, label_key, subset, attempts, programs, params, on_progress)

        return label_subset


def _sample_unsolved(
    labelled: Sequence[Problem], labels: Labels, label_subset: LabelSubset
) -> list[Problem]:
    """The problems that are not solved in 128 further attempts either, labelled by these.

    labelled: all problems, with their first attempts. label_subset: as `Labels.by_model` returns.
    """
    unsolved = [p for p in labelled if not p.solved]
    if not unsolved:
        return []
    # Those that are solved now were shown with the problems of their part.
    labels.samples.part_of = lambda problem: None if problem.solved else EXTREMELY_HARD
    again = label_subset(EXTRA_LABELS_FILE, unsolved, EXTREMELY_HARD_ATTEMPTS)
    return [p for p in again if not p.solved]
