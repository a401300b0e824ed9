"""What the check before the first update takes of a run (isojax/train/start_check.py).

    python benchmarks/start_check_cost.py quickstart 'sweep.B_p=[32]' 'sweep.n=[8]' sweep.seeds=1
    python benchmarks/start_check_cost.py smollm2_cpu

It trains the runs of a config as `isojax launch` does, and adds up the wall clock of the check and of its file, and of
what evaluations collect for it alone: which log-probabilities are numbers, which responses are empty. Of runs at once,
their times are added up, so the share is at most this. One JSON line; the runs stay in run.dir.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from isojax.core.config import load_config
from isojax.launch.local import local_runner
from isojax.sampling import batch
from isojax.sampling.logits import NEG_INF
from isojax.tasks.task import TextTask
from isojax.train import evaluate, loop

seconds: dict[str, float] = {}


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; its wall clock is added to `seconds[name]`."""

    def call(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began

    return call


def count_nonfinite(rollouts: Any, B: int) -> None:
    """What `summarize_call` does for the check alone, once more."""
    rows = batch.row_index(B, rollouts.tokens.shape[0])
    mask = np.asarray(rollouts.mask)[rows]
    are_numbers = np.asarray(rollouts.logps)[rows] > NEG_INF / 2
    (mask & ~are_numbers).any(-1).sum()


def main() -> None:
    config_name, *settings = sys.argv[1:]
    summarize_call, grade_tokens = evaluate.summarize_call, TextTask.grade_tokens
    again = timed("finite log-probabilities", count_nonfinite)
    empty_again = timed("empty responses", lambda texts: sum(not text.strip() for text in texts))

    def summarize(rollouts: Any, B: int, n: int) -> Any:
        jax.block_until_ready(rollouts)  # sampling goes on until then
        again(rollouts, B)
        return summarize_call(rollouts, B, n)

    def grade(self: TextTask, problems: Any, responses: Any) -> Any:
        empty_again([self.decode(tokens) for tokens in responses])  # decoded once more, which is not counted
        return grade_tokens(self, problems, responses)

    evaluate.summarize_call, TextTask.grade_tokens = summarize, grade
    loop.check_start = timed("check", loop.check_start)
    local_runner.write_start_report = timed("file", local_runner.write_start_report)

    config = load_config(config_name, settings)
    began = time.perf_counter()
    local_runner.launch(config, resume=False, dry_run=False)
    wall = time.perf_counter() - began
    runs = len(list(Path(config.run.dir, config.name).glob("cells/*")))
    own = sum(seconds.values())
    parts = {name: round(value, 5) for name, value in seconds.items()}
    print(
        json.dumps({"config": config_name, "runs": runs, "wall": round(wall, 2), "seconds": parts, "share": own / wall})
    )


if __name__ == "__main__":
    main()
