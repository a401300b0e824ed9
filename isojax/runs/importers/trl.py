"""TRL's GRPOTrainer: the log_history of checkpoint-*/trainer_state.json, and training_args.bin next
to it, which says n and B. training_args.bin is a pickle: it is read without running anything in it,
every class in it standing for a bag of attributes."""

import io
import pickle
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, Self

from isojax.core.errors import InputError
from isojax.core.table_files import parse_json, paths_below, read_text
from isojax.core.tabular import DataRow
from isojax.runs.importers import importer
from isojax.runs.logs import trl_columns
from isojax.runs.logs.log_files import LogStart
from isojax.runs.logs.log_table import SAME_NAME_FIELDS, LogTable, check_log_file

STATE_FILE = "trainer_state.json"
ARGUMENTS_FILE = "training_args.bin"
MAX_ARGUMENTS_BYTES = 16 * 1024**2
# What reading a file that is no archive, or no pickle of an object, may raise.
UNREADABLE = (
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    RuntimeError,
    pickle.UnpicklingError,
    EOFError,
)
MALFORMED = (AttributeError, TypeError, ValueError, LookupError, OverflowError, MemoryError)

FIELDS = {
    **SAME_NAME_FIELDS,
    **trl_columns.CONFIG_COLUMNS,
    **trl_columns.TRAIN_COLUMNS,
    "step": ("step",),
    "reward": ("eval_reward",),
}


def detect(log: LogStart) -> bool:
    """Whether it is a trainer's state by its name or content, or a log_history saved by itself."""
    if log.name == STATE_FILE:
        return True
    if log.is_json_list:
        has_trainer_keys = re.search('"(eval_runtime|learning_rate)"', log.head) is not None
        return '"epoch"' in log.head and has_trainer_keys
    return log.head.startswith("{") and '"log_history"' in log.head


def find_logs(folder: Path) -> list[Path]:
    """The output folder of every run below a folder.

    The folder itself, where it holds a trainer's state, as a checkpoint's does, or where there is
    none below it.
    """
    if (folder / STATE_FILE).exists():
        return [folder]

    runs = []
    for file in paths_below(folder, STATE_FILE):
        checkpoint = file.parent
        is_in_checkpoint = checkpoint.name.startswith("checkpoint-") and checkpoint != folder
        runs.append(checkpoint.parent if is_in_checkpoint else checkpoint)
    return list(dict.fromkeys(runs)) or [folder]


@importer(
    fields=FIELDS,
    detect=detect,
    folder_pattern=STATE_FILE,
    find_logs=find_logs,
    example="isojax records import out/checkpoint-500 --from trl --out runs/trl",
)
def read(path: Path) -> list[LogTable]:
    """The table of one run, in a list of one.

    path: a trainer_state.json, its log_history saved alone, a checkpoint's folder, or an output
    folder, of which the last checkpoint counts. InputError where there is no log_history.
    """
    file = _state_file(path)
    check_log_file(file)

    # A log_history that was saved alone is a list.
    state = parse_json(read_text(file), file)
    history = state.get("log_history") if isinstance(state, dict) else state
    entries = history if isinstance(history, list) else []
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(
            where=f"{file}, line 1",
            found="no log_history there",
            expected=f"TRL's {STATE_FILE}, or its log_history",
        )
    rows = tuple(
        DataRow(str(file), f"log_history[{i}]", entry, index=i) for i, entry in enumerate(entries)
    )

    config = _read_arguments(file.with_name(ARGUMENTS_FILE))
    iterations = config.get("num_iterations", 1)
    notes = []
    if iterations != 1:
        notes.append(
            f"num_iterations = {iterations}: B_p counts the new problems per update; "
            "a gradient is over more"
        )
    # B, computed from several of the arguments; {} where they are not all there
    config |= trl_columns.rollouts_per_step(config)
    return [LogTable(str(file), rows, config, notes=tuple(notes))]


def _state_file(path: Path) -> Path:
    """The trainer_state.json to read: a file itself; of a folder, its own or its last checkpoint's.

    InputError where there is none.
    """
    if not path.is_dir():
        return path
    if (path / STATE_FILE).exists():
        return path / STATE_FILE

    # A checkpoint's state is written last: one without it is still being saved, or was cut off.
    state_of_update = {}
    for file in path.glob(f"checkpoint-*/{STATE_FILE}"):
        update = file.parent.name.removeprefix("checkpoint-")
        if update.isdecimal():
            state_of_update[int(update)] = file
    if not state_of_update:
        raise InputError(
            where=path,
            found=f"no {STATE_FILE}, nor does a checkpoint-* in it",
            fix="Name a run's folder, or files.",
        )
    return state_of_update[max(state_of_update)]


class _PickledObject:
    """Stands for every class and function of a pickle: keeps the attributes it is given, and does
    nothing."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _InertUnpickler(pickle.Unpickler):
    """Reads a pickle's attributes without importing or running anything it names."""

    def find_class(self, module: str, name: str) -> type[_PickledObject]:
        return _PickledObject

    def persistent_load(self, pid: Any) -> None: ...


def _read_arguments(path: Path) -> dict[str, Any]:
    """The numbers and texts among the arguments in a training_args.bin, by name.

    torch saved it as a zip of pickles. {} where there is no such file, or it cannot be read. No
    code of the pickle runs.
    """
    try:
        if not path.is_file():  # nor a pipe, or a device without end
            return {}

        with zipfile.ZipFile(path) as archive:
            pickles = [info for info in archive.infolist() if info.filename.endswith("data.pkl")]
            if pickles[0].file_size > MAX_ARGUMENTS_BYTES:
                return {}
            arguments = _InertUnpickler(io.BytesIO(archive.read(pickles[0]))).load()
        return trl_columns.plain_arguments(vars(arguments))
    except (*UNREADABLE, *MALFORMED):
        return {}
