"""`isojax difficulty`: label problems by the base model's avg@k, and write them as a data set split by difficulty.

A folder holds `labels.jsonl` (appended to as labels are found, so that a killed run goes on), `labels.csv` (with intervals), the
histogram `difficulty.png`, `.pdf`, `.csv` (the paper's Fig. 2), and `splits/`, a TFDS data set that `cell.task=tfds:FOLDER/splits#...`
and `cell.data.mixture` read.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isojax.config import Config, DataConfig, config_hash
from isojax.estimators import wilson
from isojax.files import write_text
from isojax.launch.planner import resolve
from isojax.launch.site import open_task, resolve_config, start_jax
from isojax.storage import alone
from isojax.types import InputError, Problem

if TYPE_CHECKING:
    from isojax.tasks.base import Task

LABELS, LABELS_MORE, TABLE, SPLITS = "labels.jsonl", "labels-128.jsonl", "labels.csv", "splits"
SLOTS = {"cpu": (8, 8)}  # (problems, rollouts a problem) decoded at once, unless sweep.slots and sweep.prompts say otherwise
MANY = (16, 16)

Tick = Callable[[str, float], None]


def label(config: Config, folder: Path, held_out: int, extremely_hard: bool, tick: Tick) -> dict[str, list[Problem]]:
    """Label at most `cell.data.candidates` problems by avg@`cell.data.attempts`, and write all that the module says; returns the splits.

    Where the config's run labels nothing (attempts 0), the usual 16 attempts are made.

    `extremely_hard`: problems with none right are sampled up to 128 times.

    Raises:
        InputError: before any work, where the problems, the model or the folder cannot be used.
    """
    jax = start_jax(config)
    config = resolve_config(config)
    data = config.cell.data
    cell = config.cell.model_copy(update={"data": data.model_copy(update={"attempts": data.attempts or DataConfig().attempts})})
    config = config.model_copy(update={"cell": cell})
    if not cell.model.path:
        raise InputError(
            f"cell.model.path is not set: `isojax difficulty` labels problems in text with a language model. The task {cell.task} "
            "labels its own problems when it is launched."
        )
    if (folder / SPLITS).exists():
        raise InputError(
            f"{folder / SPLITS} exists: its problems are labelled already. Read them by cell.task=tfds:{folder / SPLITS}#all, "
            "or choose another folder by --out."
        )
    from isojax.report.difficulty import draw
    from isojax.tasks.base import on_device
    from isojax.tasks.parts import EXTREMELY_HARD, EXTREMELY_HARD_ATTEMPTS, RANGES, divide
    from isojax.tasks.tfds import package, write_dataset

    package()  # what is missing is told before hours of labelling, not after
    with open_task(config) as task, alone(folder):
        labelled, none_right = _label(jax, config, task, folder, extremely_hard, tick)
        if not on_device(task):
            counts = task.failures()
            for kind, example in task.examples().items():
                print(f"warning: verifier {kind}, {counts[kind]} in all, each of reward 0; the first: {example}", file=sys.stderr)
    splits = divide(labelled, none_right, held_out, cell.data.seed)
    write_text(folder / TABLE, _table(labelled))
    ranges = {**RANGES, **({EXTREMELY_HARD: (0.0, 0.0)} if extremely_hard else {})}
    more = {p.id: p for p in none_right}
    shown = [more.get(p.id, p) for p in labelled]
    draw([(p.solved, p.attempts) for p in shown], ranges, folder, EXTREMELY_HARD_ATTEMPTS)
    about = {"model": cell.model.path, "task": cell.task, "temperature": cell.sampling.temperature, "top_p": cell.sampling.top_p}
    write_dataset(folder / SPLITS, splits, about | {"seed": cell.data.seed, "cell": config_hash(cell)})
    return splits


def _label(jax: Any, config: Config, task: Task, folder: Path, extremely_hard: bool, tick: Tick) -> tuple[list[Problem], list[Problem]]:
    """(the problems labelled by `attempts`, those with none right of 128 labelled by these)."""
    from isojax.base import Base
    from isojax.labels import label_key, label_problems
    from isojax.meshes import parse_mesh
    from isojax.models.choice import with_kernels
    from isojax.models.tensors import fingerprint
    from isojax.problems import fit_prompts
    from isojax.sharding import make_mesh
    from isojax.tasks.base import on_device
    from isojax.tasks.parts import EXTREMELY_HARD_ATTEMPTS
    from isojax.train import Programs

    cell, seed = config.cell, config.cell.data.seed
    drawn = task.problems(cell.data.candidates, np.random.default_rng([seed, 0]))
    problems, notes = fit_prompts(cell, task, drawn, "problems")
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    if not on_device(task):
        task.check(problems)
    devices = jax.local_devices()
    shape = parse_mesh(config.run.mesh, len(devices))
    pair = SLOTS.get(jax.default_backend(), MANY)
    sweep = config.sweep.model_copy(update={"B_p": (pair[0],), "n": (pair[1],)})
    mesh = make_mesh(shape, devices)
    programs = Programs(cell, with_kernels(cell, resolve(sweep, shape.shards, cell), mesh), [pair], mesh, task)
    params = Base(folder, cell.model, [], [], {}).params(programs.decoder, programs.mesh)
    of = label_key(cell, fingerprint(Path(str(cell.model.path))), problems)

    def labels(name: str, chosen: list[Problem], attempts: int) -> list[Problem]:
        arrays = programs.problem_set(chosen)
        return label_problems(folder / name, of, arrays, attempts, seed, programs.labeller, params, tick)

    labelled = labels(LABELS, problems, cell.data.attempts)
    none = [p for p in labelled if not p.solved]
    if not extremely_hard or not none:
        return labelled, []
    return labelled, [p for p in labels(LABELS_MORE, none, EXTREMELY_HARD_ATTEMPTS) if not p.solved]


def _table(labelled: list[Problem]) -> str:
    """One row a problem, with the 90% interval of its rate."""
    from isojax.tasks.parts import part_of

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["id", "solved", "attempts", "avg", "low", "high", "part", "prompt"])
    for p in labelled:
        low, high = wilson(p.solved, p.attempts)
        writer.writerow([p.id, p.solved, p.attempts, f"{p.difficulty:.4f}", f"{low:.4f}", f"{high:.4f}", part_of(p) or "", p.prompt])
    return out.getvalue()
