"""The CSV files that TensorBoard's scalars page offers for download, run-RUN-tag-TAG.csv: one
metric of one run each, with the columns Wall time, Step and Value. All tags of a run are one log of
it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from isojax.core.tabular import DataRow
from isojax.runs.logs.log_files import LogFiles
from isojax.runs.logs.log_table import LogTable

# "(1)": of a second download
_TAG_FILE = re.compile(r"run-(?P<run>.*)-tag-(?P<tag>.+?)( ?\(\d+\))?\.csv")
_COLUMNS = {"Wall time", "Step", "Value"}
_UNNAMED_RUN = "."  # of event files that lie in TensorBoard's log folder itself


def group_tag_files(logs: Sequence[Path]) -> list[LogFiles]:
    """The logs in order: the files of one run's tags in one folder as one, any other log alone."""
    files_of_source: dict[Path, list[Path]] = {}
    for log in logs:
        match = _TAG_FILE.fullmatch(log.name)
        source = log.with_name(f"run-{match['run']}-tag-*.csv") if match else log
        files_of_source.setdefault(source, []).append(log)
    return [LogFiles(tuple(files), source) for source, files in files_of_source.items()]


def join_tags(
    log: LogFiles, tables: Sequence[LogTable], field_map: Mapping[str, str]
) -> list[LogTable]:
    """The tables of one run's downloads from TensorBoard as one table, with a column for each tag.

    These are in place of the column Value. Tables of other files stay as they are.

    `log`: the files, as `group_tag_files` groups them; `tables`: one for each. A file's name has
    "_" where its tag has "/" (val_acc), so the column takes the tag's spelling from the user's map
    (`field_map`: field -> column, such as reward -> val/acc), where that fits."""
    matches = [match for file in log.files if (match := _TAG_FILE.fullmatch(file.name))]
    are_tags = len(matches) == len(tables) > 0 and all(
        set(table.columns) == _COLUMNS for table in tables
    )
    if not are_tags:
        return list(tables)

    column_in_file_name = {_as_in_file_name(column): column for column in field_map.values()}
    tags = []
    for match in matches:
        tag = match["tag"]
        tags.append(column_in_file_name.get(_as_in_file_name(tag), tag))

    rows = [
        _name_value(row, tag) for table, tag in zip(tables, tags, strict=True) for row in table.rows
    ]
    run = matches[0]["run"]
    return [
        LogTable(
            str(log.source),
            tuple(rows),
            run="" if run == _UNNAMED_RUN else run,
            only_metric=tags[0] if len(tags) == 1 else "",
        )
    ]


def _name_value(row: DataRow, tag: str) -> DataRow:
    """The row with its value in a column of the tag's name."""
    values = {name: cell for name, cell in row.values.items() if name != "Value"}
    return replace(row, values={**values, tag: row.values["Value"]})


def _as_in_file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", text)
