"""A CPU's memory: large pages for what is computed in, and none kept for what is done.

A step of a model with a few hundred million parameters touches gigabytes of memory that it got a moment ago. In pages of 4 KB that is a
million page faults a step, and more misses of the address cache than products can hide: with pages of 2 MB a small update of SmolLM2 takes
a fifth less time (docs/performance.md). glibc asks the kernel for them where a variable of the environment says so when a process starts.
"""

import ctypes
import os
import platform
import sys
from pathlib import Path

VARIABLE, VALUE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SINCE = (2, 35)  # glibc's version


def use_huge_pages() -> None:
    """Start this process anew with the variable set, where that makes a difference and nobody has set it: Linux with glibc, large pages
    given to those who ask. To be called before anything else; with GLIBC_TUNABLES set, even to nothing, it does nothing."""
    if VARIABLE in os.environ or sys.gettrace() is not None or not helps():
        return
    os.environ[VARIABLE] = VALUE
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def helps() -> bool:
    """Whether the kernel has large pages for those who ask, and glibc can ask."""
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(int(x) for x in version.split(".")[:2] if x.isdigit()) < SINCE:
        return False
    try:
        return "[madvise]" in KERNEL.read_text()
    except OSError:
        return False


def give_back() -> None:
    """Gives the kernel what glibc keeps of freed memory: after XLA has compiled a step of SmolLM2 that is .85 GB, which would add to the
    step's own."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
