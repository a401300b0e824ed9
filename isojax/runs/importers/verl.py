"""verl's file logger (trainer.logger=file): JSON lines {"step": s, "data": {tag: value}}, a step's rows together or
apart.

verl counts a step a batch of data.train_batch_size prompts, actor_rollout_ref.rollout.n rollouts each. Its log does not
hold the config:
say B_p and n. Tags: verl.trainer.ppo.metric_utils and ray_trainer (val-core/SOURCE/VARIABLE/mean@K), verl 0.9.
"""

from __future__ import annotations

from pathlib import Path

from isojax.core.errors import InputError
from isojax.runs.importers.jsonl import read_objects
from isojax.runs.log_fields import SAME_NAME_FIELDS
from isojax.runs.log_table import BytesReadCallback, LogRow, LogTable, other_format_hint

METRIC_COLUMNS = ("val-core/*/acc/mean@*", "val-core/*/reward/mean@*", "val/test_score/*")
TRAIN_COLUMNS = {
    "train_reward": ("critic/rewards/mean",),
    "train:entropy": ("actor/entropy", "actor/entropy_loss"),
    "train:kl": ("actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl"),
    "train:grad_norm": ("actor/grad_norm",),
    "response_length": ("response_length/mean",),
}
CONFIG_COLUMNS = {"n": ("actor_rollout_ref.rollout.n",), "B_p": ("data.train_batch_size",)}

FIELDS = SAME_NAME_FIELDS | TRAIN_COLUMNS | {"step": ("step",), "reward": METRIC_COLUMNS}


def read(path: Path, on_bytes_read: BytesReadCallback) -> list[LogTable]:
    """The file as one run.

    Raises:
        InputError: as `jsonl.objects`, or a line that is not {"step": ..., "data": {...}}, with its line.
    """
    rows = []
    for line_number, row in read_objects(path, on_bytes_read, "verl"):
        data = row.get("data")
        if not isinstance(data, dict) or "step" not in row:
            expected = 'expected {"step": NUMBER, "data": {TAG: VALUE}} as verl\'s file logger writes it'
            hint = other_format_hint(path, "verl") or " Other JSON lines are read with --from jsonl."
            raise InputError(
                f"{path}, line {line_number} has the keys {', '.join(map(str, row)) or '(none)'}; {expected}.{hint}"
            )
        rows.append(LogRow(f"line {line_number}", {**data, "step": row["step"]}))
    return [LogTable(str(path), tuple(rows))]
