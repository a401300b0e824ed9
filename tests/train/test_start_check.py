"""What is refused before the first update, what is warned of, and with which numbers."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from isojax.core.config import CellConfig, SamplingConfig, VerifierConfig
from isojax.core.errors import DeadStart, InputError
from isojax.core.nouns import StartReport
from isojax.models.transformer import ComputeOptions, Decoder
from isojax.sampling.batch import Rollouts
from isojax.sampling.layout import Layout
from isojax.sampling.logits import NEG_INF
from isojax.train.evaluate import EvalCounts, summarize_call
from isojax.train.start_check import check_start, first_nonfinite_weight
from tests.device import CONFIG, DECODER, VOCAB, policy
from tests.refusals import refused

CELL = CellConfig(
    task="jsonl:p.jsonl",
    verifier=VerifierConfig(use="function:rewards.py:reward"),
    sampling=SamplingConfig(response_length=8),
)
MIXED = np.array([[0.0, 1.0]] * 8)  # 8 problems of two rollouts, of which one is right


def counts(rewards: np.ndarray = MIXED, **changes: Any) -> EvalCounts:
    """An evaluation in which nothing is doubtful."""
    total = rewards.size
    of_rewards = EvalCounts(rewards, [], ended=total, parsed=total, failures=Counter())
    return replace(of_rewards, **changes)


def failing(kinds: dict[str, int], rewards: np.ndarray = MIXED) -> EvalCounts:
    return counts(rewards, failures=Counter(kinds), failed_checks=kinds)


def check(
    first: EvalCounts,
    examples: dict[str, str] | None = None,
    on_device: bool = False,
    **others: Any,
) -> Any:
    task: Any = SimpleNamespace(
        on_device=on_device, failure_examples=lambda: examples or {}, warnings=[], opening=""
    )
    return check_start({"": first, **others}, CELL, task, DECODER, policy())


def symptoms(report: StartReport) -> list[str]:
    return [warning.name for warning in report.warnings]


def test_nothing_is_said_of_a_run_that_can_learn() -> None:
    """A quarter of problems has equal rewards; one check of 200 has failed; half are cut off, but
    no more."""
    rewards = np.array([[0.0, 1.0]] * 75 + [[1.0, 1.0]] * 25)
    few = counts(
        rewards,
        ended=100,
        parsed=3,
        empty=100,
        failures=Counter(error=2),
        failed_checks={"error": 2},
    )
    assert check(few) == StartReport(
        {
            "responses": 200,
            "reward": 0.625,
            "equal_rewards": 0.25,
            "cut_off": 0.5,
            "empty": 0.5,
            "parsed": 0.015,
            "failed_checks": 0.01,
        }
    )


def test_a_run_whose_checks_all_fail_is_refused_with_the_first_failure_of_the_commonest_kind() -> (
    None
):
    examples = {
        "error": "problem 3: rewards.py:7: KeyError: 'gold'",
        "timeout": "problem 1: no verdict within 5 s",
    }
    with refused(where="cell.verifier.use = function:rewards.py:reward", kind=DeadStart) as refusal:
        check(failing({"error": 12, "timeout": 4}), examples)
    assert isinstance(refusal.value, InputError)  # exit code 2
    message = str(refusal.value)
    for part in (
        "cell.verifier.use = function:rewards.py:reward: none of its first 16 checks",
        "(error 12, timeout 4)",
        "The first: problem 3: rewards.py:7: KeyError: 'gold'. Correct it, and repeat the command",
        "of a run with --resume",
        "Nothing was trained",
    ):
        assert part in message
    with refused(where="cell.verifier.use = function:rewards.py:reward", kind=DeadStart):
        check(failing({"timeout": 16}), examples)


@pytest.mark.parametrize("failed", [1, 8, 15])
def test_a_run_of_which_some_checks_fail_is_warned_of(failed: int) -> None:
    report = check(failing({"error": failed}), {"error": "problem 3: it broke"})
    assert symptoms(report) == ["failed_checks"] and report.shares["failed_checks"] == failed / 16
    text = (
        f"{failed} of 16 checks failed (error {failed}), each of reward 0; the first: problem 3: "
        "it broke"
    )
    assert report.warnings[0].text.startswith(text)


def test_a_further_set_whose_checks_all_fail_is_warned_of_alone() -> None:
    """What is trained on may be judged all the same."""
    report = check(counts(), hard=failing({"error": 16}))
    assert (
        symptoms(report) == ["failed_checks_hard"]
        and "checks of the set 'hard' failed" in report.warnings[0].text
    )


def test_replies_that_all_fail_and_that_fail_at_times() -> None:
    """Of a task of turns; they are among the failures, and no checks."""
    replying = counts(failures=Counter(error=16), replies=16, failed_replies=16)
    with refused(where="cell.task = jsonl:p.jsonl", kind=DeadStart):
        check(replying, {"reply error": "problem 2: my_tool.py:4: x"})
    assert symptoms(check(replace(replying, replies=32))) == ["failed_replies"]


def test_a_log_probability_that_is_no_number_is_refused_and_the_weight_named() -> None:
    """Of one that holds several layers, with the layer; also where a further set alone has met
    it."""
    broken: Any = jax.tree.map(np.array, policy())
    broken["blocks"]["query"][1].flat[3] = np.inf
    assert first_nonfinite_weight(DECODER, policy()) is None
    assert first_nonfinite_weight(DECODER, broken) == "blocks.query[1]"
    of_llama = Decoder(CONFIG.model_copy(update={"family": "llama", "path": "lm"}), VOCAB)
    assert first_nonfinite_weight(of_llama, broken) == "model.layers.1.self_attn.q_proj.weight"
    broken = jax.tree.map(np.array, policy())
    broken["embed"][0, 0] = np.nan
    assert first_nonfinite_weight(of_llama, broken) == "model.embed_tokens.weight"
    task: Any = SimpleNamespace(on_device=True)
    with refused(kind=DeadStart):
        check_start({"": counts(), "hard": counts(nonfinite=3)}, CELL, task, DECODER, broken)


@pytest.mark.parametrize("logp", [np.nan, -np.inf, NEG_INF])
def test_a_rollout_is_broken_where_a_drawn_token_has_no_log_probability(logp: float) -> None:
    """Not where padding or context has none. Top-p makes NEG_INF of NaN."""
    drawn = np.array([[True, True, False], [True, True, True], [True, False, True]])
    logps = np.full((3, 3), -1.0, np.float32)
    logps[[0, 1, 2], [2, 1, 1]] = logp
    # of one shard
    rollouts = Rollouts(
        tokens=np.zeros((1, 3, 3), np.int32),
        logps=logps[None],
        mask=drawn[None],
        nucleus_mass=np.ones((1, 3, 1), np.float32),
        stopped=np.ones((1, 3), bool),
        lengths=np.array([[2, 3, 3]], np.int32),
    )
    assert summarize_call(rollouts, None, Layout(1, 3, shards=1)).nonfinite == 1


def test_finite_weights_that_overflow_and_what_to_try() -> None:
    """float32 where it is not in use yet; else the largest weight is named, and called damaged
    where no model has such a one."""
    task: Any = SimpleNamespace(on_device=True)
    in_bfloat16 = DECODER.with_options(ComputeOptions("bfloat16", "bfloat16"))
    with refused(kind=DeadStart):
        check_start({"": counts(nonfinite=1)}, CELL, task, in_bfloat16, policy())

    weights: Any = jax.tree.map(np.array, policy())
    weights["blocks"]["query"][1].flat[3] = -1200
    with refused(kind=DeadStart) as e:
        check_start({"": counts(nonfinite=1)}, CELL, task, DECODER, weights)
    assert "the largest number among them, 1.2e+03, is in blocks.query[1]. Fetch or convert" in str(
        e.value
    )
    assert "compute=float32" not in str(e.value)

    weights["embed"][0, 0] = 1e30
    for decoder in (DECODER, in_bfloat16):
        with refused(kind=DeadStart):
            check_start({"": counts(nonfinite=1)}, CELL, task, decoder, weights)


@pytest.mark.parametrize("reward", [np.nan, np.inf, 2.0, -1.0])
def test_rewards_of_a_device_that_can_be_none_are_refused(reward: float) -> None:
    rewards = MIXED.copy()
    rewards[2:4, 0] = reward
    with refused(where="cell.task = jsonl:p.jsonl", kind=DeadStart):
        check(counts(rewards), on_device=True)


ZEROS, ONES = np.zeros((8, 2)), np.ones((8, 2))
DOUBTFUL = {
    "cut_off": (
        counts(ended=7),
        "9 of 16 responses are cut off at cell.sampling.response_length = 8 tokens",
    ),
    "empty": (counts(empty=9), "9 of 16 responses are empty"),
    "nothing_parsed": (
        counts(ZEROS, parsed=0),
        "function:rewards.py:reward finds an answer in 0 of 16",
    ),
    "all_wrong": (counts(ZEROS), "all 16 rewards are 0"),
    "all_right": (counts(ONES), "all 16 rewards are 1"),
    "equal_rewards": (counts(ONES / 4), "all 16 rewards are 0.25"),
    "partial": (
        counts(failures=Counter(partial=9)),
        "9 of 16 scores are neither 0 nor 1 and count as 0",
    ),
    "score_style": (
        counts(mean_scores={"style": 0.0, "right": 0.5}),
        "the score 'style' is 0 for all 16 responses",
    ),
}


def test_answers_that_math_does_not_find_behind_thinking_that_the_prompt_begins() -> None:
    cell = CELL.model_copy(update={"verifier": VerifierConfig(use="math")})
    texts = []
    for opening in ("<think>", "Answer:"):
        task: Any = SimpleNamespace(
            on_device=False, failure_examples=dict, warnings=[], opening=opening
        )
        report = check_start({"": counts(ZEROS, parsed=0)}, cell, task, DECODER, policy())
        assert symptoms(report) == ["nothing_parsed"]
        texts.append(report.warnings[0].text)
    assert (
        "each prompt ends with '<think>', and only what follows the end of that thinking is an "
        "answer"
    ) in texts[0]
    assert "each prompt" not in texts[1]


@pytest.mark.parametrize("name", DOUBTFUL)
def test_one_symptom_is_one_warning_with_its_numbers(name: str) -> None:
    first, text = DOUBTFUL[name]
    report = check(first)
    assert symptoms(report) == [name] and text in report.warnings[0].text
    assert "docs/when-a-run-does-not-learn.md#" in report.warnings[0].text


def test_rewards_that_depend_on_the_problem_alone() -> None:
    """16 problems of 4 rollouts, half of them right: by chance once in 2^48; of 2 rollouts each it
    may be chance."""
    rewards = np.repeat([[0.0], [1.0]] * 8, 4, axis=1)
    assert symptoms(check(counts(rewards))) == ["equal_rewards"]
    assert symptoms(check(counts(rewards[:, :2]))) == [] == symptoms(check(counts(rewards[:15])))


def test_what_the_plan_has_doubted_is_kept_with_the_rest() -> None:
    """So that it is said again at the end of the run."""
    task: Any = SimpleNamespace(
        on_device=False,
        failure_examples=dict,
        warnings=["no token ends a turn", "two BOS"],
        opening="",
    )
    report = check_start({"": counts(ended=0)}, CELL, task, DECODER, policy())
    assert (
        symptoms(report) == ["task_0", "task_1", "cut_off"] and report.warnings[1].text == "two BOS"
    )


def test_on_device_an_answer_is_parsed_where_the_response_ends() -> None:
    """So all that are cut off are not parsed, and that is one symptom."""
    assert symptoms(check(counts(ended=0, parsed=0), on_device=True)) == ["cut_off"]


@pytest.mark.parametrize(
    ("use", "opening", "hint"),
    [
        ("function:rewards.py:reward", "<think>", "in `prompts`, not in `completions`"),
        ("verl:rewards.py", "<think>", "in `prompt_str`, not in `solution_str`"),
        ({"form": "function:rewards.py:form"}, "<think>", "in `prompts`, not in `completions`"),
        ("function:rewards.py:reward", "", ""),
        ("math", "<think>", ""),
    ],
)
def test_rewards_of_0_point_at_what_the_chat_template_wrote(
    use: Any, opening: str, hint: str
) -> None:
    cell = CellConfig(task=CELL.task, verifier=VerifierConfig(use=use), sampling=CELL.sampling)
    task: Any = SimpleNamespace(
        on_device=False, failure_examples=dict, warnings=[], opening=opening
    )
    (warning,) = check_start({"": counts(ZEROS)}, cell, task, DECODER, policy()).warnings
    assert warning.name == "all_wrong"
    assert hint in warning.text and ("each prompt ends with '<think>'" in warning.text) == bool(
        hint
    )

    # A policy that is right at times needs no hint.
    assert check_start({"": counts(MIXED)}, cell, task, DECODER, policy()).warnings == ()
