"""The base policy and its problems, made once a sweep and kept in `base/`.

A checkpoint (`cell.model.path`) is read where it lies. A task that brings demonstrations gets a policy trained on them by supervised
learning, `params.safetensors`. `problems.jsonl` holds the chosen problems (problems.py), one a line with its split, and is written
last, whole or not at all.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh
from jaxtyping import Array
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from isojax import hosts
from isojax.config import CellConfig, ModelConfig
from isojax.evaluate import Evaluator, ProblemSet
from isojax.files import write_bytes, write_text
from isojax.labels import Tick, label_key, label_problems, labels_of
from isojax.machine import cores
from isojax.models import hf, tensors
from isojax.models.decoder import Decoder, Params
from isojax.problems import Chosen, best_constant, choose
from isojax.tasks.base import DeviceTask, Encoded, Task, on_device
from isojax.tasks.data import check_disjoint
from isojax.types import InputError, Problem

PARAMS, PROBLEMS, LABELS, ABOUT = "params.safetensors", "problems.jsonl", "labels.jsonl", "about.json"
EXTRA = "extra/"
WARMUP = 60
PIECES = 8  # a batch of demonstrations goes through in so many pieces, which stay in a processor's cache


@dataclass(frozen=True)
class Base:
    """The base policy, in `folder` or in the checkpoint `model.path`, and its problems."""

    folder: Path
    model: ModelConfig
    training: list[Problem]
    validation: list[Problem]
    extra: dict[str, list[Problem]]

    def params(self, decoder: Decoder, mesh: Mesh) -> Params:
        """Its parameters, laid out on the mesh.

        Raises:
            InputError: they cannot be read, or are not those of the decoder.
        """
        if self.model.path:
            return hf.load(Path(self.model.path), self.model, decoder, mesh)
        try:
            flat = load_file(self.folder / PARAMS)
        except (OSError, ValueError, SafetensorError) as e:
            raise InputError(f"the base policy in {self.folder} cannot be read ({e!r}); remove the folder and it is made again.") from e
        return jax.device_put(unflatten_dict({tuple(k.split(".")): v for k, v in flat.items()}), decoder.shardings(mesh))


def imitation_loss(decoder: Decoder, params: Params, demonstrations: Encoded, eos: int) -> Array:
    """Mean negative log-likelihood of the answers' tokens, their end token included."""
    prompts, lengths, answers, _ = demonstrations
    tokens = jnp.concatenate([prompts, answers[:, :-1]], 1)  # demonstrations fill prompt_length exactly
    hidden = decoder.score(params, tokens, jnp.zeros_like(lengths))[:, prompts.shape[1] - 1 :]
    log_p = jax.nn.log_softmax(decoder.logits(params, hidden))
    picked = jnp.take_along_axis(log_p, answers[..., None], -1)[..., 0]
    counted = jnp.arange(answers.shape[1])[None] <= (answers == eos).argmax(1)[:, None]
    return -(picked * counted).sum() / counted.sum()


def train_base(cell: CellConfig, decoder: Decoder, task: DeviceTask, tick: Tick) -> Params:
    """Supervised learning on the task's demonstrations, `base.steps` batches of `base.batch`.

    Muon for the matrices, Adam for the rest, a cosine schedule after a short warm-up: after 1500 batches of the solvers task the loss
    stands at .63, where AdamW at its best rate stands at .71. A CPU's cores each take the next piece of a batch; the sum is in the order of
    pieces, whichever is done first.
    """
    base, sampling = cell.base, cell.sampling
    rate = optax.warmup_cosine_decay_schedule(0.0, base.learning_rate, WARMUP, max(base.steps, WARMUP + 1))
    tx = optax.contrib.muon(rate)
    pieces = PIECES if base.batch % PIECES == 0 else 1
    rng = np.random.default_rng(base.seed)

    def demonstrations() -> list[Encoded]:
        batch = task.demonstrations(base.batch, rng, sampling.prompt_length, sampling.response_length)
        return [Encoded(*part) for part in zip(*(np.split(x, pieces) for x in batch), strict=True)]

    def of_piece(params: Params, piece: Encoded) -> tuple[Array, Params]:
        return jax.value_and_grad(lambda p: imitation_loss(decoder, p, piece, task.eos))(params)

    def add(summed: tuple[Array, Params], found: tuple[Array, Params]) -> tuple[Array, Params]:
        return jax.tree.map(jnp.add, summed, found)

    def step(params: Params, moments: optax.OptState, summed: tuple[Array, Params]) -> tuple[Params, optax.OptState, Array]:
        loss, gradient = jax.tree.map(lambda x: x / pieces, summed)
        updates, moments = tx.update(gradient, moments, params)
        return jax.tree.map(jnp.add, params, updates), moments, loss

    params = jax.jit(decoder.init)(jax.random.key(base.seed))
    moments = jax.jit(tx.init)(params)
    of_piece, add, step = jax.jit(of_piece), jax.jit(add, donate_argnums=0), jax.jit(step, donate_argnums=(0, 1))
    batch = demonstrations()
    with ThreadPoolExecutor(min(pieces, cores()) if jax.default_backend() == "cpu" else 1) as threads:
        for i in range(base.steps):
            found = threads.map(lambda piece, params=params: jax.block_until_ready(of_piece(params, piece)), batch)
            batch = demonstrations()  # while the threads are at work
            params, moments, loss = step(params, moments, reduce(add, found))
            if i % 50 == 49:
                tick(f"base policy: step {i + 1} of {base.steps}, loss {float(loss):.3f}", (i + 1) / base.steps)
    return jax.device_get(params)


def prepare(folder: Path, cell: CellConfig, decoder: Decoder, task: Task, evaluator: Evaluator, mesh: Mesh, tick: Tick) -> Base:
    """The base policy of a sweep and its problems: read from `folder`, or made and written there.

    Raises:
        InputError: too few problems of the wanted difficulty, another checkpoint than the sweep began with, or a damaged folder.
    """
    print_of = tensors.fingerprint(Path(cell.model.path)) if cell.model.path else ""
    if not hosts.by_first((folder / PROBLEMS).exists):
        folder.mkdir(parents=True, exist_ok=True)
        if on_device(task) and not cell.model.path and hosts.writes():
            _save_params(folder, train_base(cell, decoder, task, tick))
        hosts.wait("the base policy is there")

        def label(problems: list[Problem]) -> list[Problem]:
            name = label_key(cell, print_of, problems)
            if hosts.writes() and (before := labels_of(folder / LABELS)) and before != name:
                print(f"warning: the labels in {folder / LABELS} are of other settings or problems; they are made anew", file=sys.stderr)
                (folder / LABELS).unlink()
            params = Base(folder, cell.model, [], [], {}).params(decoder, mesh)
            chosen = ProblemSet(problems, encode(task, cell, problems))
            return label_problems(folder / LABELS, name, chosen, cell.data.attempts, cell.data.seed, evaluator, params, tick)

        chosen = choose(cell, task, label)
        if hosts.writes():
            for note in chosen.notes:
                print(f"warning: {note}", file=sys.stderr)
            _save_problems(folder, chosen, print_of, told=not on_device(task))
        hosts.wait("the problems are chosen")
    return load(folder, cell, print_of)


def encode(task: Task, cell: CellConfig, problems: list[Problem]) -> Encoded:
    """Problems as host arrays."""
    sampling = cell.sampling
    if on_device(task):
        return task.encode(problems, sampling.prompt_length, sampling.response_length)
    return task.encode(problems, sampling.prompt_length)


def _save_params(folder: Path, params: Params) -> None:
    flat = {".".join(k): np.ascontiguousarray(v) for k, v in flatten_dict(params).items()}
    write_bytes(folder / PARAMS, save(flat))


def _save_problems(folder: Path, chosen: Chosen, print_of: str, told: bool) -> None:
    best = best_constant(chosen.validation) if told else None
    constant = dict(zip(("answer", "reward"), best, strict=True)) if best else None
    sides = {"training": chosen.training, "validation": chosen.validation, "left out": chosen.left_out}
    sides |= {f"{EXTRA}{name}": problems for name, problems in chosen.extra.items()}
    rows = [{**asdict(p), "split": where} for where, problems in sides.items() for p in problems]
    write_text(folder / ABOUT, json.dumps({"checkpoint": print_of, "notes": chosen.notes, "best_constant": constant}, indent=1) + "\n")
    write_text(folder / PROBLEMS, "".join(json.dumps(row) + "\n" for row in rows))


def load(folder: Path, cell: CellConfig, print_of: str = "") -> Base:
    """The base policy kept in `folder`.

    Raises:
        InputError: the folder is damaged, or the checkpoint is no longer the one with this fingerprint.
    """
    sides: dict[str, list[Problem]] = {"training": [], "validation": [], "left out": []}
    try:
        about = json.loads((folder / ABOUT).read_text())["checkpoint"]
        for line in (folder / PROBLEMS).read_text().splitlines():
            row = json.loads(line)
            sides.setdefault(row.pop("split"), []).append(Problem(**row | {"messages": tuple(row["messages"])}))
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise InputError(f"the base policy in {folder} cannot be read ({e!r}); remove the folder and it is made again.") from e
    if about != print_of:
        raise InputError(
            f"cell.model.path: {cell.model.path} is not the checkpoint that {folder} was made with (fingerprint {print_of!r}, expected "
            f"{about!r}); put that one back, or choose another name=NAME for a new run."
        )
    check_disjoint(sides["training"], sides["validation"])
    extra = {where.removeprefix(EXTRA): problems for where, problems in sides.items() if where.startswith(EXTRA)}
    return Base(folder, cell.model, sides["training"], sides["validation"], extra)
