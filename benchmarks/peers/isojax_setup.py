"""What isojax's two children share: the model, the prompts as its buffers, a batch that every slot
serves at once, and the mesh.
"""

from pathlib import Path

import jax
import numpy as np
from child import threads

from isojax.core.config import (
    CellConfig,
    ModelConfig,
    PrecisionConfig,
    RLConfig,
    SamplingConfig,
    SweepConfig,
)
from isojax.core.shapes import SamplerShapes
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh, shard_count
from isojax.launch import planner
from isojax.models.hf import hf_load
from isojax.models.transformer import Decoder
from isojax.sampling.batch import ProblemArrays
from isojax.tasks.protocol import StopConditions


class Setup:
    """`ids`: B_p prompts of one length; n rollouts of exactly `new` tokens each; 0 rows a
    microbatch: as many as the planner chooses; `mesh` means what it does on isojax's command line:
    data=-1 takes each core for a device, auto all of them for one."""

    def __init__(
        self, model: Path, ids: list[list[int]], n: int, new: int, mesh: str, microbatch: int = 0
    ):
        config = hf_load.resolve_model(ModelConfig(path=str(model)))
        assert config.vocab is not None
        B_p, length = len(ids), len(ids[0])
        sampling = SamplingConfig(prompt_length=length, response_length=new)
        self.cell = CellConfig(
            model=config,
            sampling=sampling,
            precision=PrecisionConfig(compute="float32", cache="float32"),
            rl=RLConfig(learning_rate=1e-6),
        )
        self.stops = StopConditions((), None)
        self.decoder: Decoder = Decoder(config)
        # as on the command line; the devices share their threads
        jax.config.update("jax_num_cpu_devices", threads())
        self.mesh = make_mesh(parse_mesh(mesh, threads()), jax.devices())
        self.params = hf_load.load(model, config, self.decoder, self.mesh)
        selected = planner.resolve_sweep_sizes(
            SweepConfig(B_p=(B_p,), n=(n,), microbatch=microbatch or None),
            shard_count(self.mesh),
            self.cell,
        )
        assert selected.decode_slots and selected.microbatch and selected.prefill_batch
        shards = shard_count(self.mesh)
        self.sampler_shapes = SamplerShapes(
            [(B_p, n)],
            shards,
            B_p * n // shards,
            selected.microbatch,
            length,
            new,
            min(4, selected.prefill_batch),
        )
        rows = self.sampler_shapes.problem_rows
        prompts = np.resize(np.array(ids, np.int32), (rows, length))
        coefficients = np.arange(rows, dtype=np.int32)
        self.problems = ProblemArrays(
            prompts, np.full(rows, length, np.int32), np.zeros((rows, 0), np.int32), coefficients
        )
