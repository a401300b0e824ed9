"""What every measured process shares: its arguments, its clock and its JSON lines. Standard library
alone, so any peer's Python runs it.

A child gets a model's folder and a file of prompts as `compare.py` writes it: {"ids": [[...], ...],
"texts": [...]}, all of one length, each text meaning exactly its ids. It warms up (compiles), then
prints one JSON line for each timed repeat.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# the rewards of a step are (sum of something of the response) % 97 / 97: arbitrary, and different
# inside every group
REWARDS = 97


class Prompts(NamedTuple):
    """B_p prompts as token ids and as text."""

    ids: list[list[int]]
    texts: list[str]


def arguments(doc: str | None) -> argparse.Namespace:
    """The arguments of a child; its module's docstring is its help."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", type=Path, help="a folder with config.json, model.safetensors and a tokenizer"
    )
    parser.add_argument("--prompts", type=Path, required=True, help="a file written by compare.py")
    parser.add_argument("--n", type=int, required=True, help="rollouts per prompt")
    parser.add_argument("--new", type=int, required=True, help="tokens per rollout, exactly")
    parser.add_argument("--repeats", type=int, default=3, help="timed repeats after the warm-up")
    parser.add_argument("--variant", default="", help="a setting of this peer; see above")
    return parser.parse_args()


def read_prompts(path: Path) -> Prompts:
    """The prompts that compare.py wrote."""
    return Prompts(**json.loads(path.read_text()))


def threads() -> int:
    """The cores this process may run on; compare.py sets them."""
    return len(os.sched_getaffinity(0))


def reward(numbers: list[int]) -> float:
    """The reward of one response, given by its token ids or its bytes."""
    return sum(numbers) % REWARDS / REWARDS


def measure(call: Callable[[], int], repeats: int) -> None:
    """Print the time of each repeat of a call that returns how many new tokens it made; the first,
    not printed, warms up.
    """
    call()
    for _ in range(repeats):
        clock = Clock()
        clock.add_tokens(call())


class Clock:
    """Starts when made. Time by the wall and of the processor: the latter is not stretched by what
    else runs on the machine.
    """

    def __init__(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def add_tokens(self, tokens: int) -> None:
        """Print what it took to make `tokens` new tokens as a JSON line, with the process's largest
        memory so far."""
        seconds = time.perf_counter() - self.began[0]
        cpu_seconds = time.process_time() - self.began[1]
        line = {
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "tokens": tokens,
            "peak_gib": peak_memory() / 2**30,
        }
        print(json.dumps({key: round(value, 3) for key, value in line.items()}), flush=True)


def peak_memory() -> int:
    """The largest resident memory of this process, in bytes (getrusage would count what the parent
    held when it forked).
    """
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
