"""PPO (arXiv:1707.06347): the clipped surrogate with the critic's advantage of each token
(rl/critic.py)."""

from isojax.rl.losses import loss
from isojax.rl.losses.grpo import grpo

ppo = loss(advantage="gae", aggregation="token", clip=0.2, advantage_only=True, needs_critic=True)(
    grpo
)
