"""What a run leaves for a person to read."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from isojax.evaluate import Counts
from isojax.train import write_samples
from isojax.types import EvalPoint, Problem


def test_samples_show_response_and_verdict_and_of_a_solution_the_answer_alone(tmp_path: Path) -> None:
    problems = [Problem(0, "2+3=", "5"), Problem(1, "2*3=", "Twice 3.\nThat is <<2*3=6>>6.\n#### 6")]
    task: Any = SimpleNamespace(decode=lambda tokens: "".join(map(str, tokens)))
    counts = Counts(np.array([1, 0]), [np.array([5]), np.array([4, 2])], np.array([1.0, 0.0]), 2, 2, Counter())
    point = EvalPoint(target=64, M=3, rollouts=66, tokens=100, metrics={"avg@1": 0.5})
    for _ in range(2):  # a resumed cell meets its evaluation again, and writes it once
        write_samples(tmp_path / "samples.txt", task, problems, counts, point)
    assert (tmp_path / "samples.txt").read_text().splitlines() == [
        "C = 66 rollouts, M = 3, avg@1 = 0.500",
        "    2+3=5    right",
        "    2*3=42    wrong, the answer is 6",
    ]
