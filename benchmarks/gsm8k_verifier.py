"""Does the `math` verifier tell GSM8K's right answers from wrong ones, and how fast? Print one JSON
line.

    python benchmarks/gsm8k_verifier.py test.jsonl.gz                 on all cores
    python benchmarks/gsm8k_verifier.py test.jsonl.gz --workers 1     in one process

PATH: JSON lines with "question" and "answer", the latter ending in "#### 18". Each answer must be
right as its own solution gives it, alone, after #### or "The answer is" and in \\boxed{}, with and
without commas between thousands; and wrong when the number stated is changed: one more, its first
two digits swapped, a digit more or less, the sign changed, ten times as much, the next problem's. A
change that leaves the number what it was (0, equal digits, one digit) is left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from isojax.core.config import VerifierConfig
from isojax.core.nouns import Problem
from isojax.tasks.grading import Checker

FORMS: dict[str, Callable[[str, str], str]] = {
    "solution": lambda solution, number: f"{solution}#### {number}",
    "sentence": lambda solution, number: f"{solution}The answer is {number}.",
    "boxed": lambda solution, number: f"{solution}The answer is $\\boxed{{{number}}}$.",
    "bare": lambda solution, number: number,
    "bare_boxed": lambda solution, number: f"\\boxed{{{number}}}",
    "bare_hashes": lambda solution, number: f"#### {number}",
    "bare_sentence": lambda solution, number: f"The answer is {number}.",
}
CHANGES: dict[str, Callable[[int], int]] = {
    "plus_1": lambda value: value + 1,
    "digit_more": lambda value: int(f"{value}7"),
    "digit_less": lambda value: int(str(value)[:-1]) if abs(value) > 9 else value,
    "swapped": lambda value: int(
        f"{'-' * (value < 0)}{str(abs(value))[1:2]}{str(abs(value))[:1]}{str(abs(value))[2:]}"
    ),
    "sign": lambda value: -value,
    "times_10": lambda value: value * 10,
}


def read(path: Path) -> list[Problem]:
    """The problems of a file of JSON lines, gzipped or not."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = [json.loads(line) for line in file]
    return [Problem(i, row["question"], row["answer"]) for i, row in enumerate(rows)]


class Check(NamedTuple):
    """A response to a problem. `kind` begins with right or wrong, which it is."""

    kind: str
    problem: Problem
    response: str


def make_checks(problems: list[Problem]) -> list[Check]:
    """Of each problem: its own solution, its number in every form and spelling, and the changed
    numbers in every form."""
    solutions = [problem.answer.rpartition("####")[0] for problem in problems]
    values = [int(problem.answer.rpartition("####")[2].replace(",", "")) for problem in problems]

    checks = [Check("right_gold", problem, problem.answer) for problem in problems]
    for i, (problem, solution, value) in enumerate(zip(problems, solutions, values, strict=True)):
        wrong = {change: apply(value) for change, apply in CHANGES.items()}
        wrong["other"] = values[(i + 1) % len(values)]
        for form, write in FORMS.items():
            for spelling in dict.fromkeys([f"{value:,}", str(value)]):
                checks.append(Check(f"right_{form}", problem, write(solution, spelling)))
            for change, changed in wrong.items():
                if changed != value:
                    response = write(solution, f"{changed:,}")
                    checks.append(Check(f"wrong_{change}_{form}", problem, response))
    return checks


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="GSM8K's file of problems, gzipped or not")
    parser.add_argument("--workers", type=int, help="processes; as many as cores by default")
    inputs = parser.parse_args()
    problems = read(inputs.path)
    checks = make_checks(problems)

    with Checker(VerifierConfig(use="math"), num_workers=inputs.workers) as checker:
        began = time.perf_counter()
        grades = checker.grade(
            [check.problem for check in checks],
            [check.problem.prompt for check in checks],
            [check.response for check in checks],
        )
        seconds = time.perf_counter() - began

    total, correct = Counter[str](), Counter[str]()
    for check, reward in zip(checks, grades.rewards, strict=True):
        total[check.kind] += 1
        correct[check.kind] += int(reward) == int(check.kind.startswith("right"))
    line = {
        "benchmark": "gsm8k_verifier",
        "problems": len(problems),
        "cores": len(os.sched_getaffinity(0)),
        "checks": len(checks),
        "as_they_should": {kind: f"{correct[kind]} of {count}" for kind, count in total.items()},
        "mistakes": total.total() - correct.total(),
        "failures": grades.failures,
        "seconds": round(seconds, 2),
        "checks_per_second": round(len(checks) / seconds),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
