"""Every test runs on 8 simulated CPU devices, with rank promotion an error, quick compilations, and those kept between
runs.

All of it is in environment variables, set before anything imports jax, so that subprocesses inherit it too.
"""

from __future__ import annotations

import gc
import os
import signal

import pytest

from tests.compiler import QUICK, flags

# A minute in one test: first, so that no worker is left alone with one at the end.
LONG = (
    "test_tpu.py",
    "test_tpu_kernels.py",
    "test_docs.py",
    "test_compilations.py",
    "test_topology.py",
    "test_ray.py",
    "test_chaos.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish() -> None:
    """What is imported by now stays: the collector looks through it no more, and comes less often, as tracing makes
    many small objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # also for the commands it starts, where a shell runs it in the background
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault(
        "TPU_SKIP_MDS_QUERY", "1"
    )  # libtpu on a machine without a TPU asks a metadata server that is not there
    os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
    os.environ.setdefault(
        "JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0"
    )  # nobody reads which line an operation of a program comes from
    os.environ.setdefault(
        "GLIBC_TUNABLES", ""
    )  # a command called in a test's own process must not start that anew (core/memory_pages.py)
    given = os.environ.get("XLA_FLAGS", "")
    wanted = flags({} if "xla_backend_optimization_level" in given else QUICK).split()
    os.environ["XLA_FLAGS"] = " ".join(
        [given, *(flag for flag in wanted if flag.partition("=")[0] not in given)]
    ).strip()
    cache = getattr(config, "cache", None)  # None under -p no:cacheprovider
    if cache is not None:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache.mkdir("jax")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
