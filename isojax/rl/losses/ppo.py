"""PPO (arXiv:1707.06347): the clipped surrogate with the critic's advantage of each token (rl/critic.py)."""

from isojax.rl.losses.grpo import ADVANTAGE_ONLY, loss

__all__ = ["ADVANTAGE_ONLY", "DEFAULTS", "NEEDS_CRITIC", "loss"]

DEFAULTS = {"advantage": "gae", "aggregation": "token", "clip": 0.2}
NEEDS_CRITIC = True
