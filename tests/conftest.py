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

from tests import answers, refusals
from tests.compiler import QUICK, flags

# What the Makefile asks for, and the kind of tests that it selects.
SELECTIONS = {
    "not slow and not nightly": "fast",
    "slow and not nightly": "slow",
    "nightly": "nightly",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    refusals.add_option(parser)
    answers.add_option(parser)


def kinds_of_tests(text: str) -> set[str]:
    """The kinds that a file's tests may be of, by its text: what `pytestmark` names for the file
    is not fast."""
    marked = {kind for kind in ("slow", "nightly") if f"mark.{kind}" in text}
    of_file = re.search(r"^pytestmark = (\[.*?\]|[^\n]*)", text, re.M | re.S)
    of_file_text = of_file[1] if of_file else ""

    if "mark.nightly" in of_file_text:
        return {"nightly"}
    return marked if "mark.slow" in of_file_text else {"fast", *marked}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """No file whose tests would all be deselected: each of pytest's workers would import them all,
    jax, transformers and Ray among their imports.
    """
    selected = SELECTIONS.get(config.option.markexpr)
    if selected is None or collection_path.suffix != ".py":
        return None
    return selected not in kinds_of_tests(collection_path.read_text()) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, so that no worker is left alone with one at the end."""
    marks = {item.path: item.get_closest_marker("seconds") for item in items}
    seconds = {path: mark.args[0] if mark else 0 for path, mark in marks.items()}
    items.sort(key=lambda item: -seconds[item.path])


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
    # nobody reads which line an operation of a program comes from
    os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
    # whoever runs the tests may have measured a chip, which plans would read
    os.environ.setdefault("ISOJAX_CHIPS", "/dev/null/no-folder")
    # a command called in a test's own process must not start that process again (core/machine.py)
    os.environ.setdefault("GLIBC_TUNABLES", "")
    inputs = os.environ.get("XLA_FLAGS", "")
    wanted = flags({} if "xla_backend_optimization_level" in inputs else QUICK).split()
    os.environ["XLA_FLAGS"] = " ".join(
        [inputs, *(flag for flag in wanted if flag.partition("=")[0] not in inputs)]
    ).strip()
    cache = getattr(config, "cache", None)  # None under -p no:cacheprovider
    if cache is not None:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache.mkdir("jax")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
