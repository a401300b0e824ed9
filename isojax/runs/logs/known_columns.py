"""The columns that several formats share: those of trackers, to which every trainer writes, and
those of tables that people export of them."""

from isojax.runs.logs import trl_columns, verl_columns
from isojax.runs.logs.log_table import LEDGER_FIELDS, SAME_NAME_FIELDS

# field -> the columns that W&B's history and config are known to have it in; the first that a log
# has is taken
TRACKER_FIELDS = {
    **SAME_NAME_FIELDS,
    **verl_columns.SAMPLED_COLUMNS,
    "n": ("n", *verl_columns.CONFIG_COLUMNS["n"], *trl_columns.CONFIG_COLUMNS["n"]),
    "B_p": ("B_p", *verl_columns.CONFIG_COLUMNS["B_p"]),
    "B": ("B", *trl_columns.CONFIG_COLUMNS["B"]),
    "step": (
        "M",
        "training_step",
        "train/global_step",
        "eval/global_step",
        "eval/step",
        "global_step",
        "step",
        "_step",  # counts calls of wandb.log, which are several for an update of some trainers
    ),
    "reward": ("avg@*", *verl_columns.METRIC_COLUMNS, *trl_columns.CALLBACK_COLUMNS["reward"]),
    **{
        field: (*columns, *trl_columns.CALLBACK_COLUMNS[field])
        for field, columns in verl_columns.TRAIN_COLUMNS.items()
    },
    "step_seconds": verl_columns.STEP_SECONDS,
    "elapsed_seconds": ("_runtime",),
    "devices": ("devices", *verl_columns.CONFIG_COLUMNS["devices"]),
}

# of a CSV or JSON lines: as in a ledger of ours, else as in the export of a tracker
TABLE_FIELDS = LEDGER_FIELDS | {
    "step": ("step", *TRACKER_FIELDS["step"], "global_step/max_steps", "Step"),
    "reward": (*LEDGER_FIELDS["reward"], *TRACKER_FIELDS["reward"]),
    **{field: TRACKER_FIELDS[field] for field in verl_columns.FIELDS_OF_FILTERED_STEPS},
    "elapsed_seconds": (
        "elapsed_seconds",
        *TRACKER_FIELDS["elapsed_seconds"],
        "wall_time",
        "Wall time",
    ),
    "run": (*LEDGER_FIELDS["run"], "run_name", "run_id", "Run", "Name"),
}
