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

# of a call, for each that may be in flight: the last of a call leave places empty
REQUESTS_PER_PLACE = 4


class ServerLabelling:
    """As `SweepPrograms`, for labels alone."""

    def __init__(self, cell: CellConfig, mesh: Mesh, task: Task, options: ServerOptions) -> None:
        """InputError where the server cannot be used; RunFailed where it does not answer."""
        self.cell_config, self.task = cell, task
        self.decoder = Decoder(cell.model, cell.model.vocab or task.vocab)

        # A call has so many problems that its requests fill the places of the server, and no more
        # than a kill may cost.
        attempts = max(1, cell.data.attempts)
        problems_to_fill = math.ceil(REQUESTS_PER_PLACE * options.in_flight / attempts)
        problems = min(LABEL_BATCH, max(1, problems_to_fill))
        # Of these, an engine that samples elsewhere reads the sizes of the buffers alone.
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
    """`fingerprint`; empty where the folder has no weights, which only the server has."""
    return fingerprint(folder) if any(folder.glob("*.safetensors")) else ""
