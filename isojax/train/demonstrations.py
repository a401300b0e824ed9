"""A base policy by supervised learning on the demonstrations of a task that is verified on
device."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jaxtyping import Array

from isojax.core.config import CellConfig
from isojax.core.config.model import BasePolicyConfig
from isojax.core.machine import cores
from isojax.models.transformer import Decoder, Params
from isojax.tasks.protocol import DeviceTask, EncodedProblems
from isojax.tasks.turns import plain_tokens
from isojax.train.outputs import ProgressCallback

WARMUP_STEPS = 60  # in which the learning rate rises from 0
# a batch of demonstrations is split into so many pieces, which fit a processor's cache
GRADIENT_PIECES = 8
PROGRESS_STEPS = 50  # between two reports


def sft_loss(
    decoder: Decoder,
    params: Params,
    batch: EncodedProblems,
    eos: int,
    has_turns: bool = False,
    padded: bool = False,
) -> Array:
    """The mean negative log-likelihood of the answers' tokens, the first end token included.

    batch: prompts i32[Q P], answers i32[Q T], each answer with at least one end token.
    eos: the end token.
    has_turns: whether answers have several turns. Then tokens count up to the last end token, and
        without context, which the policy does not write and which is ~token (tasks/turns.py).
    padded: whether some prompt is shorter than P, and padded on the right. Then each answer is
        moved to its prompt's end. It is static: each value has a compiled program.

    Returns f32[].
    """
    prompts, lengths = batch.prompts, batch.prompt_lengths
    answers = plain_tokens(batch.answers) if has_turns else batch.answers
    P, T = prompts.shape[1], answers.shape[1]
    prompt_end = lengths[:, None]

    # Prompt and answer in a row [Q, P + T - 1]; the last token of an answer predicts none.
    tokens = jnp.concatenate([prompts, answers[:, :-1]], 1)
    if padded:
        position = jnp.arange(P + T - 1)[None]
        # From which column each token comes, [Q, P + T - 1]: behind the prompt's end, from the
        # answer's columns; what runs past the last column is clipped, and counts for nothing.
        source = jnp.where(position < prompt_end, position, position + P - prompt_end)
        tokens = jnp.take_along_axis(tokens, source, 1, mode="clip")
    hidden = decoder.forward(params, tokens, jnp.zeros_like(lengths))  # rows begin at position 0

    # The state before each token of the answer, from the prompt's last one on: [Q T D].
    if padded:
        columns = prompt_end - 1 + jnp.arange(T)[None]
        hidden = jnp.take_along_axis(hidden, columns[..., None], 1)
    else:
        hidden = hidden[:, P - 1 :]
    log_probs = jax.nn.log_softmax(decoder.logits(params, hidden))
    token_logps = jnp.take_along_axis(log_probs, answers[..., None], -1)[..., 0]

    # Which tokens count: bool[Q T]. argmax is the place of the first end token.
    position = jnp.arange(T)[None]
    is_end = answers == eos
    if has_turns:
        tokens_after_last_end = is_end[:, ::-1].argmax(1)[:, None]
        loss_mask = (batch.answers >= 0) & (position < T - tokens_after_last_end)
    else:
        loss_mask = position <= is_end.argmax(1)[:, None]
    return -(token_logps * loss_mask).sum() / loss_mask.sum()


class LossAndGradient(NamedTuple):
    """Of a piece of a batch, or sums over several."""

    loss: Array  # f32[]
    gradient: Params  # a tree like the parameters


@dataclass(frozen=True)
class Demonstrations:
    """Batches of a task's demonstrations, in pieces that threads may share."""

    cell: CellConfig
    task: DeviceTask
    pieces: int  # of a batch; they divide `base.batch`
    rng: np.random.Generator

    def next_batch(self) -> list[EncodedProblems]:
        """The pieces of the next `base.batch` demonstrations, in their order and of equal sizes."""
        sampling = self.cell.sampling
        batch = self.task.demonstrations(
            self.cell.base.batch, self.rng, sampling.prompt_length, sampling.response_length
        )
        # without the padding that no prompt of the batch needs
        batch = batch._replace(prompts=batch.prompts[:, : batch.prompt_lengths.max()])
        pieces_of_columns = [np.split(column, self.pieces) for column in batch]
        return [EncodedProblems(*piece) for piece in zip(*pieces_of_columns, strict=True)]


def train_base_policy(
    cell: CellConfig, decoder: Decoder, task: DeviceTask, on_progress: ProgressCallback
) -> Params:
    """The parameters of a policy trained on the task's demonstrations, as host arrays.

    It makes `base.steps` steps on batches of `base.batch`, by Muon for the matrices and Adam for
    the rest. On a CPU the cores share the pieces of a batch, whose gradients are added in a fixed
    order, which does not depend on how many cores there are.

    decoder: without adapters (`Decoder.base`).
    on_progress: called every PROGRESS_STEPS steps with a text and the fraction done.
    """
    base_config = cell.base
    optimizer = build_optimizer(base_config)
    pieces = GRADIENT_PIECES if base_config.batch % GRADIENT_PIECES == 0 else 1
    demonstrations = Demonstrations(cell, task, pieces, np.random.default_rng(base_config.seed))

    # The functions below capture the decoder, the task, `pieces` and the optimizer, and no arrays.
    @partial(jax.jit, static_argnums=2)
    def differentiate(params: Params, piece: EncodedProblems, padded: bool) -> LossAndGradient:
        def loss(params: Params) -> Array:
            return sft_loss(decoder, params, piece, task.eos, task.stops.has_turns, padded)

        return LossAndGradient(*jax.value_and_grad(loss)(params))

    # Called in a thread, which waits for its piece: the threads are what runs pieces in parallel.
    def compute_gradient(params: Params, piece: EncodedProblems) -> LossAndGradient:
        padded = bool((piece.prompt_lengths < piece.prompts.shape[1]).any())
        return jax.block_until_ready(differentiate(params, piece, padded))

    @partial(jax.jit, donate_argnums=0)
    def add(total: LossAndGradient, piece: LossAndGradient) -> LossAndGradient:
        return jax.tree.map(jnp.add, total, piece)

    @partial(jax.jit, donate_argnums=(0, 1))
    def take_step(
        params: Params, opt_state: optax.OptState, total: LossAndGradient
    ) -> tuple[Params, optax.OptState, Array]:
        mean = jax.tree.map(lambda x: x / pieces, total)
        updates, opt_state = optimizer.update(mean.gradient, opt_state, params)
        return jax.tree.map(jnp.add, params, updates), opt_state, mean.loss

    params = jax.jit(decoder.init)(jax.random.key(base_config.seed))
    opt_state = jax.jit(optimizer.init)(params)
    batch = demonstrations.next_batch()
    num_threads = min(pieces, cores()) if jax.default_backend() == "cpu" else 1
    with ThreadPoolExecutor(num_threads) as pool:
        for step in range(base_config.steps):
            gradients = pool.map(partial(compute_gradient, params), batch)
            batch = demonstrations.next_batch()  # while the threads compute
            params, opt_state, loss = take_step(params, opt_state, reduce(add, gradients))
            if step % PROGRESS_STEPS == PROGRESS_STEPS - 1:
                on_progress(
                    f"base policy: step {step + 1} of {base_config.steps}, loss {float(loss):.3f}",
                    (step + 1) / base_config.steps,
                )
    return jax.device_get(params)


def build_optimizer(config: BasePolicyConfig) -> optax.GradientTransformation:
    """Muon, its learning rate warmed up and then a cosine to 0."""
    # optax refuses a schedule that ends with its warm-up; shorter training ends before the peak.
    steps = max(config.steps, WARMUP_STEPS + 1)
    learning_rate = optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, WARMUP_STEPS, steps
    )
    return optax.contrib.muon(learning_rate)
