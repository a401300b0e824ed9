"""A small table for what the logs do not say: the columns run, n, B_p (or B), seed, devices."""

from collections.abc import Mapping
from pathlib import Path

from isojax.core.errors import InputError
from isojax.core.table_files import read_table
from isojax.core.tabular import check_unique_rows, is_blank, list_some, nearest_names, require_column
from isojax.runs.logs.log_table import LogTable

SETTING_FIELDS = ("n", "B_p", "B", "seed", "samples", "devices", "scale")

RunSettings = Mapping[str, Mapping[str, str]]  # run -> field -> number as text


def read_settings(path: Path) -> RunSettings:
    """The table; InputError where it lacks the column run, or has one that is no setting."""
    table = read_table(path)
    require_column(table, "run")
    unknown = [name for name in table.columns if name not in ("run", *SETTING_FIELDS)]
    if unknown:
        place, expected = f"{path}, {table.header_position}", f"run and some of {', '.join(SETTING_FIELDS)}"
        raise InputError(f"{place}: no setting {unknown[0]!r}; expected {expected}. Remove the column.")
    if nameless := [row.location for row in table.rows if is_blank(row.values.get("run"))]:
        raise InputError(f"{nameless[0]} names no run; expected one in each row. Fill it in, or remove the row.")
    check_unique_rows(table, ["run"])
    return {
        str(row.values["run"]).strip(): {
            name: str(row.values[name]) for name in SETTING_FIELDS if not is_blank(row.values.get(name))
        }
        for row in table.rows
    }


def settings_of(table: LogTable, settings: RunSettings) -> Mapping[str, str]:
    """What the settings, if any, say of a run by its name, id, path, file or a folder of it; InputError for nothing."""
    if not settings:
        return {}
    path = Path(table.source)
    stem = path.name.removesuffix(".gz")
    names = [table.run, table.run_id, table.source, path.name, stem, Path(stem).stem, *reversed(path.parts[:-1])]
    for name in filter(None, names):
        if name in settings:
            return settings[name]
    wanted = table.run or path.name
    (nearest,) = nearest_names(wanted, list(settings))
    problem = f"--settings: no row for {table.label}; expected one with run = {wanted}"
    raise InputError(f"{problem}. The nearest is {nearest!r}; the runs are {list_some(list(settings))}.")
