"""How often a run saves its state: a plan and the run itself follow the same rule.

Checkpoints are written in the background. What they cost a run is the time for which training
waits: while its arrays are copied to the host, and where the checkpoint before is still being
written. `run.checkpoint_seconds` sets the interval; left null, it is chosen here so that training
waits at most SAVE_SHARE of the time, and never for the checkpoint before.
"""

SAVE_SHARE = 0.05  # of a run's time, for which training may wait for its saves
SHORTEST_INTERVAL = 60.0  # seconds; a shorter one saves little work
# Seconds. What a kill without notice may cost, besides the write that it interrupts; a save for
# which training waits over 190 s takes more than its share, therefore.
LONGEST_INTERVAL = 3600.0


def save_interval(checkpoint_seconds: float | None, waiting_seconds: float) -> float:
    """Seconds of training from the end of one save to the next.

    checkpoint_seconds: the setting, which is taken as it is; None: the interval follows
    `waiting_seconds`, for which training waits while it saves. With w for these and i for the
    interval, the share of the time is w / (w + i).
    """
    if checkpoint_seconds is not None:
        return checkpoint_seconds
    within_share = waiting_seconds * (1 / SAVE_SHARE - 1)
    return min(max(SHORTEST_INTERVAL, within_share), LONGEST_INTERVAL)
