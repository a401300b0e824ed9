"""`samples.txt` of `isojax difficulty`: responses to a few problems of each part, by which a mean
label is understood without a run.

A problem is shown when it is labelled; a call that goes on adds what the one before has not shown.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from isojax.core.atomic_files import append_bytes
from isojax.core.nouns import Problem
from isojax.tasks.answers.final_answer import reference_answer
from isojax.tasks.task import Task
from isojax.train.evaluate import EvalCounts, RolloutSample
from isojax.train.sample_text import (
    describe_beginning,
    describe_details,
    describe_verdict,
    indent,
    mark_context,
    prompt_texts,
    shared_beginning,
)

SAMPLES_FILE = "samples.txt"
SHOWN_PROBLEMS = 3  # of each part


class LabelSamples:
    """Writes the file as problems are labelled."""

    def __init__(self, path: Path, task: Task, part_of: Callable[[Problem], str | None]) -> None:
        """path: of samples.txt, which may hold what an earlier call has shown.

        part_of: the name of the part of a labelled problem; None where it is not shown. It may be
        replaced by another function later.
        """
        self.path = path
        self.part_of = part_of
        self._task = task
        self._shown = _count_shown(path)

    def add(self, problems: Sequence[Problem], counts: EvalCounts) -> None:
        """Append newly labelled problems, up to SHOWN_PROBLEMS of each part.

        problems: Q of them, not labelled yet. counts: of these Q problems in the same order, with
        rewards f32[Q attempts], their sums over attempts, and each problem's first few responses.
        """
        attempts = counts.rewards.shape[1]
        labelled = [
            replace(problem, solved=solved, attempts=attempts)
            for problem, solved in zip(problems, counts.reward_sums.tolist(), strict=True)
        ]
        prompts = prompt_texts(self._task, problems)
        beginning = shared_beginning(prompts)
        # What all prompts begin with is written once, at the head of a new file; "" if nothing.
        texts = [] if self._shown else [describe_beginning(beginning)]

        for problem, prompt, samples in zip(labelled, prompts, counts.samples, strict=True):
            part = self.part_of(problem)
            if part is None or self._shown[part] >= SHOWN_PROBLEMS:
                continue
            self._shown[part] += 1
            own_prompt = prompt.removeprefix(beginning)
            texts.append(self._describe(part, problem, own_prompt, samples, counts.graded))

        if any(texts):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_bytes(self.path, "".join(texts).encode())

    def _describe(
        self,
        part: str,
        problem: Problem,
        prompt: str,
        samples: Sequence[RolloutSample],
        graded: bool,
    ) -> str:
        """The text about one problem: a line at the margin, then indented its prompt and responses.

        Only that first line may begin at the margin, as `_count_shown` counts such lines, and it
        must begin with the part's name and ":". prompt: without what all prompts begin with.
        graded: whether rewards may lie between 0 and 1.
        """
        label = f"avg@{problem.attempts} {problem.difficulty:.3f}"
        answer = reference_answer(problem.answer)
        lines = [f"{part}: {problem.name}, {label}, the answer is {answer}\n"]
        lines.append(f"{indent(prompt, 4)}\n")
        for number, sample in enumerate(samples, 1):
            verdict = describe_verdict(problem, sample, graded)
            details = describe_details(self._task, problem, sample)
            if details:
                verdict = f"{verdict} ({details})"
            lines.append(f"        response {number} of {problem.attempts}, {verdict}:\n")
            # The response, with «» around what the policy did not draw.
            lines.append(f"{indent(mark_context(self._task, sample.tokens), 12)}\n")
        return "".join(lines)


def _count_shown(path: Path) -> Counter[str]:
    """How many problems of each part the file shows already."""
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    heads = [line for line in lines if line and not line.startswith(" ")]
    return Counter(line.partition(":")[0] for line in heads)
