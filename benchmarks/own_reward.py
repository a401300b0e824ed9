"""From problems and a graded reward of one's own to a policy in transformers: what does each step
take? A table on standard error, one JSON line on standard output: wall and CPU seconds, with those
of child processes.

    python benchmarks/own_reward.py                 five minutes on two cores
    python benchmarks/own_reward.py --keep FOLDER   what it wrote stays in FOLDER

It installs packages from the registry that pip is set up for. In a fresh clone of this checkout's
last commit, with another virtual environment:

    torch          torch, which the last step needs and isojax does not: timed separately
    install        pip install -e .[tfds]
    import         isojax model import smollm2
    difficulty     isojax difficulty: the mean reward of 4 answers to each of 120 sums
    plan, launch   a sweep of 4 x 2 and 4 x 4 on the labelled problems, with fit and report
    fit, report    both again, as commands of their own
    export         the policy of 4 x 4, as a folder for transformers
    transformers   the folder in AutoModelForCausalLM: every weight is used, with isojax's logits
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch==2.13.0"  # as benchmarks/peers/requirements-transformers.txt pins it
REWARDS = '''\
"""1 for the sum, 1/2 for a neighbour of it, 1/3 at a distance of 2, ...; 0 of what is no number."""
def closeness(prompts, completions, answer):
    said = [text.strip() for text in completions]
    return [1 / (1 + abs(int(s) - int(a))) if s.isdecimal() else 0.0 for s, a in zip(said, answer)]
'''
CONFIG = """\
cell:
  task: jsonl:sums.jsonl
  model: {path: models/smollm2-135m}
  prompt:
    template: "3 + 4 = 7\\n15 + 2 = 17\\n8 + 26 = 34\\n34 + 52 = 86\\n{prompt} "
    stop: ["\\n"]
  verifier: {use: "function:rewards.py:closeness"}
  reward: {kind: graded}
  sampling: {prompt_length: 48, response_length: 4}
  data: {candidates: 120, attempts: 4, validation: 16, difficulty: [0.05, 0.95]}
  rl: {learning_rate: 1.0e-5, lr_reference_batch: 256}
  eval: {samples: 4, start: 16, ratio: 1.4}
sweep: {B_p: [4], n: [2, 4], budget: 200}
"""


def write_inputs(folder: Path) -> None:
    """What the user brings: problems, a reward function and a config."""
    problems = [
        {"prompt": f"{i} + {7 * i % 50} =", "answer": str(i + 7 * i % 50)} for i in range(120)
    ]
    (folder / "sums.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "own.yaml").write_text(CONFIG)


def measure(command: list[str], folder: Path) -> dict[str, float]:
    """Run a command to its end: wall seconds, and CPU seconds with those of its children."""
    start = time.monotonic()
    cpu_before = cpu_seconds_of_children()
    subprocess.run(command, cwd=folder, stdout=sys.stderr, check=True)

    cpu_seconds = cpu_seconds_of_children() - cpu_before
    return {"seconds": round(time.monotonic() - start, 1), "cpu_seconds": round(cpu_seconds, 1)}


def cpu_seconds_of_children() -> float:
    """Of all that have ended, so far."""
    times = os.times()
    return times.children_user + times.children_system


def walk(folder: Path) -> dict[str, dict[str, float]]:
    """Each step's seconds."""
    subprocess.run(["git", "clone", "-q", "--depth", "1", ROOT.as_uri(), str(folder)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / ".venv")], check=True)
    write_inputs(folder)
    python, isojax = str(folder / ".venv/bin/python"), str(folder / ".venv/bin/isojax")
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    launch = [isojax, "launch", "own.yaml", "cell.task=tfds:difficulty/own/splits#all"]
    steps = {
        "torch": [*pip, TORCH],
        "install": [*pip, "-e", ".[tfds]"],
        "import": [isojax, "model", "import", "smollm2"],
        "difficulty": [isojax, "difficulty", "own.yaml"],
        "plan": [*launch, "--dry-run"],
        "launch": launch,
        "fit": [isojax, "fit", "runs/own"],
        "report": [isojax, "report", "runs/own"],
        "export": [isojax, "model", "export", "runs/own/cells/4x4-s0", "models/trained"],
        "transformers": [python, "tests/models/check_export.py", "--stored", "models/trained"],
    }
    return {step: measure(command, folder) for step, command in steps.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="a new folder to leave what is written in"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        times = walk(args.keep or Path(name) / "isojax")

    torch = times.pop("torch")
    total = {kind: round(sum(step[kind] for step in times.values()), 1) for kind in torch}
    rows = {**times, "all of these": total, "torch (timed separately)": torch}
    print(f"{'step':14}{'seconds':>9}{'of CPU':>9}", file=sys.stderr)
    for step, seconds in rows.items():
        print(f"{step:14}{seconds['seconds']:9.1f}{seconds['cpu_seconds']:9.1f}", file=sys.stderr)
    print(json.dumps({**times, "total": total, "torch": torch}))


if __name__ == "__main__":
    main()
