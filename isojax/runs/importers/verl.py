"""verl's file logger (trainer.logger=file): lines {"step": s, "data": {tag: value}}, one or several for a step, which
is one batch of data.train_batch_size prompts with actor_rollout_ref.rollout.n rollouts each. The log does not hold
the config: say B_p and n. Tags: verl.trainer.ppo.metric_utils and ray_trainer, verl 0.9."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from isojax.core.errors import InputError
from isojax.core.tabular import DataRow, parse_number
from isojax.runs.importers.jsonl import read_log_objects
from isojax.runs.logs.log_table import SAME_NAME_FIELDS, LogTable

METRIC_COLUMNS = ("val-core/*/mean@*", "val/test_score/*")  # acc/mean@k, or reward/mean@k of problems without acc
TRAIN_COLUMNS = {
    "train_reward": ("critic/rewards/mean",),
    "train:entropy": ("actor/entropy", "actor/entropy_loss"),
    "train:kl": ("actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl"),
    "train:grad_norm": ("actor/grad_norm",),
    "response_length": ("response_length/mean",),
}
DEVICES, ROLLOUT_N = "device_count", "actor_rollout_ref.rollout.n"
CONFIG_COLUMNS = {"n": (ROLLOUT_N,), "B_p": ("data.train_batch_size",), "devices": (DEVICES,)}
REPEATS = ("actor_rollout_ref.rollout.n_agent", "env.rollout.n")  # of a problem, by Search-R1 and verl-agent, before n
SAMPLED = {"sampled_batches": ("train/num_gen_batches",), "sampled_B_p": ("data.gen_batch_size",)}  # by DAPO
STEP_SECONDS = ("perf/time_per_step", "timing_s/step")

FIELDS = SAME_NAME_FIELDS | TRAIN_COLUMNS | SAMPLED | {"reward": METRIC_COLUMNS, "step_seconds": STEP_SECONDS}
SUFFIXES = (".jsonl",)


def derived_settings(config: Mapping[str, Any]) -> dict[str, int]:
    """The devices of all nodes, and n times a fork's REPEATS, from verl's config; none where it does not say them."""
    factors = {DEVICES: [config.get(f"trainer.{name}") for name in ("n_gpus_per_node", "nnodes")]}
    if any(name in config for name in REPEATS):
        factors[ROLLOUT_N] = [config.get(name, 1) for name in (ROLLOUT_N, *REPEATS)]
    counts = {name: [parse_number(value) or 0 for value in values] for name, values in factors.items()}
    return {name: math.prod(map(int, x)) for name, x in counts.items() if all(1 <= count < 2**31 for count in x)}


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
