"""The base policy and its problems, labelled by avg@k, made once per sweep and kept in `base/`.

A checkpoint (`cell.model.path`) is read from its own folder. A task with demonstrations gets a
policy trained on them, `params.safetensors`. `problems.jsonl` holds the chosen problems with their
split; it is written last, in one step. `about.json` has the checksums of both, which are compared
whenever the folder is read."""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from isojax.core.atomic_files import append_bytes, read_file, write_bytes, write_text
from isojax.core.config import PANEL, CellConfig, ModelConfig, RewardConfig, load_config
from isojax.core.errors import InputError
from isojax.core.mirrored_folders import MIRRORED_FOLDERS
from isojax.core.nouns import Problem
from isojax.core.start_file import LABELS_FOLDER, describe_warning, write_start_report
from isojax.core.table_files import parse_json
from isojax.core.terminal import warn
from isojax.distributed import multiprocess
from isojax.models import safetensors_io
from isojax.models.hf import hf_load
from isojax.models.transformer import Decoder, Params
from isojax.sampling.batch import LABEL_STREAM
from isojax.tasks.device_tasks import build_device_task
from isojax.tasks.problem_selection import ProblemSelection, best_constant, select_problems
from isojax.tasks.protocol import TokenizedProblems
from isojax.tasks.task import Task, is_on_device
from isojax.tasks.verifiers import verifier_files
from isojax.train.checkpoint import CHECKSUM_KEY, json_checksum
from isojax.train.demonstrations import train_base_policy
from isojax.train.evaluate import VALIDATION_SET, EvalCounts, Evaluator
from isojax.train.outputs import ProgressCallback
from isojax.train.programs import SweepPrograms
from isojax.train.start_check import check_start, doubts_of_task
from isojax.train.verifier_copies import keep_verifier_files

# In the folder of a base policy
PARAMS_FILE = "params.safetensors"
ABOUT_FILE = "about.json"
PROBLEMS_FILE = "problems.jsonl"
LABELS_FILE = "labels.jsonl"
EXTRA_PREFIX = "extra/"  # of the splits that are further sets of evaluation problems


@dataclass(frozen=True)
class BasePolicy:
    """The base policy, in `folder` or in the checkpoint `model.path`, and the problems of the
    sweep."""

    folder: Path  # `base/` of the sweep, such as runs/NAME/base
    model: ModelConfig  # its `path` is None where the policy is in PARAMS_FILE of the folder
    training: list[Problem]
    validation: list[Problem]
    extra_sets: dict[str, list[Problem]]  # further sets of evaluation problems, by their names

    def load_params(self, decoder: Decoder, mesh: Mesh) -> Params:
        """Its parameters, sharded over the mesh; InputError where they cannot be read, or do not
        fit the decoder."""
        if self.model.path:
            return hf_load.load(Path(self.model.path), self.model, decoder, mesh)
        try:
            flat = load_file(self.folder / PARAMS_FILE)
        except (OSError, ValueError, SafetensorError) as e:
            raise _unreadable(self.folder, e) from e
        return jax.device_put(unflatten_dict(flat, sep="."), decoder.shardings(mesh))


def _unreadable(folder: Path, error: Exception) -> InputError:
    return InputError(
        where=f"the base policy in {folder}",
        found=f"cannot be read ({error!r})",
        fix="Remove the folder: it is made again.",
    )


def _damaged(folder: Path, name: str) -> InputError:
    return InputError(
        found=f"{folder / name} is damaged: its checksum is not that of what was saved",
        fix=(
            f"Put back a copy of it; or remove {folder}, which is made again, and the cells that "
            "began from it."
        ),
    )


class LabelPrograms(Protocol):
    """What labels are made with: `SweepPrograms`, or a server (train/server_labels.py)."""

    @property
    def cell_config(self) -> CellConfig: ...

    @property
    def task(self) -> Task: ...

    @property
    def decoder(self) -> Decoder: ...

    @property
    def labeller(self) -> Evaluator: ...

    def tokenize(self, problems: list[Problem]) -> TokenizedProblems: ...


def compute_label_key(
    cell: CellConfig,
    fingerprint: str,
    problems: Sequence[Problem],
    engine: Mapping[str, str] | None = None,
) -> str:
    """16 hex digits that name what labels depend on.

    That is: the policy, the problems, and how rollouts are made and judged. Labels are used again
    only under an equal key, so a change of this function makes all labels that users have useless.

    fingerprint: `safetensors_io.fingerprint` of the checkpoint; "" without one.
    engine: the server that samples, such as {"server": "vllm", "model": "Qwen/Qwen3-8B"}; None:
        isojax's own sampler.
    """
    # Each setting that came later than labels is left out where it has the value that it had before
    # it was there, so that old labels keep their key. LoRA is left out in any case: new adapters
    # change nothing, so that the base policy is the same with it.
    unset = {"lora"} if cell.model.options is not None else {"lora", "options"}
    key_data: dict[str, Any] = cell.model_dump(
        mode="json",
        include={"task", "model", "base", "prompt", "verifier", "sampling"},
        exclude={"model": unset, "prompt": {"date"}},
    )
    if cell.prompt.date is not None:
        key_data["date"] = cell.prompt.date
    if cell.reward != RewardConfig():
        key_data["reward"] = cell.reward.model_dump(mode="json")

    key_data["seed"] = cell.data.seed
    key_data["checkpoint"] = fingerprint
    if cell.model.path:
        key_data["text_files"] = text_fingerprint(cell.model)
    key_data["problems"] = [_label_key_row(problem) for problem in problems]
    if engine is not None:
        key_data["engine"] = dict(engine)
    if build_device_task(cell.task) is None:  # no task that verifies on device: a verifier judges
        files = verifier_files(cell.verifier.use)
        if files:
            key_data["verifier_files"] = [
                hashlib.sha256(read_file(file)).hexdigest() for file in files
            ]

    text = json.dumps(key_data, sort_keys=True, default=dict)  # of mappings that are no dicts
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _label_key_row(problem: Problem) -> list[Any]:
    """What the key of labels holds of a problem."""
    row = [problem.id, problem.prompt, problem.answer, list(problem.messages)]
    return [*row, problem.columns] if problem.columns else row


def label_problems(
    path: Path,
    label_key: str,
    problems: list[Problem],
    attempts: int,
    programs: LabelPrograms,
    params: Params,
    on_progress: ProgressCallback,
    replaces_others: bool = False,
) -> list[Problem]:
    """The same problems in their order, with `solved` and `attempts` as the base policy has them.

    `solved` is the sum of a problem's rewards over its rollouts. The draws of a rollout belong to
    its problem, so it does not matter which problems were labelled before it.

    path: the file of labels (LABELS_FILE); those in it are not made again.
    label_key: by `compute_label_key`. Where the file has another one, its labels are all made again
        if `replaces_others`; else that is an InputError.
    attempts: the least number of rollouts of a problem. It is rounded up to a multiple of the
        labeller's `samples_per_problem`, and the problems returned have the rounded number.
    params: all of the policy's, on the programs' mesh.

    Raises:
        InputError: a line of the file is damaged, or of another number of attempts.
        DeadStart: no run can learn from what the first labels show; none of them is saved.
    """
    evaluator = programs.labeller
    evaluator.compile()
    problem_set = programs.tokenize(problems)
    seed = programs.cell_config.data.seed
    repeats = -(-attempts // evaluator.samples_per_problem)
    attempts = repeats * evaluator.samples_per_problem

    # What the file has already; process 0 reads it for all.
    solved_by_id = multiprocess.run_on_primary(
        lambda: read_labels(path, label_key, attempts, replaces_others), dict[int, int | float]
    )
    unlabelled = [i for i, problem in enumerate(problems) if problem.id not in solved_by_id]
    # One call of the sampler at a time, whose labels are saved before the next one.
    for start in range(0, len(unlabelled), evaluator.problems_per_call):
        num_labelled = len(problems) - (len(unlabelled) - start)
        on_progress(
            f"labelled {num_labelled:,} of {len(problems):,} problems by avg@{attempts}",
            num_labelled / len(problems),
        )
        block = unlabelled[start : start + evaluator.problems_per_call]
        counts = evaluator.evaluate(
            params,
            problem_set.select(block),
            seed,
            evaluation=0,
            repeats=repeats,
            random_stream=LABEL_STREAM,
        )

        # Only after the first call: what cannot be labelled is refused at once, and nothing is
        # saved of it.
        if not solved_by_id:
            check_first_labels(path.parent, counts, programs, params)
        reward_sums = counts.reward_sums.tolist()
        newly_solved = {
            problems[i].id: solved for i, solved in zip(block, reward_sums, strict=True)
        }
        solved_by_id |= newly_solved
        if multiprocess.is_primary():
            append_labels(path, label_key, newly_solved, attempts)

    return [
        replace(problem, solved=solved_by_id[problem.id], attempts=attempts) for problem in problems
    ]


def append_labels(
    path: Path, label_key: str, solved_by_id: Mapping[int, float], attempts: int
) -> None:
    """Add labels to a file; a new one begins with the key of the settings that they belong to.

    Labels of other settings are not in it: `read_labels` has removed them. A file is the line
    {"key": "0123456789abcdef"}, and one {"id": 7, "solved": 3, "attempts": 8, "checksum": ...} for
    each problem.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists() or not path.stat().st_size
    lines = [json.dumps({"key": label_key})] if is_new else []
    for i, solved in solved_by_id.items():
        row = {"id": i, "solved": solved, "attempts": attempts}
        lines.append(json.dumps(row | {CHECKSUM_KEY: json_checksum(row)}))
    append_bytes(path, "".join(line + "\n" for line in lines).encode())


def check_first_labels(
    folder: Path, counts: EvalCounts, programs: LabelPrograms, params: Params
) -> None:
    """Warn of what the first labels make doubtful, and keep it in `folder`.

    `counts` are of the first problems that were labelled. DeadStart where no run can learn from
    what they show.
    """
    config, task, decoder = programs.cell_config, programs.task, programs.decoder
    report = check_start({VALIDATION_SET: counts}, config, task, decoder, params)
    if multiprocess.is_primary():
        write_start_report(folder, report)
        # The plan has shown the task's doubts, which come first (`check_start`).
        for warning in report.warnings[len(doubts_of_task(task)) :]:
            # This name makes it "of the first labels: ...", and not of a run.
            warn(describe_warning(LABELS_FOLDER, warning.text))


def read_labels(
    path: Path, label_key: str, attempts: int, replaces_others: bool
) -> dict[int, float]:
    """Sums of rewards by problem id, as a file of labels has them; {} where it has none.

    The file is changed: a last line that a kill tore is cut off, and a file with another key than
    `label_key` is removed if `replaces_others`. InputError for another key otherwise, for a damaged
    line, and for a label of another number of attempts.
    """
    data = read_file(path) if path.exists() else b""
    complete, newline, torn = data.rpartition(b"\n")
    if torn:
        os.truncate(path, len(complete) + len(newline))

    lines = complete.splitlines()
    if not lines:
        return {}
    if lines[0] != json.dumps({"key": label_key}).encode():
        if not replaces_others:
            raise InputError(
                where=path,
                found=f"holds labels of other settings or problems than {label_key}",
                fix="Remove it.",
            )
        warn(f"the labels in {path} are of other settings or problems; they are made again")
        path.unlink()
        return {}

    solved_by_id: dict[int, float] = {}
    for line_number, line in enumerate(lines[1:], 2):  # the key is line 1
        label = _read_label(line, path, line_number)
        if label.attempts != attempts:
            raise InputError(
                where=f"{path}, line {line_number}",
                found=f"labelled by avg@{label.attempts}",
                expected=f"avg@{attempts}",
                fix="Remove it.",
            )
        solved_by_id[label.problem_id] = label.solved
    return solved_by_id


class _Label(NamedTuple):
    problem_id: int
    solved: float  # the sum of the rewards of the attempts
    attempts: int


def _read_label(line: bytes, path: Path, line_number: int) -> _Label:
    """A line of a file of labels; InputError where it is no label, or not the one that was saved.

    `path` and `line_number` are for the message.
    """
    row = parse_json(line.decode(errors="replace"), path, line_number)
    try:
        if row.pop(CHECKSUM_KEY) != json_checksum(row):
            raise ValueError("its checksum is not that of what was saved")
        label = _Label(row["id"], row["solved"], row["attempts"])
        # `type`, because True is an int too; the reward of an attempt is at most 1.
        if type(label.problem_id) is not int or not 0 <= label.solved <= label.attempts:
            raise ValueError(f"id is {label.problem_id}, solved {label.solved} of {label.attempts}")
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise InputError(
            where=f"{path}, line {line_number}",
            found=f"no label ({e!r})",
            fix="Remove the file, and the problems are labelled again.",
        ) from e
    return label


def prepare_base_policy(
    folder: Path, programs: SweepPrograms, on_progress: ProgressCallback, source: Path | None = None
) -> BasePolicy:
    """The base policy of a sweep and its problems, read from `folder`, or made there.

    folder: `base/` of the sweep.
    on_progress: called with a text and the fraction done, while a policy is trained or problems are
        labelled.
    source: `base/` of another sweep (`run.base_from`), whose parameters and labels are copied if
        its settings are the same; else they are made, with a warning.

    InputError for too few problems of the wanted difficulty, another checkpoint, or a damaged
    folder. All processes call it; process 0 writes.
    """
    cell = programs.cell_config
    fingerprint = safetensors_io.fingerprint(Path(cell.model.path)) if cell.model.path else ""

    # The file of the problems is written last: where it is, all is there.
    if not multiprocess.run_on_primary((folder / PROBLEMS_FILE).exists, bool):
        folder.mkdir(parents=True, exist_ok=True)
        if source is not None and multiprocess.is_primary():
            _copy_base_policy(source, folder, cell, fingerprint)
        _train_where_needed(folder, programs, on_progress)
        _choose_problems(folder, programs, fingerprint, on_progress)
    return load_base_policy(folder, cell, fingerprint, text_fingerprint(cell.model))


def _train_where_needed(
    folder: Path, programs: SweepPrograms, on_progress: ProgressCallback
) -> None:
    """Makes the base policy of a task with demonstrations, unless there is one.

    The tasks that verify on device are those that have demonstrations. Process 0 trains, on its
    host, and the other processes wait until the file is there.
    """
    cell, task = programs.cell_config, programs.task
    has_params = cell.model.path or (folder / PARAMS_FILE).exists()
    if is_on_device(task) and not has_params and multiprocess.is_primary():
        params = train_base_policy(cell, programs.decoder.base, task, on_progress)
        flat = flatten_dict(params, sep=".")
        write_bytes(
            folder / PARAMS_FILE,
            save({name: np.ascontiguousarray(x) for name, x in flat.items()}),
        )
    multiprocess.barrier("the base policy is there")
    MIRRORED_FOLDERS.fetch_below(folder)


def _choose_problems(
    folder: Path, programs: SweepPrograms, fingerprint: str, on_progress: ProgressCallback
) -> None:
    """Labels the task's problems where the config asks for a difficulty, and saves those that are
    chosen. `fingerprint`: of the checkpoint; "" without one."""
    cell, task = programs.cell_config, programs.task

    # `select_problems` calls it only if it needs labels, and at most once: they are one file. A
    # BasePolicy without problems is enough to load the parameters from the folder.
    def label(problems: list[Problem]) -> list[Problem]:
        base_policy = BasePolicy(folder, cell.model, [], [], {})
        base_params = base_policy.load_params(programs.decoder.base, programs.mesh)
        return label_problems(
            folder / LABELS_FILE,
            compute_label_key(cell, fingerprint, problems),
            problems,
            cell.data.attempts,
            programs,
            programs.initial_params(base_params),
            on_progress,
            replaces_others=True,
        )

    selection = select_problems(cell, task, label)
    if multiprocess.is_primary():
        for note in selection.notes:
            warn(note)
        host_verifies = not is_on_device(task)
        if host_verifies:
            keep_verifier_files(folder, cell.verifier.use)
        # The reward of a constant answer is the share of problems that have it; graded rewards are
        # no such shares.
        with_constant = host_verifies and cell.reward.kind == "binary"
        _save_problems(folder, cell.model, selection, fingerprint, with_constant)
    multiprocess.barrier("the problems are chosen")
    MIRRORED_FOLDERS.fetch_below(folder)


def _save_problems(
    folder: Path,
    model: ModelConfig,
    selection: ProblemSelection,
    fingerprint: str,
    with_constant: bool,
) -> None:
    """Writes PROBLEMS_FILE, and in ABOUT_FILE what the base policy was made with, and checksums.

    A line of PROBLEMS_FILE is a Problem as a JSON object with its "split": "training",
    "validation", "left out" (of another difficulty than the one wanted) or "extra/NAME".

    with_constant: ABOUT_FILE also gets "best_constant", such as {"answer": "2", "reward": 0.07}:
        the one answer that is right most often in the validation set.
    """
    constant = None
    # (answer, reward), or None where an answer is not known
    constant_answer = best_constant(selection.validation) if with_constant else None
    if constant_answer:
        constant = dict(zip(("answer", "reward"), constant_answer, strict=True))
    # where `isojax model import` took the checkpoint from; None of one that it did not import
    source = hf_load.read_source(Path(model.path)) if model.path else None

    problems_by_split = {
        "training": selection.training,
        "validation": selection.validation,
        "left out": selection.out_of_range,
    }
    for name, problems in selection.extra_sets.items():
        problems_by_split[f"{EXTRA_PREFIX}{name}"] = problems
    lines = [
        json.dumps(_problem_row(problem, split)) + "\n"
        for split, problems in problems_by_split.items()
        for problem in problems
    ]
    problems_text = "".join(lines)

    checksums = {PROBLEMS_FILE: crc32(problems_text.encode())}
    if (folder / PARAMS_FILE).exists():
        checksums[PARAMS_FILE] = crc32(read_file(folder / PARAMS_FILE))
    about = {
        "checkpoint": fingerprint,
        "text_files": text_fingerprint(model),
        "source": source,
        "notes": selection.notes,
        "best_constant": constant,
        "checksums": checksums,
    }
    # The problems last: `prepare_base_policy` takes a folder that has them for complete.
    about_text = json.dumps(about | {CHECKSUM_KEY: json_checksum(about)}, indent=1)
    write_text(folder / ABOUT_FILE, about_text + "\n")
    write_text(folder / PROBLEMS_FILE, problems_text)


def _problem_row(problem: Problem, split: str) -> dict[str, object]:
    row: dict[str, object] = asdict(problem)
    del row["location"]  # for messages about the user's file, before a run
    return row | {"split": split}


def _copy_base_policy(source: Path, folder: Path, cell: CellConfig, fingerprint: str) -> None:
    """Copy another sweep's base policy and labels; a warning where they are damaged or of other
    settings.

    source, folder: `base/` of the other sweep, and of this one. Problems are not copied: they are
    chosen again, by the labels.
    """
    try:
        source_cell = load_config(str(source.parent / "config.yaml")).cell
        if source_cell.model_copy(update={"rl": cell.rl, "eval": cell.eval}) != cell:
            raise InputError(
                where=source,
                found="has other settings of cell.*, not only of cell.rl and cell.eval",
            )
        load_base_policy(source, cell, fingerprint)  # for its checks alone

        # With other numbers of samples, labels would be of other draws: the evaluator may be what
        # labels (`SweepPrograms.labeller`).
        names = [PARAMS_FILE]
        if source_cell.eval.samples == cell.eval.samples:
            names.append(LABELS_FILE)
        for name in names:
            if (source / name).exists():
                write_bytes(folder / name, read_file(source / name))
    except InputError as e:
        warn(f"run.base_from: {e} This run makes a base policy and labels of its own.")


def text_fingerprint(model: ModelConfig) -> str:
    return safetensors_io.text_fingerprint(Path(model.path)) if model.path else ""


def load_base_policy(
    folder: Path, cell: CellConfig, fingerprint: str = "", text_files: str | None = None
) -> BasePolicy:
    """The base policy in `folder`, with its problems; its parameters are not read yet.

    fingerprint: of the checkpoint `cell.model.path`; "" where the policy has none.
    text_files: `text_fingerprint` of its tokenizer and chat template; None: any will do.

    InputError where the folder is damaged, or was made with another checkpoint or tokenizer.
    """
    base_folder = _read_folder(folder)
    if base_folder.checkpoint != fingerprint:
        raise InputError(
            where="cell.model.path",
            found=(
                f"{cell.model.path} is not the checkpoint that {folder} was made with: its "
                f"fingerprint is {fingerprint!r}"
            ),
            expected=repr(base_folder.checkpoint),
            fix="Put that one back, or choose another name=NAME for a new run.",
        )
    if text_files is not None and base_folder.text_files not in (None, text_files):
        raise InputError(
            where="cell.model.path",
            found=(
                f"tokenizer, chat template or generation_config.json in {cell.model.path} changed "
                f"since {folder} was made"
            ),
            fix="Put the old files back, or choose another name=NAME.",
        )

    problems_by_split = base_folder.problems_by_split
    extra_sets = {
        split.removeprefix(EXTRA_PREFIX): problems
        for split, problems in problems_by_split.items()
        if split.startswith(EXTRA_PREFIX)
    }
    return BasePolicy(
        folder,
        cell.model,
        training=problems_by_split["training"],
        validation=problems_by_split["validation"],
        extra_sets=extra_sets,
    )


class _BaseFolder(NamedTuple):
    """What is saved of a base policy, but its parameters."""

    checkpoint: str  # the fingerprint of the weights in `model.path`; "" of a policy without one
    text_files: str | None  # that of its tokenizer's files; None in folders of older versions
    # as `_save_problems` names the splits; [] of one that has no problem
    problems_by_split: defaultdict[str, list[Problem]]


def _read_folder(folder: Path) -> _BaseFolder:
    """What `_save_problems` wrote; InputError if a checksum is wrong or a file cannot be read."""
    problems_by_split: dict[str, list[Problem]] = defaultdict(list)
    try:
        about = json.loads(read_file(folder / ABOUT_FILE))
        if about.pop(CHECKSUM_KEY) != json_checksum(about):
            raise _damaged(folder, ABOUT_FILE)
        for name, checksum in about["checksums"].items():
            if crc32(read_file(folder / name)) != checksum:
                raise _damaged(folder, name)

        for line in read_file(folder / PROBLEMS_FILE).decode().splitlines():
            row = json.loads(line)
            split = row.pop("split")
            row["messages"] = tuple(row["messages"])
            problems_by_split[split].append(Problem(**row))
        return _BaseFolder(about["checkpoint"], about.get("text_files"), problems_by_split)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise _unreadable(folder, e) from e


def eval_problem_sets(base_policy: BasePolicy, config: CellConfig) -> dict[str, list[Problem]]:
    """By name: the validation set, the extra sets, then the panel, a random choice of the training
    problems.

    The order matters: a set's place decides its draws (`Evaluator.evaluate_sets`). The panel, if
    the config asks for one, has the name PANEL, and its problems in the order of training.
    """
    # 5 is the panel's stream of draws; 0 to 4 choose the problems (tasks/problem_selection.py).
    order = np.random.default_rng([config.data.seed, 5]).permutation(len(base_policy.training))
    panel = [base_policy.training[i] for i in sorted(order[: config.eval.panel])]
    problem_sets = {VALIDATION_SET: base_policy.validation, **base_policy.extra_sets}
    if panel:
        problem_sets[PANEL] = panel
    return problem_sets
