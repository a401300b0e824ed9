"""Evaluation: the rewards of k rollouts of each problem, and the metrics that follow from them for
the ledger. Cells with one seed meet the same draws at the same evaluation: a difference between
them is one of their policies."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray

from isojax.core.config import PANEL, CellConfig
from isojax.core.estimators import summarize_rewards
from isojax.core.nouns import EvalPoint, Problem
from isojax.core.shapes import SamplerShapes
from isojax.distributed import multiprocess
from isojax.distributed.sharding import Program, replicated, shape_on, shapes_with_shardings
from isojax.models.transformer import Decoder, Params
from isojax.rl.engines import EngineSetup, RolloutEngine, SampleRequest
from isojax.rl.engines.local import local_engine
from isojax.rl.graded_sampler import GradedSampler
from isojax.rl.metric import values
from isojax.sampling.batch import (
    EVAL_STREAM,
    EXTRA_STREAM,
    ProblemArrays,
    Rollouts,
    RoutedRollouts,
    count_turns,
    response_tokens,
)
from isojax.sampling.layout import Layout
from isojax.sampling.logits import NEG_INF
from isojax.tasks.protocol import EncodedProblems, Grades, TokenizedProblems, count_unfinished
from isojax.tasks.task import Task
from isojax.train.checkpoint import RunCursor

VALIDATION_SET = ""  # its name among the sets that are evaluated
MAX_REPEATS = 1024  # of the samples of an evaluation, each with a key of its own
KEPT_ROLLOUTS = 4  # of each problem, for a person to read


@dataclass(frozen=True)
class RolloutSample:
    """A rollout and what was said of it, for a person to read."""

    tokens: np.ndarray  # i32[its length]
    reward: float
    parsed: bool = True  # an answer was found
    ended: bool = True  # a stop condition ended it
    # of a graded reward, where it is made of several
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EvalCounts:
    """The result of an evaluation of Q problems with k rollouts each."""

    rewards: np.ndarray  # f32[Q, k]
    # Q arrays i32[its length], of each problem's first rollout; context as ~token (tasks/turns.py)
    first_responses: list[np.ndarray]
    ended: int  # rollouts that a stop condition ended
    parsed: int  # rollouts that hold an answer in the expected form (on device: those that ended)
    # checks without a plain verdict, by kind, such as {"timeout": 3}; "partial": a score between 0
    # and 1 where rewards are binary
    failures: Counter[str]
    # rollouts interrupted to answer; None where the recipe interrupts none
    interrupted: int | None = None
    turns: int | None = None  # of the policy, over all rollouts; None where the task has one each
    graded: bool = False  # whether rewards may lie between 0 and 1
    # of each score in a graded reward
    mean_scores: Mapping[str, float] = field(default_factory=dict)
    # What the check before the first update looks at (train/start_check.py), besides.
    empty: int = 0  # rollouts without any text
    nonfinite: int = 0  # rollouts with a token whose log-probability is no number
    # those of `failures` without a verdict, by kind
    failed_checks: Mapping[str, int] = field(default_factory=dict)
    replies: int = 0  # of a task of turns
    failed_replies: int = 0
    # of each problem, its first rollouts, up to KEPT_ROLLOUTS
    samples: Sequence[Sequence[RolloutSample]] = ()

    @property
    def reward_sums(self) -> np.ndarray:
        """The sum of each problem's rewards, number[Q]: integers where rewards are binary, else
        floats, rounded to 6 decimals so that they are free of float32's noise."""
        sums = self.rewards.sum(1, dtype=np.float64)
        return np.round(sums, 6) if self.graded else sums.astype(np.int32)


@dataclass(frozen=True)
class CallOrder:
    """In which order an evaluation's rollouts are sampled: [part][repeat][problem][sample].

    A part is the problems of a call, and each of its repeats is a call. With 3 problems, 2 in a
    call, and 2 repeats, the calls have the problems 0 1, 0 1, 2, 2.
    """

    problems_of_parts: Sequence[int]  # how many each part has, such as [2, 1]; none is 0
    repeats: int
    samples_per_problem: int

    def by_problem(self, values: np.ndarray) -> np.ndarray:
        """One value for each rollout, [Q k] in the order of the calls, as [Q, k]: a row a problem.

        k = repeats * samples_per_problem; the samples of the first repeat come first in a row.
        """
        k = self.repeats * self.samples_per_problem
        part_ends = np.cumsum([problems * k for problems in self.problems_of_parts])
        call_shape = (self.repeats, -1, self.samples_per_problem)
        # A part is [repeats, its problems, samples_per_problem]; its problems come to the front.
        rows = [
            part.reshape(call_shape).swapaxes(0, 1).reshape(-1, k)
            for part in np.split(values, part_ends[:-1])
        ]
        return np.concatenate(rows)


@dataclass(frozen=True)
class CallSamples:
    """What an evaluation keeps of the B rollouts of a call, n of each of B_p problems.

    Arrays have them in their order: rollout r is of the call's problem r // n.
    """

    responses: list[list[np.ndarray]]  # of each problem, up to KEPT_ROLLOUTS; i32[its length]
    ended: np.ndarray  # bool[B], whether a stop condition ended it
    interrupted: int  # rollouts with a token that the policy did not draw
    turns: int  # of the policy, over all rollouts: runs of tokens that it drew
    nonfinite: int  # rollouts with a token whose log-probability is no number
    rewards: np.ndarray | None  # f32[B], where a device verifies them; else None
    empty: int  # rollouts of an end token alone; read where a device verifies


def summarize_call(
    rollouts: Rollouts | RoutedRollouts, rewards: Any, layout: Layout
) -> CallSamples:
    """What is kept of a call's rollouts, which are read to the host.

    rollouts: buffers [S rows ...] whose rows of padding `layout` leaves out; this process holds
        all of them.
    rewards: f32[S rows], or None where the host verifies.
    """
    # From here on in the rollouts' order: bool[B], i32[B], and bool[B T], the drawn tokens.
    stopped = layout.in_order(rollouts.stopped)
    lengths = layout.in_order(rollouts.lengths)
    mask = layout.in_order(rollouts.mask)
    # A token that was drawn has a probability, so its log-probability is far above NEG_INF / 2. The
    # comparison is false of NaN, of -inf, and of NEG_INF, which top-p makes of NaN.
    are_numbers = layout.in_order(rollouts.logps) > NEG_INF / 2

    n = layout.n
    responses = response_tokens(rollouts, layout)
    of_problems = [responses[start : start + n] for start in range(0, layout.B, n)]
    return CallSamples(
        responses=[of_problem[:KEPT_ROLLOUTS] for of_problem in of_problems],
        ended=stopped,
        interrupted=int((mask.sum(-1) < lengths).sum()),
        turns=int(count_turns(mask).sum()),
        nonfinite=int((mask & ~are_numbers).any(-1).sum()),
        rewards=None if rewards is None else layout.in_order(rewards),
        empty=int((stopped & (lengths <= 1)).sum()),
    )


def grades_on_device(calls: Sequence[CallSamples]) -> Grades:
    """The grades of the rollouts of several calls that a device has verified, in the calls' order.

    `parsed`, whether an answer was found, is whether the response ended. `rewards` of all the calls
    are there.
    """
    rewards = [call.rewards for call in calls if call.rewards is not None]
    ended = np.concatenate([call.ended for call in calls])
    return Grades(
        np.concatenate(rewards), parsed=ended, failures={}, empty=sum(call.empty for call in calls)
    )


@dataclass(frozen=True, eq=False)
class KeptRollouts(Sequence[Sequence[RolloutSample]]):
    """The first rollouts of each problem. They are described when somebody looks: an evaluation
    keeps thousands, and a person reads a few."""

    responses: Sequence[Sequence[np.ndarray]]  # [Q][up to KEPT_ROLLOUTS]
    rewards: np.ndarray  # f32[Q, k]
    parsed: np.ndarray  # bool[Q, k]
    ended: np.ndarray  # bool[Q, k]
    scores: Mapping[str, np.ndarray]  # f32[Q, k] by the name of the score

    def __len__(self) -> int:
        return len(self.responses)

    def __getitem__(self, q: Any) -> Any:
        """The kept rollouts of problem q, an int; `responses[q][i]` is that of column i of the
        other arrays: the first samples of the first repeat."""
        return [
            RolloutSample(
                tokens=tokens,
                reward=float(self.rewards[q, i]),
                parsed=bool(self.parsed[q, i]),
                ended=bool(self.ended[q, i]),
                scores={name: float(values[q, i]) for name, values in self.scores.items()},
            )
            for i, tokens in enumerate(self.responses[q])
        ]


def pad_problems(encoded: EncodedProblems, shapes: SamplerShapes) -> ProblemArrays:
    """Problems as the sampler's buffers hold them; copies of the first one fill the rest.

    From 1 to `shapes.Q_cap` problems become arrays of `shapes.problem_rows` rows.
    """
    padding = shapes.problem_rows - len(encoded.ids)
    return ProblemArrays(*(np.concatenate([x, np.repeat(x[:1], padding, 0)]) for x in encoded))


def ignore_counts(problems: Sequence[Problem], counts: EvalCounts) -> None:
    """What an Evaluator calls where nobody listens."""


class Evaluator:
    """Samples and grades, `problems_per_call` problems with `samples_per_problem` rollouts each in
    a call. All processes call its methods, in the same order."""

    def __init__(
        self,
        decoder: Decoder,
        task: Task,
        mesh: Mesh,
        problems_per_call: int,
        samples_per_problem: int,
        trainer_shapes: SamplerShapes,
        cell: CellConfig,
        build_engine: Callable[[EngineSetup], RolloutEngine] = local_engine,
    ):
        """trainer_shapes: of the training programs; the evaluator's are these but for the sizes of
            a batch, (problems_per_call, samples_per_problem).
        cell: the settings of sampling and reward are read.
        build_engine: makes what samples, from an EngineSetup; by default isojax's own sampler.
        """
        self.decoder = decoder
        self.mesh = mesh
        self.graded = cell.reward.kind == "graded"
        self.problems_per_call = problems_per_call
        self.samples_per_problem = samples_per_problem
        self._stops = task.stops
        # Called with the problems of each evaluation and its result.
        self.on_counts: Callable[[Sequence[Problem], EvalCounts], None] = ignore_counts

        # W slots share the keys and values of one prompt. A prompt with fewer samples than W would
        # leave some of them empty, so none are shared then.
        W = trainer_shapes.slots_per_prefix
        if samples_per_problem < W:
            W = 1
        self.shapes = replace(
            trainer_shapes, cells=[(problems_per_call, samples_per_problem)], slots_per_prefix=W
        )
        engine = build_engine(EngineSetup(decoder, task, self.shapes, mesh, cell.sampling))
        self.graded_sampler = GradedSampler(engine, task, self.shapes, mesh)
        self.make_key = Program(jax.jit(make_eval_key, out_shardings=replicated(mesh)))
        # Whole on every device, so that each process can read all rollouts to its host.
        self.replicate = Program(jax.jit(lambda rollouts: rollouts, out_shardings=replicated(mesh)))

    def compile(self) -> None:
        """Compiles the programs from shapes alone; a second call does nothing."""
        scalar = shape_on(replicated(self.mesh))
        self.make_key.compile(scalar, scalar, scalar)
        rollouts = self.graded_sampler.compile(
            shapes_with_shardings(self.decoder.shapes(), self.decoder.shardings(self.mesh))
        )
        if multiprocess.is_multiprocess():
            self.replicate.compile(rollouts)

    def publish(self, params: Params, update: int) -> None:
        """Give these parameters, those after `update` updates, to a server that samples; isojax's
        own sampler gets them with each call of `evaluate`."""
        self.graded_sampler.engine.publish(params, update)

    def evaluate(
        self,
        params: Params,
        problem_set: TokenizedProblems,
        seed: int,
        evaluation: int,
        repeats: int = 1,
        random_stream: int = EVAL_STREAM,
    ) -> EvalCounts:
        """The rewards of each problem's k = repeats * samples_per_problem rollouts, and what else
        was counted.

        params: all of the policy's.
        problem_set: at least one problem; any number of calls is made.
        evaluation: the index of the evaluation in the run's grid of C; 0 for labels.
        repeats: how often each problem is sampled again, with another key; at most MAX_REPEATS.
        random_stream: EVAL_STREAM, LABEL_STREAM, or EXTRA_STREAM + i.

        The draws belong to (seed, random_stream, evaluation, repeat, problem, rollout): they do not
        depend on which problems are evaluated together. Raises what the engine or the verifier has
        raised.
        """
        # One key for each repeat, which no other evaluation of the run has.
        assert repeats <= MAX_REPEATS, repeats
        stream = np.int32(seed), np.int32(random_stream)
        keys = [
            self.make_key(*stream, np.int32(evaluation * MAX_REPEATS + repeat))
            for repeat in range(repeats)
        ]

        # Calls: of as many problems as the engine takes at once, each part once for each key.
        positions = range(len(problem_set.problems))
        parts = [
            problem_set.select(positions[start : start + self.problems_per_call])
            for start in positions[:: self.problems_per_call]
        ]
        requests = []
        for part in parts:
            arrays = pad_problems(part.arrays, self.shapes)
            for key in keys:
                requests.append(SampleRequest(part.problems, arrays, self.samples_per_problem, key))
        # `host_grades` is None where a device verifies: then the calls have the rewards.
        calls, host_grades = self._sample_and_grade(params, requests)
        grades = grades_on_device(calls) if host_grades is None else host_grades

        # Each array [rollouts of all calls] as [Q, k].
        order = CallOrder([len(part.problems) for part in parts], repeats, self.samples_per_problem)
        rewards = order.by_problem(grades.rewards)
        ended = order.by_problem(np.concatenate([call.ended for call in calls]))
        parsed = order.by_problem(grades.parsed)
        scores = {name: order.by_problem(values) for name, values in grades.scores.items()}

        # The calls of a part follow each other, its first repeat first.
        calls_of_first_repeat = calls[::repeats]
        responses = [kept for call in calls_of_first_repeat for kept in call.responses]
        interruptions = sum(call.interrupted for call in calls)
        turns = sum(call.turns for call in calls)
        counts = EvalCounts(
            rewards=rewards,
            first_responses=[kept[0] for kept in responses],
            ended=int(ended.sum()),
            parsed=int(grades.parsed.sum()),
            failures=Counter(grades.failures),
            interrupted=interruptions if self._stops.interruption else None,
            turns=turns if self._stops.has_turns else None,
            graded=self.graded,
            mean_scores={name: float(np.mean(values)) for name, values in grades.scores.items()},
            empty=grades.empty,
            nonfinite=sum(call.nonfinite for call in calls),
            failed_checks=grades.failed_checks,
            replies=grades.replies,
            failed_replies=sum(grades.reply_failures.values()),
            samples=KeptRollouts(responses, rewards, parsed, ended, scores),
        )
        self.on_counts(problem_set.problems, counts)
        return counts

    def _sample_and_grade(
        self, params: Params, requests: Sequence[SampleRequest]
    ) -> tuple[list[CallSamples], Grades | None]:
        """What is kept of each request's rollouts; and the grades of all of them, in the order of
        requests and rollouts, where the host verifies (else None)."""

        # Called once for each request, in their order, as soon as its rollouts are there. `rewards`
        # are f32[S rows], or None where the host verifies.
        def summarize(
            request: SampleRequest, rollouts: Rollouts | RoutedRollouts, rewards: Any
        ) -> CallSamples:
            if multiprocess.is_multiprocess():
                rollouts = self.replicate(rollouts)
            layout = Layout(request.B_p, request.n, shards=rollouts.tokens.shape[0])
            return summarize_call(rollouts, rewards, layout)

        return self.graded_sampler.sample_and_grade(params, requests, summarize)

    def evaluate_sets(
        self, params: Params, problem_sets: dict[str, TokenizedProblems], seed: int, evaluation: int
    ) -> dict[str, EvalCounts]:
        """What was counted of each set, by its name: of the validation set, which has to come
        first, and of further sets.

        Each has its stream of draws, by its place in `problem_sets`: another order would be other
        draws. For `evaluation` see `evaluate`.
        """
        counts_by_set = {}
        for i, (name, problem_set) in enumerate(problem_sets.items()):
            random_stream = EVAL_STREAM if i == 0 else EXTRA_STREAM + i - 1
            counts_by_set[name] = self.evaluate(
                params, problem_set, seed, evaluation, random_stream=random_stream
            )
        return counts_by_set


def make_eval_key(seed: Array, random_stream: Array, evaluation: Array) -> PRNGKeyArray:
    """The key of one repeat of an evaluation. All are i32[]; `evaluation` is the number of the
    repeat, counted over all evaluations of a run (evaluation * MAX_REPEATS + repeat)."""
    stream_key = jax.random.fold_in(jax.random.key(seed), random_stream)
    return jax.random.fold_in(stream_key, evaluation)


def make_eval_point(
    target: int, cursor: RunCursor, counts_by_set: dict[str, EvalCounts], samples: int
) -> EvalPoint:
    """What the ledger records of an evaluation, and of the updates since the one before
    (`cursor.sums`).

    target: the value of the grid of C. counts_by_set: as `Evaluator.evaluate_sets` returns it, with
    the validation set. samples: rollouts of each problem.

    Where the gradient is not computed of groups without advantage, `entropy` and other metrics of
    tokens are means over the trained tokens, a share `trained_token_fraction`; they are missing
    where nothing was trained.
    """
    assert cursor.rollouts is not None, "open_cell has counted them"
    train_metrics = values(cursor.sums)
    tokens = train_metrics.pop("tokens", 0.0)
    reward_sums = {
        name: tuple(counts.reward_sums.tolist()) for name, counts in counts_by_set.items()
    }
    of_validation = reward_sums.pop(VALIDATION_SET)
    return EvalPoint(
        target=target,
        M=cursor.M,
        rollouts=cursor.rollouts,
        tokens=cursor.tokens + round(tokens),
        metrics=eval_metrics(counts_by_set),
        counts=of_validation,
        samples=samples,
        train=train_metrics,
        extra=reward_sums,
    )


def eval_metrics(counts_by_set: dict[str, EvalCounts]) -> dict[str, float]:
    """The metrics of an evaluation, such as {"avg@4": 0.41, ..., "hard/avg@4": 0.12, ...}.

    Those of the validation set have their own names, those of each extra set the set's name before
    a slash; of the panel the ledger has the sums of rewards alone. Those of the validation set come
    first, avg@k before all others.

    avg@k, best@k, worst@k: means over the problems (core/estimators.py).
    parsed_fraction: the share of rollouts with an answer in the expected form, correct or not.
    truncated: the share that no stop condition ended.
    verifier_failures: checks that the verifier did not finish; their rollouts count as wrong.
    interrupted: the share that was interrupted to answer, where the recipe does that.
    turns: the mean number of the policy's turns, in a task of turns.
    reward/NAME: the mean of each score in a graded reward.
    """
    metrics: dict[str, float] = {}
    for set_name, counts in counts_by_set.items():
        if set_name == PANEL:
            continue

        rollouts = counts.rewards.size
        set_metrics = summarize_rewards(counts.rewards, counts.reward_sums) | {
            "parsed_fraction": counts.parsed / rollouts,
            "truncated": 1 - counts.ended / rollouts,
            "verifier_failures": float(count_unfinished(counts.failures)),
        }
        set_metrics |= {f"reward/{name}": mean for name, mean in counts.mean_scores.items()}
        if counts.interrupted is not None:
            set_metrics["interrupted"] = counts.interrupted / rollouts
        if counts.turns is not None:
            set_metrics["turns"] = counts.turns / rollouts

        prefix = f"{set_name}/" if set_name else ""
        metrics |= {f"{prefix}{name}": value for name, value in set_metrics.items()}
    return metrics
