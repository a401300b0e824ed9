"""Problems of reasoning-gym's generators, `gym:NAME,key=value,...`: the items under seed
`cell.data.seed`, repeats left out.

A generator may never end, crash or print, so it runs in another process, with a deadline for each
item, a fixed hash seed and a fixed random state (the items of five generators depend on them).
"""

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from isojax.core.config import DataConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.core.terminal import note
from isojax.tasks.problem_sources import random_subset, read_settings
from isojax.tasks.sources import source
from isojax.tasks.verifiers.gym import to_tagged_json

DEFAULT_SIZE = 10_000
# Seconds for the generator's start, and for each item: the slowest one known takes 2 and 7.
DEADLINE_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class GeneratorSource:
    """A generator, its settings (with `size`, how many items it makes) and its seed."""

    name: str  # such as "leg_counting"
    settings: dict[str, Any]  # such as {"size": 10000, "min_animals": 2}
    seed: int
    deadline: float = DEADLINE_SECONDS

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """The generator's first `count` distinct problems, in random order; all, with a note, if
        there are fewer. InputError where the generator fails or takes too long. An id is the item's
        index in the generator; columns are what the verifier gym needs."""
        # The process writes each item as a line of a file; what it prints is of no use.
        task_text = f"gym:{self.name} with {self.settings}"
        request = {**vars(self), "count": count}
        with tempfile.NamedTemporaryFile("r") as items_file:
            arguments = [json.dumps(request), items_file.name]
            completed = subprocess.run(
                [sys.executable, "-m", "isojax.tasks.sources.gym", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONHASHSEED": "0"},
                check=False,
            )
            # Each {"index": ..., "question": ..., "entry": ...}; the last may be {"error": ...}.
            items = list(map(json.loads, items_file))

        errors = [item["error"] for item in items if "error" in item]
        if errors:
            raise InputError(
                where="cell.task",
                found=f"{task_text}: {errors[0]}",
            )
        if completed.returncode:
            failure = f"ended its process ({completed.returncode})"
            if completed.returncode == -signal.SIGALRM:
                failure = f"took over {self.deadline:g} s"
            raise InputError(
                where="cell.task",
                found=f"{task_text}: the problem after {len(items)} good ones {failure}",
            )
        if len(items) < count:
            size = self.settings["size"]
            note(
                f"{task_text}: {len(items)} distinct problems among {size} items, fewer than"
                f" {count}."
            )

        # For the scorer (verifiers/gym.py), which makes no items and needs no `size`.
        scorer_settings = {key: value for key, value in self.settings.items() if key != "size"}
        problems: list[Problem] = []
        for item in items:
            # None where many answers are right, and the scorer tries the one that it gets.
            answer = item["entry"]["answer"] or ""
            columns = {"gym": self.name, "settings": scorer_settings, "entry": item["entry"]}
            problems.append(Problem(item["index"], item["question"], answer, columns=columns))
        return random_subset(problems, len(problems), rng)


@source
def gym(argument: str, data: DataConfig) -> GeneratorSource:
    """The source of a task `gym:NAME,key=value,...`; argument: what follows the colon. InputError
    for bad settings or a missing package; an unknown generator is found only when problems are
    asked for."""
    name, _, settings_text = argument.partition(",")
    settings = read_settings(settings_text, f"gym:{name}")
    if not name:
        raise InputError(
            where="cell.task",
            found="gym takes a generator's name, such as gym:leg_counting",
        )
    if importlib.util.find_spec("reasoning_gym") is None:
        raise InputError(
            where="cell.task",
            found="gym needs reasoning-gym",
            fix='Type: pip install "isojax[gym]"',
        )
    if "seed" in settings:
        raise InputError(
            where="cell.task",
            found=f"gym:{argument}: the seed is cell.data.seed={data.seed}",
            fix="Set that one.",
        )

    size = settings.setdefault("size", DEFAULT_SIZE)
    if type(size) is not int or not 0 < size < 2**31:
        raise InputError(
            where="cell.task",
            found=f"gym:{argument}: size={size}",
            expected="how many items there are, 1 or more",
        )
    return GeneratorSource(name, settings, data.seed)


def _generate_items(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In the generator's process: its items as {index, question, entry}, or a single {"error": ...}
    where the name or a setting is unknown. entry: the generator's own item, a dict with "question",
    "answer" and "metadata", as `to_tagged_json` makes it. request: the fields of GeneratorSource,
    and count. Items may repeat."""
    import reasoning_gym  # pyright: ignore[reportMissingImports]
    from reasoning_gym.factory import DATASETS  # pyright: ignore[reportMissingImports]

    name = request["name"]
    settings = request["settings"]
    seed = request["seed"]
    if name not in DATASETS:
        close_names = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.4)
        nearest = ", ".join(close_names or sorted(DATASETS))
        error = (
            f"reasoning-gym has no generator {name!r}; the nearest of its {len(DATASETS)} are"
            f" {nearest}."
        )
        yield {"error": error}
        return

    config_class = DATASETS[name][1]
    known = [field.name for field in dataclasses.fields(config_class) if field.name != "seed"]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        expected = f"expected some of {', '.join(known)}"
        yield {"error": f"unknown settings {', '.join(unknown)}; {expected}."}
        return

    # Some generators use the global random state, which is set again for each item, so that an
    # item does not depend on those before it.
    random.seed(seed)
    dataset = reasoning_gym.create_dataset(name, seed=seed, **settings)
    for index in range(settings["size"]):
        random.seed(f"{seed} {index}")
        entry = dataset[index]
        yield {"index": index, "question": entry["question"], "entry": to_tagged_json(entry)}


def _run_generator(request_text: str, items_path: str) -> None:
    """What the generator's process runs: write its first distinct items as lines of JSON. Each has
    a deadline; an alarm without a handler kills a process that is stuck. request_text: JSON of the
    fields of GeneratorSource, and count; items_path: the file to write. The last line may be
    {"error": a text}."""
    request = json.loads(request_text)
    seen_questions: set[str] = set()
    with Path(items_path).open("w") as f:
        signal.setitimer(signal.ITIMER_REAL, request["deadline"])
        try:
            for item in _generate_items(request):
                signal.setitimer(signal.ITIMER_REAL, request["deadline"])
                if item.get("question") in seen_questions:
                    continue
                seen_questions.add(item.get("question", ""))
                f.write(json.dumps(item) + "\n")
                f.flush()  # what is written when the alarm comes shows how far it got
                if len(seen_questions) == request["count"]:
                    break
        # A generator may raise anything, AssertionError for settings it refuses.
        except Exception as e:
            reason = str(e).partition("\n")[0]
            error = f"{type(e).__name__}: {reason}. Change its settings."
            f.write(json.dumps({"error": error}) + "\n")


if __name__ == "__main__":
    _run_generator(*sys.argv[1:])
