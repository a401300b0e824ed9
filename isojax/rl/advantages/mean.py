"""Dr. GRPO's advantage (arXiv:2503.20783): reward - mean of the rollout's group."""

from isojax.rl.advantages import advantage, group_centered

mean = advantage(needs_group=True)(group_centered)
