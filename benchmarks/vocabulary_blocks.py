"""Log-probabilities by blocks of the vocabulary against the plain form: temporary memory and time.
One JSON line a size.

    python benchmarks/vocabulary_blocks.py        512 tokens at V = 151936; 1024 at V = 49152; and 512, of which logits
    are kept python benchmarks/vocabulary_blocks.py --sizes 512,151936,896

A measurement is the value and the gradient (of hidden states and of the tied unembedding) of the
chosen tokens' log-probabilities, with the entropy as a metric; at the line's `entropy: true` it is
differentiated too. Runs of both forms take turns; medians of the process's own CPU seconds, which
neighbours on the machine disturb least (on an accelerator: of the wall clock).
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

from isojax.core.config import ModelConfig
from isojax.models.transformer import Decoder
from isojax.rl import logprobs

TEMPERATURE, REPEATS = 0.7, 5


def seconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median time of each call; they take turns."""
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(REPEATS + 1):
        for name, call in calls.items():
            start = clock()
            jax.block_until_ready(call())
            if turn:
                times[name].append(clock() - start)
    return {name: statistics.median(spent) for name, spent in times.items()}


def memory(program: jax.stages.Compiled) -> int:
    """Temporary bytes, by XLA's own account."""
    account = program.memory_analysis()
    assert account is not None, "this backend keeps no account"
    return account.temp_size_in_bytes


def measure(rows: int, vocab: int, width: int, use_entropy: bool) -> dict[str, Any]:
    """Both forms at one size."""
    config = ModelConfig(layers=1, width=width, heads=1, kv_heads=1, head_dim=64, tied=True)
    decoder = Decoder(config, vocab)
    rng = np.random.default_rng(0)
    states = jnp.asarray(rng.normal(size=(1, rows, width)), jnp.float32)
    embed = jnp.asarray(rng.normal(size=(vocab, width)) * width**-0.5, jnp.float32)
    tokens = jnp.asarray(rng.integers(0, vocab, (1, rows)))
    advantages = jnp.asarray(rng.normal(size=(1, rows)), jnp.float32)

    def objective(states: Any, embed: Any) -> Any:
        hidden = logprobs.HiddenStates({"embed": embed}, states[:, 0], jnp.arange(1), states[:, 1:])
        result = logprobs.token_stats(decoder, hidden, tokens, TEMPERATURE, use_entropy)
        return (
            result.logps * advantages - 0.01 * result.entropy * use_entropy
        ).sum(), result.entropy.sum()

    def compile_with(max_dense_logits: int) -> jax.stages.Compiled:
        with patch.object(logprobs, "MAX_DENSE_LOGITS", max_dense_logits):
            differentiated = jax.value_and_grad(objective, (0, 1), has_aux=True)
            return jax.jit(differentiated).lower(states, embed).compile()

    programs = {
        "plain": compile_with(sys.maxsize),
        "blocks": compile_with(logprobs.MAX_DENSE_LOGITS),
    }
    spent = seconds(
        {name: lambda program=program: program(states, embed) for name, program in programs.items()}
    )
    temporary = {name: memory(program) for name, program in programs.items()}
    line: dict[str, Any] = {
        "tokens": rows,
        "V": vocab,
        "D": width,
        "entropy": use_entropy,
        "backend": jax.default_backend(),
    }
    for name in programs:
        line |= {
            f"{name}_ms": round(1000 * spent[name]),
            f"{name}_temp_mib": round(temporary[name] / 2**20, 1),
        }
    return line | {
        "time_ratio": round(spent["blocks"] / spent["plain"], 3),
        "memory_ratio": round(temporary["blocks"] / temporary["plain"], 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=["512,151936,896", "1024,49152,576", "512,49152,576"],
        metavar="TOKENS,V,D",
    )
    for size in parser.parse_args().sizes:
        rows, vocab, width = map(int, size.split(","))
        for use_entropy in (False, True):
            print(json.dumps(measure(rows, vocab, width, use_entropy)), flush=True)


if __name__ == "__main__":
    main()
