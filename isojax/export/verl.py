"""verl's overrides (checked with verl 0.9: trainer/config/ppo_trainer.yaml), a Hydra config on top of its defaults.

verl counts data.train_batch_size and ppo_mini_batch_size in prompts: equal, and with one epoch, every rollout is used once by the policy
that drew it. Its loop ends after total_epochs even where total_training_steps is not reached; an epoch is at least one update, so M epochs
never end first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isojax.config import Config
from isojax.export.words import comments, heading, learning_rate
from isojax.files import yaml_text
from isojax.scaling.recommend import Recommendation

HOW_TO_RUN = (
    "python -m verl.trainer.main_ppo --config-dir={folder} --config-name={name} data.train_files=... actor_rollout_ref.model.path=..."
)


def render(chosen: Recommendation, saved: Config | None, fit: Mapping[str, Any]) -> str:
    """The overrides as YAML."""
    a = chosen.allocation
    overrides = {
        "defaults": ["ppo_trainer", "_self_"],
        "data": {"train_batch_size": a.B_p},
        "algorithm": {"adv_estimator": "grpo"},
        "actor_rollout_ref": {"rollout": {"n": a.n}, "actor": {"ppo_mini_batch_size": a.B_p, "ppo_epochs": 1}},
        "trainer": {"total_training_steps": a.M, "total_epochs": a.M},
    }
    lines = [
        *heading(chosen, fit),
        f"{learning_rate(chosen, saved)} The key is actor_rollout_ref.actor.optim.lr.",
        f"B = {a.B} rollouts an update must be a multiple of the number of GPUs.",
        f"Run, in the folder of this file, NAME.yaml: {HOW_TO_RUN.format(folder='.', name='NAME')}",
    ]
    return comments(lines) + yaml_text(overrides)
