"""A dry run for TPUs that are not here: XLA's figures and a verdict, and what is refused."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jax.errors import JaxRuntimeError

from isojax.core.config import load_configs
from isojax.core.errors import InputError
from isojax.launch.local.compile_for_topology import compile_for_topology
from isojax.train import memory_analysis

REPOSITORY = Path(__file__).resolve().parents[2]
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no libtpu (Linux on x86: pip install 'isojax[tpu]')"
)


def isojax(*words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, because libtpu stays with the process that loaded it."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "COLUMNS": "100"}
    command = [sys.executable, "-m", "isojax.launch", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


@needs_libtpu
def test_xlas_figures_stand_beside_the_planners() -> None:
    """A small model on the four chips of a v5e:2x2."""
    small = ("cell.model.layers=2", "sweep.n=[4]", "sweep.B_p=[8]")
    done = isojax("quickstart", "--dry-run", "--topology", "v5e:2x2", "--mesh", "fsdp=2,tensor=2", *small)
    assert done.returncode == 0, done.stderr
    assert "4 of the 4 chips of v5e:2x2 (TPU v5 lite, 16 GiB each)" in done.stderr
    row = next(line for line in done.stderr.splitlines() if "train" in line)
    assert "Warning" not in done.stderr
    assert "fits" in row and "not fit" not in row and row.count("MiB") + row.count("KiB") == 5


@needs_libtpu
@pytest.mark.parametrize(("topology", "mesh"), [("v5e:4x4", "fsdp=16"), ("v5e:2x4", "fsdp=8")])
def test_the_meshes_of_the_templates_compile(topology: str, mesh: str) -> None:
    """Of launch/'s tpu_pod.sh, gke_kuberay.yaml and ray_cluster.yaml; quickstart's responses have one width."""
    done = isojax("quickstart", "--dry-run", "--topology", topology, "--mesh", mesh)
    assert done.returncode == 0 and " fits " in done.stderr, done.stderr


@needs_libtpu
def test_an_unknown_topology_is_refused() -> None:
    done = isojax("quickstart", "--dry-run", "--topology", "v5e:3x3")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "error: --topology v5e:3x3: " in done.stderr and "such as v5e:4x4" in done.stderr


def test_a_topology_runs_nothing() -> None:
    done = isojax("quickstart", "--topology", "v5e:2x2")
    assert done.returncode == 2 and "--dry-run is not given" in done.stderr


def test_without_libtpu_it_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'isojax\[tpu\]'"):
        memory_analysis.topology_devices("v5e:2x2")


def test_a_model_without_a_vocabulary_is_refused() -> None:
    with pytest.raises(InputError, match=r"cell.model.vocab is null.*models/llama"):
        compile_for_topology(load_configs(["gsm8k"], ["run.compilation_cache=false"]), "v5e:2x2")


class Refused:
    """A jitted function whose compiler says this."""

    def __init__(self, said: str):
        self.said = said

    def lower(self, *_: Any) -> Any:
        raise JaxRuntimeError(self.said)


def test_what_the_compiler_refuses_is_read_from_its_message() -> None:
    output = (
        "RESOURCE_EXHAUSTED: ... the total memory required for HLO temporaries (47.46G) exceeds available HBM (15.75G)."
    )
    assert memory_analysis.compile_for_memory(Refused(output), ()) == (
        47.46,
        "temporaries",
        15.75,
    )
    output = (
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 33.50G of 15.75G hbm. "
        "Exceeded hbm capacity by 17.75G."
    )
    assert memory_analysis.compile_for_memory(Refused(output), ()) == (
        33.5,
        "all",
        15.75,
    )
    with pytest.raises(JaxRuntimeError, match="INTERNAL"):
        memory_analysis.compile_for_memory(Refused("INTERNAL: something else"), ())
