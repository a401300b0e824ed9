"""Rewards that rounding has put a little outside of [0, 1], as 1.0000000000000002, the mean of
weighted ones."""

ROUNDING = 1e-6  # of the highest reward: what a sum in float32 may be off by


def clip_rounding(reward: float, highest: float = 1.0) -> float:
    """A reward that is outside of [0, highest] by rounding as 0 or the highest, any other as it
    is."""
    nearest = min(max(reward, 0.0), highest)
    return nearest if abs(reward - nearest) <= ROUNDING * highest else reward
