"""DAPO (arXiv:2503.14476): GRPO's surrogate with a wider upper bound (clip-higher) and a mean over tokens. Its other
half, sampling again until no group is without an advantage, would change what C counts; such groups are skipped here,
and counted in C."""

from isojax.rl.losses.grpo import ADVANTAGE_ONLY, loss

__all__ = ["ADVANTAGE_ONLY", "DEFAULTS", "loss"]

DEFAULTS = {"advantage": "group", "aggregation": "token", "clip": 0.2, "clip_high": 0.28}
