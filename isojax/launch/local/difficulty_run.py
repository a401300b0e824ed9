"""`isojax difficulty`: label problems by the base model's avg@k (`labels.jsonl`, appended to;
`labels.csv`), show some responses (`samples.txt`), draw the histogram (the paper's Fig. 2), and
write `splits/`, a TFDS data set to train on. Its parts are by the base model's avg@16 (the paper's
section 3, Fig. 14): very_easy (.6, .9], easy [.3, .6], hard [0, .0625]; extremely_hard 0 of 128."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from scipy.stats import norm

from isojax.core.atomic_files import write_text
from isojax.core.config import CellConfig, Config, DataConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.core.terminal import warn
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.launch.display import print_line
from isojax.launch.local.label_samples import SAMPLES_FILE, LabelSamples
from isojax.launch.local.setup import open_task, print_warnings, resolve_config, start_jax
from isojax.launch.planner import resolve_sweep_sizes
from isojax.launch.prompt_date import describe_date, store_date, with_new_date
from isojax.models.attention_autotune import select_attention
from isojax.models.safetensors_io import fingerprint
from isojax.models.transformer import Params
from isojax.report.figures.difficulty_histogram import UNUSED, draw_difficulty
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
DIFFICULTY_RANGES = {"very_easy": (0.6, 0.9), "easy": (0.3, 0.6), "hard": (0.0, 0.0625)}
EXTREMELY_HARD = "extremely_hard"
EXTREMELY_HARD_ATTEMPTS = 128


def label_difficulty(
    config: Config,
    folder: Path,
    held_out: int,
    extremely_hard: bool,
    on_progress: ProgressCallback,
    server: ServerOptions | None = None,
) -> dict[str, list[Problem]]:
    """Label at most `cell.data.candidates` problems, and write all that the module says; returns
    the splits. `held_out` problems of each part are for validation; `extremely_hard` samples
    unsolved ones 128 times. InputError, before any work, where the problems, the model or the
    folder cannot be used. `server`: who samples, instead of isojax; RunFailed where it does not
    answer: the next call goes on."""
    engine = None if server is None else name_engine(server)
    config = _prepare(config, folder, engine)
    cell = config.cell
    with open_task(config) as task, exclusive_lock(folder):
        print_warnings(task)
        store_date(cell, folder)
        if not is_on_device(task):
            task.start_verifier().on_failure = lambda kind, what_happened: warn(
                f"verifier {kind}, each of reward 0; the first: {what_happened}"
            )
        labels = Labels(config, task, folder, engine)
        label_subset = (
            labels.by_model(on_progress)
            if server is None
            else labels.by_server(server, on_progress)
        )
        labelled, unsolved = _label_problems(cell, labels, label_subset, extremely_hard)
    splits = split_into_parts(labelled, unsolved, held_out, cell.data.seed)
    write_text(folder / TABLE_FILE, _labels_csv(labelled))
    ranges = DIFFICULTY_RANGES | ({EXTREMELY_HARD: (0.0, 0.0)} if extremely_hard else {})
    unsolved_ids = {p.id for p in unsolved}
    labels = [(p.solved, p.attempts, EXTREMELY_HARD) for p in unsolved]
    labels += [
        (p.solved, p.attempts, difficulty_part(p) or UNUSED)
        for p in labelled
        if p.id not in unsolved_ids
    ]
    draw_difficulty(labels, ranges, folder)
    write_dataset(folder / SPLITS_FOLDER, splits, describe_label_settings(cell, engine))
    return splits


def print_labelling_plan(config: Config, folder: Path, server: ServerOptions | None = None) -> None:
    """What `label_difficulty` would do, and what is doubtful of it; InputError where it would
    refuse. Nothing is written or sampled."""
    engine = None if server is None else name_engine(server)
    config = _prepare(config, folder, engine)
    cell = config.cell
    with open_task(config) as task:
        problems = _read_problems(cell, task, folder)
        rollouts = len(problems) * cell.data.attempts
        print_line(
            f"{len(problems):,} problems by avg@{cell.data.attempts}, {rollouts:,} rollouts: labels in {folder}"
        )
        if engine is not None:
            print_line(f"sampled by {describe_engine(engine)}")
        if date_line := describe_date(cell):
            print_line(date_line)
        print_warnings(task)


def name_engine(server: ServerOptions) -> dict[str, str]:
    """What is recorded of the server that samples: its URL is not, which another day may be another
    one."""
    served = detect(JsonClient(server))
    return {"server": served.project, "model": served.model}


def _prepare(config: Config, folder: Path, engine: Mapping[str, str] | None) -> Config:
    """The config with all that labels depend on; InputError where model or folder cannot be
    used."""
    start_jax(config)
    config = resolve_config(config, reads_weights=engine is None)
    attempts = config.cell.data.attempts or DataConfig().attempts
    config = config.with_settings(cell={"data": {"attempts": attempts}})
    if not config.cell.model.path:
        problem = "cell.model.path is not set: `isojax difficulty` labels problems in text with a language model"
        raise InputError(
            f"{problem}. The task {config.cell.task} labels its own problems when it is launched."
        )
    config = with_new_date(config, folder)
    if (folder / SPLITS_FOLDER).exists():
        raise _labelled_already(folder / SPLITS_FOLDER, config.cell, engine)
    import_tfds()  # a missing package is reported before hours of labelling
    return config


def _labelled_already(
    splits_folder: Path, cell: CellConfig, engine: Mapping[str, str] | None
) -> InputError:
    """Says of the data set that is there whether its labels are those that were asked for."""
    old_labels = f"read them by cell.task=tfds:{splits_folder}#all"
    stored = read_label_settings(splits_folder)
    differences = (
        [*label_differences(stored, cell), *engine_difference(stored, engine)] if stored else []
    )
    for key, value in (("cell.task", cell.task), ("cell.data.attempts", cell.data.attempts)):
        before = stored.get(key.rpartition(".")[2], value)
        if before != value:
            differences.append(f"{key} = {before} (now {value})")
    if differences:
        problem = (
            f"{splits_folder} exists, and its labels are others than these: they were made with"
        )
        return InputError(
            f"{problem} {'; '.join(differences)}. Choose another folder by --out, or {old_labels}."
        )
    problem = f"{splits_folder} exists: its problems are labelled already"
    return InputError(
        f"{problem}. {old_labels[0].upper()}{old_labels[1:]}, or choose another folder by --out."
    )


def _read_problems(cell: CellConfig, task: Task, folder: Path) -> list[Problem]:
    """The problems to label; InputError where they cannot be read or graded."""
    candidates = task.problems(cell.data.candidates, np.random.default_rng([cell.data.seed, 0]))
    notes: list[str] = []
    problems = drop_long_prompts(cell, task, candidates, "problems", notes)
    for note in notes:
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
        self.config, self.task, self.folder, self.engine = config, task, folder, engine
        self.problems = _read_problems(config.cell, task, folder)
        if not (folder / LABELS_FILE).exists():
            (folder / SAMPLES_FILE).unlink(missing_ok=True)  # of other labels
        self.samples = LabelSamples(
            folder / SAMPLES_FILE, task, lambda problem: difficulty_part(problem) or UNUSED
        )

    def by_model(self, on_progress: ProgressCallback) -> LabelSubset:
        """isojax samples."""
        config, cell = self.config, self.config.cell
        devices = jax.local_devices()
        mesh_shape = parse_mesh(config.run.mesh, len(devices))
        mesh = make_mesh(mesh_shape, devices)
        # (problems, rollouts per problem) decoded at once, unless sweep.decode_slots and
        # sweep.prefill_batch say otherwise
        decode_shape = (8, 8) if jax.default_backend() == "cpu" else (16, 16)
        sweep = config.sweep.model_copy(
            update={
                "B_p": decode_shape[:1],
                "n": decode_shape[1:],
                "B_max": math.prod(decode_shape),
                "schedules": {},
            }
        )
        sweep = select_attention(cell, resolve_sweep_sizes(sweep, mesh_shape.shards, cell), mesh)
        programs = SweepPrograms(cell, sweep, [decode_shape], mesh, self.task)
        base_params = BasePolicy(self.folder, cell.model, [], [], {}).load_params(
            programs.decoder.base, programs.mesh
        )
        params = programs.initial_params(base_params)
        return self._label_subset(
            programs, params, fingerprint(Path(str(cell.model.path))), on_progress
        )

    def by_server(self, server: ServerOptions, on_progress: ProgressCallback) -> LabelSubset:
        """A server samples, and isojax grades."""
        cell = self.config.cell
        mesh = make_mesh(parse_mesh("data=1", 1), jax.local_devices()[:1])
        programs = ServerLabelling(cell, mesh, self.task, server)
        return self._label_subset(
            programs, {}, fingerprint_if_there(Path(str(cell.model.path))), on_progress
        )

    def _label_subset(
        self,
        programs: LabelPrograms,
        params: Params,
        checkpoint: str,
        on_progress: ProgressCallback,
    ) -> LabelSubset:
        programs.labeller.on_counts = self.samples.add
        label_key = compute_label_key(self.config.cell, checkpoint, self.problems, self.engine)

        def label_subset(file_name: str, subset: list[Problem], attempts: int) -> list[Problem]:
            path = self.folder / file_name
            return label_problems(path, label_key, subset, attempts, programs, params, on_progress)

        return label_subset


def _label_problems(
    cell: CellConfig, labels: Labels, label_subset: LabelSubset, extremely_hard: bool
) -> tuple[list[Problem], list[Problem]]:
    """(the problems labelled by `attempts`; those unsolved in 128 attempts, labelled by these)."""
    labelled = label_subset(LABELS_FILE, labels.problems, cell.data.attempts)
    unsolved = [p for p in labelled if not p.solved]
    if not extremely_hard or not unsolved:
        return labelled, []
    labels.samples.part_of = lambda problem: None if problem.solved else EXTREMELY_HARD
    return labelled, [
        p
        for p in label_subset(EXTRA_LABELS_FILE, unsolved, EXTREMELY_HARD_ATTEMPTS)
        if not p.solved
    ]


def _labels_csv(labelled: list[Problem]) -> str:
    """One row per problem, with the 90% interval of its rate (Wilson's: of graded rewards it is too
    wide, as they vary less than right and wrong answers of the same mean)."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["id", "solved", "attempts", "avg", "low", "high", "part", "prompt"])
    for p in labelled:
        k, z = p.attempts, float(norm.ppf(0.95))
        centre = (p.difficulty + z**2 / (2 * k)) / (1 + z**2 / k)
        half_width = (
            z
            / (1 + z**2 / k)
            * math.sqrt(p.difficulty * (1 - p.difficulty) / k + (z / (2 * k)) ** 2)
        )
        rates = (p.difficulty, max(0.0, centre - half_width), min(1.0, centre + half_width))
        part = difficulty_part(p) or ""
        writer.writerow(
            [p.id, p.solved, p.attempts, *(f"{rate:.4f}" for rate in rates), part, p.prompt]
        )
    return buffer.getvalue()


def difficulty_part(problem: Problem) -> str | None:
    """The part of a labelled problem; a share on the border of two belongs to the harder one."""
    matching_parts = [
        name for name, (low, high) in DIFFICULTY_RANGES.items() if low <= problem.difficulty <= high
    ]
    return matching_parts[-1] if matching_parts else None


def split_into_parts(
    labelled_problems: Sequence[Problem],
    unsolved_problems: Sequence[Problem],
    held_out: int,
    seed: int,
) -> dict[str, list[Problem]]:
    """The splits of a difficulty data set: `all`, and PART_train and PART_validation of each part
    that has problems. At most `held_out` problems, and at most half, are held out; no part trains
    on what another holds out."""
    order = np.random.default_rng([seed, 5]).permutation(len(labelled_problems))
    rank_by_id = {labelled_problems[j].id: rank for rank, j in enumerate(order)}
    problems_by_part = {
        name: [p for p in labelled_problems if difficulty_part(p) == name]
        for name in DIFFICULTY_RANGES
    }
    problems_by_part[EXTREMELY_HARD] = list(unsolved_problems)
    splits: dict[str, list[Problem]] = {"all": list(labelled_problems)}
    for part, problems in problems_by_part.items():
        ranked = sorted(problems, key=lambda p: rank_by_id[p.id])
        reserved = min(held_out, len(ranked) // 2)
        splits |= {f"{part}_train": ranked[reserved:], f"{part}_validation": ranked[:reserved]}
    for part, other_part in (("hard", EXTREMELY_HARD), (EXTREMELY_HARD, "hard")):
        reserved_ids = {p.id for p in splits[f"{other_part}_validation"]}
        splits[f"{part}_train"] = [p for p in splits[f"{part}_train"] if p.id not in reserved_ids]
    return {name: problems for name, problems in splits.items() if problems}
