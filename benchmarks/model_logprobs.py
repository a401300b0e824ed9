"""Logits of a model's folder, as the trainer and the sampler compute them: to be compared with another program's.

    python benchmarks/model_logprobs.py FOLDER TOKENS.npz OUT.npz
    python benchmarks/model_logprobs.py FOLDER TOKENS.npz OUT.npz --mesh data=2,fsdp=2,tensor=2 --devices 8

TOKENS has `input_ids` i32[b, t], -1 after a sequence's end, and `lengths` i32[b]. OUT gets

    logits         f32[sum of lengths, V], of one pass, sequence after sequence
    decode_logits  the same by the sampler: the first three tokens prefilled, then one token at a time; rows of
                   prefilled tokens are those of `logits`
    greedy_ids     i32[b, 24], the most likely tokens after each sequence; tokens that end a text are as any other

in float32, on the devices of a mesh. `--devices 8` simulates so many on a CPU.
"""

import argparse
import os
from pathlib import Path
from typing import Any

PREFILLED, GREEDY = 3, 24  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("folder", "tokens", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--mesh", default="auto", help="axes of the mesh, as `isojax launch --mesh` takes them")
    parser.add_argument("--family", help="a plug-in, for a model whose family is none of isojax's own")
    parser.add_argument("--devices", type=int, help="how many devices a CPU simulates")
    args = parser.parse_args()
    if args.devices:
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={args.devices}"
    model = {"path": str(args.folder)} | ({"family": args.family} if args.family else {})
    compute(model, args.tokens, args.out, args.mesh)


def compute(model: dict[str, str], tokens_file: Path, out_file: Path, mesh_text: str) -> None:
    import jax
    import numpy as np

    from isojax.core.config import ModelConfig
    from isojax.distributed.mesh_spec import parse_mesh
    from isojax.distributed.sharding import make_mesh
    from isojax.models.hf import hf_load
    from isojax.models.transformer import Decoder

    given = np.load(tokens_file)
    tokens, lengths = given["input_ids"].astype(np.int32), given["lengths"].astype(np.int32)
    padded = np.where(tokens < 0, 0, tokens)

    config = hf_load.resolve_model(ModelConfig.model_validate(model))
    decoder, mesh = Decoder(config), make_mesh(parse_mesh(mesh_text, jax.device_count()), jax.devices())
    params = hf_load.load(Path(model["path"]), config, decoder, mesh)

    with jax.set_mesh(mesh):
        logits = whole_pass(decoder, params, padded)
        decode_logits, greedy_ids = sample(decoder, params, padded, lengths, platform=jax.default_backend())

    first_rows = np.arange(tokens.shape[1])[None] < PREFILLED
    decode_logits = np.where(first_rows[..., None], logits, decode_logits)
    is_token = np.arange(tokens.shape[1])[None] < lengths[:, None]
    np.savez(out_file, logits=logits[is_token], decode_logits=decode_logits[is_token], greedy_ids=greedy_ids)


def whole_pass(decoder: Any, params: Any, tokens: Any) -> Any:
    """Logits f32[b, t, V] of the trainer's forward pass."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    @jax.jit
    def run(params: Any, tokens: Any) -> Any:
        hidden = decoder.forward(params, tokens, jnp.zeros(len(tokens), jnp.int32))
        return decoder.logits(params, hidden)

    return np.asarray(run(params, tokens))


def sample(decoder: Any, params: Any, tokens: Any, lengths: Any, platform: str) -> tuple[Any, Any]:
    """Logits f32[b, t, V] of the sampler's steps after the prefilled tokens, and greedy continuations i32[b, 24]."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    from isojax.core.shapes import layers_are_unrolled
    from isojax.models.decode import Decoding

    rows, width = tokens.shape
    decoding = Decoding(decoder, rows, 1, PREFILLED, width + GREEDY, layers_are_unrolled(platform, "float32"))

    @jax.jit
    def run(params: Any, tokens: Any, lengths: Any) -> Any:
        weights = decoding.prepare_weights(params)
        prompt_lengths = jnp.full(rows, PREFILLED)
        entries, last_hidden = decoding.prefill(params, tokens[:, :PREFILLED], prompt_lengths)
        cache = decoding.admit(decoding.empty_cache(), entries, jnp.arange(rows), jnp.ones(rows, bool))
        first_logits = decoding.logits(weights, last_hidden)

        def step(carry: Any, t: Any) -> Any:
            """Token t of each sequence, or the most likely one where it has ended; logits after it."""
            cache, logits = carry
            given = lax.dynamic_index_in_dim(tokens, jnp.minimum(t, width - 1), 1, keepdims=False)
            token = jnp.where(t < lengths, given, logits.argmax(-1))
            positions = jnp.full(rows, t)
            hidden, cache = decoding.step(weights, cache, token, positions, positions - PREFILLED)
            logits = decoding.logits(weights, hidden)
            return (cache, logits), (logits, token)

        steps = jnp.arange(PREFILLED, width + GREEDY)
        return lax.scan(step, (cache, first_logits), steps)[1]

    logits, sampled = (np.moveaxis(np.asarray(x), 0, 1) for x in run(params, tokens, lengths))
    prefilled_logits = np.zeros((rows, PREFILLED, logits.shape[-1]), np.float32)
    all_logits = np.concatenate([prefilled_logits, logits], 1)[:, :width]
    greedy_ids = np.stack([sampled[r, n - PREFILLED : n - PREFILLED + GREEDY] for r, n in enumerate(lengths)])
    return all_logits, greedy_ids.astype(np.int32)


if __name__ == "__main__":
    main()
