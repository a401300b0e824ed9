"""verl's file logger (trainer.logger=file): lines {"step": s, "data": {tag: value}}, one or several
for a step, which is one batch of data.train_batch_size prompts with actor_rollout_ref.rollout.n
rollouts each. The log does not hold the config: say B_p and n."""

from dataclasses import replace
from pathlib import Path

from isojax.core.errors import InputError
from isojax.core.tabular import DataRow
from isojax.runs.importers import importer
from isojax.runs.logs import verl_columns
from isojax.runs.logs.log_files import LogStart
from isojax.runs.logs.log_table import (
    COLUMNS_OF_FRAME,
    SAME_NAME_FIELDS,
    LogTable,
    read_log_objects,
)

FIELDS = {
    **SAME_NAME_FIELDS,
    **verl_columns.TRAIN_COLUMNS,
    **verl_columns.SAMPLED_COLUMNS,
    "reward": verl_columns.METRIC_COLUMNS,
    "step_seconds": verl_columns.STEP_SECONDS,
}


def detect(log: LogStart) -> bool:
    if not log.has_json_lines or log.is_json_list or COLUMNS_OF_FRAME.match(log.head):
        return False
    return '"step"' in log.content[0] and '"data"' in log.content[0]


@importer(
    fields=FIELDS,
    detect=detect,
    suffixes=(".jsonl",),
    example=(
        "isojax records import n8.jsonl n16.jsonl --from verl --map B_p=512,n=n{} --out runs/verl"
    ),
)
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
        raise InputError(
            where=row.location,
            found=f"has the keys {keys}",
            expected=expected,
            fix="For other JSON lines: --from jsonl.",
        )

    return replace(row, values={**data, "step": row.values["step"]})
