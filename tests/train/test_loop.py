"""What a run leaves for a person to read."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isojax.core.config import (
    CellConfig,
    DataConfig,
    EvalConfig,
    ModelConfig,
    PromptConfig,
    VerifierConfig,
)
from isojax.core.nouns import EvalPoint, Problem
from isojax.tasks.problem_sources import InMemorySource
from isojax.tasks.task import TextTask
from isojax.train.base_policy import eval_problem_sets
from isojax.train.evaluate import EvalCounts, RolloutSample
from isojax.train.outputs import write_samples
from tests.tasks.rendering import render_in_this_process
from tests.tasks.tokenizer_folders import byte_level


def test_samples_show_response_and_verdict_and_of_a_solution_the_answer_alone(
    tmp_path: Path,
) -> None:
    problems = [
        Problem(0, "2+3=", "5"),
        Problem(1, "2*3=", "Twice 3.\nThat is <<2*3=6>>6.\n#### 6"),
    ]
    task: Any = SimpleNamespace(on_device=True, decode=lambda tokens: "".join(map(str, tokens)))
    counts = EvalCounts(
        np.array([[1.0], [0.0]]), [np.array([5]), np.array([4, 2])], 2, 2, Counter()
    )
    point = EvalPoint(target=64, M=3, rollouts=66, tokens=100, metrics={"avg@1": 0.5})
    for _ in range(2):  # a resumed cell meets its evaluation again, and writes it once
        write_samples(tmp_path / "samples.txt", task, problems, counts, point)
    full = (tmp_path / "samples.txt").read_bytes()
    # torn in its head, at the end of that, and after it
    for size in (1, 20, 39, 40, 60, len(full) - 1):
        (tmp_path / "samples.txt").write_bytes(
            b"C = 0 rollouts\n    2+3=6    wrong\n" + full[:size]
        )
        write_samples(tmp_path / "samples.txt", task, problems, counts, point)
        assert (
            tmp_path / "samples.txt"
        ).read_bytes() == b"C = 0 rollouts\n    2+3=6    wrong\n" + full
    (tmp_path / "samples.txt").write_bytes(full)
    assert (tmp_path / "samples.txt").read_text().splitlines() == [
        "C = 66 rollouts, M = 3, avg@1 = 0.500",
        "    2+3=5    correct",
        "    2*3=42    wrong, the answer is 6",
    ]


def test_samples_show_a_text_tasks_prompt_as_the_model_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    render_in_this_process(monkeypatch)
    chat = PromptConfig(format="chat", system="Be brief.", template="{prompt}?")
    problems = [Problem(0, "3 + 4 =", "7")]
    model = ModelConfig(path=str(byte_level(tmp_path)))
    cell = CellConfig(model=model, prompt=chat, verifier=VerifierConfig(use="exact"))
    task = TextTask(InMemorySource(problems), cell)
    counts = EvalCounts(
        np.array([[1.0]]), [task.encode(problems, 99).prompts[0, -1:]], 1, 1, Counter()
    )
    write_samples(
        tmp_path / "samples.txt", task, problems, counts, EvalPoint(0, 0, 0, 0, {"avg@1": 1.0})
    )
    assert (tmp_path / "samples.txt").read_text().splitlines()[1:] == [
        "    <|im_start|>system",
        "    Be brief.<|im_end|>",
        "    <|im_start|>user",
        "    3 + 4 =?<|im_end|>",
        "    <|im_start|>assistant",
        "        correct",
    ]


def test_samples_mark_what_the_policy_did_not_draw(tmp_path: Path) -> None:
    letters = "ab?<>="

    def decode(tokens: Any) -> str:
        text = "".join(letters[token if token >= 0 else ~token] for token in tokens)
        # a turn's stop shows once something follows it
        return text if any(tokens[-1:] < 0) else text.removesuffix("?")

    task: Any = SimpleNamespace(on_device=True, decode=decode)
    responses = [
        np.array([0, 1, 2, ~3, 1, 2, ~4, ~5, 0, 2]),
        np.array([0, 2]),
        np.array([], np.int32),
    ]
    counts = EvalCounts(np.ones((3, 1)), responses, 3, 3, Counter())
    problems = [Problem(i, f"{i}: ", "a") for i in range(3)]
    write_samples(tmp_path / "samples.txt", task, problems, counts, EvalPoint(0, 0, 0, 0, {}))
    assert (tmp_path / "samples.txt").read_text().splitlines()[1:] == [
        "    0: ab«?<»b«?>=»a    correct",
        "    1: a    correct",
        "    2:     correct",
    ]


def test_the_panel_is_a_fixed_choice_of_training_problems_after_the_users_sets() -> None:
    """It belongs to cell.data.seed and the training set, not to a cell; of too few problems it
    takes them all."""
    training, hard = [Problem(i, f"{i}", "") for i in range(50)], [Problem(99, "", "")]
    base: Any = SimpleNamespace(training=training, validation=[], extra_sets={"hard": hard})

    def sets(panel: int, seed: int = 0) -> dict[str, list[Problem]]:
        return eval_problem_sets(
            base, CellConfig(data=DataConfig(seed=seed), eval=EvalConfig(panel=panel))
        )

    assert sets(0) == {"": [], "hard": hard}
    assert list(sets(7)) == ["", "hard", "panel"] and sets(7)["hard"] == hard
    ids = [p.id for p in sets(7)["panel"]]
    assert (
        len(set(ids)) == 7 and set(ids) < set(range(50)) and ids == [p.id for p in sets(7)["panel"]]
    )
    assert ids != list(range(7)) and ids != [p.id for p in sets(7, seed=1)["panel"]]
    assert set(ids) < {p.id for p in sets(20)["panel"]}  # a larger panel holds the smaller one
    assert [p.id for p in sets(999)["panel"]] == list(range(50))


def test_samples_say_once_what_all_prompts_begin_with_and_what_was_rewarded(tmp_path: Path) -> None:
    """A few-shot prompt; the verifier math, of which is shown what it found."""
    problems = [Problem(i, f"{i} + 4 =", str(i + 4)) for i in range(3)]
    prompt = PromptConfig(template="1 + 1 = 2\n2 + 2 = 4\n{prompt}", stop=("!",))
    model = ModelConfig(path=str(byte_level(tmp_path)))
    task = TextTask(InMemorySource(problems), CellConfig(model=model, prompt=prompt))
    texts = [r" \boxed{4}", r" so \boxed{6}", " I do not know"]
    responses = [np.array(ids, np.int32) for ids in task.tokenizer(texts)["input_ids"]]
    samples = [
        [RolloutSample(responses[0], reward=1.0)],
        [RolloutSample(responses[1], reward=0.0)],
        [RolloutSample(responses[2], reward=0.0, parsed=False, ended=False)],
    ]
    counts = EvalCounts(
        np.array([[1.0], [0.0], [0.0]]), responses, 2, 2, Counter(), samples=samples
    )
    write_samples(
        tmp_path / "samples.txt", task, problems, counts, EvalPoint(0, 0, 0, 0, {"avg@1": 1 / 3})
    )
    rollouts = [
        r"    0 + 4 = \boxed{4}    correct",
        r"    1 + 4 = so \boxed{6}    wrong, the answer is 5",
        "        (the response says 6)",
        "    2 + 4 = I do not know    wrong, the answer is 6",
        (
            "        (the response states no final answer, nothing was parsed, cut off after "
            f"{len(responses[2])} tokens)"
        ),
    ]
    first, *lines = (tmp_path / "samples.txt").read_text().splitlines()
    beginning = ["    every prompt begins with:", "        1 + 1 = 2", "        2 + 2 = 4"]
    assert first.startswith("C = 0 rollouts") and lines == [*beginning, *rollouts]

    # What the first evaluation has said is not said again.
    write_samples(
        tmp_path / "samples.txt", task, problems, counts, EvalPoint(64, 2, 64, 0, {"avg@1": 1 / 3})
    )
    assert (tmp_path / "samples.txt").read_text().splitlines()[-5:] == rollouts
    assert (tmp_path / "samples.txt").read_text().count("every prompt begins with") == 1
