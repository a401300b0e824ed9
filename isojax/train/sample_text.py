"""Rollouts as text for a person: what the prompts share once, each response, and what it was
rewarded for."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from isojax.core.nouns import Problem
from isojax.tasks.answers.final_answer import reference_answer
from isojax.tasks.task import Task, is_on_device
from isojax.tasks.turns import split_turns
from isojax.train.evaluate import RolloutSample


def prompt_texts(task: Task, problems: Sequence[Problem]) -> list[str]:
    """Each prompt as the model reads it: with the chat template, where the task has one."""
    if is_on_device(task):
        return [problem.prompt for problem in problems]
    return task.prompt_texts(problems)


def shared_beginning(prompts: Sequence[str]) -> str:
    """The whole lines with which all prompts begin, such as those of a few-shot template; empty of
    a single prompt."""
    if len(prompts) < 2:
        return ""
    lines_by_prompt = [prompt.splitlines(keepends=True) for prompt in prompts]
    beginning = ""
    # Line by line, as far as the shortest prompt goes.
    for first, *others in zip(*lines_by_prompt, strict=False):
        is_shared = all(line == first for line in others)
        # A line without an end is a prompt's last: it may hold all that tells the prompts apart.
        if not (is_shared and first.endswith("\n")):
            break
        beginning += first
    return beginning


def describe_beginning(beginning: str) -> str:
    """The lines that say once what the prompts share; "" where `beginning` is empty."""
    return f"    every prompt begins with:\n{indent(beginning, 8)}\n" if beginning else ""


def describe_verdict(problem: Problem, sample: RolloutSample, graded: bool) -> str:
    """The reward of a rollout, and the answer that it was compared with where it is not right.

    Such as "correct", "wrong, the answer is 12", or, where rewards are `graded` (any number from 0
    to 1), "reward 0.250, the answer is 12".
    """
    is_right = sample.reward == 1
    verdict = "correct" if is_right else "wrong"
    if graded:
        verdict = f"reward {sample.reward:.3f}"
    return verdict if is_right else f"{verdict}, the answer is {reference_answer(problem.answer)}"


def describe_details(task: Task, problem: Problem, sample: RolloutSample) -> str:
    """Why a rollout in text has its reward: scores, the answer found, and whether it was cut off.

    Such as "the response says 13, cut off after 64 tokens"; "" where there is nothing to say, or
    the task verifies on device.
    """
    if is_on_device(task):
        return ""
    details = [f"{name} {score:.3f}" for name, score in sample.scores.items()]
    # "": the verifier `math` found none. None: another verifier judges, and does not say.
    answer = task.answer_found(problem, sample.tokens)
    if answer and sample.reward != 1:
        details.append(f"the response says {answer}")
    elif answer == "":
        details.append("the response states no final answer")
    if not sample.parsed and not answer:
        details.append("nothing was parsed")
    if not sample.ended:
        details.append(f"cut off after {len(sample.tokens)} tokens")
    return ", ".join(details)


def mark_context(task: Task, tokens: np.ndarray) -> str:
    """A response as text, with «» around what the policy did not draw.

    tokens: i32[t]; a token that the policy did not draw (context) is there as ~token, a negative
    number. A turn's stop is shown with the reply after it.
    """
    # i[parts]: how many tokens there are up to the end of each part. Parts alternate: the policy's
    # tokens, context, and so on.
    ends = np.cumsum([len(turn) for turn in split_turns(tokens)])
    # A part's text is what it adds to the text of the tokens before it, because a
    # character may need several tokens.
    texts = ["", *(task.decode(tokens[:end]) for end in ends)]
    parts = [text[len(earlier) :] for earlier, text in pairwise(texts)]

    marked = ""
    for part, end in zip(parts, ends, strict=True):
        # By the part's last token; the only part of an empty response has none.
        is_context = end > 0 and tokens[end - 1] < 0
        marked += f"«{part}»" if is_context else part
    return marked


def indent(text: str, spaces: int) -> str:
    """A text with each of its lines moved in, and without line ends behind the last one."""
    margin = " " * spaces
    return margin + text.rstrip("\n").replace("\n", f"\n{margin}")
