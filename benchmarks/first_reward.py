"""How long does a new user wait for a first reward? Print one JSON line: wall and CPU seconds of
each step.

    python benchmarks/first_reward.py                 needs the registry that pip is set up for

In a folder of its own, with a virtual environment of its own and this checkout's source, as
README.md says it:

    install    pip install -e .
    import     isojax model import smollm2
    reward     isojax train smollm2_cpu, until the ledger has its first evaluation (800 rollouts); then it is ended
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def evaluations(folder: Path) -> list[dict[str, object]]:
    lines = [
        line
        for path in folder.rglob("records.jsonl")
        for line in path.read_text().splitlines(keepends=True)
    ]
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record for record in records if record["kind"] == "eval"]


def measure(command: list[str], folder: Path, until_evaluation: bool = False) -> dict[str, float]:
    """Run a command to its end, or until the folder has an evaluation; its seconds, with those of
    its children."""
    start, before = time.monotonic(), os.times()
    process = subprocess.Popen(command, cwd=folder, stdout=sys.stderr)
    while process.poll() is None and not (until_evaluation and evaluations(folder / "runs")):
        time.sleep(0.2)
    seconds, ended = time.monotonic() - start, process.poll() is not None
    if ended:
        assert process.returncode == 0, (
            f"{' '.join(command)} ended with exit code {process.returncode}"
        )
        after = os.times()
        cpu = (
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
    else:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        # user and system, its own and its children's
        cpu = sum(map(int, fields[11:15])) / CLOCK_TICKS
        process.terminate()
        process.wait()
    return {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in (
            "isojax",
            "configs",
            "pyproject.toml",
            "hatch_build.py",
            "README.md",
            "LICENSE",
        ):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copyfile
            copy(ROOT / part, folder / part)
        subprocess.run([sys.executable, "-m", "venv", folder / ".venv"], check=True)
        program = folder / ".venv/bin"
        steps = {
            "install": [
                program / "python",
                "-m",
                "pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                "-e",
                ".",
            ],
            "import": [program / "isojax", "model", "import", "smollm2"],
            "reward": [program / "isojax", "train", "smollm2_cpu"],
        }
        times = {
            step: measure([str(word) for word in command], folder, step == "reward")
            for step, command in steps.items()
        }
        total = sum(step["cpu_seconds"] for step in times.values())
        print(
            json.dumps(
                {
                    **times,
                    "cpu_seconds": round(total, 1),
                    "metrics": evaluations(folder / "runs")[0]["metrics"],
                }
            )
        )


if __name__ == "__main__":
    main()
