"""The worker pool against verifiers that hang, crash, raise and eat memory: each costs its own
rollout, by kind."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isojax.core.config import VerifierConfig
from isojax.core.nouns import Problem
from isojax.tasks import check_process, grading, guarded_process
from isojax.tasks.grading import Checker
from tests.refusals import refused

pytestmark = pytest.mark.seconds(9)

REWARDS = '''
import ctypes, os, signal, subprocess, sys, time

def reward(completions, answer, prompts):
    """Does what the response says, else compares it with the answer."""
    what = completions[0]
    if what == "sleep":
        time.sleep(1000)
    if what == "locked":
        pow(7, 10**9)  # C code that keeps the interpreter's lock
    if what == "exit":
        sys.exit(3)
    if what == "gone":
        os._exit(7)
    if what == "raise":
        raise ValueError("no such answer")
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "memory":
        return [float(len([bytes(2**20) for _ in range(10**5)]))]
    if what == "print":
        for _ in range(2000):
            print("x" * 1000)
            print("y" * 1000, file=sys.stderr)
    if what.startswith("child"):
        child = subprocess.Popen(["sleep", "1000"])
        open(what.split()[1], "w").write(str(child.pid))
        if what.endswith("gone"):
            os._exit(1)
        pow(7, 10**9) if what.endswith("locked") else time.sleep(1000)
    if what == "fork" and os.fork() == 0:
        return [1.0]
    if what == "segfault":
        ctypes.string_at(0)
    if what == "deep":
        deep = lambda: deep()
        deep()
    if what == "close":
        os.closerange(3, 256)
    if what == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
        children = [subprocess.Popen(["sleep", "1000"]).pid, os.fork() or time.sleep(1000)]
        time.sleep(0.05)
        for child in children:
            os.kill(child, signal.SIGTERM)
        ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        return [float(ends == [-signal.SIGTERM] * 2)]
    if what == "forked and gone":
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(9)
    scores = {"partial": 0.5, "above": 2, "nan": float("nan"), "none": None}
    scores |= {"text": "1", "minus": -1, "true": True}
    return [scores.get(what, float(what == answer[0]))]

def pid(completions):
    return [float(str(os.getppid()) == completions[0])]  # the guard's

def column(completions, level):
    return [float(level[0] == 3)]
'''


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verifier") / "rewards.py"
    path.write_text(REWARDS)
    return path


@pytest.fixture(scope="module")
def checker(rewards: Path) -> Iterator[Checker]:
    with Checker(
        VerifierConfig(use=f"function:{rewards}:reward", timeout=0.5, memory_gib=0.5), num_workers=2
    ) as checker:
        yield checker


def grade(
    checker: Checker, responses: list[str], answer: str = "good"
) -> tuple[list[float], list[bool], dict[str, int]]:
    problems = [Problem(i, "?", answer) for i in range(len(responses))]
    grades = checker.grade(problems, ["?"] * len(responses), responses)
    assert grades.rewards.dtype == np.float32 and grades.parsed.dtype == bool
    return grades.rewards.tolist(), grades.parsed.tolist(), grades.failures


def test_each_failure_costs_its_own_rollout_and_is_counted(checker: Checker) -> None:
    bad = [
        "sleep",
        "exit",
        "gone",
        "raise",
        "interrupt",
        "memory",
        "segfault",
        "deep",
        "close",
        "forked and gone",
        "partial",
        "nan",
        "none",
    ]
    bad += ["text"]
    responses = [r for b in bad for r in ("good", b, "other", "print", "minus", "true", "")]
    checker.failure_examples.clear()
    grade(checker, ["good"] * 64)
    began, descriptors = time.monotonic(), len(os.listdir("/dev/fd"))
    rewards, answered, failures = grade(checker, responses)
    assert time.monotonic() - began < 15
    assert (
        len(os.listdir("/dev/fd")) <= descriptors + 2
    )  # the second worker's socket and log, where it had not been needed before
    assert rewards == [float(r in ("good", "true")) for r in responses]
    assert answered == [
        r in ("good", "other", "print", "minus", "true", "partial") for r in responses
    ]
    # raised: exit, raise, interrupt, deep, nan, text; the process lost: gone, segfault, close,
    # forked and gone
    assert failures == {"crash": 4, "error": 6, "memory": 1, "none": 1, "partial": 1, "timeout": 1}
    assert (
        checker.failure_examples["timeout"]
        == f"problem {responses.index('sleep')}: no verdict within 0.5 s"
    )
    assert (
        checker.failure_examples["error"].endswith("SystemExit: 3")
        and ": rewards.py:" in checker.failure_examples["error"]
    )
    assert set(checker.failure_examples) == set(failures)


def test_a_sigterm_to_all_of_a_job_costs_no_verdict(checker: Checker) -> None:
    """The run saves its state and ends the processes then; what a check has started ends by the
    signal as ever."""
    assert grade(checker, ["terminated", "good"]) == ([1.0, 1.0], [True, True], {})


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("gone", "crash", "problem 1: the process exited with 7"),
        ("segfault", "crash", "problem 1: the process died of SIGSEGV"),
        ("forked and gone", "crash", "problem 1: the process exited with 9"),
        ("locked", "timeout", "problem 1: no verdict within 0.5 s"),
        (
            "partial",
            "partial",
            (
                "problem 1: rewards.py:{line} (reward) returned a score of 0.5, which counts as 0: "
                "cell.reward.kind"
            ),
        ),
        (
            "above",
            "score",
            "problem 1: rewards.py:{line} (reward) returned a score of 2, which counts as 0",
        ),
        (
            "none",
            "none",
            (
                "problem 1: rewards.py:{line} (reward) returned [None]: it does not apply to this "
                "problem"
            ),
        ),
        (
            "text",
            "error",
            "problem 1: rewards.py:{line} (reward) returned str '1' for a score, expected a number",
        ),
    ],
)
def test_the_first_failure_of_a_kind_is_shown(
    checker: Checker, what: str, kind: str, message: str
) -> None:
    checker.failure_examples.clear()
    assert grade(checker, ["good", what, "good"])[::2] == ([1, 0, 1], {kind: 1})
    line = REWARDS[: REWARDS.index("def reward(")].count("\n") + 1
    assert checker.failure_examples[kind].startswith(message.format(line=line))


def test_a_function_that_fails_before_the_run_is_told_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may fail at empty responses alone, so that it is no refusal."""
    path = tmp_path / "rewards.py"
    path.write_text("def reward(completions):\n    return [float(completions[0][0] == '7')]\n")
    problems = [Problem(i, "?", "7") for i in range(3, 5)]
    with Checker(VerifierConfig(use=f"function:{path}:reward"), num_workers=1) as checker:
        for _ in range(2):  # of training and of validation
            checker.check_problems(problems, ["?", "?"])
        assert grade(checker, ["7", "8"]) == ([1, 0], [True, True], {})
    failure = "rewards.py:2: IndexError: string index out of range"
    assert (
        capsys.readouterr().err
        == f"warning: the verifier fails at an empty response to problem 3: {failure}\n"
    )


@pytest.mark.slow
def test_a_verifier_whose_first_checks_all_hang_is_refused(
    rewards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is reported while the others are waited for; empty responses count neither
    way."""
    monkeypatch.setattr(grading, "MIN_TIMEOUTS", 4)
    monkeypatch.setattr(grading, "MIN_WORKER_TIMEOUTS", 1)
    reported: list[tuple[str, str]] = []
    began = time.monotonic()
    with Checker(
        VerifierConfig(use=f"function:{rewards}:reward", timeout=0.1), num_workers=2
    ) as checker:
        checker.on_failure = lambda *failure: reported.append(failure)
        with refused():
            grade(checker, ["", *["sleep"] * 200])
        assert time.monotonic() - began < 15  # the other worker stops too, whichever has found it
        assert [kind for kind, _ in reported] == [
            "timeout"
        ] and "no verdict within 0.1 s" in reported[0][1]
    with Checker(
        VerifierConfig(use=f"function:{rewards}:reward", timeout=0.1), num_workers=1
    ) as checker:
        assert grade(checker, ["other", *["sleep"] * 4])[2] == {"timeout": 4}


def test_a_deadline_is_each_checks_own(rewards: Path) -> None:
    path = rewards.with_name("slow.py")
    path.write_text("import time\ndef reward(completions):\n    time.sleep(0.1)\n    return [1]\n")
    # Eight of 0.1 s pass a deadline of 0.5 s.
    with Checker(
        VerifierConfig(use=f"function:{path}:reward", timeout=0.5), num_workers=1
    ) as checker:
        assert grade(checker, ["x"] * 8) == ([1.0] * 8, [True] * 8, {})


def test_a_forked_child_that_comes_back_gives_no_verdict(checker: Checker) -> None:
    assert grade(checker, ["fork", "good", "fork", "bad", "good"])[::2] == ([0, 1, 0, 0, 1], {})


def ended(pid: int) -> bool:
    """Whether a process has ended, within two seconds."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("how", ["", " gone"])
def test_what_a_check_has_started_dies_with_its_worker(
    checker: Checker, tmp_path: Path, how: str
) -> None:
    assert grade(checker, [f"child {tmp_path / 'pid'}{how}", "good"])[0] == [0, 1]
    assert ended(int((tmp_path / "pid").read_text()))


def test_large_responses_pass(checker: Checker) -> None:
    large = "z" * 3_000_000
    assert grade(checker, [large, "no", large] * 4, answer=large)[0] == [1, 0, 1] * 4


def test_a_worker_killed_while_idle_is_replaced(rewards: Path) -> None:
    with Checker(VerifierConfig(use=f"function:{rewards}:pid"), num_workers=1) as checker:
        worker = checker._workers[0]._process
        assert worker is not None
        assert grade(checker, [str(worker.popen.pid)]) == ([1.0], [True], {})
        os.killpg(worker.popen.pid, signal.SIGKILL)
        assert ended(worker.popen.pid)
        assert grade(checker, [str(worker.popen.pid)]) == ([0.0], [True], {})


@pytest.mark.parametrize("how", ["slow", "no memory"])
def test_a_worker_that_cannot_be_started_again_is_tried_again(
    rewards: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A start past its deadline, or a machine without memory: `failing` times in a row, then as
    ever."""
    popen, starts, failing = subprocess.Popen, [0], 2

    def start(command: list[str], **options: Any) -> Any:
        starts[0] += 1
        if starts[0] > failing:
            return popen(command, **options)
        if how == "no memory":
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return popen([sys.executable, "-c", "import time; time.sleep(1000)"], **options)

    monkeypatch.setattr(check_process, "RESTART_PAUSE", 0.01)
    monkeypatch.setattr(guarded_process, "STOP_TIMEOUT", 0.1)
    with Checker(VerifierConfig(use=f"function:{rewards}:reward"), num_workers=1) as checker:
        descriptors = len(os.listdir("/dev/fd"))
        receive = check_process.CheckWorker._receive

        def short(self: Any, nonce: str, seconds: float) -> Any:
            starting = starts[0] <= failing and seconds == check_process.START_TIMEOUT
            return receive(self, nonce, 0.2 if starting else seconds)

        monkeypatch.setattr(check_process.CheckWorker, "_receive", short)
        monkeypatch.setattr(subprocess, "Popen", start)
        assert grade(checker, ["gone", "good", "bad"]) == (
            [0.0, 1.0, 0.0],
            [False, True, True],
            {"crash": 1},
        )
        assert starts == [3] and len(os.listdir("/dev/fd")) <= descriptors
        starts[0], failing = 0, 100
        with refused():
            grade(checker, ["gone", "good"])
        assert starts == [check_process.MAX_STARTS]


def test_threads_take_turns(checker: Checker) -> None:
    result: dict[int, list[float]] = {}
    threads = [
        threading.Thread(
            target=lambda k=k: result.update({k: grade(checker, ["good"] * k + ["bad"])[0]})
        )
        for k in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert result == {k: [1.0] * k + [0.0] for k in range(8)}


def test_an_interrupt_ends_the_checks_under_way(rewards: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Checker(
            VerifierConfig(use=f"function:{rewards}:reward", timeout=60), num_workers=2
        ) as checker:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                grade(checker, ["sleep"] * 40)
            assert time.monotonic() - began < 20
            assert grade(checker, ["good", "bad"])[0] == [1, 0]
    finally:
        signal.signal(signal.SIGINT, before)


ODD_VERIFIER = """\
from isojax.tasks.verifiers import verifier
@verifier(pure=True)
def build(argument):
    return None
"""


def test_a_forks_verifier_says_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fork_of_checks").mkdir()
    (tmp_path / "fork_of_checks" / "odd.py").write_text(ODD_VERIFIER)
    monkeypatch.syspath_prepend(str(tmp_path))
    with refused(where="verifiers plug-in 'fork_of_checks.odd': odd.py:2: @verifier"):
        Checker(VerifierConfig(use="fork_of_checks.odd"))


def test_nothing_to_grade(checker: Checker) -> None:
    assert grade(checker, []) == ([], [], {})


def test_a_problem_without_the_functions_column_ends_the_run(rewards: Path) -> None:
    with Checker(VerifierConfig(use=f"function:{rewards}:column"), num_workers=2) as checker:
        problems = [
            Problem(1, "?", "", columns={"level": 3}),
            Problem(2, "?", "", columns={"level": 4}),
        ]
        assert checker.grade(problems, ["?"] * 2, ["x"] * 2).rewards.tolist() == [1, 0]
        with refused():
            checker.grade([*problems, Problem(7, "?", "")] * 10, ["?"] * 30, ["x"] * 30)
        # and the workers are as before
        assert checker.grade(problems, ["?"] * 2, ["x"] * 2).rewards.tolist() == [1, 0]


def test_a_closed_checker_says_so(rewards: Path) -> None:
    checker = Checker(VerifierConfig(use=f"function:{rewards}:reward"), num_workers=1)
    process = checker._workers[0]._process
    checker.close()
    assert process is not None and process.popen.wait(0) == -signal.SIGKILL
    with refused():
        grade(checker, ["good"])


@pytest.mark.parametrize(
    ("use", "text"),
    [
        ("function:missing.py:f", None),
        ("function:own.py", ""),
        (
            "function:own.py:f",
            "def g(): pass\ndef h(): pass\n",
        ),
        (
            "function:own.py:f",
            "x = 1\ndef f(:\n",
        ),
        (
            "function:own.py:f",
            "\nimport no_such_package\n",
        ),
        ("function:own.py:f", "import sys\nsys.exit(4)\n"),
        (
            "function:own.py:f",
            "import os\nos._exit(4)\n",
        ),
        (
            "function:own.py:f",
            "x = [bytes(2**20) for _ in range(10**5)]\n",
        ),
        (
            "verl:no.such.module",
            None,
        ),
        ("verl:own.py", "def other(): pass\n"),
        (
            "maths",
            None,
        ),
        ("exact:x", None),
    ],
)
def test_what_cannot_start_is_said_at_once(
    use: str, text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("own.py").write_text(text)
    with refused():
        Checker(VerifierConfig(use=use, memory_gib=0.5), num_workers=1)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal on a closed pipe")
def test_workers_and_their_children_die_with_a_parent_that_is_killed(
    rewards: Path, tmp_path: Path
) -> None:
    program = (
        "from isojax.tasks.grading import Checker; from isojax.core.nouns import Problem; import "
        "sys\nfrom isojax.core.config import VerifierConfig\nc = "
        f"Checker(VerifierConfig(use='function:{rewards}:reward', timeout=1000), num_workers=1)\n"
        "print(c._workers[0]._process.popen.pid, flush=True)\nc.grade([Problem(0, '', '')], [''], "
        "sys.argv[1:])"
    )
    child = tmp_path / "pid"
    parent = subprocess.Popen(
        [sys.executable, "-c", program, f"child {child} locked"], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    while not (child.is_file() and child.read_text()):
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert ended(worker) and ended(int(child.read_text()))


def test_a_worker_loads_no_jax_and_nothing_of_the_parents_main_module(rewards: Path) -> None:
    path = rewards.with_name("loaded.py")
    path.write_text(
        "import sys\ndef reward(completions):\n    heavy = {'jax', 'jaxlib', 'flax', 'jaxtyping', "
        "'numpy', 'transformers', 'pydantic', 'pytest', '_pytest'} & set(sys.modules)\n    assert "
        "not heavy, heavy\n    return [1]\n"
    )
    with Checker(VerifierConfig(use=f"function:{path}:reward"), num_workers=1) as checker:
        assert grade(checker, ["x"]) == ([1.0], [True], {}), checker.failure_examples
