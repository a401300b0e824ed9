"""Appends the rollouts of every update to `rollouts.jsonl` in the run's folder, a line each, for a
person or a script. A run that goes on after a kill may write the last updates before it a second
time: the later lines count."""

import json

from isojax.core.atomic_files import append_bytes
from isojax.train.update_hooks import UpdateReport, update_hook


@update_hook
def save_rollouts(report: UpdateReport) -> None:
    """Append the update's B_p n rollouts to `rollouts.jsonl`, one JSON object a line.

    "problem" is the problem's id, "rollout" which of its n this is, from 0; "response" is text, and
    "tokens" its number of tokens.
    """
    n = report.cell.n
    rewards = report.rewards.tolist()
    lines = []
    for rollout, (tokens, reward) in enumerate(zip(report.responses, rewards, strict=True)):
        problem = report.problems[rollout // n]
        row = {
            "update": report.M,
            "C": report.C,
            "problem": problem.id,
            "prompt": problem.prompt,
            "answer": problem.answer,
            "rollout": rollout % n,
            "response": report.decode(tokens),
            "tokens": len(tokens),
            "reward": reward,
        }
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")

    append_bytes(report.folder / "rollouts.jsonl", "".join(lines).encode())
