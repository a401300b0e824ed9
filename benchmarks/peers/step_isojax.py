"""isojax's GRPO step in one compiled program: rollouts, rewards, advantages, gradient, AdamW;
float32, no KL, every group has an advantage.

--variant m=4: rows of a microbatch (without it, as many as the planner chooses); --variant data=-1:
a mesh as `--mesh` takes it (without it auto, one device of all cores, which holds one set of
weights and moments). Run alone (prompts: `compare.py --commands`), with isojax's Python:

    python benchmarks/peers/step_isojax.py MODEL --prompts FILE --n 8 --new 128
"""

from typing import Any

import child


class Arbitrary:
    """A task with nothing but what a step reads: no stops, and an arbitrary reward that differs
    inside every group."""

    def __init__(self, stops: Any):
        self.stops = stops

    def verify(self, answers: Any, tokens: Any, mask: Any) -> Any:
        return (tokens * mask).sum(-1) % child.REWARDS / child.REWARDS


def main() -> None:
    args = child.arguments(__doc__)
    import jax
    import numpy as np
    from isojax_setup import Setup

    from isojax.core.machine import release_freed_memory
    from isojax.rl.fused_rollouts import ProblemBatches, build_fused_update
    from isojax.rl.metric import values
    from isojax.rl.objective import make_coefficients
    from isojax.rl.optimizer import build_init_state

    ids = child.read_prompts(args.prompts).ids
    rows, mesh = (
        (int(args.variant[2:]), "auto")
        if args.variant.startswith("m=")
        else (0, args.variant or "auto")
    )
    setup = Setup(args.model, ids, args.n, args.new, mesh, rows)
    task: Any = Arbitrary(setup.stops)
    train = build_fused_update(setup.cell, setup.decoder, task, setup.sampler_shapes, setup.mesh)
    state = build_init_state(setup.decoder, setup.mesh)(setup.params)
    del setup.params
    index = np.arange(setup.sampler_shapes.problem_rows, dtype=np.int32)[None]
    batches = ProblemBatches(
        setup.problems,
        index,
        num_updates=np.int32(1),
        B_p=np.int32(len(ids)),
        n=np.int32(args.n),
        seed=np.int32(0),
    )
    coefficients = make_coefficients(setup.cell.rl)
    train = train.lower(state, {}, batches, coefficients).compile()
    release_freed_memory()  # as a run does when it has compiled

    def step() -> int:
        nonlocal state
        state, result = jax.block_until_ready(train(state, {}, batches, coefficients))
        metrics = values(result.metrics)
        tokens = int(metrics["tokens"])
        assert (
            tokens == len(ids) * args.n * args.new
            and metrics["trained_token_fraction"] == 1
            and metrics["nonfinite_update"] == 0
        ), metrics
        return tokens

    child.measure(step, args.repeats)


if __name__ == "__main__":
    main()
