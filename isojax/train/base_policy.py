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
from typing import Protocol
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
from isojax.core.nouns import Problem
from isojax.core.start_file import LABELS_FOLDER, describe_warning, write_start_report
from isojax.core.table_files import parse_json
from isojax.core.terminal import warn
from isojax.distributed import multiprocess
from isojax.models import safetensors_io
from isojax.models.hf import hf_load
from isojax.models.transformer import Decoder, Params
from isojax.sampling.batch import LABEL_STREAM
from isojax.tasks.problem_selection import ProblemSelection, best_constant, select_problems
from isojax.tasks.protocol import TokenizedProblems
from isojax.tasks.task import Task, build_device_task, is_on_device
from isojax.tasks.verifiers import verifier_files
from isojax.train.checkpoint import CHECKSUM_KEY, json_checksum
from isojax.train.demonstrations import train_base_policy
from isojax.train.evaluate import VALIDATION_SET, EvalCounts, Evaluator
from isojax.train.outputs import ProgressCallback
from isojax.train.programs import SweepPrograms
from isojax.train.start_check import check_start, doubts_of_task
from isojax.train.verifier_copies import keep_verifier_files

PARAMS_FILE, ABOUT_FILE = "params.safetensors", "about.json"
PROBLEMS_FILE, LABELS_FILE = "problems.jsonl", "labels.jsonl"
EXTRA_PREFIX = "extra/"


@dataclass(frozen=True)
class BasePolicy:
    """The base policy, in `folder` or in the checkpoint `model.path`, and the problems of the
    sweep."""

    folder: Path
    model: ModelConfig
    training: list[Problem]
    validation: list[Problem]
    extra_sets: dict[str, list[Problem]]

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
    problem = (
        f"{folder / name} is damaged: its checksum is not that of what was saved. Put back a copy "
        "of it"
    )
    return InputError(
        found=(
            f"{problem}; or remove {folder}, which is made again, and the cells that began from it"
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
    """16 hex digits that name what labels depend on: the policy, the problems, and how rollouts are
    made and judged. `engine`: the server that samples, and the name of its model; None: isojax's
    own sampler."""
    sections = {"task", "model", "base", "prompt", "verifier", "sampling"}
    # Settings that are later than labels count where they are set.
    unset = {"lora"} if cell.model.options is not None else {"lora", "options"}
    key_data = cell.model_dump(
        mode="json", include=sections, exclude={"model": unset, "prompt": {"date"}}
    ) | {
        **({} if cell.prompt.date is None else {"date": cell.prompt.date}),
        **(
            {} if cell.reward == RewardConfig() else {"reward": cell.reward.model_dump(mode="json")}
        ),
        "seed": cell.data.seed,
        "checkpoint": fingerprint,
        **({"text_files": text_fingerprint(cell.model)} if cell.model.path else {}),
        "problems": [
            [p.id, p.prompt, p.answer, list(p.messages), *filter(None, [p.columns])]
            for p in problems
        ],
        **({} if engine is None else {"engine": dict(engine)}),
    }
    if build_device_task(cell.task) is None and (files := verifier_files(cell.verifier.use)):
        key_data["verifier_files"] = [hashlib.sha256(read_file(file)).hexdigest() for file in files]
    return hashlib.sha256(json.dumps(key_data, sort_keys=True, default=dict).encode()).hexdigest()[
        :16
    ]


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
    """The problems with the base policy's sums of rewards over at least `attempts`, whose draws
    belong to their problem; `path` holds those done, and what it holds of other settings or
    problems is made again where `replaces_others`, else an InputError."""
    evaluator = programs.labeller
    problem_set = programs.tokenize(problems)
    seed = programs.cell_config.data.seed
    evaluator.compile()
    repeats = -(-attempts // evaluator.samples_per_problem)
    attempts = repeats * evaluator.samples_per_problem
    solved_by_id = multiprocess.run_on_primary(
        lambda: read_labels(path, label_key, attempts, replaces_others), dict[int, int | float]
    )
    unlabelled = [i for i, problem in enumerate(problems) if problem.id not in solved_by_id]
    for start in range(0, len(unlabelled), evaluator.problems_per_call):
        labelled = len(problems) - (len(unlabelled) - start)
        on_progress(
            f"labelled {labelled:,} of {len(problems):,} problems by avg@{attempts}",
            labelled / len(problems),
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
        # What cannot be labelled is refused at once, and nothing is saved of it.
        if not solved_by_id:
            check_first_labels(path.parent, counts, programs, params)
        newly_solved = {
            problems[i].id: solved
            for i, solved in zip(block, counts.reward_sums.tolist(), strict=True)
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
    Labels of other settings are not in it: `read_labels` has removed them."""
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
    """Warn of what the first labels make doubtful, and keep it in `folder`; DeadStart where no run
    can learn from what they show."""
    config, task, decoder = programs.cell_config, programs.task, programs.decoder
    report = check_start({VALIDATION_SET: counts}, config, task, decoder, params)
    if multiprocess.is_primary():
        write_start_report(folder, report)
        for warning in report.warnings[len(doubts_of_task(task)) :]:  # the first are shown already
            warn(describe_warning(LABELS_FOLDER, warning.text))


def read_labels(
    path: Path, label_key: str, attempts: int, replaces_others: bool
) -> dict[int, float]:
    """Sums of rewards by problem id; a torn last line is cut off. See `label_problems`."""
    data = read_file(path) if path.exists() else b""
    complete, newline, torn = data.rpartition(b"\n")
    if torn:
        os.truncate(path, len(complete) + len(newline))
    solved_by_id: dict[int, float] = {}
    lines = complete.splitlines()
    if lines and lines[0] != json.dumps({"key": label_key}).encode():
        if not replaces_others:
            raise InputError(
                where=path,
                found=f"holds labels of other settings or problems than {label_key}",
                fix="Remove it.",
            )
        warn(f"the labels in {path} are of other settings or problems; they are made again")
        path.unlink()
        return solved_by_id
    for line_number, line in enumerate(lines[1:], 2):
        row = parse_json(line.decode(errors="replace"), path, line_number)
        try:
            if row.pop(CHECKSUM_KEY) != json_checksum(row):
                raise ValueError("its checksum is not that of what was saved")
            problem_id = row["id"]
            solved = row["solved"]
            stored_attempts = row["attempts"]
            if type(problem_id) is not int or not 0 <= solved <= stored_attempts:
                raise ValueError(f"id is {problem_id}, solved {solved} of {stored_attempts}")
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise InputError(
                where=f"{path}, line {line_number}",
                found=f"no label ({e!r})",
                fix="Remove the file, and the problems are labelled again.",
            ) from e
        if stored_attempts != attempts:
            raise InputError(
                where=f"{path}, line {line_number}",
                found=f"labelled by avg@{stored_attempts}",
                expected=f"avg@{attempts}",
                fix="Remove it.",
            )
        solved_by_id[problem_id] = solved
    return solved_by_id


def prepare_base_policy(
    folder: Path, programs: SweepPrograms, on_progress: ProgressCallback, source: Path | None = None
) -> BasePolicy:
    """The base policy of a sweep and its problems: read from `folder`, or made there with what
    `source` has of the same settings. InputError for too few problems of the wanted difficulty,
    another checkpoint, or a damaged folder."""
    cell, task = programs.cell_config, programs.task
    fingerprint = safetensors_io.fingerprint(Path(cell.model.path)) if cell.model.path else ""
    if not multiprocess.run_on_primary((folder / PROBLEMS_FILE).exists, bool):
        folder.mkdir(parents=True, exist_ok=True)
        if source is not None and multiprocess.is_primary():
            _copy_base_policy(source, folder, cell, fingerprint)
        has_params = cell.model.path or (folder / PARAMS_FILE).exists()
        if is_on_device(task) and not has_params and multiprocess.is_primary():
            params = flatten_dict(
                train_base_policy(cell, programs.decoder.base, task, on_progress), sep="."
            )
            write_bytes(
                folder / PARAMS_FILE,
                save({name: np.ascontiguousarray(x) for name, x in params.items()}),
            )
        multiprocess.barrier("the base policy is there")

        def label(problems: list[Problem]) -> list[Problem]:
            path = folder / LABELS_FILE
            key = compute_label_key(cell, fingerprint, problems)
            base_params = BasePolicy(folder, cell.model, [], [], {}).load_params(
                programs.decoder.base, programs.mesh
            )
            params, attempts = programs.initial_params(base_params), cell.data.attempts
            return label_problems(
                path, key, problems, attempts, programs, params, on_progress, replaces_others=True
            )

        selection = select_problems(cell, task, label)
        if multiprocess.is_primary():
            for note in selection.notes:
                warn(note)
            with_constant = not is_on_device(task) and cell.reward.kind == "binary"
            if not is_on_device(task):
                keep_verifier_files(folder, cell.verifier.use)
            _save_problems(folder, cell.model, selection, fingerprint, with_constant)
        multiprocess.barrier("the problems are chosen")
    return load_base_policy(folder, cell, fingerprint, text_fingerprint(cell.model))


def _save_problems(
    folder: Path,
    model: ModelConfig,
    selection: ProblemSelection,
    fingerprint: str,
    with_constant: bool,
) -> None:
    constant_answer = best_constant(selection.validation) if with_constant else None
    constant = (
        dict(zip(("answer", "reward"), constant_answer, strict=True)) if constant_answer else None
    )
    source = hf_load.read_source(Path(model.path)) if model.path else None
    problems_by_split = {
        "training": selection.training,
        "validation": selection.validation,
        "left out": selection.out_of_range,
        **{f"{EXTRA_PREFIX}{name}": problems for name, problems in selection.extra_sets.items()},
    }
    rows = [
        _problem_row(p, split) for split, problems in problems_by_split.items() for p in problems
    ]
    problems_text = "".join(json.dumps(row) + "\n" for row in rows)
    checksums = {PROBLEMS_FILE: crc32(problems_text.encode())}
    if (folder / PARAMS_FILE).exists():
        checksums[PARAMS_FILE] = crc32(read_file(folder / PARAMS_FILE))
    about = {
        "checkpoint": fingerprint, "text_files": text_fingerprint(model), "source": source,
        "notes": selection.notes,
        "best_constant": constant, "checksums": checksums,
    }  # fmt: skip
    write_text(
        folder / ABOUT_FILE,
        json.dumps(about | {CHECKSUM_KEY: json_checksum(about)}, indent=1) + "\n",
    )
    write_text(folder / PROBLEMS_FILE, problems_text)


def _problem_row(problem: Problem, split: str) -> dict[str, object]:
    row: dict[str, object] = asdict(problem)
    del row["location"]  # for messages about the user's file, before a run
    return row | {"split": split}


def _copy_base_policy(source: Path, folder: Path, cell: CellConfig, fingerprint: str) -> None:
    """Copy another sweep's base policy and labels; a warning where they are damaged or of other
    settings."""
    try:
        source_cell = load_config(str(source.parent / "config.yaml")).cell
        if source_cell.model_copy(update={"rl": cell.rl, "eval": cell.eval}) != cell:
            raise InputError(
                where=source,
                found="has other settings of cell.*, not only of cell.rl and cell.eval",
            )
        load_base_policy(source, cell, fingerprint)
        # else other labels
        files = [PARAMS_FILE, *[LABELS_FILE] * (source_cell.eval.samples == cell.eval.samples)]
        for path in filter(Path.exists, (source / name for name in files)):
            write_bytes(folder / path.name, read_file(path))
    except InputError as e:
        warn(f"run.base_from: {e} This run makes a base policy and labels of its own.")


def text_fingerprint(model: ModelConfig) -> str:
    return safetensors_io.text_fingerprint(Path(model.path)) if model.path else ""


def load_base_policy(
    folder: Path, cell: CellConfig, fingerprint: str = "", text_files: str | None = None
) -> BasePolicy:
    """The base policy in `folder`; InputError where it is damaged, or made with another checkpoint,
    or with another tokenizer than that of `text_files`, its fingerprint (None: any)."""
    problems_by_split: dict[str, list[Problem]] = defaultdict(list)
    try:
        about = json.loads(read_file(folder / ABOUT_FILE))
        if about.pop(CHECKSUM_KEY) != json_checksum(about):
            raise _damaged(folder, ABOUT_FILE)
        for name, checksum in about["checksums"].items():
            if crc32(read_file(folder / name)) != checksum:
                raise _damaged(folder, name)
        stored_fingerprint = about["checkpoint"]
        for line in read_file(folder / PROBLEMS_FILE).decode().splitlines():
            row = json.loads(line)
            split, messages = row.pop("split"), tuple(row["messages"])
            problems_by_split[split].append(Problem(**row | {"messages": messages}))
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise _unreadable(folder, e) from e
    if stored_fingerprint != fingerprint:
        raise InputError(
            where="cell.model.path",
            found=(
                f"{cell.model.path} is not the checkpoint that {folder} was made with "
                f"(fingerprint {fingerprint!r}"
            ),
            expected=f"{stored_fingerprint!r})",
            fix="Put that one back, or choose another name=NAME for a new run.",
        )
    if text_files is not None and about.get("text_files", text_files) != text_files:
        changed = (
            "cell.model.path: tokenizer, chat template or generation_config.json in "
            f"{cell.model.path} changed"
        )
        raise InputError(
            found=f"{changed} since {folder} was made",
            fix="Put the old files back, or choose another name=NAME.",
        )
    training = problems_by_split["training"]
    validation = problems_by_split["validation"]
    extra_sets = {
        split.removeprefix(EXTRA_PREFIX): problems
        for split, problems in problems_by_split.items()
        if split.startswith(EXTRA_PREFIX)
    }
    return BasePolicy(folder, cell.model, training, validation, extra_sets)


def eval_problem_sets(base_policy: BasePolicy, config: CellConfig) -> dict[str, list[Problem]]:
    """By name: the validation set, the extra sets, then the panel, a random choice of the training
    problems."""
    order = np.random.default_rng([config.data.seed, 5]).permutation(len(base_policy.training))
    panel = [base_policy.training[i] for i in sorted(order[: config.eval.panel])]
    return {
        VALIDATION_SET: base_policy.validation,
        **base_policy.extra_sets,
        **({PANEL: panel} if panel else {}),
    }
