"""Labels by a server that serves the base policy (rl/servers/server_engine.py): what
`label_problems` needs, where isojax samples nothing itself. Of the model's folder, config.json and
the tokenizer's files are read."""

import math
from functools import partial
from pathlib import Path

from jax.sharding import Mesh

from isojax.core.config import CellConfig
from isojax.core.nouns import Problem
from isojax.core.shapes import SamplerShapes
from isojax.models.safetensors_io import fingerprint
from isojax.models.transformer import Decoder
from isojax.rl.engines import EngineSetup
from isojax.rl.servers.http_json import ServerOptions
from isojax.rl.servers.language_server import LanguageServer
from isojax.rl.servers.server_engine import ServerEngine
from isojax.tasks.protocol import TokenizedProblems
from isojax.tasks.task import Task, tokenize
from isojax.train.evaluate import Evaluator
from isojax.train.programs import LABEL_BATCH

# Requests of a call for each that the server works on at a time. While the last ones of a call
# finish, the places of the others are empty: the more requests, the smaller that share of the time.
REQUESTS_PER_PLACE = 4


class ServerLabelling:
    """The LabelPrograms of a server that samples: as `SweepPrograms`, for labels alone."""

    def __init__(self, cell: CellConfig, mesh: Mesh, task: Task, options: ServerOptions) -> None:
        """Makes the evaluator that asks the server (`labeller`).

        cell: its `model.path` has config.json and the tokenizer.
        options: the server's address, and how many requests it gets at a time.

        InputError where the server cannot be used; RunFailed where it does not answer.
        """
        self.cell_config, self.task = cell, task
        self.decoder = Decoder(cell.model, cell.model.vocab or task.vocab)

        # A call has so many problems that its requests, one for each rollout, fill the places of
        # the server, and no more than LABEL_BATCH, which a kill would cost.
        attempts = max(1, cell.data.attempts)
        problems_to_fill = math.ceil(REQUESTS_PER_PLACE * options.in_flight / attempts)
        problems = min(LABEL_BATCH, max(1, problems_to_fill))
        # An engine that samples elsewhere reads the sizes of the buffers alone. The sizes that are
        # 1 here are for isojax's own sampler and for training.
        shapes = SamplerShapes(
            [(problems, attempts)],
            shards=1,
            slots=1,
            microbatch=1,
            prompt_length=cell.sampling.prompt_length,
            response_length=cell.sampling.response_length,
            prefill_batch=1,
        )
        self.labeller = Evaluator(
            self.decoder,
            task,
            mesh,
            problems_per_call=problems,
            samples_per_problem=attempts,
            trainer_shapes=shapes,
            cell=cell,
            build_engine=partial(_build_engine, options),
        )

    def tokenize(self, problems: list[Problem]) -> TokenizedProblems:
        return tokenize(self.task, self.cell_config.sampling, problems)


def _build_engine(options: ServerOptions, setup: EngineSetup) -> ServerEngine:
    return ServerEngine(setup, LanguageServer(options))


def fingerprint_if_there(folder: Path) -> str:
    """`fingerprint` of a checkpoint; "" where its folder has no weights, as the server has them."""
    return fingerprint(folder) if any(folder.glob("*.safetensors")) else ""
