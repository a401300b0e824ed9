"""verl's file logger (trainer.logger=file): lines {"step": s, "data": {tag: value}}, one or several
for a step, which is one batch of data.train_batch_size prompts with actor_rollout_ref.rollout.n
rollouts each. The log does not hold the config: say B_p and n. Tags: verl.trainer.ppo.metric_utils
and ray_trainer, verl 0.9."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isojax.core.errors import InputError
from isojax.core.tabular import DataRow, parse_number
from isojax.runs.importers import importer
from isojax.runs.logs.log_table import SAME_NAME_FIELDS, LogTable, read_log_objects

# acc/mean@k, or reward/mean@k of problems without acc
METRIC_COLUMNS = ("val-core/*/mean@*", "val/test_score/*")
TRAIN_COLUMNS = {
    "train_reward": ("critic/rewards/mean",),
    "train:entropy": ("actor/entropy", "actor/entropy_loss"),
    "train:kl": ("actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl"),
    "train:grad_norm": ("actor/grad_norm",),
    "response_length": ("response_length/mean",),
}
DEVICES = "device_count"
ROLLOUT_N = "actor_rollout_ref.rollout.n"
BATCH = "data.train_batch_size"
CONFIG_COLUMNS = {"n": (ROLLOUT_N,), "B_p": (BATCH,), "devices": (DEVICES,)}
REPEATS = (  # of a problem, before n: by Search-R1, Agent-R1, OpenHands, verl-agent and VAGEN
    *(f"actor_rollout_ref.rollout.{name}" for name in ("n_agent", "n_repeat", "n_trajectories")),
    *("env.rollout.n", "rollout_manager.n_trajectory"),
)
# its batch is B_p n
RAGEN = {ROLLOUT_N: ["es_manager.train.group_size"], BATCH: ["es_manager.train.env_groups"]}
# By DAPO: of its recipe, and of main_ppo with algorithm.filter_groups.
SAMPLED = {
    "sampled_batches": ("train/num_gen_batches",),
    "sampled_B_p": ("data.gen_batch_size",),
    "replaced_problems": ("training/filter_groups/evicted_samples",),
    "surplus_problems": ("training/filter_groups/discarded_surplus_samples",),
}
OF_FILTERED_STEPS = ("sampled_batches", "replaced_problems", "surplus_problems")
STEP_SECONDS = ("perf/time_per_step", "timing_s/step")

FIELDS = (
    SAME_NAME_FIELDS
    | TRAIN_COLUMNS
    | SAMPLED
    | {"reward": METRIC_COLUMNS, "step_seconds": STEP_SECONDS}
)


def derived_settings(config: Mapping[str, Any], rows: Sequence[DataRow]) -> dict[str, int]:
    """From verl's config, where it says them: the devices of all pools, n times a fork's REPEATS,
    and the problems that a batch samples where no groups are filtered, or before recipe/prime
    filters them."""

    def product(names: Sequence[str], default: int = 0) -> int:
        counts = [parse_number(config.get(name, default)) or 0 for name in names]
        return int(math.prod(counts)) if all(1 <= count < 2**31 for count in counts) else 0

    trainer, sampler = (
        product([f"{pool}.n_gpus_per_node", f"{pool}.nnodes"]) for pool in ("trainer", "rollout")
    )
    settings = {DEVICES: trainer and trainer + sampler}
    settings[ROLLOUT_N] = (
        product((ROLLOUT_N, *REPEATS), default=1) if any(name in config for name in REPEATS) else 0
    )
    settings[BATCH] = product((BATCH, "data.oversample_factor"))
    filter_tags = [tag for name in OF_FILTERED_STEPS for tag in SAMPLED[name]]
    filters = any(tag in row.values for row in rows for tag in filter_tags)
    if product(["data.gen_batch_size"]) > 1 and not filters:
        settings[BATCH] = product(["data.gen_batch_size"])
    if all(map(product, RAGEN.values())):
        settings |= {name: product(names) for name, names in RAGEN.items()}
    return {name: value for name, value in settings.items() if value}


@importer(fields=FIELDS, suffixes=(".jsonl",))
def read(path: Path) -> list[LogTable]:
    """The file as one run; InputError for a line of another form."""
    rows, notes = read_log_objects(path)
    return [LogTable(str(path), tuple(map(_unpack, rows)), notes=notes)]


def _unpack(row: DataRow) -> DataRow:
    """The tags of a line as columns, and its step."""
    data = row.values.get("data")
    if not isinstance(data, dict) or "step" not in row.values:
        keys = ", ".join(map(str, row.values)) or "(none)"
        expected = '{"step": NUMBER, "data": {TAG: VALUE}}, as verl\'s file logger writes it'
        hint = "For other JSON lines: --from jsonl"
        raise InputError(f"{row.location} has the keys {keys}; expected {expected}. {hint}.")
    return replace(row, values={**data, "step": row.values["step"]})
