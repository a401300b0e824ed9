"""Two processes that are one run, through the command line: each verifies its own rollouts; killed,
and started again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compiler import QUICK, SAME_BITS, flags
from tests.e2e.command_line import SECONDS, Fork, Isojax
from tests.e2e.test_faults import flip, newest
from tests.e2e.test_text import prepare

pytestmark = [pytest.mark.slow, pytest.mark.seconds(70)]

CELL = "4x4-s0"
WORDS = (
    "sums.yaml",
    "sweep.n=[4]",
    "sweep.decode_slots=4",
    "sweep.microbatch=4",
    "sweep.prefill_batch=1",
    "sweep.budget=62",
    "run.checkpoint_seconds=0",
)
# The verifier leaves a mark for each process whose rollouts it has judged.
MARKING = """\
import os
from pathlib import Path
from zlib import crc32
def reward(prompts, completions, **columns):
    asked, said = prompts[0], completions[0]
    Path(os.environ["MARKS"]).mkdir(exist_ok=True)
    (Path(os.environ["MARKS"]) / f"{crc32(f'{asked}{said}'.encode())}").touch()
    return [int(crc32(f"{asked}{said}".encode()) % 100 < 100 * (crc32(asked.encode()) % 17 / 16))]
"""


def start(
    place: Isojax,
    *words: str,
    compiled: dict[str, int | bool] = QUICK,
    processes: int = 2,
    devices: int = 2,
    command: str = "train",
) -> list[Fork]:
    """All processes, with as many devices each."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    requested = (
        f"isojax.{command}",
        *WORDS,
        *words,
        "--coordinator",
        f"127.0.0.1:{port}",
        "--processes",
        f"{processes}",
    )
    return [
        place.fork(
            *requested,
            "--process",
            str(i),
            XLA_FLAGS=flags(compiled, devices=devices),
            MARKS=str(place.folder / f"marks{i}"),
        )
        for i in range(processes)
    ]


def ended(processes: list[Fork]) -> list[tuple[int | None, str]]:
    """Exit codes and what was said on standard error."""
    try:
        return [
            (process.returncode, err)
            for process in processes
            for _, err in [process.communicate(timeout=SECONDS)]
        ]
    finally:
        for process in processes:
            process.kill()


def rows(place: Isojax, name: str) -> list[dict[str, Any]]:
    ledger: Path = place.folder / "runs" / name / "cells" / CELL / "records.jsonl"
    return (
        [json.loads(line) for line in ledger.read_text().splitlines() if '"eval"' in line]
        if ledger.exists()
        else []
    )


def test_two_processes(isojax: Any) -> None:
    """One is killed: the other ends within seconds and names it. Started again, on a checkpoint
    whose half of one of them is damaged, both take the one before, and end with what one process
    with four devices finds, to rounding; each has verified its own half."""
    location: Isojax = prepare(isojax)
    (location.folder / "rewards.py").write_text(MARKING)
    one = ("train", *WORDS, "name=one", "--mesh", "fsdp=4")
    single = location.quick_ok(
        *one, XLA_FLAGS=flags(QUICK, devices=4), MARKS=str(location.folder / "marks")
    )

    two = ("name=two", "--mesh", "fsdp=4")
    pair = start(location, *two)
    try:
        late = time.monotonic() + SECONDS
        cell = location.run("two") / "cells" / CELL
        # a checkpoint is complete after its row
        while len(rows(location, "two")) < 3 or len(newest(cell)) < 2:
            assert time.monotonic() < late and all(process.poll() is None for process in pair)
            time.sleep(0.01)
        pair[1].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        (code, output), _ = ended(pair)
    finally:
        for process in pair:
            process.kill()
    assert time.monotonic() - killed < 30 and code == 75
    assert re.search(
        (
            rf"error: process 1 of 2 \(on {re.escape(socket.gethostname())}, pid {pair[1].pid}\) "
            "ended before the run did"
        ),
        output,
    )

    earlier, last = newest(cell)
    flip(
        max(
            (last / "state" / "ocdbt.process_1" / "d").iterdir(),
            key=lambda path: path.stat().st_size,
        )
    )
    again = ended(start(location, *two, "--resume"))
    assert [code for code, _ in again] == [0, 0], again
    assert (
        str(last) in again[0][1]
        and f"going on from the one of update {earlier.name}" in again[0][1]
    )
    planned = [re.findall(r"update's, of (.*B)", output) for output in (single.stderr, again[0][1])]
    # four devices share one machine's memory in either case
    assert planned[0] == planned[1] and len(planned[0]) == 1
    # process 0 alone talks
    assert "error" not in again[1][1] and not re.search("rollouts/s", again[1][1])
    a, b = rows(location, "one"), rows(location, "two")
    assert [(x["target"], x["M"], x["rollouts"]) for x in a] == [
        (x["target"], x["M"], x["rollouts"]) for x in b
    ]
    for x, y in zip(a, b, strict=True):
        assert x["counts"] == y["counts"] and x["train"].keys() == y["train"].keys()
        np.testing.assert_allclose(
            list(x["train"].values()), list(y["train"].values()), rtol=2e-3, atol=1e-5
        )
    marks = [set(os.listdir(location.folder / f"marks{i}")) for i in range(2)]
    assert all(len(ours) > 20 for ours in marks) and marks[0] | marks[1] == set(
        os.listdir(location.folder / "marks")
    )


@pytest.mark.nightly
def test_two_processes_that_sample_on_devices_of_their_own(isojax: Any) -> None:
    """Sampler and trainer have meshes of one device in each of two processes. At k = 0 the run
    leaves the bits of the synchronous one; each process verifies what its devices have sampled.
    (Such processes are killed and started again in test_ray_samplers.py.) At k = 1 sampler and
    trainer work at the same time, also where each process holds half of the weights that its
    sampler needs whole.
    """
    location: Isojax = prepare(isojax)
    (location.folder / "rewards.py").write_text(MARKING)
    same_bits = flags(SAME_BITS, devices=2)
    location.quick_ok(
        "train",
        *WORDS,
        "name=one",
        "--mesh",
        "data=2",
        XLA_FLAGS=same_bits,
        MARKS=str(location.folder / "marks"),
    )

    meshes = ("--mesh", "data=2", "run.sampler_mesh=data=2")
    separate = ("name=separate", *meshes, "cell.rl.max_staleness=0")
    pair = ended(start(location, *separate, compiled=SAME_BITS))
    assert [code for code, _ in pair] == [0, 0], pair
    expected, found = rows(location, "one"), rows(location, "separate")
    for point in found:
        for name in ("sampler_busy", "trainer_busy"):
            point["train"].pop(name, None)
    assert found == expected and len(found) > 4
    marks = [set(os.listdir(location.folder / f"marks{i}")) for i in range(2)]
    # At the end the sampler has begun another batch.
    assert all(len(ours) > 20 for ours in marks) and marks[0] | marks[1] > set(
        os.listdir(location.folder / "marks")
    )

    meshes = ("--mesh", "fsdp=2", "run.sampler_mesh=data=2")
    # enough to sample for its share of the time to show
    longer = "cell.sampling.response_length=31"
    ahead = ("name=ahead", *meshes, "cell.rl.max_staleness=1", "run.checkpoint_seconds=60", longer)
    assert [code for code, _ in ended(start(location, *ahead))] == [0, 0]
    trained = [point["train"] for point in rows(location, "ahead") if point["M"]]
    assert {point["staleness_max"] for point in trained} == {0, 1}
    assert sum(point["sampler_busy"] + point["trainer_busy"] for point in trained) > len(trained)


def test_what_two_processes_cannot_do(isojax: Any) -> None:
    """Refused by both, without waiting for anything to break."""
    pair = start(prepare(isojax), "--mesh", "data=2")
    for code, output in ended(pair):
        assert code == 2 and "takes 2 of the 4 devices of 2 processes" in output
    pair = start(
        prepare(isojax), "--mesh", "data=1", "run.sampler_mesh=data=3", "cell.rl.max_staleness=1"
    )
    for code, output in ended(pair):
        assert code == 2 and "as many from each of the 2 processes" in output
    pair = start(isojax, "--mesh", "fsdp=2", "run.sampler_processes=1", "run.sampler_mesh=data=2")
    for code, output in ended(pair):
        assert code == 2 and "run.sampler_processes" in output and "without --ray" in output
    assert not (isojax.folder / "runs").exists()
