"""Dr. GRPO's advantage (arXiv:2503.20783): reward - mean of the rollout's group."""

from isojax.rl.advantages import group_centered as advantage

__all__ = ["NEEDS_GROUP", "advantage"]

NEEDS_GROUP = True
