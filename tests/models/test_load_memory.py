"""The host memory that loading a checkpoint onto a mesh takes."""

import subprocess
import sys
from pathlib import Path

import pytest

from isojax.core.config import ModelConfig
from isojax.models import safetensors_io
from isojax.models.hf import hf_export
from tests.models.test_hf_load import random_params

pytestmark = pytest.mark.slow

MEMORY = """
import sys
from pathlib import Path
import jax, numpy as np
from tests.models.test_hf_load import mesh, resolved
from isojax.models.hf import hf_export, hf_load

def kilobytes(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1])

folder = Path(sys.argv[1])
config, decoder = resolved(folder)
grid = mesh("fsdp=8")
decoder.shardings(grid)
[jax.block_until_ready(jax.device_put(np.ones(1000, np.float32), d)) for d in jax.devices()]
before = kilobytes("VmRSS")
params = hf_load.load(folder, config, decoder, grid)
peak = kilobytes("VmHWM") - before
weights = sum(x.nbytes for x in jax.tree.leaves(params)) / 1024
print(weights, peak / weights)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="the peak of a process's memory is read from Linux's /proc",
)
def test_loading_takes_little_more_than_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_io, "MAX_FILE_BYTES", 60_000_000)
    shape = ModelConfig(
        family="llama", layers=6, width=512, heads=8, kv_heads=4, head_dim=64, mlp=2048, vocab=26000
    )
    params = random_params(shape)
    hf_export.write_json(tmp_path / "config.json", hf_export.make_config_json(shape, 64, "float32"))
    hf_export.save(params, shape, tmp_path, tmp_path / "m")
    assert len(safetensors_io.weight_files(tmp_path / "m")) >= 3
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "m")],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    weights, ratio = map(float, done.stdout.split())
    assert weights > 200e6 / 1024
    assert 0.9 < ratio < 1.3, f"the peak is {ratio:.3f} of the weights' bytes"
