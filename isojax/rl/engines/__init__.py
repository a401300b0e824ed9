"""Rollout engines, one file each: who samples.

An engine samples, and does nothing else: which problems, when, the verifier and the update are the
same for all of them (rl/graded_sampler.py, rl/inline_rollouts.py, train/evaluate.py). A file has
one function with the decorator `@rollout_engine`, which makes an engine from an `EngineSetup`.

`run.rollouts` names the engine of training. Evaluations and labels are sampled by local.py, or by a
server (servers/server_engine.py) where `run.eval_server` or `--server` says so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from isojax.core.config import SamplingConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Cell, Problem
from isojax.core.plugins import NoTraits, Plugin, PluginKind
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import Program
from isojax.models.transformer import Decoder, Params
from isojax.rl.metric import Metrics
from isojax.rl.servers.policy_server import PolicyServer
from isojax.sampling.batch import ProblemArrays, Rollouts, RoutedRollouts, rollout_shapes
from isojax.sampling.engine import recorded_experts
from isojax.tasks.task import Task

rollout_engine = PluginKind("rollout_engine", "rl.engines", NoTraits)


@dataclass(frozen=True)
class EngineSetup:
    """What an engine is made of."""

    decoder: Decoder  # the policy, without parameters
    task: Task  # its tokenizer and stop conditions
    shapes: SamplerShapes  # of the buffers that rollouts are returned in
    mesh: Mesh
    sampling: SamplingConfig
    # whether rollouts tell the experts of all tokens (`RoutedRollouts`)
    records_experts: bool = False
    policy_server: PolicyServer | None = None  # that of `run.server`, where the config has one

    @property
    def rollout_shapes(self) -> Rollouts | RoutedRollouts:
        """ShapeDtypeStructs of a request's rollouts, split over the shards."""
        recorded = recorded_experts(self.decoder) if self.records_experts else None
        return rollout_shapes(self.shapes, self.mesh, self.sampling.top_p < 1, recorded)


@dataclass(frozen=True)
class SampleRequest:
    """n rollouts of each of the B_p `problems`."""

    problems: Sequence[Problem]
    arrays: ProblemArrays  # the same as arrays, followed by others up to `shapes.problem_rows`
    n: int
    key: PRNGKeyArray  # draws belong to (key, id of the problem, number of the rollout)

    @property
    def B_p(self) -> int:
        return len(self.problems)

    @property
    def B(self) -> int:
        """Rollouts that are asked for."""
        return self.B_p * self.n


@dataclass(frozen=True)
class Listener:
    """Who gets responses while others are sampled. Rollout r is the (r % n)-th of problem r
    // n. Of several processes, one reports each rollout."""

    # (rollouts i32[k], their tokens, each i32[its length]): these are done.
    on_finished: Callable[[np.ndarray, list[np.ndarray]], None]
    # Of a task of turns: the context that each of these gets; of no tokens where it is done.
    reply: Callable[[np.ndarray, list[np.ndarray]], list[np.ndarray]] | None = None


class RolloutEngine(Protocol):
    """Samples with the policy that it is given.

    One engine serves the runs of a sweep: isojax's own in several threads at once, any other in one
    run after the other, on one process."""

    setup: EngineSetup

    def compile(self, params: Params) -> Rollouts | RoutedRollouts:
        """Prepares for parameters of these shapes; the shapes of the rollouts, with shardings."""
        ...

    def begin_run(self, cell: Cell, update: int) -> None:
        """A run begins, or goes on after `update` updates, with the cell's B_p, n and seed.

        An engine that remembers something of rollouts forgets it here, or results would depend on
        the runs before.
        """

    def publish(self, params: Params, update: int) -> None:
        """The requests that follow are for these parameters, those after `update`: for an engine
        that samples elsewhere. It returns when they are there."""

    def sample(
        self, params: Params, request: SampleRequest, listener: Listener | None
    ) -> Rollouts | RoutedRollouts:
        """All rollouts of a request, in the rows that sampling/batch.py describes. `params`: those
        that were published last. `listener`: gets each rollout once, where the host verifies; else
        None."""
        ...

    def metrics(self) -> Metrics:
        """What the ledger is to record of the rollouts of the last request, in addition to what is
        measured of all engines."""
        return {}

    def main_programs(self, params: Params) -> dict[str, tuple[Program, tuple[Any, ...]]]:
        """The programs that take the most memory, by name, and the shapes of their arguments; none
        of an engine that samples elsewhere."""
        return {}


def load_engine(name: str) -> Plugin[..., RolloutEngine, NoTraits]:
    """What makes the engine that `run.rollouts` names; InputError where there is none."""
    try:
        return rollout_engine.load(name)
    except InputError as e:
        raise e.within("run.rollouts") from e
