"""The command line in a folder of a small sweep: as a process that the system starts, or, in a
hundredth of the time, as a fork of tests/e2e/nursery.py."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from isojax.core import machine

REPOSITORY = Path(__file__).resolve().parents[2]

# Four cells of about a second each. Everything small, and a learning rate at which the reward rises
# nevertheless.
TINY = """\
name: tiny
cell:
  model: {layers: 1, width: 32, heads: 2, kv_heads: 2, head_dim: 16, mlp: 64}
  base: {steps: 60, batch: 128}
  data: {candidates: 600, validation: 40, difficulty: [0.0, 1.0]}
  rl: {kl: 0.02, entropy: 0.001, learning_rate: 1.0e-2}
  eval: {samples: 8, start: 64, ratio: 1.4}
sweep: {B_p: [8], n: [2, 4], B_max: 64, seeds: 2, budget: 2500}
run: {cells_at_once: 1}
"""

# what the console script does, with as many draws as in the forks
SCRIPT = (
    "import sys; sys.argv[0] = 'isojax'; import tests.e2e.few_draws;"
    " from isojax.cli.start import main; main()"
)
SECONDS = 600  # a command that takes longer hangs

Snapshot = dict[str, tuple[int, int, bytes]]


def snapshot(folder: Path) -> Snapshot:
    """Every file below a folder: its inode, the time of its last change and its bytes. Of folders,
    that they are there. Without the bytecode that Python may keep of a module of the user's.
    """
    result: Snapshot = {}
    for path in sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts):
        state = path.stat()
        is_file = path.is_file()
        result[str(path.relative_to(folder))] = (
            state.st_ino,
            state.st_mtime_ns if is_file else 0,
            path.read_bytes() if is_file else b"",
        )
    return result


def settings() -> dict[str, str]:
    """The environment of a command: the tests' own 8 simulated devices (tests/conftest.py), of
    which a cell takes one unless --mesh says otherwise, so that what is compiled for one test is
    there for the next."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "NO_COLOR": "1"}


class Nursery:
    """A process of tests/e2e/nursery.py, from which commands are forked."""

    def __init__(self, folder: Path) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-m", "tests.e2e.nursery", str(folder)]
        self.process = subprocess.Popen(command, env=settings(), text=True, **pipes)

    def ask(self, *what: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        print(json.dumps(what), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


class Fork:
    """A command at work, a fork of the nursery; of subprocess.Popen, what the tests ask it for."""

    def __init__(
        self,
        nursery: Nursery,
        place: Isojax,
        words: tuple[str, ...],
        fit: bool,
        report: bool,
        environment: Mapping[str, str | bool | int],
    ):
        handle, name = tempfile.mkstemp(dir=place.folder.parent)
        os.close(handle)
        self.nursery, self.args, self.returncode = nursery, words, None
        self.next_look = 0.0  # a time, as time.monotonic() has it
        self.out, self.err = Path(name), Path(name + ".err")
        self.pid: int = nursery.ask(
            "fork", str(place.folder), str(self.out), str(self.err), words, fit, report, environment
        )

    def wait(self, seconds: float | None = None) -> int | None:
        if self.returncode is None:
            self.returncode: int | None = self.nursery.ask("wait", self.pid, seconds)
        return self.returncode

    def poll(self) -> int | None:
        """As it was at most a twentieth of a second ago: tests ask it between looks at a file, each
        2 ms, and an answer keeps two processes busy."""
        if (now := time.monotonic()) >= self.next_look:
            self.next_look = now + 0.05
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:  # not ended, or not yet waited for: the id is its own
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = SECONDS) -> tuple[str, str]:
        """What it has said, once it has ended."""
        if self.wait(timeout) is None:
            self.kill()
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.out.read_text(), self.err.read_text()

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()


class Isojax:
    """The command line in a folder that holds tiny.yaml. Words begin with a module (isojax.launch)
    or a command (launch, fit, ...).
    """

    def __init__(self, folder: Path, nursery: Nursery):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tiny.yaml").write_text(TINY)
        self.folder, self.nursery, self.said = folder, nursery, ""

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """The process, running, and free to start itself again for larger pages of memory."""
        program = ["-m"] if words[0].startswith("isojax.") else ["-c", SCRIPT]
        pipes: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        command = [sys.executable, *program, *words]
        free = {
            name: value for name, value in settings().items() if name != machine.TUNABLES_VARIABLE
        }
        return subprocess.Popen(
            command, cwd=self.folder, env=free | environment, text=True, **pipes
        )

    def fork(
        self, *words: str, fit: bool = True, report: bool = True, **environment: str | bool | int
    ) -> Fork:
        """The command, running, as a fork of the nursery. `environment` may hold settings of jax
        too, by the names that they have there; `file_bytes`, the most that a file may hold; and
        `time_limit_at`, where run.time_limit is reached (tests/e2e/time_limits.py)."""
        return Fork(self.nursery, self, words, fit, report, environment)

    def quick(
        self, *words: str, fit: bool = True, report: bool = True, **environment: str | bool | int
    ) -> subprocess.CompletedProcess[str]:
        """`fork`, ended."""
        process = self.fork(*words, fit=fit, report=report, **environment)
        code = process.wait()
        assert code is not None
        return subprocess.CompletedProcess(words, code, *process.communicate())

    def __call__(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The process, ended."""
        with self.start(*words, **environment) as process:
            try:
                out, err = process.communicate(timeout=SECONDS)
            finally:
                process.kill()
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def ok(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The process, ended with exit code 0."""
        return _well(self(*words, **environment))

    def quick_ok(
        self, *words: str, fit: bool = True, report: bool = True, **environment: str | bool
    ) -> subprocess.CompletedProcess[str]:
        """`quick`, with exit code 0."""
        return _well(self.quick(*words, fit=fit, report=report, **environment))

    def swept(
        self, *words: str, fit: bool = False, **environment: str | bool
    ) -> subprocess.CompletedProcess[str]:
        """`quick_ok` without the report, and without the fit unless it is wanted."""
        return self.quick_ok(*words, fit=fit, report=False, **environment)

    def refused(self, *words: str, saying: Sequence[str] = ()) -> None:
        """The process ends with exit code 2 and one message, the last line it prints, and leaves
        every file of the folder as it was.
        """
        before = snapshot(self.folder)
        done = self.quick(*words)
        assert done.returncode == 2 and "Traceback" not in done.stderr, _outcome(done)
        lines = done.stderr.splitlines()
        assert [line.startswith("error: ") for line in lines].count(True) == 1 and lines[
            -1
        ].startswith("error: "), _outcome(done)
        for text in saying:
            assert text in lines[-1], _outcome(done)
        after = snapshot(self.folder)
        assert sorted(after) == sorted(before) and after == before, _outcome(done)

    def run(self, name: str = "tiny") -> Path:
        """A sweep's folder."""
        return self.folder / "runs" / name

    def ledgers(self, name: str = "tiny") -> dict[str, bytes]:
        """The ledger of each cell of a sweep."""
        return {
            p.parent.name: p.read_bytes()
            for p in sorted(self.run(name).glob("cells/*/records.jsonl"))
        }

    def rows(
        self, cell: str, name: str = "tiny", own_metrics: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """The evaluations in a cell's ledger, whose metrics docs/glossary.md explains, but for a
        plug-in's own."""
        lines = (self.run(name) / "cells" / cell / "records.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if row["kind"] == "eval"]
        logged = {
            glossary_name(metric)
            for row in rows
            for part in ("metrics", "train")
            for metric in row.get(part, ())
        }
        assert logged - set(own_metrics) <= glossary_metrics(), "docs/glossary.md lacks a metric"
        return rows

    def snapshot(self, *parts: str) -> Snapshot:
        """Every file below a folder of this one."""
        return snapshot(self.folder.joinpath(*parts))


@cache
def glossary_metrics() -> set[str]:
    """The names in the tables of metrics of docs/glossary.md."""
    page = (
        (Path(__file__).parents[2] / "docs" / "glossary.md")
        .read_text()
        .partition("## Validation metrics")[2]
    )
    first_columns = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    return {name for column in first_columns for name in re.findall("`([^`]+)`", column)}


def glossary_name(metric: str) -> str:
    """A logged metric's name as the glossary has it: hard/avg@4 -> avg@k, reward/style ->
    reward/NAME."""
    if metric.split("/")[-2:-1] == ["reward"]:
        return "reward/NAME"
    return re.sub(
        r"@\d+$", "@k", re.sub(r"^(staleness_share)_\d+$", r"\1_0", metric.rpartition("/")[2])
    )


def _outcome(done: subprocess.CompletedProcess[str]) -> str:
    return f"{' '.join(done.args)}\nexit code {done.returncode}\n{done.stdout}\n{done.stderr}"


def _well(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0 and "Traceback" not in done.stderr, _outcome(done)
    return done
