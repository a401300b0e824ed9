"""A process that computes restarts itself once with the variable that glibc reads; nobody's own
setting is touched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isojax.core import machine

SCRIPT = """
import os, sys
print("started", sys.argv[1:], flush=True)
from isojax.core.machine import use_huge_pages
use_huge_pages()
print("goes on with", os.environ.get("GLIBC_TUNABLES"))
"""


def run(tmp_path: Path, **environment: str) -> list[str]:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    remaining = {k: v for k, v in os.environ.items() if k != machine.TUNABLES_VARIABLE}
    words = [sys.executable, str(script), "one", "two words"]
    return subprocess.run(
        words, env=remaining | environment, check=True, capture_output=True, text=True
    ).stdout.splitlines()


def test_once_with_the_same_arguments(tmp_path: Path) -> None:
    if not machine.huge_pages_available():
        pytest.skip("this kernel gives large pages to nobody, or to everybody")
    started = "started ['one', 'two words']"
    assert run(tmp_path) == [started, started, f"goes on with {machine.TUNABLES_VALUE}"]


@pytest.mark.parametrize("own", ["", "glibc.malloc.check=0"])
def test_a_setting_of_ones_own_stays(tmp_path: Path, own: str) -> None:
    assert run(tmp_path, GLIBC_TUNABLES=own) == [
        "started ['one', 'two words']",
        f"goes on with {own}",
    ]


@pytest.mark.parametrize(
    ("libc", "kernel", "expected"),
    [
        (("glibc", "2.36"), "always [madvise] never", True),
        (("glibc", "2.36"), "[always] madvise never", False),
        (("glibc", "2.34"), "always [madvise] never", False),
        (("", ""), "always [madvise] never", False),  # musl, macOS
    ],
)
def test_where_it_helps(
    libc: tuple[str, str],
    kernel: str,
    expected: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "enabled"
    file.write_text(kernel + "\n")
    monkeypatch.setattr(machine, "KERNEL_SETTING", file)
    monkeypatch.setattr(machine.platform, "libc_ver", lambda: libc)
    assert machine.huge_pages_available() == expected
    monkeypatch.setattr(machine, "KERNEL_SETTING", tmp_path / "missing")
    assert not machine.huge_pages_available()


def test_libtpu_is_silent_where_there_is_no_tpu() -> None:
    """Nothing is printed though jax loads it, and the user has set no variable."""
    pytest.importorskip("libtpu")
    program = (
        "import jax; from isojax.core.machine import silence_libtpu; silence_libtpu(); "
        "print(jax.devices())"
    )
    mine = ("JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY", "TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE")
    environment = {name: value for name, value in os.environ.items() if name not in mine}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == "" and "Device" in done.stdout
