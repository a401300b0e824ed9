"""What `isojax difficulty` shows of the responses that it labels by."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from isojax.core.nouns import Problem
from isojax.launch.local.label_samples import SHOWN_PROBLEMS, LabelSamples
from isojax.train.evaluate import EvalCounts, RolloutSample

LETTERS = "0123456789"
SHOTS = "3 + 4 = 7\n5 + 6 = 11\n"


def task() -> Any:
    """One of text, whose tokens are digits and whose verifier is not math."""
    return SimpleNamespace(
        on_device=False,
        decode=lambda tokens: "".join(LETTERS[t] for t in tokens),
        prompt_texts=lambda problems: [f"{SHOTS}{p.prompt} = " for p in problems],
        answer_found=lambda problem, tokens: None,
    )


def counts(solved: list[int]) -> EvalCounts:
    """Of 4 rollouts each, the first `solved` right; of each, 2 are kept, of which the second is cut
    off."""
    rewards = np.array([[float(i < s) for i in range(4)] for s in solved], np.float32)
    samples = [
        [
            RolloutSample(np.array([7]), row[0]),
            RolloutSample(np.array([1, 2]), row[1], parsed=False, ended=False),
        ]
        for row in rewards.tolist()
    ]
    return EvalCounts(rewards, [s[0].tokens for s in samples], 0, 0, Counter(), samples=samples)


def part(problem: Problem) -> str | None:
    return "hard" if problem.difficulty == 0 else "easy" if problem.difficulty < 1 else None


def test_a_few_problems_of_each_part_with_what_they_were_rewarded_for(tmp_path: Path) -> None:
    path = tmp_path / "samples.txt"
    problems = [
        Problem(i, f"{i} + 1", str(i + 1), location=f"p.jsonl, line {i + 1}") for i in range(3)
    ]
    LabelSamples(path, task(), part).add(problems, counts([1, 4, 0]))
    assert path.read_text().splitlines() == [
        "    every prompt begins with:",
        "        3 + 4 = 7",
        "        5 + 6 = 11",
        "easy: p.jsonl, line 1, avg@4 0.250, the answer is 1",
        "    0 + 1 = ",
        "        response 1 of 4, correct:",
        "            7",
        (
            "        response 2 of 4, wrong, the answer is 1 (nothing was parsed, cut off after 2 "
            "tokens):"
        ),
        "            12",
        "hard: p.jsonl, line 3, avg@4 0.000, the answer is 3",
        "    2 + 1 = ",
        "        response 1 of 4, wrong, the answer is 3:",
        "            7",
        (
            "        response 2 of 4, wrong, the answer is 3 (nothing was parsed, cut off after 2 "
            "tokens):"
        ),
        "            12",
    ]


def test_each_part_has_room_for_a_few_also_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "samples.txt"
    problems = [Problem(i, f"{i} + 1", str(i + 1)) for i in range(8)]
    for block in (problems[:2], problems[2:5], problems[5:]):
        # of a new process each time
        LabelSamples(path, task(), part).add(block, counts([0] * len(block)))
    heads = [line for line in path.read_text().splitlines() if not line.startswith(" ")]
    assert [head.partition(", ")[0] for head in heads] == [
        f"hard: problem {i}" for i in range(SHOWN_PROBLEMS)
    ]
    assert path.read_text().count("every prompt begins with") == 1
    LabelSamples(path, task(), part).add(problems[:1], counts([2]))
    assert path.read_text().count("easy: problem 0") == 1


def test_graded_rewards_show_their_scores(tmp_path: Path) -> None:
    samples = [[RolloutSample(np.array([7]), 0.25, scores={"accuracy": 0.0, "format": 0.5})]]
    graded = EvalCounts(
        np.array([[0.25]]), [np.array([7])], 1, 1, Counter(), graded=True, samples=samples
    )
    LabelSamples(tmp_path / "s", task(), lambda problem: "easy").add(
        [Problem(0, "1 + 1", "2")], graded
    )
    line = "response 1 of 1, reward 0.250, the answer is 2 (accuracy 0.000, format 0.500):"
    assert line in (tmp_path / "s").read_text()
