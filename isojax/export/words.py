"""What every exported config says at its top, as YAML comments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from isojax.config import Config
from isojax.scaling.recommend import Recommendation


def comments(lines: Sequence[str]) -> str:
    """Lines as YAML comments; a line break inside a line cannot end the comment."""
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


def heading(chosen: Recommendation, fit: Mapping[str, Any]) -> list[str]:
    """The allocation, what it promises and why."""
    a = chosen.allocation
    spans = f", {chosen.interval[0]:.3f} to {chosen.interval[1]:.3f}" if chosen.interval else ""
    return [
        f"isojax recommend: B_p = {a.B_p} problems a batch, n = {a.n} rollouts a problem, M = {a.M} updates; C = {a.C} rollouts.",
        f"Expected {fit['metric']}: {chosen.expected_reward:.3f}{spans}.",
        *chosen.reasons,
    ]


def learning_rate(chosen: Recommendation, saved: Config | None) -> str:
    """What the sweep's rule gives at this batch; where its config is not known, the rule alone (IsoCompute Playbook, section 3)."""
    B = chosen.allocation.B
    if saved is None:
        return f"Learning rate: if your runs scaled it with sqrt(B), go on so; here B = B_p n = {B} rollouts an update."
    rl = saved.cell.rl
    value = rl.learning_rate * math.sqrt(B / rl.anchor_batch)
    return f"Learning rate: the sweep's rule, {rl.learning_rate:g} * sqrt(B / {rl.anchor_batch}), gives {value:.4g} at B = {B}."
