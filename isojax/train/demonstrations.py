"""A base policy by supervised learning on the demonstrations of a task that is verified on
device."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jaxtyping import Array

from isojax.core.config import CellConfig
from isojax.core.machine import cores
from isojax.models.transformer import Decoder, Params
from isojax.tasks.protocol import DeviceTask, EncodedProblems
from isojax.tasks.turns import plain_tokens
from isojax.train.outputs import ProgressCallback

WARMUP_STEPS = 60
# a batch of demonstrations is split into so many pieces, which fit a processor's cache
GRADIENT_PIECES = 8


def sft_loss(
    decoder: Decoder,
    params: Params,
    batch: EncodedProblems,
    eos: int,
    has_turns: bool = False,
    padded: bool = False,
) -> Array:
    """Mean negative log-likelihood of the answers' tokens, including their end token; has_turns: up
    to the last end token, without context (tasks/turns.py); padded: prompts may be, and each answer
    is moved to its prompt's end."""
    prompts, lengths, signed_answers, _ = batch
    answers = plain_tokens(signed_answers) if has_turns else signed_answers
    (_, P), (_, T), end = prompts.shape, answers.shape, lengths[:, None]
    tokens = jnp.concatenate([prompts, answers[:, :-1]], 1)
    i = jnp.arange(P + T - 1)[None]
    if padded:
        tokens = jnp.take_along_axis(tokens, jnp.where(i < end, i, i + P - end), 1, mode="clip")
    hidden = decoder.forward(params, tokens, jnp.zeros_like(lengths))
    answer_columns = (end - 1 + jnp.arange(T)[None])[..., None]
    hidden = jnp.take_along_axis(hidden, answer_columns, 1) if padded else hidden[:, P - 1 :]
    log_probs = jax.nn.log_softmax(decoder.logits(params, hidden))
    token_logps = jnp.take_along_axis(log_probs, answers[..., None], -1)[..., 0]
    if has_turns:
        loss_mask = (signed_answers >= 0) & (
            jnp.arange(T)[None] < T - (answers == eos)[:, ::-1].argmax(1)[:, None]
        )
    else:
        loss_mask = jnp.arange(T)[None] <= (answers == eos).argmax(1)[:, None]
    return -(token_logps * loss_mask).sum() / loss_mask.sum()


def train_base_policy(
    cell: CellConfig, decoder: Decoder, task: DeviceTask, on_progress: ProgressCallback
) -> Params:
    """Supervised learning on the task's demonstrations, `base.steps` batches of `base.batch`: Muon
    for the matrices, Adam for the rest. On a CPU the cores share the pieces of a batch, whose
    gradients are added in a fixed order."""
    base_config, sampling = cell.base, cell.sampling
    steps = max(base_config.steps, WARMUP_STEPS + 1)
    learning_rate = optax.warmup_cosine_decay_schedule(
        0.0, base_config.learning_rate, WARMUP_STEPS, steps
    )
    optimizer = optax.contrib.muon(learning_rate)
    pieces = GRADIENT_PIECES if base_config.batch % GRADIENT_PIECES == 0 else 1
    rng = np.random.default_rng(base_config.seed)

    def demonstrations() -> list[EncodedProblems]:
        batch = task.demonstrations(
            base_config.batch, rng, sampling.prompt_length, sampling.response_length
        )
        batch = batch._replace(prompts=batch.prompts[:, : batch.prompt_lengths.max()])
        return [
            EncodedProblems(*part)
            for part in zip(*(np.split(x, pieces) for x in batch), strict=True)
        ]

    @partial(jax.jit, static_argnums=2)
    def piece_gradient(
        params: Params, piece: EncodedProblems, padded: bool
    ) -> tuple[Array, Params]:
        return jax.value_and_grad(
            lambda p: sft_loss(decoder, p, piece, task.eos, task.stops.has_turns, padded)
        )(params)

    def compute_gradient(params: Params, piece: EncodedProblems) -> tuple[Array, Params]:
        padded = bool((piece.prompt_lengths < piece.prompts.shape[1]).any())
        return jax.block_until_ready(piece_gradient(params, piece, padded))

    @partial(jax.jit, donate_argnums=0)
    def add_gradients(
        total: tuple[Array, Params], piece: tuple[Array, Params]
    ) -> tuple[Array, Params]:
        return jax.tree.map(jnp.add, total, piece)

    @partial(jax.jit, donate_argnums=(0, 1))
    def apply_gradient(
        params: Params, opt_state: optax.OptState, total: tuple[Array, Params]
    ) -> tuple[Params, optax.OptState, Array]:
        loss, gradient = jax.tree.map(lambda x: x / pieces, total)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return jax.tree.map(jnp.add, params, updates), opt_state, loss

    params = jax.jit(decoder.init)(jax.random.key(base_config.seed))
    opt_state = jax.jit(optimizer.init)(params)
    batch = demonstrations()
    with ThreadPoolExecutor(min(pieces, cores()) if jax.default_backend() == "cpu" else 1) as pool:
        for i in range(base_config.steps):
            piece_gradients = pool.map(partial(compute_gradient, params), batch)
            batch = demonstrations()  # the next batch, while the threads compute
            params, opt_state, loss = apply_gradient(
                params, opt_state, reduce(add_gradients, piece_gradients)
            )
            if i % 50 == 49:
                progress = (
                    f"base policy: step {i + 1} of {base_config.steps}, loss {float(loss):.3f}"
                )
                on_progress(progress, (i + 1) / base_config.steps)
    return jax.device_get(params)
