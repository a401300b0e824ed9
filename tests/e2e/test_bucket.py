"""A run of two processes with nothing shared but a bucket: each has a home and a working folder.
The bucket is a server of S3's protocol. Killed during an upload, and between two, the run goes on
from empty folders to the bits of one that met nothing."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isojax.core.exit_codes import ExitCode
from isojax.runs.storage import RemoteFolder
from tests.compiler import QUICK, flags
from tests.e2e.command_line import SECONDS, Fork, Isojax, Nursery

pytestmark = [pytest.mark.slow, pytest.mark.seconds(60)]

CELL = "cells/8x4-s0"
WORDS = (
    "isojax.train",
    "tiny.yaml",
    "name=pair",
    "sweep.n=[4]",
    "sweep.seeds=1",
    "sweep.budget=360",
    "cell.data.candidates=80",
    "cell.data.validation=16",
    "cell.base.steps=20",
    "run.checkpoint_seconds=0",
    "--mesh",
    "fsdp=2",
    "--resume",
)


class Bucket:
    """An empty bucket, `runs`, of a server of its own."""

    url = "s3://runs/sweeps"

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir()
        command = [sys.executable, "-m", "tests.e2e.bucket_server", str(folder)]
        self.server = subprocess.Popen(command)
        until((folder / "port").exists)
        endpoint = f"http://127.0.0.1:{(folder / 'port').read_text()}"
        request = urllib.request.Request(f"{endpoint}/runs", method="PUT")
        urllib.request.urlopen(request).close()
        self.environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def hold(self) -> None:
        """Let no upload of arrays end, until `release`; it returns when one has begun."""
        (self.folder / "hold").touch()
        until((self.folder / "holding").exists)

    def release(self) -> None:
        (self.folder / "hold").unlink()
        (self.folder / "holding").unlink()

    def close(self) -> None:
        self.server.kill()
        self.server.wait()


def until(happened: Callable[[], object]) -> None:
    last = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < last, "nothing has come of it"
        time.sleep(0.1)  # the server has one thread at work at a time


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    made = Bucket(tmp_path / "bucket")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    try:
        yield made
    finally:
        made.close()


def start(places: list[Isojax], run_dir: str, **environment: str) -> list[Fork]:
    """Both processes of the run, with a device each."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    group = ("--coordinator", address, "--processes", "2")
    return [
        place.fork(
            *WORDS,
            f"run.dir={run_dir}",
            *group,
            f"--process={i}",
            XLA_FLAGS=flags(QUICK, devices=1),
            XDG_CACHE_HOME=str(place.folder / "cache"),
            **environment,
        )
        for i, place in enumerate(places)
    ]


def kill_one(pair: list[Fork], victim: int) -> None:
    """SIGKILL to one; the other ends by itself."""
    pair[victim].send_signal(signal.SIGKILL)
    _, err = pair[1 - victim].communicate()
    assert pair[1 - victim].returncode == ExitCode.PEER_LOST and f"process {victim} of 2" in err, (
        err
    )
    pair[victim].communicate()


def check_ended(pair: list[Fork]) -> list[str]:
    """What both have said, which have ended well."""
    outputs = [process.communicate() for process in pair]
    assert [process.returncode for process in pair] == [0, 0], outputs
    return [out + err for out, err in outputs]


def new_places(folder: Path, nursery: Nursery) -> list[Isojax]:
    """A working folder for each process, where nothing has run."""
    return [Isojax(folder / f"host{i}" / "work", nursery) for i in range(2)]


def test_two_processes_and_a_bucket(tmp_path: Path, nursery: Nursery, bucket: Bucket) -> None:
    whole = Isojax(tmp_path / "whole", nursery)
    check_ended(start([whole, whole], "runs"))
    expected_ledger = (whole.run("pair") / CELL / "records.jsonl").read_bytes()
    rows = [json.loads(line) for line in expected_ledger.splitlines()]
    num_rows = sum(row["kind"] == "eval" for row in rows)
    assert num_rows == 7

    sweep = RemoteFolder(f"{bucket.url}/pair")

    def ledger() -> bytes:
        return sweep.read(f"{CELL}/records.jsonl") or b""

    def checkpoints(suffix: str) -> list[int]:
        """The updates after which there is something, or the mark of a whole one."""
        pattern = rf"{CELL}/checkpoint/(\d+){suffix}"
        return sorted({int(m[1]) for name in sweep.find() if (m := re.match(pattern, name))})

    # Process 1 is killed while a checkpoint is uploaded: what is there of it does not count.
    pair = start(new_places(tmp_path / "first", nursery), bucket.url, **bucket.environment)
    until(lambda: any(M > 1 for M in checkpoints(r"\.whole$")))
    bucket.hold()
    kill_one(pair, 1)
    bucket.release()
    begun, whole_ones = checkpoints("/"), checkpoints(r"\.whole$")
    half = ledger()
    assert begun[-1] > whole_ones[-1] > 0 and expected_ledger.startswith(half)

    # Both begin from nothing, in other folders; then process 0 is killed, between two checkpoints.
    second = new_places(tmp_path / "second", nursery)
    pair = start(second, bucket.url, **bucket.environment)
    until(lambda: ledger().count(b"\n") > half.count(b"\n"))
    kill_one(pair, 0)
    assert len(ledger()) < len(expected_ledger)
    shutil.rmtree(tmp_path / "second")

    third = new_places(tmp_path / "third", nursery)
    said, _ = check_ended(start(third, bucket.url, **bucket.environment))
    assert ledger() == expected_ledger
    assert (
        sweep.read(f"{CELL}/samples.txt") == (whole.run("pair") / CELL / "samples.txt").read_bytes()
    )
    assert f"run: {bucket.url}/pair" in said and "error: " not in said

    # The checkpoints are those of the last two saves, each whole; no process has left a folder.
    last = sorted(int(p.name) for p in (whole.run("pair") / CELL / "checkpoint").glob("[0-9]*"))
    assert checkpoints("/") == checkpoints(r"\.whole$") == last
    assert sweep.read(".lock") is None
    assert not [path for place in third for path in (place.folder / "cache").rglob("*.jsonl")]
    assert not (third[1].folder / "runs").exists()

    # Readers, on a machine that has nothing either.
    reader = new_places(tmp_path / "readers", nursery)[0]
    words = (f"{bucket.url}/pair", "--json")
    status = json.loads(reader.quick_ok("status", *words, **bucket.environment).stdout)
    (cell,) = status["sweeps"][0]["cells"]
    assert cell["state"] == "done" and cell["rollouts"] == rows[-1]["rollouts"]
