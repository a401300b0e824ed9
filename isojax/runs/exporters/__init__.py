"""A recommendation as a trainer's config: one file for each framework, or a fork's own module (`--for
my_fork.my_trainer`), with `render(recommendation, sweep_config) -> str` (sweep_config is None for imported logs) and
HOW_TO_RUN, the command that uses the written file; {file}, {folder} and {name} stand for its path, its folder, and
its name less .yaml."""

import math
from collections.abc import Sequence

from isojax.core.config import Config
from isojax.core.nouns import Recommendation


def header_comments(
    recommendation: Recommendation, sweep_config: Config | None, learning_rate_key: str, notes: Sequence[str]
) -> str:
    """YAML comments for the top of a config: the allocation, its expected reward, reasons, learning rate, and notes."""
    allocation, interval = recommendation.allocation, recommendation.interval
    interval_text = f", {interval[0]:.3f} to {interval[1]:.3f}" if interval else ""
    lines = [
        f"isojax recommend: B_p = {allocation.B_p} problems per batch, n = {allocation.n} rollouts per problem, M = "
        f"{allocation.M} updates; C = {allocation.C} rollouts.",
        f"Expected {recommendation.metric}: {recommendation.expected_reward:.3f}{interval_text}.",
        *recommendation.reasons,
        *([f"Risk: {recommendation.risk_summary}."] if recommendation.risks else []),
        *(f"warning: {warning}" for warning in recommendation.further_warnings),
        f"{_learning_rate_text(allocation.B, sweep_config)} The key is {learning_rate_key}.",
        *notes,
    ]
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)  # a line break would end the comment


def _learning_rate_text(B: int, sweep_config: Config | None) -> str:
    """What the sweep's rule gives at this batch, or the rule alone (IsoCompute Playbook, section 3)."""
    if sweep_config is None:
        return (
            "Learning rate: if your runs scaled it with sqrt(B), continue to do so;"
            f" here B = B_p n = {B} rollouts per update."
        )
    rl = sweep_config.cell.rl
    scaled_rate = rl.learning_rate * math.sqrt(B / rl.lr_reference_batch)
    return (
        f"Learning rate: the sweep's rule, {rl.learning_rate:g} * sqrt(B / {rl.lr_reference_batch}), gives "
        f"{scaled_rate:.4g} at B = {B}."
    )
