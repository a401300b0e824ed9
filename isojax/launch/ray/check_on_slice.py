"""Before a cluster is asked for TPU slices: whether the sweep fits their chips, by their compiler.
It runs in a process of its own, as the driver never imports jax."""

import importlib.util
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from isojax.core.config import Config
from isojax.core.errors import RunFailed
from isojax.core.terminal import warn
from isojax.launch.display import print_line


def check_on_slice(config: Config) -> None:
    """InputError where the sweep does not fit the slice `run.process_group.tpu`, such as v5e:4x4.

    Where that cannot be checked here, a warning says why. RunFailed where the compiler crashes.
    """
    group = config.run.process_group
    if importlib.util.find_spec("libtpu") is None:
        warn(
            f"nothing says whether the sweep fits {group.tpu}: its compiler is in libtpu, which is"
            " not installed here (pip install 'isojax[tpu]')."
        )
        return
    if group.slices > 1:
        warn(
            f"whether the sweep fits {group.slices} slices is not checked: the compiler here knows"
            " single ones."
        )
        return
    if config.run.sampler_processes:
        warn(
            "whether the sweep fits is not checked: the compiler here knows no processes that only"
            " sample."
        )
        return

    print_line(
        f"compiling for {group.tpu} before a slice is asked for, some minutes; --no-compile leaves"
        " it out"
    )
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            pool.submit(compile_for_slice, config, str(group.tpu)).result()
    except BrokenProcessPool as e:
        raise RunFailed(
            f"the compiler for {group.tpu} ended without an answer; --no-compile leaves it out."
        ) from e


def compile_for_slice(config: Config, topology: str) -> None:
    """In the child process, which may load jax."""
    from isojax.launch.local.compile_for_topology import compile_for_topology

    compile_for_topology(config, topology)
