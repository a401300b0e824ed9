"""A Ray of this machine serves nobody who lacks its token; a cluster that serves everybody is
warned of."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

pytest.importorskip("ray")
TOKEN, OTHER_TOKEN = "a" * 64, "b" * 64
LOCAL = """
import sys
from isojax.launch.ray.ray_driver import connect_ray
with connect_ray("local") as ray:
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.readline()
"""
JOIN = """
import sys
from isojax.launch.ray.ray_driver import connect_ray
with connect_ray(sys.argv[1]) as ray:
    print(ray.get(ray.remote(lambda: 5).remote()))
"""
STRANGER = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).internal_kv_keys(b"", timeout=10)
"""
# Without a token no answer ever comes, so less of the time is waited for it.
REFUSED = "from isojax.launch.ray import ray_driver; ray_driver.CONNECT_TIMEOUT = 4.0\n" + JOIN
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
NO_TOKEN = {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""}


def environment(**variables: str) -> dict[str, str]:
    """This one's, without what Ray takes from it."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")
    } | variables


def python(
    program: str, address: str, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, address]
    return subprocess.run(
        command,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_local_ray_refuses_strangers() -> None:
    """Also where the user has switched authentication off: whoever runs code there runs it as this
    user."""
    command = [sys.executable, "-c", LOCAL]
    variables = environment(RAY_AUTH_MODE="disabled", RAY_AUTH_TOKEN=TOKEN)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
    ) as driver:
        assert driver.stdin is not None and driver.stdout is not None
        address = driver.stdout.readline().strip()
        for stranger in (NO_TOKEN, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": OTHER_TOKEN}):
            refused = python(STRANGER, address, stranger)
            assert refused.returncode == 1 and "InvalidAuthToken" in refused.stderr
        assert (
            python(
                STRANGER, address, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
            ).returncode
            == 0
        )
        driver.communicate("\n", timeout=60)


@pytest.mark.parametrize("mode", ["disabled", "token"])
def test_a_cluster_without_a_token_is_warned_of(mode: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory(
        prefix="ray", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        options = [
            f"--port={port}",
            "--num-cpus=1",
            "--include-dashboard=false",
            f"--temp-dir={folder}",
            "--block",
        ]
        with (Path(folder) / "head").open("w") as log:
            head = subprocess.Popen(
                [*RAY, "start", "--head", *options],
                env=environment(**variables),
                stdout=log,
                stderr=log,
            )
        try:
            while (
                python(STRANGER, f"127.0.0.1:{port}", variables).returncode and head.poll() is None
            ):
                pass
            joined = python(JOIN, f"127.0.0.1:{port}", variables)
            assert joined.returncode == 0 and joined.stdout.strip() == "5", joined.stderr
            assert ("warning: whoever reaches the Ray cluster" in joined.stderr) == (
                mode == "disabled"
            )
            if mode == "token":  # and the error says how to come in
                assert "its RAY_AUTH_TOKEN" in python(REFUSED, f"127.0.0.1:{port}", NO_TOKEN).stderr
        finally:
            head.terminate()
            head.wait(60)
