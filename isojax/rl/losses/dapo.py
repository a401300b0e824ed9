"""DAPO (arXiv:2503.14476): GRPO's surrogate with a wider upper bound (clip-higher) and a mean over
tokens. Its other half, sampling until no group is without an advantage, would change C; such groups
are skipped here, and count in C."""

from isojax.rl.losses import loss
from isojax.rl.losses.grpo import grpo

dapo = loss(advantage="group", aggregation="token", clip=0.2, clip_high=0.28, advantage_only=True)(
    grpo
)
