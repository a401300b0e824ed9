"""The check before the first update: can this run learn at all?

It looks at what the labels, or the evaluation at C = 0, have measured already, and samples nothing:

    no check of the verifier ended with a verdict      refused: every reward would be 0
    a log-probability or a reward is no number         refused: so would be every gradient
    responses cut off or empty, none parsed            a StartWarning
    rewards all alike, some checks failed              a StartWarning

A warning is doubt, not proof: hard problems begin at a reward of 0, and a policy may learn to end
its responses. The launcher prints it before the first update, and again at the end of the run.
docs/when-a-run-does-not-learn.md says how to look further."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from isojax.core.config import CellConfig
from isojax.core.errors import DeadStart
from isojax.core.nouns import StartReport, StartWarning
from isojax.core.yaml_files import flatten
from isojax.distributed import multiprocess
from isojax.models.hf.hf_load import weight_layouts
from isojax.models.transformer import Decoder, Params
from isojax.tasks.answers.thinking import never_ends_thinking
from isojax.tasks.task import Task, is_on_device
from isojax.train.evaluate import VALIDATION_SET, EvalCounts

PAGE = "docs/when-a-run-does-not-learn.md"
COMMON = 0.5  # the share of responses above which a symptom is warned of
# A share up to which checks or replies may fail without a warning; a share of responses with an
# answer that is too small.
FEW = 0.01
# With so many problems and rollouts of each, it is no coincidence if the rollouts of every problem
# have equal rewards.
MIN_PROBLEMS, MIN_ROLLOUTS = 16, 4
FIXES_OF_CHECKS = {  # by the commonest kind of failure (`Verdict.failure`); else "Correct it"
    "timeout": "Correct it, or raise cell.verifier.timeout",
    "memory": "Correct it, or raise cell.verifier.memory_gib",
    "machine": "Free memory, disk or processes of this machine",
    "none": "Let one function give a number for each problem",
    "score": "Let its scores lie between 0 and 1",
}
MAX_USUAL_WEIGHT = 1e5  # released models have weights of some thousands at most


def check_start(
    counts_by_set: Mapping[str, EvalCounts],
    cell: CellConfig,
    task: Task,
    decoder: Decoder,
    params: Params,
) -> StartReport:
    """What the first rollouts of the base policy measured, and what they make doubtful.

    counts_by_set: by the name of the problem set. VALIDATION_SET, which must be there, is the
        validation set, or the problems that were labelled.
    params: the policy that made these rollouts; they are looked at only if its log-probabilities
        are no numbers.

    The warnings of the report are those of the task first (`doubts_of_task`), which whoever shows
    the others leaves out. All processes call it.

    Raises:
        DeadStart: no run can learn from them; every process of a run raises it.
    """
    counts = counts_by_set[VALIDATION_SET]
    # What happened at the first failure of each kind, such as {"timeout": "no verdict within 5 s"}.
    failures: Mapping[str, str] = {}
    if any(set_counts.failures for set_counts in counts_by_set.values()):
        failures = _failure_examples(task)

    refuse_nonfinite(counts_by_set, decoder, params)
    refuse_impossible_rewards(counts_by_set, cell)
    refuse_failed_checks(counts, cell, failures)
    refuse_failed_replies(counts, cell, failures)

    warnings = [*_doubtful_responses(counts, cell), *_doubtful_scores(counts, cell, task, failures)]
    # Rewards of 0 need no second warning where one of these says why.
    explanations = {warning.name for warning in warnings} & {"nothing_parsed", "partial"}
    hints = [_opening_hint(use, task) for use in _verifier_uses(cell)]
    hint = next(filter(None, hints), "")
    warnings += _doubtful_rewards(counts, is_explained=bool(explanations), hint=hint)
    for name, set_counts in counts_by_set.items():
        warnings += _doubtful_checks(name, set_counts, failures)
    return StartReport(_measured_shares(counts), (*doubts_of_task(task), *warnings))


def doubts_of_task(task: Task) -> list[StartWarning]:
    """What model, tokenizer and prompt make doubtful before anything is sampled; the plan that a
    command prints first has shown it. [] of a task that verifies on device."""
    texts = [] if is_on_device(task) else task.warnings
    return [StartWarning(f"task_{i}", text) for i, text in enumerate(texts)]


def refuse_nonfinite(
    counts_by_set: Mapping[str, EvalCounts], decoder: Decoder, params: Params
) -> None:
    """DeadStart where a rollout has a log-probability that is no number.

    The message names the first weight that is not finite, or else what to do against an overflow.
    """
    nonfinite = sum(counts.nonfinite for counts in counts_by_set.values())
    if not nonfinite:
        return

    total = sum(counts.rewards.size for counts in counts_by_set.values())
    weight = first_nonfinite_weight(decoder, params)
    cause = f"the weight {weight} is not finite: put in a checkpoint whose weights are numbers"
    if weight is None:
        fix = _overflow_fix(decoder, params)
        cause = f"its weights are finite, so numbers overflow in between: {fix}"
    raise DeadStart(
        found=(
            f"the base policy's log-probabilities are no numbers in {nonfinite:,} of its first "
            f"{total:,} responses; {cause}"
        ),
        fix=f"Nothing was trained ({PAGE}#nan-or-inf).",
    )


def _overflow_fix(decoder: Decoder, params: Params) -> str:
    """What to try where finite weights give log-probabilities that are no numbers, as a phrase."""
    largest = max(weight_sizes(decoder, params), key=lambda weight: weight.size)
    is_absurd = largest.size > MAX_USUAL_WEIGHT
    if decoder.options.compute_dtype != "float32" and not is_absurd:
        return "try cell.precision.compute=float32"

    damage = ""
    if is_absurd:
        damage = (
            ", and such sizes come of a damaged or wrongly converted checkpoint, or of a training "
            "that diverged"
        )
    return (
        f"the largest number among them, {largest.size:.3g}, is in {largest.name}{damage}. Fetch "
        "or convert the checkpoint again, or take another"
    )


def first_nonfinite_weight(decoder: Decoder, params: Params) -> str | None:
    """The name of the first weight that holds NaN or an infinity; None where all are finite.

    If the arrays span several processes, all of them have to call it.
    """
    for weight in weight_sizes(decoder, params):
        if not np.isfinite(weight.size):
            return weight.name
    return None


@dataclass(frozen=True)
class WeightSize:
    """A weight, as the checkpoint calls it if there is one, and its largest number without its
    sign; NaN of a NaN."""

    name: str
    size: float


def weight_sizes(decoder: Decoder, params: Params) -> Iterator[WeightSize]:
    """All weights in the order of the parameters' tree, which is nested dicts of arrays.

    If the arrays span several processes, all of them have to call it.
    """
    layouts = weight_layouts(decoder) if decoder.config.path else []
    checkpoint_names = {layout.key: layout.tensor_names for layout in layouts}
    for key, value in flatten(params):
        # A parameter of a stack of layers, "blocks.NAME", holds one weight of each layer,
        # [layers ...]; one outside of the layers has no dot in its key. Adapters, and a policy
        # without a checkpoint, have no other names than isojax's.
        is_of_stack = "." in key
        names: Sequence[str]
        if key in checkpoint_names:
            names = checkpoint_names[key]
        elif is_of_stack:
            names = [f"{key}[{layer}]" for layer in range(len(value))]
        else:
            names = [key]

        # f32[names]: the first axes of `value` are those that the names count.
        largest = jnp.abs(value).reshape(len(names), -1).max(1).astype(jnp.float32)
        for name, size in zip(names, np.asarray(largest).tolist(), strict=True):
            yield WeightSize(name, size)


def refuse_impossible_rewards(counts_by_set: Mapping[str, EvalCounts], cell: CellConfig) -> None:
    """DeadStart where a reward is no number from 0 to 1. Only a task that verifies on device can
    give one: a verifier's score out of range is a failed check."""
    rewards = np.concatenate([counts.rewards.ravel() for counts in counts_by_set.values()])
    impossible = rewards[~((rewards >= 0) & (rewards <= 1))]  # NaN too
    if impossible.size:
        raise DeadStart(
            where=f"cell.task = {cell.task}",
            found=(
                f"{impossible.size:,} of its first {rewards.size:,} rewards are not, such as "
                f"{impossible[0]:g}"
            ),
            expected="its verify to give numbers from 0 to 1",
            fix="Correct it. Nothing was trained.",
        )


def refuse_failed_checks(counts: EvalCounts, cell: CellConfig, failures: Mapping[str, str]) -> None:
    """DeadStart where no check of the verifier ended with a verdict.

    failures: what happened at the first failure of each kind, such as {"timeout": "..."}; may be
        empty.
    """
    total = counts.rewards.size
    failed = sum(counts.failed_checks.values())
    if not total or failed < total:
        return

    kind = _most_common(counts.failed_checks)
    first = f"The first: {failures[kind]}. " if kind in failures else ""
    fix = FIXES_OF_CHECKS.get(kind, "Correct it")
    raise DeadStart(
        where=f"cell.verifier.use = {_verifier_text(cell)}",
        found=(
            f"none of its first {total:,} checks ended with a verdict "
            f"({_count_by_kind(counts.failed_checks)}), and each counts as reward 0"
        ),
        fix=(
            f"{first}{fix}, and repeat the command, of a run with --resume. Nothing was "
            f"trained ({PAGE}#checks-fail)."
        ),
    )


def refuse_failed_replies(
    counts: EvalCounts, cell: CellConfig, failures: Mapping[str, str]
) -> None:
    """DeadStart where the reply of a task of turns failed at every turn.

    failures: what happened at the first failure of each kind, such as {"reply timeout": "..."};
        kinds of the verifier's failures do not begin with "reply ".
    """
    if not counts.replies or counts.failed_replies < counts.replies:
        return

    of_replies = [text for kind, text in failures.items() if kind.startswith("reply ")]
    first = f"The first: {of_replies[0]}. " if of_replies else ""
    raise DeadStart(
        where=f"cell.task = {cell.task}",
        found=f"its reply failed at each of {counts.replies:,} turns",
        fix=(
            f"{first}Correct it, and repeat the command, of a run with --resume. Nothing was "
            f"trained ({PAGE}#checks-fail)."
        ),
    )


def _doubtful_responses(counts: EvalCounts, cell: CellConfig) -> Iterator[StartWarning]:
    """Warnings of responses that no stop condition ended, or that hold nothing."""
    total = counts.rewards.size
    cut_off = total - counts.ended
    if cut_off > COMMON * total:
        yield StartWarning(
            "cut_off",
            f"{cut_off:,} of {total:,} responses are cut off at cell.sampling.response_length = "
            f"{cell.sampling.response_length} tokens. Raise it, or see whether the model ends its "
            f"turn at all ({PAGE}#responses-are-cut-off)",
        )
    if counts.empty > COMMON * total:
        yield StartWarning(
            "empty",
            f"{counts.empty:,} of {total:,} responses are empty. Look at the prompts and at what "
            f"ends a response ({PAGE}#nothing-parsed)",
        )


def _doubtful_scores(
    counts: EvalCounts, cell: CellConfig, task: Task, failures: Mapping[str, str]
) -> Iterator[StartWarning]:
    """Warnings of answers that the verifier does not find, of scores that it does not take as they
    are, and of scores that are always 0. `failures`: as for `refuse_failed_checks`."""
    total = counts.rewards.size
    # On a device `parsed` counts the responses that ended, of which "cut_off" warns. If all are
    # empty, "empty" says why none has an answer.
    is_parsed = counts.parsed > FEW * total or is_on_device(task)
    if not is_parsed and counts.empty < total:
        yield StartWarning(
            "nothing_parsed",
            f"the verifier {_verifier_text(cell)} finds an answer in {counts.parsed:,} of "
            f"{total:,} responses{_thinking_hint(cell, task)} ({PAGE}#nothing-parsed)",
        )

    partial = counts.failures["partial"]
    if partial > COMMON * total:
        first = f"; the first: {failures['partial']}" if "partial" in failures else ""
        yield StartWarning(
            "partial",
            f"{partial:,} of {total:,} scores are neither 0 nor 1 and count as 0{first}. "
            "cell.reward.kind=graded takes scores from 0 to 1 as they are "
            f"({PAGE}#the-reward-stays-at-0)",
        )

    # A score that is always 0, where the reward is not.
    use = cell.verifier.use
    has_rewards = counts.rewards.max() > 0
    for name, mean in counts.mean_scores.items():
        if mean == 0 and has_rewards:
            hint = "" if isinstance(use, str) else _opening_hint(use.get(name, ""), task)
            yield StartWarning(
                f"score_{name}",
                f"the score {name!r} is 0 for all {total:,} responses{hint} "
                f"({PAGE}#the-reward-stays-at-0)",
            )


def _thinking_hint(cell: CellConfig, task: Task) -> str:
    """Where the verifier `math` looks for an answer, if the chat template has begun the policy's
    thinking; "" if it has not, or another verifier judges."""
    if "math" not in _verifier_uses(cell) or is_on_device(task):
        return ""
    if not never_ends_thinking(task.opening, ""):
        return ""
    return (
        f"; each prompt ends with {task.opening[-60:]!r}, and only what follows the end of that "
        "thinking is an answer"
    )


def _opening_hint(use: str, task: Task) -> str:
    """Where a user's function finds the beginning of a response that the chat template wrote.

    use: a verifier, such as "function:rewards.py:score" or "math". "" where the template wrote no
    beginning, or the verifier is no function. A function that was written for another trainer may
    look for the beginning in the response.
    """
    names = {"function": ("`prompts`", "`completions`"), "verl": ("`prompt_str`", "`solution_str`")}
    kind = use.partition(":")[0]
    if kind not in names or is_on_device(task) or not task.opening:
        return ""
    prompt, response = names[kind]
    return (
        f"; each prompt ends with {task.opening[:60]!r}, which the chat template writes: a "
        f"function finds it in {prompt}, not in {response}"
    )


def _doubtful_rewards(counts: EvalCounts, is_explained: bool, hint: str) -> Iterator[StartWarning]:
    """A warning of rewards that are all alike, or alike within each problem; at most one.

    is_explained: whether another warning says why all are 0; then there is none of that.
    hint: why they may be 0, to follow in the message; may be empty.
    """
    rewards = counts.rewards
    total = rewards.size
    low, high = float(rewards.min()), float(rewards.max())
    if high == 0:
        if not is_explained:
            yield StartWarning(
                "all_wrong",
                f"all {total:,} rewards are 0: no update has a gradient before a response is "
                f"right{hint} ({PAGE}#the-reward-stays-at-0)",
            )
    elif low == 1:
        yield StartWarning(
            "all_right",
            f"all {total:,} rewards are 1: there is nothing to learn from these problems "
            f"({PAGE}#the-reward-stays-at-1)",
        )
    elif low == high:
        yield StartWarning(
            "equal_rewards",
            f"all {total:,} rewards are {low:g}: no update has a gradient while they are alike "
            f"({PAGE}#the-reward-stays-at-0)",
        )
    elif _never_differ(rewards):
        yield StartWarning(
            "equal_rewards",
            f"the {rewards.shape[1]} rollouts of each problem have the same reward, so no update "
            "has a gradient. Does the reward depend on the response, and is "
            f"cell.sampling.temperature high enough? ({PAGE}#the-reward-stays-at-0)",
        )


def _doubtful_checks(
    set_name: str, counts: EvalCounts, failures: Mapping[str, str]
) -> Iterator[StartWarning]:
    """Warnings of checks of a problem set that did not end, and of replies that failed.

    set_name: "" of the validation set. failures: as for `refuse_failed_checks`.
    """
    total = counts.rewards.size
    failed = sum(counts.failed_checks.values())
    if failed > FEW * total:
        name, checks = "failed_checks", "checks"
        if set_name:
            name = f"failed_checks_{set_name}"
            checks = f"checks of the set {set_name!r}"
        kind = _most_common(counts.failed_checks)
        first = f"; the first: {failures[kind]}" if kind in failures else ""
        yield StartWarning(
            name,
            f"{failed:,} of {total:,} {checks} failed ({_count_by_kind(counts.failed_checks)}), "
            f"each of reward 0{first} ({PAGE}#checks-fail)",
        )

    if counts.failed_replies > FEW * counts.replies:
        yield StartWarning(
            "failed_replies",
            f"the task's reply failed at {counts.failed_replies:,} of {counts.replies:,} turns, "
            f"and the response ended there ({PAGE}#checks-fail)",
        )


def _measured_shares(counts: EvalCounts) -> dict[str, float]:
    """The number of responses and, of them, the shares that a StartReport has, from 0 to 1;
    "equal_rewards" is a share of problems."""
    total = counts.rewards.size
    shares = {
        "reward": float(counts.rewards.mean(dtype=np.float64)),
        "equal_rewards": _equal_share(counts.rewards),
        "cut_off": 1 - counts.ended / total,
        "empty": counts.empty / total,
        "parsed": counts.parsed / total,
        "failed_checks": sum(counts.failed_checks.values()) / total,
    }
    return {"responses": float(total)} | {name: round(share, 6) for name, share in shares.items()}


def _equal_share(rewards: np.ndarray) -> float:
    """The share of problems whose rollouts all have the same reward; rewards: f32[Q, k]."""
    return float((rewards == rewards[:, :1]).all(1).mean())


def _never_differ(rewards: np.ndarray) -> bool:
    """Whether no problem has two different rewards, among so many that this is no coincidence.
    rewards: f32[Q, k]."""
    problems, rollouts = rewards.shape
    return problems >= MIN_PROBLEMS and rollouts >= MIN_ROLLOUTS and _equal_share(rewards) == 1


def _failure_examples(task: Task) -> dict[str, str]:
    """What happened at the first failure of each kind, of the first process that had one."""
    own_examples = {} if is_on_device(task) else task.failure_examples()
    examples: dict[str, str] = {}
    for others in multiprocess.allgather(own_examples, dict[str, str]):
        examples = others | examples  # what is in `examples` already stays
    return examples


def _verifier_uses(cell: CellConfig) -> list[str]:
    """The verifiers of a cell: one, or one of each score."""
    use = cell.verifier.use
    return [use] if isinstance(use, str) else list(use.values())


def _verifier_text(cell: CellConfig) -> str:
    use = cell.verifier.use
    if isinstance(use, str):
        return use
    return ", ".join(f"{name}: {verifier}" for name, verifier in use.items())


def _most_common(failures: Mapping[str, int]) -> str:
    """The kind of which there are most; the first of several."""
    return max(failures, key=lambda kind: failures[kind])


def _count_by_kind(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in failures.items())
