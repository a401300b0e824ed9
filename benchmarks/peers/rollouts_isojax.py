"""isojax's sampler: B_p prompts, n samples each, a fixed number of new tokens, temperature 1,
float32; R = B_p n slots, no stops.

--variant tensor=-1: a mesh as `--mesh` takes it; without it data=-1, by which every core has a part
of the rollouts. Run alone (prompts: `compare.py --commands`), with isojax's Python:

    python benchmarks/peers/rollouts_isojax.py MODEL --prompts FILE --n 8 --new 128
"""

import child


def main() -> None:
    args = child.arguments(__doc__)
    import jax
    import numpy as np
    from isojax_setup import Setup

    from isojax.sampling.engine import build_sampler

    ids = child.read_prompts(args.prompts).ids
    setup = Setup(args.model, ids, args.n, args.new, args.variant or "data=-1")
    sample = jax.jit(
        build_sampler(
            setup.decoder, setup.sampler_shapes, setup.mesh, setup.cell.sampling, setup.stops
        )
    )
    B_p, n = np.int32(len(ids)), np.int32(args.n)

    def rollouts() -> int:
        result = jax.block_until_ready(
            sample(setup.params, setup.problems, B_p, n, jax.random.key(0))
        )
        tokens = int(result.mask.sum())
        assert tokens == B_p * n * args.new, tokens
        return tokens

    child.measure(rollouts, args.repeats)


if __name__ == "__main__":
    main()
