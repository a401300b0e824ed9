"""What every exported config says at its top, as YAML comments."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isojax.core.config import Config
from isojax.core.nouns import Recommendation


def yaml_comments(lines: Sequence[str]) -> str:
    """Lines as YAML comments; a line break inside a line cannot end the comment."""
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


def header_lines(recommendation: Recommendation) -> list[str]:
    """The allocation, what it promises and why."""
    allocation = recommendation.allocation
    interval_text = (
        f", {recommendation.interval[0]:.3f} to {recommendation.interval[1]:.3f}" if recommendation.interval else ""
    )
    return [
        f"isojax recommend: B_p = {allocation.B_p} problems per batch, n = {allocation.n} rollouts per problem, M = "
        f"{allocation.M} updates; C = {allocation.C} rollouts.",
        f"Expected {recommendation.metric}: {recommendation.expected_reward:.3f}{interval_text}.",
        *recommendation.reasons,
    ]


def learning_rate_line(recommendation: Recommendation, sweep_config: Config | None) -> str:
    """What the sweep's rule gives at this batch; where its config is not known, the rule alone (IsoCompute Playbook,
    section 3).
    """
    B = recommendation.allocation.B
    if sweep_config is None:
        return (
            f"Learning rate: if your runs scaled it with sqrt(B), go on so; here B = B_p n = {B} rollouts per update."
        )
    rl = sweep_config.cell.rl
    scaled_rate = rl.learning_rate * math.sqrt(B / rl.lr_reference_batch)
    return (
        f"Learning rate: the sweep's rule, {rl.learning_rate:g} * sqrt(B / {rl.lr_reference_batch}), gives "
        f"{scaled_rate:.4g} at B = {B}."
    )
