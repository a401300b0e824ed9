"""Every test runs on 8 simulated CPU devices, with rank promotion an error, quick compilations, and
those kept between runs.

All of it is in environment variables, set before anything imports jax, so that subprocesses inherit
it too.
"""

from __future__ import annotations

import gc
import os
import re
import signal
from pathlib import Path

import pytest

from tests import refusals
from tests.compiler import QUICK, flags

# What the Makefile asks for, and the kind of tests that it selects.
SELECTIONS = {"not slow and not nightly": "fast", "slow": "slow", "nightly": "nightly"}

# Among the files with slow tests, those that take more than twenty seconds, from the longest on:
# they come first, so that no worker is left alone with one at the end. What is compiled for TPUs
# takes long where it is not kept yet.
LONGEST = (
    "e2e/test_docs.py",
    "e2e/test_ray.py",
    "e2e/test_schedules.py",
    "e2e/test_gemma.py",
    "e2e/test_graded.py",
    "e2e/test_hosts.py",
    "benchmarks/test_scripts.py",
    "distributed/test_meshes.py",
    "e2e/test_faults.py",
    "e2e/test_resume.py",
    "e2e/test_server_training.py",
    "e2e/test_turns.py",
    "distributed/test_tpu.py",
    "e2e/test_spend.py",
    "e2e/test_chaos.py",
    "e2e/test_text.py",
    "e2e/test_lost_terminal.py",
    "e2e/test_lora.py",
    "launch/test_compile_for_topology.py",
    "report/test_layout.py",
    "models/test_tpu_kernels.py",
    "sampling/test_exactness.py",
    "rl/test_async_rollouts.py",
    "rl/test_recipe_gradients.py",
    "sampling/test_stream.py",
    "e2e/test_package.py",
    "launch/test_watchdog.py",
    "launch/test_ray_strangers.py",
    "launch/test_held_memory.py",
    "scaling/test_adaptive.py",
    "e2e/test_commands.py",
    "rl/test_last_token.py",
    "benchmarks/test_tpu_cost.py",
    "rl/test_gradient.py",
    "rl/test_interruption.py",
    "rl/test_agreement.py",
    "e2e/test_storage.py",
    "scaling/test_odd_sweeps.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    refusals.add_option(parser)


def kinds_of_tests(text: str) -> set[str]:
    """The kinds that a file's tests may be of: one, where `pytestmark` names it for the file."""
    of_file = re.search(r"^pytestmark = (\[.*?\]|[^\n]*)", text, re.M | re.S)
    of_file_text = of_file[1] if of_file else ""
    for kind in ("slow", "nightly"):
        if f"mark.{kind}" in of_file_text:
            return {kind}

    return {"fast", *(kind for kind in ("slow", "nightly") if f"mark.{kind}" in text)}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """No file whose tests would all be deselected: each of pytest's workers would import them all,
    jax, transformers and Ray among their imports.
    """
    selected = SELECTIONS.get(config.option.markexpr)
    if selected is None or collection_path.suffix != ".py":
        return None
    return selected not in kinds_of_tests(collection_path.read_text()) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files."""
    order = {path: place_in_longest(path) for path in {item.path for item in items}}
    items.sort(key=lambda item: order[item.path])


def place_in_longest(path: Path) -> int:
    return next((i for i, name in enumerate(LONGEST) if path.match(name)), len(LONGEST))


def pytest_collection_finish() -> None:
    """What is imported by now stays: the collector looks through it no more, and comes less often,
    as tracing makes many small objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_configure(config: pytest.Config) -> None:
    refusals.use_messages(config)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # also for the commands it starts, where a shell runs it in the background
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
    os.environ.setdefault(
        "JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0"
    )  # nobody reads which line an operation of a program comes from
    os.environ.setdefault(
        "GLIBC_TUNABLES", ""
    )  # a command called in a test's own process must not start that process again (core/machine.py)
    inputs = os.environ.get("XLA_FLAGS", "")
    wanted = flags({} if "xla_backend_optimization_level" in inputs else QUICK).split()
    os.environ["XLA_FLAGS"] = " ".join(
        [inputs, *(flag for flag in wanted if flag.partition("=")[0] not in inputs)]
    ).strip()
    cache = getattr(config, "cache", None)  # None under -p no:cacheprovider
    if cache is not None:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache.mkdir("jax")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
