"""TRL's GRPOTrainer: checkpoint-*/trainer_state.json, whose log_history is read, and the training_args.bin next to it,
which says n and B.

TRL's step is one optimizer update; generation_batch_size rollouts are drawn at a time and serve steps_per_generation
x num_iterations microsteps, of which gradient_accumulation_steps make an update (trl.GRPOConfig, trl 1.16).
training_args.bin is a pickle: it is read without running anything in it, every class in it standing for a bag of
attributes.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isojax.core.errors import InputError
from isojax.core.table_files import BytesReadCallback, parse_json, read_lines
from isojax.core.tabular import DataRow
from isojax.runs.logs.column_map import SAME_NAME_FIELDS
from isojax.runs.logs.log_table import LogTable, checked_file_size

STATE_FILE, ARGUMENTS_FILE = "trainer_state.json", "training_args.bin"
MAX_ARGUMENTS_BYTES = 16 * 1024**2
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
CALLBACK_COLUMNS = {name: tuple(f"train/{column}" for column in columns) for name, columns in TRAIN_COLUMNS.items()} | {
    "reward": ("eval/reward",)
}

FIELDS = SAME_NAME_FIELDS | CONFIG_COLUMNS | TRAIN_COLUMNS | {"step": ("step",), "reward": ("eval_reward",)}


def rollouts_per_step(config: Mapping[str, Any]) -> dict[str, int]:
    """{ROLLOUTS_PER_STEP: B} from a GRPOConfig's values; {} where they are not all there, or give no whole number."""
    argument_names = ("generation_batch_size", "gradient_accumulation_steps", "steps_per_generation", "num_iterations")
    values = [config.get(name) for name in argument_names]
    if not all(isinstance(v, int) and v > 0 for v in values):
        return {}
    generation_batch, accumulation_steps, steps_per_generation, iterations = (int(v) for v in values if v is not None)
    B, remainder = divmod(generation_batch * accumulation_steps, steps_per_generation * iterations)
    return {} if remainder else {ROLLOUTS_PER_STEP: B}


def read(path: Path, on_bytes_read: BytesReadCallback) -> list[LogTable]:
    """A trainer_state.json, a checkpoint's folder, or an output folder (its last checkpoint), as one run.

    Raises:
        InputError: no such file, no JSON, or no log_history, with its line.
    """
    file = _state_file(path)
    checked_file_size(file)
    state_text = "".join(line for _, line in read_lines(file, on_bytes_read))
    state = parse_json(state_text, file)
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list) or not history or not all(isinstance(entry, dict) for entry in history):
        raise InputError(f"{file}, line 1: no log_history there; expected TRL's {STATE_FILE}, from a checkpoint.")
    config = _read_arguments(file.with_name(ARGUMENTS_FILE))
    positions = _entry_positions(state_text, len(history))
    rows = tuple(
        DataRow(str(file), position, entry, i)
        for i, (position, entry) in enumerate(zip(positions, history, strict=True))
    )
    return [LogTable(str(file), rows, config | rollouts_per_step(config))]


def _entry_positions(state_text: str, count: int) -> list[str]:
    """Where each entry of log_history begins: its line, or its number where its line is not known."""
    lines = list(_entry_line_numbers(state_text))
    return [f"line {line}" for line in lines] if len(lines) == count else [f"log_history[{i}]" for i in range(count)]


def _state_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    state_files = [
        p for p in path.glob(f"checkpoint-*/{STATE_FILE}") if p.parent.name.removeprefix("checkpoint-").isdigit()
    ]
    last_state_file = max(state_files, key=lambda p: int(p.parent.name.removeprefix("checkpoint-")), default=None)
    file = path / STATE_FILE if (path / STATE_FILE).exists() else last_state_file
    if file is None:
        raise InputError(
            f"{path} holds no {STATE_FILE} and no checkpoint-*/{STATE_FILE}; expected a checkpoint of a TRL run."
        )
    return file


def _entry_line_numbers(text: str) -> Iterator[int]:
    """The line on which each entry of log_history begins."""
    decoder, separator_pattern = json.JSONDecoder(), re.compile(r"[\s,]*")
    history_start = re.search(r'"log_history"\s*:\s*\[', text)
    position = history_start.end() if history_start else len(text)
    counted_to, line = 0, 1
    while (separator := separator_pattern.match(text, position)) and text.startswith("{", separator.end()):
        line, counted_to = line + text.count("\n", counted_to, separator.end()), separator.end()
        yield line
        _, position = decoder.raw_decode(text, separator.end())


class _PickledObject:
    """Stands for every class and function of a pickle: keeps the attributes it is given, and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> _PickledObject:
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _InertUnpickler(pickle.Unpickler):
    """Reads a pickle's attributes without importing or running anything it names."""

    def find_class(self, module: str, name: str) -> type[_PickledObject]:
        return _PickledObject

    def persistent_load(self, pid: Any) -> None:
        return None


def _read_arguments(path: Path) -> dict[str, Any]:
    """The numbers and texts of a training_args.bin; {} where it is not there or cannot be read, so that n and B are
    asked for.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            pickle_entry = next(
                info
                for info in archive.infolist()
                if info.filename.endswith("data.pkl") and info.file_size < MAX_ARGUMENTS_BYTES
            )
            arguments = vars(_InertUnpickler(io.BytesIO(archive.read(pickle_entry))).load())
    except (
        OSError,
        zipfile.BadZipFile,
        StopIteration,
        pickle.UnpicklingError,
        AttributeError,
        TypeError,
        ValueError,
        LookupError,
        EOFError,
    ):
        return {}
    return {
        key: value
        for key, value in arguments.items()
        if isinstance(value, (int, float, str)) and not isinstance(value, bool)
    }
