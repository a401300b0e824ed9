"""This process's share of its machine: its cores, large pages (a million page faults less in a
step), the network."""

import ctypes
import os
import platform
import sys
from contextlib import suppress
from glob import glob
from pathlib import Path

TUNABLES_VARIABLE, TUNABLES_VALUE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
KERNEL_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MIN_GLIBC = (2, 35)  # glibc's version


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def network_id() -> str:
    """Of this machine, or its container: processes that have the same one reach each other at
    127.0.0.1. Linux only."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink(
            "/proc/self/ns/net"
        )
    return ""


def use_huge_pages() -> None:
    """Restart this process with the variable set, where that makes a difference (Linux with glibc,
    and a kernel that gives large pages on request) and GLIBC_TUNABLES is not set, not even to
    nothing. Call it before anything else."""
    if TUNABLES_VARIABLE in os.environ or sys.gettrace() is not None or not huge_pages_available():
        return
    os.environ[TUNABLES_VARIABLE] = TUNABLES_VALUE
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def huge_pages_available() -> bool:
    """Whether the kernel gives large pages on request, and glibc can ask."""
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(int(x) for x in version.split(".")[:2] if x.isdigit()) < MIN_GLIBC:
        return False
    try:
        return "[madvise]" in KERNEL_SETTING.read_text()
    except OSError:
        return False


def reserve_gpu_memory() -> None:
    """Let jax take 90% of a GPU's memory, where the environment does not set it; jax's own default
    is 75%."""
    if "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ:  # the older name; jax refuses both
        os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", "0.9")


def silence_libtpu() -> None:
    """Spare a machine without a TPU the lines in which libtpu, which jax loads where it is
    installed, says what it misses. Call it once jax is imported, which sets TPU_SKIP_MDS_QUERY
    where it finds no TPU."""
    if os.environ.get("TPU_SKIP_MDS_QUERY") == "1" and not (
        glob("/dev/accel*") or glob("/dev/vfio/[0-9]*")
    ):
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")


def release_freed_memory() -> None:
    """Return freed memory that glibc keeps to the kernel, such as what XLA took to compile a
    program."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
