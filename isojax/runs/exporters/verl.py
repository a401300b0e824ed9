"""verl's overrides (checked with verl 0.9: trainer/config/ppo_trainer.yaml), a Hydra config on top
of its defaults.

verl counts data.train_batch_size and ppo_mini_batch_size in prompts: equal, and with one epoch,
every rollout is used once by the policy that drew it. Its loop ends after total_epochs even where
total_training_steps is not reached; an epoch is at least one update, so M epochs never end
first."""

from isojax.core.config import Config
from isojax.core.nouns import Recommendation
from isojax.core.yaml_files import yaml_text
from isojax.runs.exporters import GrowingStage, exporter, growing_stages, header_comments

HOW_TO_RUN = (
    "python -m verl.trainer.main_ppo --config-dir={folder} --config-name={name} data.train_files=... "
    "actor_rollout_ref.model.path=..."
)


def render_growing(
    recommendation: Recommendation, sweep_config: Config | None, name: str
) -> list[str]:
    """A series: verl saves a checkpoint at the end, and goes on from the newest in
    default_local_dir."""
    return [
        render(s.recommendation, sweep_config, s, f"checkpoints/{name}")
        for s in growing_stages(recommendation)
    ]


@exporter(how_to_run=HOW_TO_RUN, render_growing=render_growing)
def render(
    recommendation: Recommendation,
    sweep_config: Config | None,
    stage: GrowingStage | None = None,
    folder: str = "",
) -> str:
    """The overrides as YAML. `stage`, and the folder of its checkpoints: of a series."""
    allocation = recommendation.allocation
    M_end = allocation.M if stage is None else stage.M_end
    trainer: dict[str, int | str] = {"total_training_steps": M_end, "total_epochs": M_end}
    overrides = {
        "defaults": ["ppo_trainer", "_self_"],
        "data": {"train_batch_size": allocation.B_p},
        "algorithm": {"adv_estimator": "grpo"},
        "actor_rollout_ref": {
            "rollout": {"n": allocation.n},
            "actor": {"ppo_mini_batch_size": allocation.B_p, "ppo_epochs": 1},
        },
        "trainer": trainer,
    }
    notes = [f"B = {allocation.B} rollouts per update must be a multiple of the number of GPUs."]
    if stage is not None:
        trainer["save_freq"] = M_end  # and at the end, whatever it is, if it is above 0
        trainer |= {"resume_mode": "auto", "default_local_dir": folder}
        notes.append(
            "Steps are counted on from run to run. The checkpoint brings the first run's learning rate back."
        )
    notes.append(
        f"Run, in the folder of this file, NAME.yaml: {HOW_TO_RUN.format(folder='.', name='NAME')}"
    )
    learning_rate_key = "actor_rollout_ref.actor.optim.lr"
    return header_comments(
        recommendation, sweep_config, learning_rate_key, notes, stage=stage
    ) + yaml_text(overrides)
