"""Labels problems by sampling a policy: the `Labeller` of tasks/difficulty_labels.py."""

from collections.abc import Sequence
from dataclasses import dataclass

from isojax.core.random_streams import LABEL_STREAM
from isojax.models.transformer import Params
from isojax.tasks.protocol import EncodedProblems
from isojax.train.evaluate import Evaluator, TokenizedProblems


@dataclass(frozen=True)
class PolicyLabeller:
    """An evaluator with the policy's parameters, a problem set and the seed of the draws."""

    evaluator: Evaluator
    params: Params
    problem_set: TokenizedProblems
    seed: int

    @property
    def problems_per_call(self) -> int:
        """How many problems are sampled at once."""
        return self.evaluator.problems_per_call

    @property
    def samples_per_problem(self) -> int:
        """How many rollouts of a problem are sampled at once."""
        return self.evaluator.samples_per_problem

    def count_correct(self, problem_indices: Sequence[int], repeats: int) -> Sequence[int]:
        """The correct rollouts of each problem."""
        rows = list(problem_indices)
        block = TokenizedProblems(
            [self.problem_set.problems[i] for i in rows], EncodedProblems(*(x[rows] for x in self.problem_set.arrays))
        )
        counts = self.evaluator.count_correct(
            self.params, block, seed=self.seed, evaluation=0, repeats=repeats, stream=LABEL_STREAM
        )
        return [int(correct) for correct in counts.correct]
