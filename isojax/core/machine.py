"""This process's share of its machine: cores, pages of memory, accelerator, network.

Large pages spare a step of training a million page faults.
"""

import ctypes
import os
import platform
import sys
from contextlib import suppress
from glob import glob
from pathlib import Path

TUNABLES_VARIABLE = "GLIBC_TUNABLES"
TUNABLES_VALUE = "glibc.malloc.hugetlb=1"
KERNEL_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MIN_GLIBC = (2, 35)  # the version that has this tunable


def cores() -> int:
    """Processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def network_id() -> str:
    """An id of this machine's network, or of its container's; "" where it is not known.

    Processes that have the same one reach each other at 127.0.0.1. Linux only.
    """
    with suppress(OSError):
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
        return boot_id + os.readlink("/proc/self/ns/net")
    return ""


def use_huge_pages() -> None:
    """Let glibc ask for large pages: restart this process with the variable set.

    Only where that makes a difference (Linux with glibc, and a kernel that gives large pages on
    request) and GLIBC_TUNABLES is not set, not even to nothing. Call it before anything else: glibc
    reads the variable when a process starts.
    """
    is_debugged = sys.gettrace() is not None
    if TUNABLES_VARIABLE in os.environ or is_debugged or not huge_pages_available():
        return
    os.environ[TUNABLES_VARIABLE] = TUNABLES_VALUE
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def huge_pages_available() -> bool:
    """Whether the kernel gives large pages on request, and glibc can ask."""
    name, version_text = platform.libc_ver()
    version = tuple(int(part) for part in version_text.split(".")[:2] if part.isdigit())
    if name != "glibc" or version < MIN_GLIBC:
        return False
    try:
        return "[madvise]" in KERNEL_SETTING.read_text()
    except OSError:
        return False


def reserve_gpu_memory() -> None:
    """Let jax take 90% of a GPU's memory, where the environment says nothing of it.

    jax's own default is 75%.
    """
    # That is the variable's older name, and jax refuses both.
    if "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ:
        os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", "0.9")


def silence_libtpu() -> None:
    """Spare a machine without a TPU the lines in which libtpu says what it misses.

    jax loads libtpu where it is installed. Call this once jax is imported, which sets
    TPU_SKIP_MDS_QUERY where it finds no TPU.
    """
    jax_found_none = os.environ.get("TPU_SKIP_MDS_QUERY") == "1"
    has_tpu_device = glob("/dev/accel*") or glob("/dev/vfio/[0-9]*")
    if jax_found_none and not has_tpu_device:
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")


def release_freed_memory() -> None:
    """Return freed memory that glibc keeps to the kernel.

    Such as what XLA took to compile a program.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
