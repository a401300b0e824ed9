"""The base policy and its labelled problems, made once a sweep and kept in `base/`.

A task that brings demonstrations gets a policy trained on them by supervised learning; then avg@k of that policy labels the
candidate problems, and those of the wanted difficulty are split into training and validation. `params.safetensors` and
`problems.jsonl` (one labelled problem a line, with its split) are written whole or not at all.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax
from jaxtyping import Array
from safetensors.numpy import load_file, save_file

from isojax.config import CellConfig
from isojax.evaluate import Evaluator
from isojax.models.decoder import Decoder, Params
from isojax.rl.step import LABEL
from isojax.tasks.base import DeviceTask, Encoded
from isojax.tasks.data import check_disjoint, split
from isojax.types import InputError, Problem

PARAMS, PROBLEMS = "params.safetensors", "problems.jsonl"
WARMUP = 60
PIECES = 8  # a batch of demonstrations goes through in so many pieces, which stay in the processor's cache

Tick = Callable[[str, float], None]  # (what is being done, the fraction done)


@dataclass(frozen=True)
class Base:
    """The base policy (host arrays) and its problems."""

    params: Params
    training: list[Problem]
    validation: list[Problem]


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
    stands at .63, where AdamW at its best rate stands at .71.
    """
    base, sampling = cell.base, cell.sampling
    rate = optax.warmup_cosine_decay_schedule(0.0, base.learning_rate, WARMUP, max(base.steps, WARMUP + 1))
    tx = optax.contrib.muon(rate)
    pieces = PIECES if base.batch % PIECES == 0 else 1

    def step(params: Params, moments: optax.OptState, batch: Encoded) -> tuple[Params, optax.OptState, Array]:
        def piece(carry: tuple[Params, Array], part: Encoded) -> tuple[tuple[Params, Array], None]:
            loss, gradient = jax.value_and_grad(lambda p: imitation_loss(decoder, p, part, task.eos))(params)
            return (jax.tree.map(jnp.add, carry[0], gradient), carry[1] + loss), None

        cut = Encoded(*(x.reshape(pieces, -1, *x.shape[1:]) for x in batch))
        (gradient, loss), _ = lax.scan(piece, (jax.tree.map(jnp.zeros_like, params), jnp.float32(0)), cut)
        updates, moments = tx.update(jax.tree.map(lambda g: g / pieces, gradient), moments, params)
        return jax.tree.map(jnp.add, params, updates), moments, loss / pieces

    params = jax.jit(decoder.init)(jax.random.key(base.seed))
    moments = jax.jit(tx.init)(params)
    step = jax.jit(step, donate_argnums=(0, 1))
    rng = np.random.default_rng(base.seed)
    for i in range(base.steps):
        batch = task.demonstrations(base.batch, rng, sampling.prompt_length, sampling.response_length)
        params, moments, loss = step(params, moments, batch)
        if i % 50 == 49:
            tick(f"base policy: step {i + 1} of {base.steps}, loss {float(loss):.3f}", (i + 1) / base.steps)
    return jax.device_get(params)


def label(cell: CellConfig, task: DeviceTask, params: Params, evaluator: Evaluator, tick: Tick) -> list[Problem]:
    """Candidate problems with the base policy's right answers out of `data.attempts` (rounded up to whole evaluations)."""
    data = cell.data
    problems = task.problems(data.candidates, np.random.default_rng([data.seed, 0]))
    encoded = task.encode(problems, cell.sampling.prompt_length, cell.sampling.response_length)
    repeats = -(-data.attempts // evaluator.samples)
    tick(f"labelling {data.candidates} problems by avg@{repeats * evaluator.samples}", 1.0)
    counts, _ = evaluator.counts(params, encoded, seed=data.seed, evaluation=0, repeats=repeats, stream=LABEL)
    return [Problem(p.id, p.prompt, p.answer, int(c), repeats * evaluator.samples) for p, c in zip(problems, counts, strict=True)]


def prepare(folder: Path, cell: CellConfig, decoder: Decoder, task: DeviceTask, evaluator: Evaluator, tick: Tick) -> Base:
    """The base policy of a sweep: read from `folder`, or made and written there.

    Raises:
        InputError: too few problems of the wanted difficulty, or a damaged folder.
    """
    if not (folder / PROBLEMS).exists():
        params = train_base(cell, decoder, task, tick)
        problems = label(cell, task, params, evaluator, tick)
        training, validation = split(problems, cell.data)
        _save(folder, params, problems, {p.id for p in training}, {p.id for p in validation})
    return load(folder)


def _save(folder: Path, params: Params, problems: list[Problem], training: set[int], validation: set[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    flat = {".".join(k): np.ascontiguousarray(v) for k, v in flatten_dict(params).items()}
    save_file(flat, folder / (PARAMS + ".part"))
    os.replace(folder / (PARAMS + ".part"), folder / PARAMS)
    part = folder / (PROBLEMS + ".part")
    with part.open("w") as f:
        for p in problems:
            where = "training" if p.id in training else "validation" if p.id in validation else "left out"
            f.write(json.dumps({**asdict(p), "split": where}) + "\n")
        f.flush()
        os.fsync(f.fileno())
    os.replace(part, folder / PROBLEMS)


def load(folder: Path) -> Base:
    """The base policy kept in `folder`."""
    try:
        flat = load_file(folder / PARAMS)
        sides: dict[str, list[Problem]] = {"training": [], "validation": [], "left out": []}
        for line in (folder / PROBLEMS).read_text().splitlines():
            row = json.loads(line)
            sides[row.pop("split")].append(Problem(**row))
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise InputError(f"the base policy in {folder} cannot be read ({e!r}); remove the folder and it is made again.") from e
    check_disjoint(sides["training"], sides["validation"])
    params = unflatten_dict({tuple(k.split(".")): v for k, v in flat.items()})
    return Base(params, sides["training"], sides["validation"])
