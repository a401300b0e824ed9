"""verl's overrides (checked with verl 0.9: trainer/config/ppo_trainer.yaml), a Hydra config on top
of its defaults.

verl counts data.train_batch_size and ppo_mini_batch_size in prompts: equal, and with one epoch,
every rollout is used once by the policy that drew it. Its loop ends after total_epochs even where
total_training_steps is not reached; an epoch is at least one update, so M epochs never end first.

Its dynamic sampling (algorithm.filter_groups) replaces groups whose `metric` is the same for all
rollouts. main_ppo of verl 0.9 replaces them one by one and ignores gen_batch_size and
max_num_gen_batches; main_dapo of its recipe samples batches of gen_batch_size problems, and ends
with an error after max_num_gen_batches of them (0: no limit)."""

from typing import Any

from isojax.core.config import Config
from isojax.core.yaml_files import yaml_text
from isojax.report.exporters import (
    KEPT_GROUPS,
    GrowingStage,
    dynamic_sampling,
    exporter,
    growing_stages,
    header_comments,
)
from isojax.scaling.allocate.recommendation import Recommendation

HOW_TO_RUN = (
    "python -m verl.trainer.main_ppo --config-dir={folder} --config-name={name} "
    "data.train_files=... actor_rollout_ref.model.path=..."
)
FILTER_METRIC = "acc"


def render_growing(
    recommendation: Recommendation, sweep_config: Config | None, name: str
) -> list[str]:
    """A series: verl saves a checkpoint at the end, and goes on from the newest in
    default_local_dir."""
    folder = f"checkpoints/{name}"
    return [
        render(stage.recommendation, sweep_config, stage, folder)
        for stage in growing_stages(recommendation)
    ]


@exporter(how_to_run=HOW_TO_RUN, render_growing=render_growing)
def render(
    recommendation: Recommendation,
    sweep_config: Config | None,
    stage: GrowingStage | None = None,
    folder: str = "",
) -> str:
    """verl's overrides for the recommended run as YAML, with comments above them; with dynamic
    sampling where the measured runs had it. `sweep_config`: of these runs; None for imported logs.
    For a run of a series (`render_growing`), `stage` is which one, and `folder` where all of them
    keep their checkpoints."""
    allocation = recommendation.allocation
    sampling = dynamic_sampling(recommendation, sweep_config)
    M_end = allocation.M if stage is None else stage.M_end

    trainer: dict[str, int | str] = {"total_training_steps": M_end, "total_epochs": M_end}
    data = {"train_batch_size": allocation.B_p}
    algorithm: dict[str, Any] = {"adv_estimator": "grpo"}
    notes = [f"B = {allocation.B} rollouts per update must be a multiple of the number of GPUs."]
    if sampling is not None:
        data["gen_batch_size"] = allocation.B_p
        algorithm["filter_groups"] = {
            "enable": True,
            "metric": FILTER_METRIC,
            "max_num_gen_batches": 0,
        }
        # an update passes over several batches; so many epochs never end first
        trainer["total_epochs"] = sampling.epochs(M_end)
        notes.append(f"verl goes on until no group of equal {FILTER_METRIC} is left. {KEPT_GROUPS}")
        notes.append(
            "filter_groups.metric is a key of what your reward function returns; "
            f"where that is a number, {FILTER_METRIC}."
        )
    if stage is not None:
        trainer["save_freq"] = M_end  # and at the end, whatever it is, if it is above 0
        trainer |= {"resume_mode": "auto", "default_local_dir": folder}
        notes.append(
            "Steps are counted on from run to run. "
            "The checkpoint brings the first run's learning rate back."
        )
    notes.append(
        f"Run, in the folder of this file, NAME.yaml: {HOW_TO_RUN.format(folder='.', name='NAME')}"
    )

    overrides = {
        "defaults": ["ppo_trainer", "_self_"],
        "data": data,
        "algorithm": algorithm,
        "actor_rollout_ref": {
            "rollout": {"n": allocation.n},
            "actor": {"ppo_mini_batch_size": allocation.B_p, "ppo_epochs": 1},
        },
        "trainer": trainer,
    }
    rate_key = "actor_rollout_ref.actor.optim.lr"
    header = header_comments(recommendation, sweep_config, rate_key, notes, stage=stage)
    return header + yaml_text(overrides)
