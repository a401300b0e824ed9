"""Tunix's GRPO learner: one step is rollouts by its vanilla sampler, rewards, advantages, update
with AdamW; float32, beta 0.

--variant micro=4: prompts (with their n rollouts) of a microbatch of the update; 1 without it (all
4 x 8 of 64 + 128 tokens at once took over 16 GiB). All are sampled at once. A step is timed between
two requests for prompts, when the parameters are there. Run alone (prompts: `compare.py
--commands`):

    .venv-peers/tunix/bin/python benchmarks/peers/step_tunix.py MODEL --prompts FILE --n 8 --new 128
"""

from collections.abc import Iterator
from typing import Any

import child


def main() -> None:
    args = child.arguments(__doc__)
    import jax
    import numpy as np
    import optax
    import tunix_setup
    from flax import nnx
    from tunix.rl import rl_cluster
    from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
    from tunix.rl.rollout.base_rollout import RolloutConfig

    prompts = child.read_prompts(args.prompts)
    B_p, length = len(prompts.ids), len(prompts.ids[0])
    model, _, mesh = tunix_setup.load(args.model)
    words = tunix_setup.Words(args.model)
    assert [words.encode(text) for text in prompts.texts] == prompts.ids
    training = rl_cluster.RLTrainingConfig(
        actor_optimizer=optax.chain(
            optax.clip_by_global_norm(1.0), optax.adamw(1e-6, weight_decay=0.0)
        ),
        eval_every_n_steps=10**6,
        max_steps=10**6,
        mini_batch_size=B_p,
        train_micro_batch_size=int((args.variant or "micro=1").removeprefix("micro=")),
        rollout_micro_batch_size=B_p,
        compute_logps_micro_batch_size=B_p,
    )
    rollout = RolloutConfig(
        max_tokens_to_generate=args.new,
        max_prompt_length=length,
        kv_cache_size=length + args.new,
        temperature=1.0,
        top_p=1.0,
        eos_tokens=[-1],
    )
    cluster = rl_cluster.RLCluster(
        actor=model,
        tokenizer=words,
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh={
                role: mesh
                for role in (
                    rl_cluster.Role.ACTOR,
                    rl_cluster.Role.REFERENCE,
                    rl_cluster.Role.ROLLOUT,
                )
            },
            training_config=training,
            rollout_config=rollout,
        ),
    )

    def rewards(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return [child.reward(list(text.encode())) for text in completions]

    learner = GRPOLearner(
        cluster,
        GRPOConfig(num_generations=args.n, num_iterations=1, beta=0.0, epsilon=0.2),
        rewards,
    )

    def batches() -> Iterator[dict[str, Any]]:
        for step in range(1 + args.repeats):
            clock = child.Clock()
            # comes back when the learner wants the next batch
            yield {"prompts": np.array(prompts.texts)}
            jax.block_until_ready(nnx.state(cluster.actor_trainer.model))
            if step > 0:  # the first compiles
                clock.add_tokens(B_p * args.n * args.new)

    with mesh:
        learner.train(batches())


if __name__ == "__main__":
    main()
