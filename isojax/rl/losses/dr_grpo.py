"""Dr. GRPO (arXiv:2503.20783): GRPO without its two biases. Advantages are not divided by a group's
standard deviation, and a response's loss is not divided by its length: the sum over tokens is
divided by the constant B * T."""

from isojax.rl.losses import loss
from isojax.rl.losses.grpo import grpo

dr_grpo = loss(advantage="mean", aggregation="constant", clip=0.2, advantage_only=True)(grpo)
