"""In the process of a run that chaos.py kills: a thread that looks what the others execute, and
sends SIGKILL at the chosen moment.

When it was signalled from outside, faulthandler sometimes crashed the process while other threads
ran; from inside it holds the interpreter's lock, and a crash is rare (chaos.py counts it as a
kill). Writes to a disk and XLA programs do not need that lock, so the kill interrupts them
anywhere. This module does not import isojax.
"""

import faulthandler
import json
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# a variable of the environment: {"cell": a pattern of folders, "report": a file, "after": seconds,
# "aim": a phase or null}
SETTINGS = "CHAOS"
PATIENCE = 4.0  # seconds that an aimed kill waits for its phase
# a resumed run is brief at these, and does them again after each kill
BEFORE = ("preparing", "restoring", "compiling")
CHECKPOINT = "checkpoint"
LEDGER = "ledger write"
HALF = "checkpoint half written"
LAST = "last checkpoint"
ELSEWHERE = "elsewhere"
UPDATE = "update"  # of a task on device, one program with its rollouts and their verification

PACKAGE = str(Path(__file__).resolve().parents[1] / "isojax") + os.sep
# Of a thread, innermost first: a module of isojax without .py ("" elsewhere), and a function in it.
Stack = list[tuple[str, str]]


def stacks() -> list[Stack]:
    """The stacks of the other threads. faulthandler keeps the interpreter's lock; a walk in Python
    may release it half way and then follow frames that no longer exist."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read()
    result: list[Stack] = []
    for line in text.splitlines():
        if line.startswith(("Thread ", "Current thread ")):
            result.append([])
        elif location := re.match(r'  File "(.*)", line \d+ in (.*)', line):
            file_name, function = location.groups()
            module = Path(file_name).stem if file_name.startswith(PACKAGE) else ""
            result[-1].append((module, function))

    own = kill_at_phase.__name__
    return [stack for stack in result if all(function != own for _, function in stack)]


def phase(found: list[Stack]) -> str:
    """The phase of the run, from the stack of the thread that trains its cell."""
    work = next((stack for stack in found if ("loop", "run_cell") in stack), None)
    if work is None:
        return "preparing"
    modules = {module for module, _ in work}
    functions = {function for module, function in work if module}
    if functions & {"append", "write_samples"}:
        return LEDGER
    if functions & {"restore", "restore_pending", "_open"}:
        return "restoring"
    if "compile" in functions:
        return "compiling"
    if "checkpoint" in modules:
        return LAST if "close" in functions else CHECKPOINT
    if "evaluate" in modules:
        return "evaluation"
    if "collect_grades" in functions:
        return "verification"
    if modules & {"stream", "rollout_worker", "engine", "local"}:
        return "rollout"
    return UPDATE if "run_updates" in functions else ELSEWHERE


def kill_at_phase(cell: str, report: str, after: float, aim: str | None) -> None:
    """Kills this process `after` seconds from when its cell has begun (at once where the aim comes
    before), in the phase aimed at.

    `cell`: its folder; `report`: the file for the phase in which the kill happened.
    """

    def torn() -> set[tuple[str, int]]:
        result = set()
        with suppress(FileNotFoundError):  # not there yet, or written to its end meanwhile
            for entry in os.scandir(Path(cell, "checkpoint")):
                if "tmp" in entry.name:
                    result.add((entry.name, entry.inode()))
        return result

    def half_written() -> bool:
        return bool(torn() - before)

    def clocks() -> int:
        path = Path(cell, "timing.jsonl")
        return path.stat().st_size if path.exists() else 0

    before = torn()
    if aim not in BEFORE:
        while phase(stacks()) in (*BEFORE, ELSEWHERE):
            time.sleep(0.01)
        time.sleep(after)

    # Wait for the phase aimed at. A ledger's write is too short to be seen in a stack: it follows
    # that of the clocks.
    clocks_before = clocks()

    def is_reached() -> bool:
        if aim == HALF:
            return half_written()
        if aim == LEDGER:
            return clocks() > clocks_before
        return phase(stacks()) == aim

    last_moment = time.monotonic() + (60 if aim in (*BEFORE, LAST) else PATIENCE)
    pause = 0.0002 if aim in (HALF, LEDGER) else 0.005
    while aim is not None and time.monotonic() < last_moment and not is_reached():
        time.sleep(pause)

    stacks_now = stacks()
    phase_now = phase(stacks_now)
    if aim not in BEFORE and phase_now == "preparing":
        phase_now = "ending"
    line = {
        "phase": phase_now,
        "judging": any(("grading", "_grade_pending") in stack for stack in stacks_now),
        "saving": half_written(),
    }
    Path(report).write_text(json.dumps(line))
    os.kill(os.getpid(), signal.SIGKILL)


def begin(environment: Mapping[str, str], command: list[str]) -> None:
    """What sitecustomize.py calls: does nothing but in a run's own process that is to be killed."""
    if SETTINGS in environment and "isojax.train" in command:
        threading.Thread(
            target=kill_at_phase, kwargs=json.loads(environment[SETTINGS]), daemon=True
        ).start()
