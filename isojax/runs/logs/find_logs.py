"""Which logs there are: those of a folder, and the format of a log whose format nobody named."""

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from isojax.core.csv_header import BAR, COMMENT, DELIMITERS
from isojax.core.errors import InputError
from isojax.core.table_files import JSON_LINES_SUFFIXES, paths_below, read_lines
from isojax.core.tabular import parse_number
from isojax.runs.importers import Importer, csv, tensorboard, trl, verl_console
from isojax.runs.logs.log_table import COLUMNS_OF_FRAME, check_log_file

FOLDER_PATTERNS = {
    "wandb": "run-*.wandb",
    "trl": trl.STATE_FILE,
    "tensorboard": tensorboard.EVENT_FILE_PATTERN,
}
# of a console log, before its first step; of JSON, to know whose it is
LINES_LOOKED_AT = 20_000
HEAD_LINES = 40


def logs_of_folder(folder: Path, importer: Importer) -> list[Path]:
    """The logs below a folder: as the importer's `find_logs` says, else the files of its format or
    suffixes, also packed (a reader refuses all but .gz); the folder itself where it has neither.
    InputError if there is none."""
    if importer.traits.find_logs is not None:
        return importer.traits.find_logs(folder)
    suffixes = importer.traits.suffixes
    if suffixes is None:
        return [folder]
    endings = tuple(
        suffix + packed
        for suffix in suffixes
        for packed in ("", ".gz", ".zip", ".xz", ".bz2", ".zst")
    )
    paths = [path for path in paths_below(folder) if path.is_file()]
    files = [
        path for path in paths if not any(x.startswith(".") for x in path.relative_to(folder).parts)
    ]
    logs = [
        path
        for path in files
        if path.name.lower().endswith(endings) or _format_of_file(path) == importer.name
    ]
    if not logs:
        raise InputError(
            f"{folder} holds no file that ends in {' or '.join(suffixes)}; name the logs themselves."
        )
    pieces = {path: re.split(r"(\d+)", str(path.with_suffix(""))) for path in logs}
    return sorted(logs, key=lambda path: [int(x) if x.isdigit() else x for x in pieces[path]])


def detect_format(paths: Sequence[Path]) -> str:
    """The one format of these logs, by their names and first lines; InputError where nothing
    identifies it."""
    formats = {found: path for path in reversed(paths) for found in _formats(path)}
    if len(formats) == 1:
        return next(iter(formats))
    if formats:
        found = ", ".join(f"{name} ({path})" for name, path in sorted(formats.items()))
        raise InputError(
            f"logs of several formats: {found}; expected one. Name it by --from, or leave logs out."
        )
    problem = f"{' '.join(map(str, paths))}: the format is not known by name or first lines; name it, such as"
    other_trainers = (
        "Of a trainer other than verl, import the run in W&B or TensorBoard, or trainer_state.json"
    )
    raise InputError(f"{problem} --from csv, or save it as CSV. {other_trainers}.")


def _formats(path: Path) -> set[str]:
    """The formats of a log, or of all logs below a folder; empty where none is known."""
    if not path.is_dir():
        check_log_file(path)
        found = _format_of_file(path) or _format_by_suffix(path)  # a reader says what is damaged
        return {found} if found else set()
    formats = {name for name, pattern in FOLDER_PATTERNS.items() if paths_below(path, pattern)}
    if len(formats) > 1:
        formats.discard("tensorboard")  # whose files W&B and TRL keep too
    return formats or {
        found for file in paths_below(path) if file.is_file() and (found := _format_of_file(file))
    }


def _format_of_file(path: Path) -> str:
    """The format of a file; "" where none is known."""
    name, errors, texts = path.name.removesuffix(".gz"), "", list[str]()
    if name.endswith(".wandb") or "tfevents" in name or name == trl.STATE_FILE:
        return (
            "wandb"
            if name.endswith(".wandb")
            else "trl"
            if name == trl.STATE_FILE
            else "tensorboard"
        )
    for errors in ("strict", "replace"):
        texts.clear()
        # of a file that is no text; but a console may have bytes that are none
        with suppress(InputError):
            for _, text in islice(read_lines(path, errors), LINES_LOOKED_AT):
                if verl_console.is_step_line(text):
                    return "verl_console"
                is_content = text.strip() and not text.startswith(COMMENT)
                texts += [text.strip()] if is_content and len(texts) < HEAD_LINES else []
            break
    if errors == "replace" or not texts:
        return ""
    head, texts = " ".join(texts), texts[:2]
    if re.match(r"\[ *\{", head):
        return (
            "trl"
            if '"epoch"' in head and re.search('"(eval_runtime|learning_rate)"', head)
            else "jsonl"
        )
    if head.startswith("{") and '"log_history"' in head:
        return "trl"
    if COLUMNS_OF_FRAME.match(head):
        return "jsonl"
    if _format_by_suffix(path) == "jsonl" or (
        len(texts) > 1 and all(text.startswith('{"') for text in texts)
    ):
        return "verl" if '"step"' in texts[0] and '"data"' in texts[0] else "jsonl"
    marks = [mark for mark in DELIMITERS + BAR if texts[0].count(mark) == texts[-1].count(mark) > 0]
    is_csv = any(
        parse_number(cell.strip(' "')) is not None
        for mark in marks
        for cell in texts[-1].split(mark)
    )
    return _format_by_suffix(path) or ("csv" if is_csv else "")


def _format_by_suffix(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return (
        "csv"
        if name.endswith(csv.SUFFIXES)
        else "jsonl"
        if name.endswith(JSON_LINES_SUFFIXES)
        else ""
    )
