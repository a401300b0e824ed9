"""What the check before the first update takes of a run (isojax/train/start_check.py).

    python benchmarks/start_check_cost.py quickstart 'sweep.B_p=[32]' 'sweep.n=[8]' sweep.seeds=1
    python benchmarks/start_check_cost.py smollm2_cpu

It trains the runs of a config as `isojax launch` does, and adds up the wall clock of the check and
of its file, and of what evaluations collect for it alone: which log-probabilities are numbers,
which responses are empty. Of runs at once, their times are added up, so the share is at most this.
One JSON line; the runs stay in run.dir.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax

from isojax.core.config import load_config
from isojax.launch.local import local_runner
from isojax.sampling.layout import Layout
from isojax.sampling.logits import NEG_INF
from isojax.tasks.task import TextTask
from isojax.train import evaluate, loop


class Stopwatch:
    """Wall clock by what takes it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def measured(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with self.measure(name):
                return function(*arguments, **named)

        return call


def measure_run(config_name: str, settings: list[str]) -> dict[str, Any]:
    watch = Stopwatch()
    summarize_call, grade_tokens = evaluate.summarize_call, TextTask.grade_tokens

    def summarize(rollouts: Any, rewards: Any, layout: Layout) -> Any:
        jax.block_until_ready(rollouts)  # sampling goes on until then
        # what `summarize_call` does for the check, once more
        with watch.measure("finite log-probabilities"):
            are_numbers = layout.in_order(rollouts.logps) > NEG_INF / 2
            (layout.in_order(rollouts.mask) & ~are_numbers).any(-1).sum()
        return summarize_call(rollouts, rewards, layout)

    def grade(task: TextTask, problems: Any, responses: Any) -> Any:
        texts = [task.decode(tokens) for tokens in responses]
        with watch.measure("empty responses"):
            sum(not text.strip() for text in texts)
        return grade_tokens(task, problems, responses)

    config = load_config(config_name, settings)
    with (
        patch.object(evaluate, "summarize_call", summarize),
        patch.object(TextTask, "grade_tokens", grade),
        patch.object(loop, "check_start", watch.measured("check", loop.check_start)),
        patch.object(
            local_runner,
            "write_start_report",
            watch.measured("file", local_runner.write_start_report),
        ),
    ):
        began = time.perf_counter()
        local_runner.launch(config, resume=False, dry_run=False)
        wall = time.perf_counter() - began
    runs = len(list(Path(config.run.dir, config.name).glob("cells/*")))
    seconds = {name: round(value, 5) for name, value in watch.seconds.items()}
    share = round(sum(watch.seconds.values()) / wall, 6)
    return {
        "config": config_name,
        "runs": runs,
        "wall": round(wall, 2),
        "seconds": seconds,
        "share": share,
    }


def main() -> None:
    config_name, *settings = sys.argv[1:]
    print(json.dumps(measure_run(config_name, settings)))


if __name__ == "__main__":
    main()
