"""Sampling and verification on the host at the same time, against one after the other: seconds for
the graded rollouts of an update. One JSON line.

    python benchmarks/overlap.py [--ms 20] [--workers 2] [--problems 8] [--n 8] [--slots 16]
    [--response 256]

A user's reward function that takes `--ms` for each rollout, in `--workers` processes, and a small
model with random weights, of which a response ends by chance. `sample` is the compiled sampler
alone, `chunks` the same rollouts in chunks of tokens that the host requests, `grade` the verifier
alone on all of them, `together` both at the same time, as in an update; `ratio` is (sample + grade)
/ together, at most 2. Repeats are interleaved, on one core; medians.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from isojax.core.config import ModelConfig, SamplingConfig, VerifierConfig
from isojax.core.nouns import Problem
from isojax.core.shapes import SamplerShapes
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.models.transformer import Decoder
from isojax.sampling.batch import ProblemArrays, response_tokens
from isojax.sampling.engine import build_sampler
from isojax.sampling.layout import Layout
from isojax.sampling.stream import OnFinished, build_stream
from isojax.tasks.grading import BackgroundGrader, Checker
from isojax.tasks.protocol import Grades, StopConditions

REPEATS = 7
MODEL = ModelConfig(family="llama", layers=4, width=256, heads=8, kv_heads=4, head_dim=32, mlp=768)
VOCAB, END, P = 128, 0, 16
REWARD = """\
import time
def reward(completions):
    time.sleep({seconds})
    return [len(completions[0]) % 2]
"""


class Task:
    """What of a TextTask grading wants."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker

    def grade_tokens(self, problems: Sequence[Problem], responses: Sequence[np.ndarray]) -> Grades:
        texts = [" ".join(map(str, tokens)) for tokens in responses]
        return self.checker.grade(problems, [p.prompt for p in problems], texts)


def samplers(
    B_p: int, n: int, slots: int, response: int
) -> tuple[Callable[[], Any], Callable[[OnFinished], list[np.ndarray]]]:
    """The compiled sampler; and the stream, which tells what it has finished and returns the
    responses. Both draw the same.
    """
    decoder = Decoder(MODEL, VOCAB)
    mesh = make_mesh(parse_mesh("auto", 1), jax.devices())
    params = jax.device_put(jax.jit(decoder.init)(jax.random.key(0)), decoder.shardings(mesh))
    sampler_shapes = SamplerShapes([(B_p, n)], 1, slots, slots, P, response)
    inputs = (
        decoder,
        sampler_shapes,
        mesh,
        SamplingConfig(prompt_length=P, response_length=response),
        StopConditions((END,), None),
    )
    sample, stream = jax.jit(build_sampler(*inputs)), build_stream(*inputs)
    rows = sampler_shapes.problem_rows
    prompts = np.random.default_rng(0).integers(1, VOCAB, (rows, P)).astype(np.int32)
    problems = ProblemArrays(
        prompts,
        np.full(rows, P, np.int32),
        np.zeros((rows, 0), np.int32),
        np.arange(rows, dtype=np.int32),
    )
    batch = params, problems, B_p, n, jax.random.key(1)
    return lambda: jax.block_until_ready(sample(*batch)), lambda line: response_tokens(
        stream.run(*batch, line), Layout(B_p, n, sampler_shapes.shards)
    )


def medians(timed: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of each call, of interleaved repeats."""
    times: dict[str, list[float]] = {name: [] for name in timed}
    for repeat in range(REPEATS + 1):  # the first compiles
        for name, call in timed.items():
            start = time.perf_counter()
            call()
            if repeat:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ms", type=float, default=20)
    for name, default in (
        ("workers", 2),
        ("problems", 8),
        ("n", 8),
        ("slots", 16),
        ("response", 256),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before jax starts its threads
    sample, run = samplers(args.problems, args.n, args.slots, args.response)
    requested = [Problem(i, str(i), "") for i in range(args.problems) for _ in range(args.n)]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rewards.py"
        path.write_text(REWARD.format(seconds=args.ms / 1000))
        with Checker(
            VerifierConfig(use=f"function:{path}:reward"), num_workers=args.workers
        ) as checker:
            task = Task(checker)
            drawn = run(lambda rollouts, tokens: None)

            def grade() -> np.ndarray:
                return task.grade_tokens(requested, drawn).rewards

            def together() -> np.ndarray:
                with BackgroundGrader(task.grade_tokens, requested) as grading:
                    run(grading.add_responses)
                    return grading.collect_grades().rewards

            assert (grade() == together()).all()
            timed = {
                "sample": sample,
                "chunks": lambda: run(lambda rollouts, tokens: None),
                "grade": grade,
                "together": together,
            }
            seconds = medians(timed)
    line = {
        "ms": args.ms,
        "workers": args.workers,
        "rollouts": len(requested),
        "tokens": sum(map(len, drawn)),
    }
    line |= {name: round(value, 3) for name, value in seconds.items()}
    line["ratio"] = round((seconds["sample"] + seconds["grade"]) / seconds["together"], 3)
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
