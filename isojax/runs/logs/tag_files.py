"""The CSV files that TensorBoard's scalars page offers for download, run-RUN-tag-TAG.csv: one metric of one run each,
with the columns Wall time, Step and Value. All tags of a run are one log of it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from isojax.core.tabular import DataRow
from isojax.runs.logs.log_table import LogTable

_TAG_FILE = re.compile(r"run-(?P<run>.*)-tag-(?P<tag>.+?)( ?\(\d+\))?\.csv")  # "(1)": of a second download
_COLUMNS = {"Wall time", "Step", "Value"}
_UNNAMED_RUN = "."  # of event files that lie in TensorBoard's log folder itself


def group_tag_files(logs: Sequence[Path]) -> list[tuple[Path, ...]]:
    """The logs in order: the tags of one run, in one folder, together, and any other log alone."""
    groups: dict[object, tuple[Path, ...]] = {}
    for log in logs:
        match = _TAG_FILE.fullmatch(log.name)
        key = (log.parent, match["run"]) if match else log
        groups[key] = (*groups.get(key, ()), log)
    return list(groups.values())


def join_tags(logs: Sequence[Path], tables: Sequence[LogTable], field_map: Mapping[str, str]) -> list[LogTable]:
    """The tables of such a group as one, with a column for each tag; as they are where they are no tags. A tag is
    called as the user's map spells it (val/acc), else as its file's name does, where "/" is "_"."""
    matches = [_TAG_FILE.fullmatch(log.name) for log in logs]
    tag_names = [match["tag"] for match in matches if match]
    are_tags = len(tag_names) == len(tables) > 0 and all({*table.columns} == _COLUMNS for table in tables)
    if not are_tags:
        return list(tables)
    spelling = {_as_in_file_name(text): text for text in field_map.values()}
    tags = [spelling.get(_as_in_file_name(name), name) for name in tag_names]
    rows = [_name_value(row, tag) for table, tag in zip(tables, tags, strict=True) for row in table.rows]
    run = next(match["run"] for match in matches if match)
    source = logs[0].with_name(f"run-{run}-tag-*.csv")
    run_name = "" if run == _UNNAMED_RUN else run
    return [LogTable(str(source), tuple(rows), run=run_name, only_metric=tags[0] if len(tags) == 1 else "")]


def _name_value(row: DataRow, tag: str) -> DataRow:
    others = {name: cell for name, cell in row.values.items() if name != "Value"}
    return replace(row, values={**others, tag: row.values["Value"]})


def _as_in_file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", text)
