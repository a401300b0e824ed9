"""Logits of a model's folder, as the trainer and the sampler compute them: to be compared with
another program's.

    python benchmarks/model_logprobs.py FOLDER TOKENS.npz OUT.npz
    python benchmarks/model_logprobs.py FOLDER TOKENS.npz OUT.npz \
        --mesh data=2,fsdp=2,tensor=2 --devices 8

TOKENS has `input_ids` i32[b, t], -1 after a sequence's end, and `lengths` i32[b]. OUT gets

    logits         f32[sum of lengths, V], of one pass, sequence after sequence
    decode_logits  the same by the sampler: the first three tokens prefilled, then one token at a
                   time; rows of prefilled tokens are those of `logits`
    greedy_ids     i32[b, 24], the most likely tokens after each sequence; tokens that end a text
                   are as any other

in float32, on the devices of a mesh: `data` and `fsdp` split the sequences, `sequence` the
positions of the pass and of what is prefilled, the other axes and `fsdp` the weights. `--devices 8`
simulates so many on a CPU.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

PREFILLED, GREEDY = 3, 24  # tokens

# Simulated devices share the cores: one may be long at a product that another has not begun, where
# XLA would give up after 40 seconds.
PATIENCE = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=300",
    "--xla_cpu_collective_call_terminate_timeout_seconds=900",
)


class Sequences(NamedTuple):
    tokens: Any  # i32[b, t], 0 after the end
    lengths: Any  # i32[b]


class Sampled(NamedTuple):
    logits: Any  # f32[b, steps, V], after each token
    tokens: Any  # i32[b, steps], those that were given, then the most likely ones


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("folder", "tokens", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument(
        "--mesh", default="auto", help="axes of the mesh, as `isojax launch --mesh` takes them"
    )
    parser.add_argument(
        "--family", help="a plug-in, for a model whose family is none of isojax's own"
    )
    parser.add_argument("--devices", type=int, help="how many devices a CPU simulates")
    args = parser.parse_args()
    if args.devices:
        simulated = f"--xla_force_host_platform_device_count={args.devices}"
        os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), simulated, *PATIENCE])

    from isojax.core.errors import InputError

    model = {"path": str(args.folder)} | ({"family": args.family} if args.family else {})
    try:
        compute(model, args.tokens, args.out, args.mesh)
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(2)


def compute(model: dict[str, str], tokens_file: Path, out_file: Path, mesh_text: str) -> None:
    """Writes OUT. InputError where an input cannot be used."""
    import jax
    import numpy as np

    from isojax.core.config import ModelConfig
    from isojax.distributed.mesh_spec import parse_mesh
    from isojax.distributed.sharding import make_mesh, shard_count
    from isojax.models.hf import hf_load
    from isojax.models.transformer import Decoder

    mesh = make_mesh(parse_mesh(mesh_text, jax.device_count()), jax.devices())
    config = hf_load.resolve_model(ModelConfig.model_validate(model))
    decoder = Decoder(config)
    given = read_sequences(tokens_file, decoder.vocab)
    params = hf_load.load(Path(model["path"]), config, decoder, mesh)

    # As many rows on each shard: the first sequence again in those that are left.
    num_rows = len(given.lengths)
    num_padding = -num_rows % shard_count(mesh)
    padded = Sequences(*(np.concatenate([x, np.repeat(x[:1], num_padding, axis=0)]) for x in given))

    logits = whole_pass(decoder, mesh, params, padded)[:num_rows]
    sampled = Sampled(*(x[:num_rows] for x in sample(decoder, mesh, params, padded)))

    decode_logits, greedy_ids = logits.copy(), np.zeros((num_rows, GREEDY), np.int32)
    for row, length in enumerate(given.lengths):
        first = min(length, PREFILLED)
        decode_logits[row, first:length] = sampled.logits[row, : length - first]
        greedy_ids[row] = sampled.tokens[row, length - first :][:GREEDY]

    is_token = np.arange(logits.shape[1])[None] < given.lengths[:, None]
    np.savez(
        out_file,
        logits=logits[is_token],
        decode_logits=decode_logits[is_token],
        greedy_ids=greedy_ids,
    )


def read_sequences(file: Path, vocab: int) -> Sequences:
    """TOKENS, in which all is as the module says. InputError if not."""
    import numpy as np

    from isojax.core.errors import InputError

    try:
        with np.load(file) as given:
            tokens, lengths = given["input_ids"], given["lengths"]
    except (OSError, ValueError, KeyError) as e:
        raise InputError(
            f"{file}: {e}; expected an .npz file with input_ids i32[b, t] and lengths i32[b]."
        ) from e

    shapes = (
        f"input_ids {tokens.dtype}{list(tokens.shape)} and "
        f"lengths {lengths.dtype}{list(lengths.shape)}"
    )
    are_integers = all(np.issubdtype(array.dtype, np.integer) for array in (tokens, lengths))
    if not are_integers or tokens.ndim != 2 or lengths.shape != tokens.shape[:1] or not tokens.size:
        raise InputError(
            f"{file}: {shapes}; expected integers [b, t] and [b], of one sequence or more."
        )
    if lengths.min() < 1 or lengths.max() > tokens.shape[1]:
        raise InputError(
            f"{file}: lengths from {lengths.min()} to {lengths.max()}; "
            f"expected 1 to {tokens.shape[1]}, as input_ids has positions."
        )

    is_token = np.arange(tokens.shape[1])[None] < lengths[:, None]
    smallest, largest = tokens[is_token].min(), tokens[is_token].max()
    if smallest < 0 or largest >= vocab:
        raise InputError(
            f"{file}: tokens of sequences from {smallest} to {largest}; expected 0 to {vocab - 1}, "
            "the model's vocabulary, up to each sequence's length."
        )
    return Sequences(np.where(is_token, tokens, 0).astype(np.int32), lengths.astype(np.int32))


def on_shards(function: Callable[..., Any], decoder: Any, mesh: Any) -> Callable[..., Any]:
    """The jitted function(params, tokens, lengths) of a shard's sequences, as programs of the
    trainer and of the sampler are mapped over shards."""
    import jax
    from jax.sharding import PartitionSpec

    from isojax.distributed.sharding import ROLLOUT_AXES, manual_specs, map_over_shards

    params = manual_specs(decoder.shapes(), decoder.logical_axes(), mesh)
    rows = PartitionSpec(ROLLOUT_AXES)
    return jax.jit(map_over_shards(function, mesh, in_specs=(params, rows, rows), out_specs=rows))


def whole_pass(decoder: Any, mesh: Any, params: Any, given: Sequences) -> Any:
    """Logits f32[b, t, V] of the trainer's forward pass."""
    import jax.numpy as jnp
    import numpy as np

    def of_shard(params: Any, tokens: Any, lengths: Any) -> Any:
        hidden = decoder.forward(params, tokens, jnp.zeros_like(lengths))
        return decoder.logits(params, hidden)

    return np.asarray(on_shards(of_shard, decoder, mesh)(params, *given))


def sample(
    decoder: Any, mesh: Any, params: Any, given: Sequences, platform: str | None = None
) -> Sampled:
    """What the sampler's steps make of the tokens after the prefilled ones, and then of the most
    likely ones, with layers in a loop or not as on a platform; None: this one."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    from isojax.core.shapes import layers_are_unrolled
    from isojax.distributed.sharding import (
        padded_positions,
        partition_specs,
        positions_are_split,
        shard_count,
    )
    from isojax.models.decode import Decoding
    from isojax.models.fsdp import all_gather_params

    rows = len(given.lengths) // shard_count(mesh)
    num_given = np.maximum(given.lengths - PREFILLED, 0)
    num_steps = int(num_given.max()) + GREEDY
    decoding = Decoding(
        decoder,
        slots=rows,
        slots_per_prefix=1,
        prefix_length=padded_positions(PREFILLED, mesh),
        response_length=num_steps,
        unrolled_layers=layers_are_unrolled(platform or jax.default_backend(), "float32"),
        shard_positions=positions_are_split(mesh),
    )
    param_specs = partition_specs(decoder.shapes(), decoder.logical_axes(), mesh)

    def of_shard(params: Any, tokens: Any, lengths: Any) -> Sampled:
        whole_params = all_gather_params(params, param_specs, "float32")
        weights = decoding.prepare_weights(whole_params)

        prompt_lengths = jnp.minimum(lengths, PREFILLED)
        prompts = jnp.pad(tokens, ((0, 0), (0, PREFILLED)))[:, :PREFILLED]
        entries, last_hidden = decoding.prefill(whole_params, prompts, prompt_lengths)
        every = jnp.arange(rows)
        cache = decoding.admit(decoding.empty_cache(), entries, every, jnp.ones(rows, bool))

        def step(carry: Any, t: Any) -> Any:
            """The t-th token after a prompt, or the most likely one where its sequence has ended;
            logits after it."""
            cache, logits = carry
            positions = prompt_lengths + t
            given = tokens[every, jnp.minimum(positions, tokens.shape[1] - 1)]
            token = jnp.where(positions < lengths, given, logits.argmax(-1))
            hidden, cache = decoding.step(weights, cache, token, positions, jnp.full(rows, t))
            logits = decoding.logits(weights, hidden)
            return (cache, logits), (logits, token)

        first_logits = decoding.logits(weights, last_hidden)
        logits, sampled = lax.scan(step, (cache, first_logits), jnp.arange(num_steps))[1]
        return Sampled(logits.swapaxes(0, 1), sampled.swapaxes(0, 1))

    logits, sampled = on_shards(of_shard, decoder, mesh)(params, *given)
    return Sampled(np.asarray(logits), np.asarray(sampled))


if __name__ == "__main__":
    main()
