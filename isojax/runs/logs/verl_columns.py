"""What verl calls things: the tags of its metrics, and the settings of its config that say n, B_p
and the devices. Its own logs have them, and so have those that it writes by W&B or TensorBoard
(verl.trainer.ppo.metric_utils and ray_trainer, verl 0.9)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from isojax.core.columns import parse_number
from isojax.core.tabular import DataRow

# acc/mean@k, or reward/mean@k of problems without acc
METRIC_COLUMNS = ("val-core/*/mean@*", "val/test_score/*")
TRAIN_COLUMNS = {
    "train_reward": ("critic/rewards/mean",),
    "train:entropy": ("actor/entropy", "actor/entropy_loss"),
    "train:kl": ("actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl"),
    "train:grad_norm": ("actor/grad_norm",),
    "response_length": ("response_length/mean",),
}
STEP_SECONDS = ("perf/time_per_step", "timing_s/step")
# Of DAPO, which samples further problems until enough groups have a gradient: of its recipe, and of
# main_ppo with algorithm.filter_groups.
SAMPLED_COLUMNS = {
    "sampled_batches": ("train/num_gen_batches",),
    "sampled_B_p": ("data.gen_batch_size",),
    "replaced_problems": ("training/filter_groups/evicted_samples",),
    "surplus_problems": ("training/filter_groups/discarded_surplus_samples",),
}
FIELDS_OF_FILTERED_STEPS = ("sampled_batches", "replaced_problems", "surplus_problems")

DEVICES = "device_count"  # no setting of verl's: `derived_settings` computes it
ROLLOUT_N = "actor_rollout_ref.rollout.n"
BATCH = "data.train_batch_size"
CONFIG_COLUMNS = {"n": (ROLLOUT_N,), "B_p": (BATCH,), "devices": (DEVICES,)}
# How often a problem is repeated before n: by Search-R1, Agent-R1, OpenHands, verl-agent and VAGEN.
REPEATS = (
    "actor_rollout_ref.rollout.n_agent",
    "actor_rollout_ref.rollout.n_repeat",
    "actor_rollout_ref.rollout.n_trajectories",
    "env.rollout.n",
    "rollout_manager.n_trajectory",
)
# RAGEN's settings in the place of verl's; its batch is B_p n
RAGEN = {ROLLOUT_N: ["es_manager.train.group_size"], BATCH: ["es_manager.train.env_groups"]}


def derived_settings(config: Mapping[str, Any], rows: Sequence[DataRow]) -> dict[str, int]:
    """Settings that a verl config gives only by several of its entries.

    They have the names by which the import reads them: the devices of all pools (DEVICES), n
    including a fork's REPEATS (ROLLOUT_N), and the problems of a sampled batch (BATCH). One that
    cannot be computed is left out.

    `config`: the log's settings by their dotted names, such as {"trainer.nnodes": 2}; `rows`: the
    log's, which tell whether it counts what DAPO samples."""

    def product(names: Sequence[str], default: int = 0) -> int:
        """The product of these settings of `config`; 0 where one is no count of 1 or more.

        default: what a setting counts that the config lacks.
        """
        counts = [parse_number(config.get(name, default)) or 0 for name in names]
        return int(math.prod(counts)) if all(1 <= count < 2**31 for count in counts) else 0

    settings: dict[str, int] = {}

    # The second pool samples alone, in asynchronous training; elsewhere there is none.
    trainer_devices = product(["trainer.n_gpus_per_node", "trainer.nnodes"])
    sampler_devices = product(["rollout.n_gpus_per_node", "rollout.nnodes"])
    if trainer_devices:
        settings[DEVICES] = trainer_devices + sampler_devices

    if any(name in config for name in REPEATS):
        settings[ROLLOUT_N] = product((ROLLOUT_N, *REPEATS), default=1)

    # With gen_batch_size, a step samples that many problems, and filters groups down to BATCH: a
    # log of DAPO counts what it samples itself, one of recipe/prime does not.
    settings[BATCH] = product((BATCH, "data.oversample_factor"))
    filter_tags = [tag for field in FIELDS_OF_FILTERED_STEPS for tag in SAMPLED_COLUMNS[field]]
    counts_samples = any(tag in row.values for row in rows for tag in filter_tags)
    sampled_problems = product(["data.gen_batch_size"])
    if sampled_problems > 1 and not counts_samples:
        settings[BATCH] = sampled_problems

    if all(product(names) for names in RAGEN.values()):
        settings |= {name: product(names) for name, names in RAGEN.items()}
    return {name: value for name, value in settings.items() if value}
