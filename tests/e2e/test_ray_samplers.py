"""Runs by Ray some of whose processes sample and the others train: one of them killed, and sampling
ahead of the updates."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.compiler import SAME_BITS, flags
from tests.e2e.command_line import SECONDS, Isojax
from tests.e2e.test_hosts import MARKING, WORDS, rows
from tests.e2e.test_ray import QUIET, wait
from tests.e2e.test_text import prepare

pytestmark = [pytest.mark.slow, pytest.mark.seconds(180)]


def process_that_prints_to(log: Path) -> int:
    """The process id of an actor."""
    for standard_output in Path("/proc").glob("[0-9]*/fd/1"):
        with suppress(OSError):
            if standard_output.readlink() == log:
                return int(standard_output.parts[2])
    raise AssertionError(f"no process prints to {log}")


SAMPLERS = ("--ray", "local", "--no-report", "run.sampler_processes=2", "run.sampler_mesh=data=2")
ONE_DEVICE = QUIET | {"XLA_FLAGS": flags(SAME_BITS, devices=1)}


def test_processes_that_only_sample(isojax: Isojax) -> None:
    """Two processes train and two others sample, one of which is killed: Ray starts all again, and
    at k = 0 the run leaves the bits of the synchronous one. Those that train hold half of the
    weights each, and verify."""
    location = prepare(isojax)
    (location.folder / "rewards.py").write_text(MARKING)
    one = ("train", *WORDS, "name=one", "--mesh", "fsdp=2")
    location.quick_ok(*one, XLA_FLAGS=flags(SAME_BITS, devices=2), MARKS=f"{location.folder}/marks")

    environment = ONE_DEVICE | {"MARKS": str(location.folder / "marks-ray")}
    four = ("isojax.launch", *WORDS, *SAMPLERS, "run.process_group={processes: 4, cpus: 0.5}")
    with location.start(
        *four, "name=separate", "--mesh", "fsdp=2", "cell.rl.max_staleness=0", **environment
    ) as driver:
        wait(lambda: len(rows(location, "separate")) > 3 or driver.poll() is not None)
        assert driver.poll() is None, driver.communicate()
        os.kill(
            process_that_prints_to(location.run("separate") / "logs" / "group0-0-3.log"),
            signal.SIGKILL,
        )
        _, err = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 0 and "started again from its checkpoint (1 of 3)" in err, err
    expected, found = rows(location, "one"), rows(location, "separate")
    for point in found:
        for name in ("sampler_busy", "trainer_busy"):
            point["train"].pop(name, None)
    assert found == expected and len(found) > 4
    # At the end the sampler has begun another batch.
    assert set(os.listdir(location.folder / "marks-ray")) >= set(
        os.listdir(location.folder / "marks")
    )


@pytest.mark.nightly
def test_processes_that_sample_ahead(isojax: Isojax) -> None:
    """At k = 1 one process samples while another trains, two cells one after the other. Ctrl-C ends
    both, with the state saved."""
    location = prepare(isojax)
    # enough to sample for its share of the time to show
    longer = "cell.sampling.response_length=31"
    two_cells = ("sweep.n=[4,8]", "sweep.budget=512", "run.checkpoint_seconds=60", longer)
    two = ("run.process_group={processes: 2, cpus: 0.5}", "cell.rl.max_staleness=1", *two_cells)
    one_samples = ("run.sampler_processes=1", "run.sampler_mesh=data=1", "--mesh", "auto")
    ahead = ("isojax.launch", *WORDS, *SAMPLERS, "name=ahead", *one_samples, *two)
    with location.start(*ahead, **ONE_DEVICE) as driver:
        wait(lambda: len(rows(location, "ahead")) > 6 or driver.poll() is not None)
        driver.send_signal(signal.SIGINT)
        _, err = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 130 and "saved their state. Go on by: python -m" in err, err
    again = location(*ahead, "--resume", **ONE_DEVICE)
    assert again.returncode == 0 and "was lost" not in again.stderr, again.stderr
    trained = [point["train"] for point in rows(location, "ahead") if point["M"]]
    assert {point["staleness_max"] for point in trained} == {0, 1}
    # Between two of the first evaluations there is one update: the sampler works while the trainer
    # evaluates.
    assert (
        sum(point["sampler_busy"] + point["trainer_busy"] for point in trained[8:])
        > len(trained[8:])
        > 0
    )
