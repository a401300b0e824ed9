"""Sweeps on Ray clusters: one of this machine, and one of three nodes of which a node, a worker and
the driver are lost on the way.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command_line import SECONDS, Isojax, settings

pytestmark = [pytest.mark.slow, pytest.mark.seconds(170)]

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
QUIET = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
SOON = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
    "RAY_health_check_timeout_ms": "2000",
}
# A process that finds the file `exit` takes it away and ends, whatever it is doing.
LOSS = """\
import os, threading, time
from pathlib import Path
from isojax.rl.losses.grpo import grpo
from leaving_helper import WHERE

print("imported", WHERE, "for", __file__, flush=True)

def leave():
    while True:
        time.sleep(0.05)
        try:
            Path(r"{folder}/exit").rename(Path(r"{folder}/exited"))
        except FileNotFoundError:
            continue
        os._exit(3)

threading.Thread(target=leave, daemon=True).start()
"""
GROUP = "processes: 2, resources: {chips: 1}, labels: {pool: tpu-like}"
SWEEP = """\
name: groups
cell:
  model: {layers: 1, width: 32, heads: 2, kv_heads: 2, head_dim: 16, mlp: 64}
  base: {steps: 20, batch: 64}
  data: {candidates: 200, validation: 20, difficulty: [0.0, 1.0]}
  eval: {samples: 4, start: 16, ratio: 2}
sweep: {B_p: [4], n: [2, 4], seeds: 2, budget: 256}
run: {loggers: [], checkpoint_seconds: 0, process_group: {GROUP}}
""".replace("GROUP", GROUP)


class Cluster:
    """`ray start --head` and further nodes, each a process group of its own."""

    def __init__(self, folder: Path):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address, self.folder = f"127.0.0.1:{self.port}", folder
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.add(
            "--head",
            f"--port={self.port}",
            "--num-cpus=0",
            "--include-dashboard=false",
            "--no-monitor",
            f"--temp-dir={folder}",
        )

    def add(self, *words: str) -> None:
        environment = settings() | QUIET | SOON
        no_log_monitor = ("--include-log-monitor", "false")  # nothing is sent to a driver
        out = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.nodes.append(
            subprocess.Popen(
                [*RAY, "start", "--block", *no_log_monitor, *words],
                env=environment,
                start_new_session=True,
                **out,
            )
        )
        wait(self.joined)

    def join(self, resources: dict[str, int], labels: dict[str, str]) -> None:
        inputs = ",".join(f"{key}={value}" for key, value in labels.items())
        self.add(
            f"--address={self.address}",
            "--num-cpus=2",
            f"--resources={json.dumps(resources)}",
            f"--labels={inputs}",
        )

    def joined(self) -> bool:
        """Whether the newest node has joined the cluster."""
        number = f".{len(self.nodes) - 1}" if len(self.nodes) > 1 else ""
        log = self.folder / "session_latest" / "logs" / f"raylet{number}.out"
        return log.exists() and "IsAlive = 1" in log.read_text()

    def kill(self, node: int) -> None:
        """The node and all that runs on it, at once, as a machine that is gone."""
        os.killpg(self.nodes[node].pid, signal.SIGKILL)

    def close(self) -> None:
        for node in reversed(self.nodes):
            if node.poll() is None:
                node.terminate()
        for node in self.nodes:
            try:
                node.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(node.pid, signal.SIGKILL)


def wait(until: Callable[[], Any], seconds: float = SECONDS) -> Any:
    last = time.monotonic() + seconds
    while not (result := until()):
        assert time.monotonic() < last, "nothing has come of it"
        time.sleep(0.05)
    return result


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # a short path: sockets lie in it
    made = Cluster(folder)
    for _ in range(2):
        made.join({"chips": 2}, {"pool": "tpu-like"})
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


def points(place: Isojax, name: str) -> dict[str, list[int]]:
    """The targets recorded of each cell."""
    result = {}
    for path in sorted(place.run(name).glob("cells/*/records.jsonl")):
        rows = [
            json.loads(line)
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        result[path.parent.name] = [row["target"] for row in rows if row["kind"] == "eval"]
    return result


def test_local_interrupted_and_resumed_the_same_bits(isojax: Isojax, whole: Isojax) -> None:
    """Ctrl-C in the middle saves what is at work, at a URL; in the end the ledgers are those of the
    local runner, bit for bit. The driver has not loaded jax. A cell of each n suffices, which share
    their base policy."""
    location = f"run.dir={(isojax.folder / 'runs').as_uri()}"
    words = (
        "isojax.launch",
        "tiny.yaml",
        "--ray",
        "local",
        "--no-report",
        "run.loggers=[]",
        "sweep.seeds=1",
        location,
    )
    home = {"XDG_CACHE_HOME": str(isojax.folder / "cache")}
    with isojax.start(*words, **QUIET, **home) as driver:
        wait(lambda: len(points(isojax, "tiny")) > 1 or driver.poll() is not None)
        driver.send_signal(signal.SIGINT)
        _, err = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 130 and "Traceback" not in err, err
    go_on = shlex.join(["python", "-m", *words, "--resume"])
    assert err.splitlines()[-1].startswith("stopped: ") and err.splitlines()[-1].endswith(
        f"saved their state. Go on by: {go_on}"
    ), err
    done = isojax(*words, "--resume", **QUIET, **home, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    loaded = {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "ray" in loaded and not loaded & {"jax", "jaxlib", "orbax.checkpoint"}
    assert isojax.ledgers() == {
        cell: ledger for cell, ledger in whole.ledgers().items() if cell.endswith("-s0")
    }
    assert not list(
        (isojax.folder / "cache").glob("isojax/runs/*/tiny/cells/*/checkpoint/*")
    )  # a worker that ends well leaves no states
    status = json.loads((isojax.run() / "status.json").read_text())
    assert status["ended"] and {cell["state"] for cell in status["cells"].values()} == {"done"}


def test_a_node_a_worker_and_the_driver_are_lost(isojax: Isojax, cluster: Cluster) -> None:
    """Four cells in groups of two processes, on nodes with labels and resources: no point is lost,
    and none is there twice. The loss is a file in the config's folder, and imports another one:
    both go to the nodes, which work in a folder of their own.
    """
    (project := isojax.folder / "project").mkdir()
    (project / "leaving_helper.py").write_text("WHERE = __file__\n")
    (project / "groups.yaml").write_text(SWEEP)
    (project / "leaving.py").write_text(LOSS.format(folder=isojax.folder))
    words = (
        "isojax.launch",
        "project/groups.yaml",
        "--ray",
        cluster.address,
        "--no-report",
        "cell.rl.loss=leaving",
    )

    def recorded() -> int:
        return sum(map(len, points(isojax, "groups").values()))

    with isojax.start(*words, **QUIET) as driver:
        wait(lambda: recorded() > 4 or driver.poll() is not None)
        (isojax.folder / "exit").touch()
        wait(lambda: (isojax.folder / "exited").exists() or driver.poll() is not None)
        before = recorded()
        wait(lambda: recorded() > before + 3 or driver.poll() is not None)
        cluster.kill(2)
        heard = bytearray()

        def two_are_lost() -> bool:
            assert driver.stderr is not None
            with suppress(BlockingIOError):
                heard.extend(os.read(driver.stderr.fileno(), 65536))
            # a group that is lost between two runs could not begin the second
            return heard.count(b"was lost") + heard.count(b"could not begin") >= 2

        assert driver.stderr is not None
        os.set_blocking(driver.stderr.fileno(), False)
        wait(lambda: two_are_lost() or driver.poll() is not None)
        assert driver.poll() is None and b"started again from its checkpoint (1 of 3)" in heard, (
            heard.decode()
        )
        driver.kill()
    done = isojax(*words, "--resume", **QUIET)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "2 files, " in done.stderr
    log = next(isojax.run("groups").glob("logs/group*-0.log")).read_text()
    (imported,) = set(re.findall(r"imported (\S+) for (\S+)", log))
    assert [Path(file).name for file in imported] == ["leaving_helper.py", "leaving.py"]
    assert all("/isojax/packs/" in file for file in imported)
    assert points(isojax, "groups") == {
        f"4x{n}-s{seed}": [0, 16, 32, 64, 128, 256] for n in (2, 4) for seed in range(2)
    }


def test_the_hosts_of_a_slice(isojax: Isojax, cluster: Cluster) -> None:
    """A node with the labels and resources of a TPU host is reserved as a slice of its own; its
    chips are a CPU's here. The cells are trained as far as strategy frontier asks, one round after
    another."""
    labels = {
        "ray.io/tpu-slice-name": "s0",
        "ray.io/tpu-topology": "2x2",
        "ray.io/tpu-pod-type": "v5litepod-4",
        "ray.io/tpu-worker-id": "0",
    }
    cluster.join({"TPU": 4, "TPU-v5litepod-4-head": 1}, labels)
    (isojax.folder / "slice.yaml").write_text(
        SWEEP.replace("process_group: {" + GROUP + "}", "process_group: {tpu: 'v5e:2x2'}")
    )
    requested = (
        "--no-report",
        "name=slice",
        "--mesh",
        "data=4",
        "sweep.strategy=adaptive",
        "sweep.seeds=1",
    )
    done = isojax("isojax.launch", "slice.yaml", "--ray", cluster.address, *requested, **QUIET)
    assert done.returncode == 0, done.stderr
    assert "each of 1 process on 1 x v5litepod:2x2" in done.stderr
    result = json.loads((isojax.run("slice") / "frontier.json").read_text())
    assert result["grid"] == 2 * 256 and 0 < result["spent"] <= result["allowed"] == 256
    assert f"{1 - result['spent'] / 512:.0%} saved" in done.stderr
    grid, trained = [0, 16, 32, 64, 128, 256], points(isojax, "slice")
    assert {"4x2-s0", "4x4-s0"} <= trained.keys() and all(
        targets == grid[: len(targets)] for targets in trained.values()
    )
    assert result["spent"] == sum(targets[-1] for targets in trained.values())


@pytest.mark.parametrize(
    ("words", "saying"),
    [
        (("--ray", "127.0.0.1:9"), "127.0.0.1:9"),
        (
            ("--ray", "ray://127.0.0.1:9"),
            "given 'ray://127.0.0.1:9'",
        ),
        (("--ray", "nowhere"), "given 'nowhere'"),
        (("--ray", "ADDRESS", "run.process_group.processes=7"), "7 processes with 1 CPU"),
        (
            ("--ray", "ADDRESS", "run.process_group.cpus=1", "run.dir=/proc/runs"),
            "/proc/runs",
        ),
        (
            ("--ray", "ADDRESS", "run.process_group.cpus=1", "run.dir=file:///proc/runs"),
            "file:///proc/runs",
        ),
        (
            (
                "--ray",
                "ADDRESS",
                "--processes",
                "2",
                "--process",
                "0",
                "--coordinator",
                "127.0.0.1:9",
            ),
            "--ray starts the processes",
        ),
    ],
)
def test_refused(isojax: Isojax, cluster: Cluster, words: tuple[str, ...], saying: str) -> None:
    began = time.monotonic()
    done = isojax.quick(
        "isojax.launch",
        "tiny.yaml",
        *(cluster.address if word == "ADDRESS" else word for word in words),
        **QUIET,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert (
        done.stderr.splitlines()[-1].startswith("error: ")
        and saying in done.stderr.splitlines()[-1]
    )
    assert time.monotonic() - began < 30 and not isojax.run().exists()
