"""TRL's GRPOTrainer: checkpoint-*/trainer_state.json, whose log_history is read, and training_args.bin beside it, which says n and B.

TRL counts a step an optimizer update; generation_batch_size rollouts are drawn at a time and serve steps_per_generation x num_iterations
microsteps, of which gradient_accumulation_steps make an update (trl.GRPOConfig, trl 1.16). training_args.bin is a pickle: it is read
without running anything in it, every class in it standing for a bag of attributes.
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

from isojax.logs.fields import BY_NAME
from isojax.logs.table import Row, Table, Tick, lines, other_format
from isojax.types import InputError

STATE, ARGUMENTS = "trainer_state.json", "training_args.bin"
LARGEST_ARGUMENTS = 16 * 1024**2
ROLLOUTS_A_STEP = "rollouts_a_step"
CONFIG = {"n": ("num_generations",), "B": (ROLLOUTS_A_STEP,)}
TRAIN = {
    "train_reward": ("reward",),
    "train:entropy": ("entropy",),
    "train:kl": ("kl",),
    "train:grad_norm": ("grad_norm",),
    "response_length": ("completions/mean_length",),
}
# How transformers' callbacks rename them for W&B and TensorBoard.
CALLBACKS = {name: tuple(f"train/{column}" for column in columns) for name, columns in TRAIN.items()} | {"reward": ("eval/reward",)}

FIELDS = BY_NAME | CONFIG | TRAIN | {"step": ("step",), "reward": ("eval_reward",)}


def rollouts_a_step(config: Mapping[str, Any]) -> dict[str, int]:
    """{ROLLOUTS_A_STEP: B} from a GRPOConfig's values; {} where they are not all there, or give no whole number."""
    names = ("generation_batch_size", "gradient_accumulation_steps", "steps_per_generation", "num_iterations")
    values = [config.get(name) for name in names]
    if not all(isinstance(v, int) and v > 0 for v in values):
        return {}
    drawn, accumulated, per_draw, iterations = (int(v) for v in values if v is not None)
    B, rest = divmod(drawn * accumulated, per_draw * iterations)
    return {} if rest else {ROLLOUTS_A_STEP: B}


def read(path: Path, tick: Tick) -> list[Table]:
    """A trainer_state.json, a checkpoint's folder, or an output folder (its last checkpoint), as one run.

    Raises:
        InputError: no such file, no JSON, or no log_history, with its line.
    """
    file = _state_file(path)
    text = "".join(line for _, line in lines(file, tick))
    try:
        state = json.loads(text)
    except (ValueError, RecursionError) as e:
        place = f", line {e.lineno}" if isinstance(e, json.JSONDecodeError) else ""
        mend = other_format(file, "trl") or " Take another checkpoint's, where the writer was stopped half-way."
        raise InputError(f"{file}{place} is not JSON ({e}); expected a {STATE}.{mend}") from e
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list) or not history or not all(isinstance(entry, dict) for entry in history):
        raise InputError(f"{file}, line 1: no log_history there; expected TRL's {STATE}, from a checkpoint.{other_format(file, 'trl')}")
    starts = list(_lines_of_entries(text))
    places = [f"line {line}" for line in starts] if len(starts) == len(history) else [f"log_history[{i}]" for i in range(len(history))]
    config = _arguments(file.with_name(ARGUMENTS))
    rows = tuple(Row(place, entry) for place, entry in zip(places, history, strict=True))
    return [Table(str(file), rows, config | rollouts_a_step(config))]


def _state_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    checkpoints = [p for p in path.glob(f"checkpoint-*/{STATE}") if p.parent.name.removeprefix("checkpoint-").isdigit()]
    last = max(checkpoints, key=lambda p: int(p.parent.name.removeprefix("checkpoint-")), default=None)
    file = path / STATE if (path / STATE).exists() else last
    if file is None:
        raise InputError(f"{path} holds no {STATE} and no checkpoint-*/{STATE}; expected a checkpoint of a TRL run.")
    return file


def _lines_of_entries(text: str) -> Iterator[int]:
    """The line on which each entry of log_history begins."""
    decoder, space = json.JSONDecoder(), re.compile(r"[\s,]*")
    start = re.search(r'"log_history"\s*:\s*\[', text)
    position = start.end() if start else len(text)
    counted, line = 0, 1
    while (found := space.match(text, position)) and text.startswith("{", found.end()):
        line, counted = line + text.count("\n", counted, found.end()), found.end()
        yield line
        _, position = decoder.raw_decode(text, found.end())


class _Bag:
    """Stands for every class and function of a pickle: keeps the attributes it is given, and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> _Bag:
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Inert(pickle.Unpickler):
    """Reads a pickle's attributes without importing or running anything it names."""

    def find_class(self, module: str, name: str) -> type[_Bag]:
        return _Bag

    def persistent_load(self, pid: Any) -> None:
        return None


def _arguments(path: Path) -> dict[str, Any]:
    """The numbers and texts of a training_args.bin; {} where it is not there or cannot be read, so that n and B are asked for."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(info for info in archive.infolist() if info.filename.endswith("data.pkl") and info.file_size < LARGEST_ARGUMENTS)
            found = vars(_Inert(io.BytesIO(archive.read(name))).load())
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
    return {key: value for key, value in found.items() if isinstance(value, (int, float, str)) and not isinstance(value, bool)}
