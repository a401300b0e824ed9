"""Checks that forge, leak and hide: none gets a verdict that it did not earn, or costs another
check its own."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isojax.core.config import VerifierConfig
from isojax.core.nouns import Problem
from isojax.tasks.grading import Checker

REWARDS = '''
import contextlib, ctypes, errno, gc, os, resource, signal, socket, subprocess, sys, threading, time

leaked = []
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

def write(data):
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            os.write(int(name), data)

def daemon(path):
    """A grandchild that is in a session of its own and that nobody's environment or group names."""
    code = "import os,sys,time; p=os.fork(); p and os._exit(0); os.setsid();"
    code += " open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(1000)"
    command = [sys.executable, "-S", "-c", code, path]
    subprocess.Popen(command, start_new_session=True, env={}).wait()
    while not (os.path.exists(path) and open(path).read()):
        time.sleep(0.01)

def reward(completions, answer):
    what, _, path = completions[0].partition(" ")
    if what == "forge":
        write(b'[true, true, "", ""]\\n')
    if what == "forge-many":
        write(b'[true, true, "", "", false]\\n0123456789abcdef [true, true, "", "", false]\\n' * 50)
    if what == "forge-objects":
        for found in gc.get_objects():
            if isinstance(found, socket.socket):
                found.sendall(b'[true, true, "", ""]\\n')
    if what == "forge-child" and os.fork() == 0:
        write(b'[true, true, "", ""]\\n')
        os._exit(0)
    if what == "nested":
        write(b"[" * 20000 + b"\\n")
    # with its verdict's nonce
    if what == "frames" or (what == "frames-child" and os.fork() == 0):
        frame = sys._getframe()
        while "nonce" not in frame.f_locals:
            frame = frame.f_back
        text = path if path != "nested" else "[" * 60000
        frame.f_locals["connection"].sendall(f"{frame.f_locals['nonce']} {text}\\n".encode())
        if what == "frames-child":
            os._exit(0)
    if what == "untraceable":
        return [float(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0)]  # PR_GET_DUMPABLE
    if what == "trickle":
        while True:
            write(b"x")
            time.sleep(0.05)
    if what == "flood":
        while True:
            write(b"x" * 65536)
    if what == "steal" and os.fork() == 0:  # answers what its parent is asked next
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                os.read(int(name), 65536)
        time.sleep(1000)
    if what == "leak":
        with contextlib.suppress(OSError):
            while True:
                leaked.append(open(os.devnull))
    if what == "leak-some":
        leaked.extend(open(os.devnull) for _ in range(100))
    if what == "leak-threads":  # under the worker's memory limit: stacks are counted
        threading.stack_size(64 * 2**20)
        with contextlib.suppress(RuntimeError):
            while True:
                threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    if what == "thread":
        threading.Thread(target=int).start()
    if what == "raise-shortage":
        try:
            raise OSError(getattr(errno, path), "the machine is out of it")
        except OSError as e:
            raise RuntimeError("wrapped by a library") from e
    if what == "once":  # a shortage of the first process that meets it
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return [1.0]
        if completions[0].endswith("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, "No space left on device")
    if what == "hoard":
        leaked.append(bytes(300 * 2**20))
    if what.startswith("daemon"):
        daemon(path)
        if what == "daemon-hang":
            time.sleep(1000)
        if what == "daemon-crash":
            os._exit(5)
    with open(os.devnull):  # a check needs a descriptor
        return [float(completions[0] == answer[0])]
'''

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="descriptors and orphans as Linux shows them"
)
pytestmark = [linux, pytest.mark.slow]


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "rewards.py"
    path.write_text(REWARDS)
    return path


@pytest.fixture(scope="module")
def checker(rewards: Path) -> Iterator[Checker]:
    with Checker(
        VerifierConfig(use=f"function:{rewards}:reward", timeout=1.0, memory_gib=0.5), num_workers=1
    ) as checker:
        yield checker


def grade(checker: Checker, responses: list[str]) -> tuple[list[float], dict[str, int]]:
    problems = [Problem(i, "?", "good") for i in range(len(responses))]
    grades = checker.grade(problems, ["?"] * len(responses), responses)
    return grades.rewards.tolist(), grades.failures


@pytest.mark.parametrize("forge", ["forge", "forge-many", "forge-objects", "nested", "flood"])
def test_a_forged_verdict_counts_as_a_failure_of_its_own_check(
    checker: Checker, forge: str
) -> None:
    assert grade(checker, ["good", forge, "good", "bad", "good"]) == (
        [1, 0, 1, 0, 1],
        {"forged": 1},
    )
    assert "wrote into its connection" in checker.failure_examples["forged"]


def test_a_child_of_a_check_reaches_neither_verdicts_nor_requests(checker: Checker) -> None:
    assert grade(checker, ["forge-child", "good", "bad", "steal", "good"] * 3) == (
        [0, 1, 0, 0, 1] * 3,
        {},
    )
    assert grade(checker, ["good", "bad"]) == ([1, 0], {})


UNUSABLE = ["nested", "5", "{", "[]", '[true, true, "", "", 1, false]',
    '[true, true, {}, "", null, false]',
            '[true, true, "", "", {"a": "1"}, false]', '[1, true, "", "", null, false]',
            "\\udcff"]  # fmt: skip


@pytest.mark.parametrize("text", UNUSABLE, ids=range(len(UNUSABLE)))
def test_what_is_no_verdict_ends_no_run_even_with_its_nonce(checker: Checker, text: str) -> None:
    assert grade(checker, ["good", f"frames {text}", "good"]) == ([1, 0, 1], {"forged": 1})


def test_a_process_of_a_check_reaches_no_verdict_by_its_nonce(checker: Checker) -> None:
    forged = 'frames-child [true, true, "", "", null, false]'
    assert grade(checker, ["good", forged, "bad", "untraceable"]) == ([1, 0, 0, 1], {})


def test_bytes_without_an_end_do_not_move_the_deadline(checker: Checker) -> None:
    began = time.monotonic()
    assert grade(checker, ["good", "trickle", "good"]) == ([1, 0, 1], {"timeout": 1})
    assert time.monotonic() - began < 4


def test_a_process_without_descriptors_is_replaced_before_the_next_check(checker: Checker) -> None:
    assert grade(checker, ["leak", *["good"] * 14]) == ([0] + [1] * 14, {"machine": 1})
    assert grade(checker, ["leak-some", "good"] * 30) == ([0, 1] * 30, {})


@pytest.mark.parametrize("shortage", ["EMFILE", "ENFILE", "ENOSPC", "ENOMEM", "EAGAIN"])
def test_a_shortage_that_stays_is_counted_and_costs_its_own_rollout(
    checker: Checker, shortage: str
) -> None:
    checker.failure_examples.clear()
    assert grade(checker, ["good", f"raise-shortage {shortage}", "good"]) == (
        [1, 0, 1],
        {"machine": 1},
    )
    assert "wrapped by a library" in checker.failure_examples["machine"]


@pytest.mark.parametrize("how", ["", "killed"])
def test_a_shortage_that_passes_costs_nothing(checker: Checker, tmp_path: Path, how: str) -> None:
    assert grade(checker, ["good", f"once {tmp_path / 'seen'}{how}", "good"]) == ([1, 1, 1], {})


def test_memory_that_an_earlier_check_keeps_costs_the_next_one_nothing(checker: Checker) -> None:
    assert grade(checker, ["hoard", "hoard", "good"]) == ([0, 0, 1], {})


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("how", ["daemon-hang", "daemon-crash", "daemon"])
def test_what_has_left_its_session_dies_with_its_worker(
    rewards: Path, tmp_path: Path, how: str
) -> None:
    mark = tmp_path / "pid"
    with Checker(
        VerifierConfig(use=f"function:{rewards}:reward", timeout=1.0), num_workers=1
    ) as checker:
        grade(checker, [f"{how} {mark}"])
        pid = int(mark.read_text())
        # a check that ends well may keep what it has started
        assert running(pid) == (how == "daemon")
    assert not running(pid)


def test_a_process_that_can_start_no_thread_is_replaced_and_the_check_repeated(
    checker: Checker,
) -> None:
    assert grade(checker, ["good", "leak-threads", "thread", "good", "bad"])[1] == {}
    assert "error" not in checker.failure_examples


def test_no_descriptor_or_process_is_left_in_the_trainer(rewards: Path) -> None:
    with Checker(
        VerifierConfig(use=f"function:{rewards}:reward", timeout=1.0), num_workers=1
    ) as checker:
        grade(checker, ["good"])
        descriptors = len(os.listdir("/dev/fd"))
        for response in ("leak", "forge", "raise-shortage EMFILE", "good"):
            grade(checker, [response])
        assert len(os.listdir("/dev/fd")) == descriptors
