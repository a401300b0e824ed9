"""Problems of reasoning-gym's generators: `gym:NAME` or `gym:NAME,key=value,...` with a generator's own settings. No jax here.

Problem i is the generator's item i under seed `cell.data.seed`, of `size` (10,000 unless set) items there are; a question met again is
left out. A generator may never end, crash or print, so it runs in a process of its own, under a deadline for each item. Its hash seed
and random state are fixed, as five generators' items hang on them. verifiers/gym.py judges the answers, by the generator's own scorer.
Needs reasoning-gym: `pip install "isojax[gym]"`.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from isojax.config import DataConfig
from isojax.tasks.sources import choose, read_settings
from isojax.tasks.verifiers.gym import pack
from isojax.types import InputError, Problem

SIZE = 10_000
DEADLINE = 60.0  # seconds for the generator's start, and for each item: the slowest one known takes 2 and 7


def source(argument: str, data: DataConfig) -> Generator:
    """A generator's problems.

    Raises:
        InputError: reasoning-gym is missing, or settings that cannot be used; of an unknown generator, when its problems are asked for.
    """
    name, _, text = argument.partition(",")
    settings = read_settings(text, f"gym:{name}")
    if not name or importlib.util.find_spec("reasoning_gym") is None:
        need = "takes a generator's name, such as gym:leg_counting" if not name else 'needs reasoning-gym; pip install "isojax[gym]"'
        raise InputError(f"cell.task: gym {need}.")
    if "seed" in settings:
        raise InputError(f"cell.task: gym:{argument}: the seed is cell.data.seed={data.seed}; set that one.")
    size = settings.setdefault("size", SIZE)
    if type(size) is not int or not 0 < size < 2**31:
        raise InputError(f"cell.task: gym:{argument}: size={size}, expected how many items there are, 1 or more.")
    bases = settings.get("min_base", 2), settings.get("max_base", 16)
    if name == "base_conversion" and bases[0] == bases[1]:
        raise InputError(
            f"cell.task: gym:{argument}: from base {bases[0]} to itself; the generator never ends. Set max_base above min_base."
        )
    return Generator(name, settings, data.seed)


@dataclasses.dataclass(frozen=True)
class Generator:
    """A generator, its settings (with `size`) and its seed."""

    name: str
    settings: dict[str, Any]
    seed: int
    deadline: float = DEADLINE
    labelled: bool = False

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """The first `count` distinct problems, in random order; fewer where the generator has fewer.

        Raises:
            InputError: no such generator, settings it refuses, an item that takes longer than the deadline.
        """
        task = f"gym:{self.name} with {self.settings}"
        request = {"name": self.name, "settings": self.settings, "seed": self.seed, "count": count, "deadline": self.deadline}
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "items.jsonl"
            done = subprocess.run(
                [sys.executable, "-m", "isojax.tasks.gym", json.dumps(request), str(out)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONHASHSEED": "0"},
                check=False,
            )
            items = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        made = [item for item in items if "error" not in item]
        if errors := [item["error"] for item in items if "error" in item]:
            raise InputError(f"cell.task: {task}: {errors[0]}")
        if done.returncode:
            took = f"took over {self.deadline:g} s" if done.returncode == -signal.SIGALRM else f"ended its process ({done.returncode})"
            raise InputError(f"cell.task: {task}: the problem after {len(made)} good ones {took}. Change its settings or the generator.")
        if len(made) < count:
            print(f"note: {task}: {len(made)} distinct problems among {self.settings['size']} items, fewer than {count}.", file=sys.stderr)
        # Without `size`: the scorer makes no items.
        settings = {k: v for k, v in self.settings.items() if k != "size"}
        problems = [
            Problem(
                item["index"],
                item["question"],
                item["entry"]["answer"] or "",  # None where many answers are right and the scorer tries the one given
                columns={"gym": self.name, "settings": settings, "entry": item["entry"]},
            )
            for item in made
        ]
        return choose(problems, len(problems), rng)


def _items(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In the generator's process: its items, or what is wrong."""
    import reasoning_gym  # pyright: ignore[reportMissingImports]
    from reasoning_gym.factory import DATASETS  # pyright: ignore[reportMissingImports]

    name, settings, seed = request["name"], request["settings"], request["seed"]
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.4) or sorted(DATASETS)
        yield {"error": f"reasoning-gym has no generator {name!r}; the nearest of its {len(DATASETS)} are {', '.join(near)}."}
        return
    known = [field.name for field in dataclasses.fields(DATASETS[name][1]) if field.name != "seed"]
    if unknown := sorted(set(settings) - set(known)):
        yield {"error": f"unknown settings {', '.join(unknown)}; expected some of {', '.join(known)}."}
        return
    random.seed(seed)
    dataset = reasoning_gym.create_dataset(name, seed=seed, **settings)
    for index in range(settings["size"]):
        random.seed(f"{seed} {index}")
        entry = dataset[index]
        yield {"index": index, "question": entry["question"], "entry": pack(entry)}


def _main(text: str, out: str) -> None:
    """The generator's process: write its first distinct items as lines. Nothing handles the alarm, so it kills a process that is stuck."""
    request = json.loads(text)
    said = time.monotonic()
    met: set[str] = set()
    with Path(out).open("w") as f:
        signal.setitimer(signal.ITIMER_REAL, request["deadline"])
        try:
            for item in _items(request):
                signal.setitimer(signal.ITIMER_REAL, request["deadline"])
                if item.get("question") in met:
                    continue
                met.add(item.get("question", ""))
                f.write(json.dumps(item) + "\n")
                f.flush()  # what is there when the alarm comes says how far it got
                if len(met) == request["count"]:
                    break
                if time.monotonic() - said > 10:
                    said = time.monotonic()
                    print(f"note: gym:{request['name']}: {len(met)} of {request['count']} problems made", file=sys.stderr)
        except Exception as e:  # a generator may raise anything, AssertionError for settings it refuses
            why = str(e).splitlines()[0] if str(e) else ""
            f.write(json.dumps({"error": f"{type(e).__name__}: {why}. Change its settings."}) + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
