"""REINFORCE++ (arXiv:2501.03262): PPO's surrogate without a critic. The advantage is the reward,
standardised over all response tokens of the batch and not within groups, so that it needs none and
n may be 1."""

from isojax.rl.losses import loss
from isojax.rl.losses.grpo import grpo

reinforce_pp = loss(advantage="whiten", aggregation="token", clip=0.2, advantage_only=True)(grpo)
