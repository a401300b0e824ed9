"""The day that a chat template is told: one for a sweep, or prompts would change at midnight, and
with each resumption.

Llama 3.2's template, for one, calls strftime_now. The day is chosen when a sweep is planned first,
and is stored with its config; until that is written, and for the labels of `isojax difficulty`, in
a file of its own.
"""

from datetime import datetime
from pathlib import Path

from isojax.core.atomic_files import write_text
from isojax.core.config import CellConfig, Config, load_config
from isojax.core.errors import InputError
from isojax.core.table_files import read_json_object
from isojax.core.terminal import warn

DATE_FILE = "prompt_date.txt"
CLOCK = "strftime_now"  # the function by which a chat template asks for the time
TEMPLATE_FILES = ("tokenizer_config.json", "chat_template*")


def asks_for_date(cell: CellConfig) -> bool:
    """Whether prompts go through a chat template that asks for the time."""
    if cell.prompt.format != "chat" or not cell.model.path:
        return False
    for pattern in TEMPLATE_FILES:
        for file in Path(cell.model.path).glob(pattern):
            if file.is_file() and CLOCK in file.read_text(encoding="utf-8", errors="replace"):
                return True
    return False


def with_new_date(config: Config, store: Path) -> Config:
    """The config with cell.prompt.date set, such as "2026-11-29", where prompts need a day.

    Where the template asks for a day and no setting says one, it is the day kept in `store`, the
    folder in which the work begins (`store_date`); else that of the base policy or of the labels
    that the run begins from; else today's.
    """
    if config.cell.prompt.date is not None or not asks_for_date(config.cell):
        return config
    date = (
        _stored_date(store)
        or _date_of_base(config)
        or _date_of_splits(config.cell)
        or f"{datetime.now():%Y-%m-%d}"
    )
    return config.with_settings(cell={"prompt": {"date": date}})


def with_saved_date(config: Config, saved: Config, folder: Path) -> Config:
    """The config of a run that goes on in `folder`, with the day that it began with.

    config: whose day, if it is set, comes first. saved: the config in the folder. Where neither has
    a day and the template asks for one, a warning: prompts have each day's.
    """
    date = config.cell.prompt.date or saved.cell.prompt.date
    if date is None and asks_for_date(config.cell):
        warn(
            f"{folder} was begun by an isojax that recorded no day, and its chat template writes"
            " one into prompts: they have today's from here on"
        )
    return config.with_settings(cell={"prompt": {"date": date}})


def store_date(cell: CellConfig, store: Path) -> None:
    """Write the day to DATE_FILE in `store`, for a resumption before there is a config.yaml.

    Nothing where the template asks for no day, or the file has it already.
    """
    if (
        cell.prompt.date is not None
        and asks_for_date(cell)
        and _stored_date(store) != cell.prompt.date
    ):
        store.mkdir(parents=True, exist_ok=True)
        write_text(store / DATE_FILE, f"{cell.prompt.date}\n")


def describe_date(cell: CellConfig) -> str | None:
    """What a plan says of the day, in a line; None where prompts have none."""
    if cell.prompt.date is None or not asks_for_date(cell):
        return None
    return (
        f"the chat template writes the date: cell.prompt.date={cell.prompt.date} for every prompt,"
        " whatever the day"
    )


def _stored_date(store: Path) -> str | None:
    """The day that `store_date` wrote; None without one; InputError where it is no day."""
    file = store / DATE_FILE
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8", errors="replace").strip()
    try:
        datetime.fromisoformat(text)
    except ValueError as e:
        raise InputError(
            where=file,
            found=f"given {text[:80]!r}",
            expected="a day such as 2026-11-29",
            fix="Remove the file.",
        ) from e
    return text


def _date_of_base(config: Config) -> str | None:
    """The day of the sweep whose base policy and labels this one takes over (run.base_from)."""
    if not config.run.base_from:
        return None
    saved_file = Path(config.run.base_from, "config.yaml")
    return load_config(str(saved_file)).cell.prompt.date if saved_file.is_file() else None


def _date_of_splits(cell: CellConfig) -> str | None:
    """The day of the labels of `isojax difficulty`, where the task is one of its data sets.

    None for any other task, and where the data set records no day.
    """
    # cell.task is such as tfds:FOLDER#SPLIT.
    name, _, argument = cell.task.partition(":")
    folder, _, _ = argument.partition("#")
    metadata_file = Path(folder, "metadata.json")
    if name != "tfds" or not metadata_file.is_file():
        return None
    settings = read_json_object(metadata_file).get("settings")
    date = settings.get("cell.prompt.date") if isinstance(settings, dict) else None
    return date if isinstance(date, str) else None
