"""isojax's own sampler, on the devices that train."""

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from isojax.distributed.sharding import ROLLOUT_AXES, Program, replicated, shape_on
from isojax.models.transformer import Params
from isojax.rl.engines import EngineSetup, Listener, RolloutEngine, SampleRequest, rollout_engine
from isojax.sampling.batch import Rollouts, RoutedRollouts, problem_shapes
from isojax.sampling.engine import build_sampler
from isojax.sampling.stream import Stream, build_stream
from isojax.tasks.task import is_on_device


class StreamEngine(RolloutEngine):
    """Of tasks that the host verifies: chunk by chunk, so that responses are graded while others
    are sampled."""

    def __init__(self, setup: EngineSetup) -> None:
        self.setup = setup
        self.stream: Stream = build_stream(
            setup.decoder,
            setup.shapes,
            setup.mesh,
            setup.sampling,
            setup.task.stops,
            setup.records_experts,
        )

    def compile(self, params: Params) -> Rollouts | RoutedRollouts:
        shapes, mesh = self.setup.shapes, self.setup.mesh
        return self.stream.compile(params, problem_shapes(shapes, mesh, shapes.problem_rows, 0))

    def sample(
        self, params: Params, request: SampleRequest, listener: Listener | None
    ) -> Rollouts | RoutedRollouts:
        """Sample a request; the listener, which must be there, gets responses as they finish."""
        assert listener is not None, "the host verifies"
        return self.stream.run(
            params,
            request.arrays,
            request.B_p,
            request.n,
            request.key,
            listener.on_finished,
            listener.reply,
        )

    def main_programs(self, params: Params) -> dict[str, tuple[Program, tuple[Any, ...]]]:
        shapes, mesh = self.setup.shapes, self.setup.mesh
        problems = problem_shapes(shapes, mesh, shapes.problem_rows, 0)
        return {
            "weights": (self.stream.prepare_weights.program, (params,)),
            "decode": (self.stream.advance_chunk, self.stream.advance_shapes(params, problems)),
        }


class DeviceEngine(RolloutEngine):
    """Of tasks that are verified on device: all chunks in one program."""

    def __init__(self, setup: EngineSetup) -> None:
        """Build the sampler's one program. setup: of a task that is verified on device."""
        self.setup = setup
        sample = build_sampler(
            setup.decoder,
            setup.shapes,
            setup.mesh,
            setup.sampling,
            setup.task.stops,
            setup.records_experts,
        )
        of_params = setup.decoder.shardings(setup.mesh)
        by_row = NamedSharding(setup.mesh, PartitionSpec(ROLLOUT_AXES))
        # (params, problems, B_p, n, key) -> rollouts; None: in the shardings that they come in
        self.program = Program(
            jax.jit(sample, in_shardings=(of_params, None, None, None, None), out_shardings=by_row)
        )

    def compile(self, params: Params) -> Rollouts | RoutedRollouts:
        shapes, mesh = self.setup.shapes, self.setup.mesh
        problems = problem_shapes(shapes, mesh, shapes.problem_rows, shapes.response_length)
        scalar = shape_on(replicated(mesh))
        key_type = jax.eval_shape(lambda: jax.random.key(0)).dtype
        key = shape_on(replicated(mesh), (), key_type)
        return self.program.compile(params, problems, scalar, scalar, key)

    def sample(self, params: Params, request: SampleRequest, listener: Listener | None) -> Any:
        return self.program(
            params, request.arrays, np.int32(request.B_p), np.int32(request.n), request.key
        )


@rollout_engine
def local_engine(setup: EngineSetup) -> RolloutEngine:
    return DeviceEngine(setup) if is_on_device(setup.task) else StreamEngine(setup)
