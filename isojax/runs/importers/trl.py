"""TRL's GRPOTrainer: the log_history of checkpoint-*/trainer_state.json, and training_args.bin next
to it, which says n and B. generation_batch_size rollouts are drawn at a time and serve
steps_per_generation x num_iterations microsteps, of which gradient_accumulation_steps make an
update, TRL's step (trl 1.16). training_args.bin is a pickle: it is read without running anything in
it, every class in it standing for a bag of attributes."""

import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from isojax.core.errors import InputError
from isojax.core.limits import MAX_NUMBER
from isojax.core.table_files import parse_json, paths_below, read_text
from isojax.core.tabular import DataRow
from isojax.runs.importers import importer
from isojax.runs.logs.log_table import SAME_NAME_FIELDS, LogTable, check_log_file

STATE_FILE, ARGUMENTS_FILE = "trainer_state.json", "training_args.bin"
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
ROLLOUTS_PER_STEP = "rollouts_per_step"
CONFIG_COLUMNS = {"n": ("num_generations",), "B": (ROLLOUTS_PER_STEP,)}
TRAIN_COLUMNS = {
    "train_reward": ("reward",),
    "train:entropy": ("entropy",),
    "train:kl": ("kl",),
    "train:grad_norm": ("grad_norm",),
    "response_length": ("completions/mean_length",),
}
# How transformers' callbacks rename them for W&B and TensorBoard.
CALLBACK_COLUMNS = {
    name: tuple(f"train/{column}" for column in columns) for name, columns in TRAIN_COLUMNS.items()
}
CALLBACK_COLUMNS["reward"] = ("eval/reward",)

FIELDS = (
    SAME_NAME_FIELDS
    | CONFIG_COLUMNS
    | TRAIN_COLUMNS
    | {"step": ("step",), "reward": ("eval_reward",)}
)


def rollouts_per_step(config: Mapping[str, Any]) -> dict[str, int]:
    """{ROLLOUTS_PER_STEP: B} from a GRPOConfig's values; {} where they are not all there, or give
    no whole number."""
    argument_names = (
        "generation_batch_size",
        "gradient_accumulation_steps",
        "steps_per_generation",
        "num_iterations",
    )
    values = [config.get(name) for name in argument_names]
    if not all(isinstance(v, int) and v > 0 for v in values):
        return {}
    generation_batch, accumulation_steps, steps_per_generation, iterations = (
        int(v) for v in values if v is not None
    )
    B, remainder = divmod(generation_batch * accumulation_steps, steps_per_generation * iterations)
    return {} if remainder else {ROLLOUTS_PER_STEP: B}


def plain_arguments(arguments: Any) -> dict[str, int | float | str]:
    """The numbers and texts among a trainer's arguments."""

    def is_number_or_text(value: Any) -> bool:
        return isinstance(value, str) or (type(value) in (int, float) and abs(value) <= MAX_NUMBER)

    items = arguments.items() if isinstance(arguments, dict) else ()
    return {key: value for key, value in items if is_number_or_text(value)}


def find_logs(folder: Path) -> list[Path]:
    """The output folder of every run below a folder; the folder itself, where it is one, or a
    checkpoint's."""
    files = (
        [folder / STATE_FILE] if (folder / STATE_FILE).exists() else paths_below(folder, STATE_FILE)
    )
    is_checkpoint = [
        file.parent.name.startswith("checkpoint-") and file.parent != folder for file in files
    ]
    runs = [
        file.parent.parent if inside else file.parent
        for file, inside in zip(files, is_checkpoint, strict=True)
    ]
    return list(dict.fromkeys(runs)) or [folder]


@importer(fields=FIELDS, find_logs=find_logs)
def read(path: Path) -> list[LogTable]:
    """A trainer_state.json or its log_history, a checkpoint's folder, or an output folder (its
    last), as one run."""
    file = _state_file(path)
    check_log_file(file)
    state = parse_json(read_text(file), file)
    # a list: saved by itself
    history = state.get("log_history") if isinstance(state, dict) else state
    if (
        not isinstance(history, list)
        or not history
        or not all(isinstance(entry, dict) for entry in history)
    ):
        raise InputError(
            f"{file}, line 1: no log_history there; expected TRL's {STATE_FILE}, or its log_history."
        )
    rows = tuple(
        DataRow(str(file), f"log_history[{i}]", entry, i) for i, entry in enumerate(history)
    )
    config = _read_arguments(file.with_name(ARGUMENTS_FILE))
    iterations = config.get("num_iterations", 1)
    note = f"num_iterations = {iterations}: B_p counts the new problems per update; a gradient is over more"
    return [
        LogTable(
            str(file), rows, config | rollouts_per_step(config), notes=(note,) * (iterations != 1)
        )
    ]


def _state_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    if (path / STATE_FILE).exists():
        return path / STATE_FILE
    # The state is written last: a checkpoint without one is being saved, or was cut off.
    numbered = {
        file.parent.name.removeprefix("checkpoint-"): file
        for file in path.glob(f"checkpoint-*/{STATE_FILE}")
    }
    updates = sorted(filter(str.isdecimal, numbered), key=int)
    if not updates:
        raise InputError(
            f"{path} holds no {STATE_FILE}, nor does a checkpoint-* in it; name a run's folder, or files."
        )
    return numbered[updates[-1]]


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
    """The numbers and texts of a training_args.bin, as torch saves it; {} where there is none that
    can be read."""
    try:
        if not path.is_file():  # but a pipe, or a device without end
            return {}
        with zipfile.ZipFile(path) as archive:
            pickles = [info for info in archive.infolist() if info.filename.endswith("data.pkl")]
            if pickles[0].file_size > MAX_ARGUMENTS_BYTES:
                return {}
            arguments = _InertUnpickler(io.BytesIO(archive.read(pickles[0]))).load()
        return plain_arguments(vars(arguments))
    except (*UNREADABLE, *MALFORMED):
        return {}
