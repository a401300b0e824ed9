"""The compiled programs of a sweep on one mesh: every cell of the sweep runs through the same ones,
for B_p, n, seeds and coefficients are traced. Programs are compiled ahead, from shapes."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh

from isojax.core.config import CellConfig, SweepConfig
from isojax.core.config.sweep import LOCAL_ROLLOUTS, ServerConfig
from isojax.core.errors import InputError
from isojax.core.machine import release_freed_memory
from isojax.core.nouns import Problem
from isojax.core.schedule import GradientSchedule, parse_schedule
from isojax.core.shapes import SamplerShapes
from isojax.distributed.roles import Role
from isojax.distributed.sharding import replicated, shape_on, shapes_with_shardings, shard_count
from isojax.models.lora import policy_params
from isojax.models.transformer import ComputeOptions, Decoder, Params
from isojax.rl.async_rl.async_rollouts import AsyncPrograms
from isojax.rl.engines import EngineSetup, RolloutEngine, load_engine
from isojax.rl.engines.local import local_engine
from isojax.rl.experts import check_experts, records_experts
from isojax.rl.fused_rollouts import FusedPrograms, build_fused_update
from isojax.rl.inline_rollouts import InlinePrograms
from isojax.rl.objective import make_coefficients
from isojax.rl.optimizer import TrainState, build_init_state, train_state_shapes
from isojax.rl.rollout_source import CellProblems, RolloutPrograms, RolloutSource, UpdateShapes
from isojax.rl.servers.policy_server import PolicyServer
from isojax.rl.servers.server_engine import ServerEngine
from isojax.sampling.batch import problem_shapes
from isojax.tasks.protocol import TokenizedProblems
from isojax.tasks.task import Task, is_on_device, tokenize
from isojax.train.evaluate import Evaluator

# problems of a language model that are labelled in one call: labels are saved after each call, so a
# kill costs so many
LABEL_BATCH = 64
# Cells that run at the same time share programs: one compiles them, and the others wait instead of
# doing the same.
COMPILE_LOCK = threading.Lock()


@dataclass(frozen=True)
class RolloutOptions:
    """Who samples, and whether a hook reads the rollouts of training."""

    engine: str = LOCAL_ROLLOUTS  # `run.rollouts`: who samples for training, such as "server"
    has_hook: bool = False
    server: ServerConfig = field(default_factory=ServerConfig)  # `run.server`
    # the URL of the server that samples evaluations; None: isojax samples them
    eval_server: str | None = None
    run_name: str = ""  # names the folder in which servers find the run's policies

    @property
    def leave_the_program(self) -> bool:
        """Whether rollouts are made or read outside of the update's program."""
        return self.has_hook or self.engine != LOCAL_ROLLOUTS


class SweepPrograms:
    """The decoder, the programs that make rollouts and train on them, and the evaluator.

    All cells of the sweep share it, also those that run at the same time in threads. What changes
    from cell to cell (B_p, n, seed) is an argument of the programs; what fixes a shape is not.
    """

    def __init__(
        self,
        cell: CellConfig,
        sweep: SweepConfig,
        pairs: Sequence[tuple[int, int]],
        mesh: Mesh,
        task: Task,
        sampler_mesh: Mesh | None = None,
        role: Role | None = None,
        rollouts: RolloutOptions = RolloutOptions(),
    ):
        """Builds programs; nothing is compiled yet.

        cell: the settings that all cells share.
        sweep: with all sizes chosen by the planner, such as `decode_slots`; none of them is None.
        pairs: every (B_p, n) of the sweep, such as [(32, 2), (32, 4)]; buffers fit the largest.
        mesh: of the devices that train, and sample too unless `sampler_mesh` is given.
        task: may serve several meshes.
        sampler_mesh, role: where asynchronous rollouts are sampled: on another mesh of this
            process, or by other processes (rl/async_rl/async_rollouts.py); None: neither.
        rollouts: who samples for training and for evaluations, and whether a hook reads rollouts.
        """
        assert sweep.decode_slots and sweep.microbatch and sweep.prefill_batch, (
            "the planner chooses them"
        )
        self.mesh, self.task, self.cell_config = mesh, task, cell
        self.moments_on_host = sweep.moments_on_host
        self.device_count = mesh.size + (sampler_mesh.size if sampler_mesh else 0)
        self.decoder = build_decoder(cell, sweep, task.vocab, mesh.devices.flat[0].platform)
        check_experts(cell.rl, self.decoder, mesh)
        self.shapes = SamplerShapes(
            pairs,
            shard_count(mesh),
            slots=sweep.decode_slots,
            microbatch=sweep.microbatch,
            prompt_length=cell.sampling.prompt_length,
            response_length=cell.sampling.response_length,
            prefill_batch=sweep.prefill_batch,
            slots_per_prefix=sweep.slots_per_prefix or 1,
        )
        # From here on methods of the half-built object are called, so that the order matters:
        # `_open_servers` reads decoder and mesh; `_build_evaluator` these, task, shapes and
        # cell_config; `_build_rollout_programs` all of these and policy_servers.
        self.policy_servers = self._open_servers(rollouts)

        # Training.
        self.init = build_init_state(self.decoder, mesh, cell.rl.critic is not None)
        self.coefficients = make_coefficients(cell.rl)
        self.rollout_programs: RolloutPrograms
        if cell.rl.max_staleness is not None:
            self.rollout_programs = AsyncPrograms(
                cell, self.decoder, task, self.shapes, pairs, mesh, sampler_mesh, role
            )
        else:
            self.rollout_programs = self._build_rollout_programs(sweep, rollouts)

        # Evaluations and labels. A task that verifies on device is labelled by the evaluator; a
        # language model has a labeller, which prefills each prompt just once.
        build_eval_engine: Callable[[EngineSetup], RolloutEngine] = local_engine
        # by URL; None (isojax samples evaluations) is never a key
        eval_server = self.policy_servers.get(rollouts.eval_server)
        if eval_server is not None:
            build_eval_engine = partial(eval_server_engine, eval_server)
        self.evaluator = self._build_evaluator(
            cell.data.validation, cell.eval.samples, build_eval_engine
        )
        self.labeller = self.evaluator
        if not is_on_device(task):
            # attempts=0 asks for no labels, but shapes need a sample
            self.labeller = self._build_evaluator(LABEL_BATCH, max(1, cell.data.attempts))

    def _build_rollout_programs(
        self, sweep: SweepConfig, rollouts: RolloutOptions
    ) -> RolloutPrograms:
        """The programs of synchronous runs, whose rollouts are sampled with the policy that is
        trained on them: in the update's program where that is possible, else by an engine, before
        the update.

        It is possible for a task that verifies on device, if nobody else samples or reads the
        rollouts and their number is known before (no dynamic sampling).
        """
        cell, task = self.cell_config, self.task
        # A schedule by gradient needs the metrics `grad_signal` (train/growth.py) of each update.
        schedules = map(parse_schedule, sweep.schedules.values())
        measures_signal = any(isinstance(schedule, GradientSchedule) for schedule in schedules)

        stay_in_program = not (cell.rl.dynamic_sampling or rollouts.leave_the_program)
        if is_on_device(task) and stay_in_program:
            update = build_fused_update(
                cell, self.decoder, task, self.shapes, self.mesh, measures_signal
            )
            return FusedPrograms(cell.rl, self.shapes, self.mesh, update)

        setup = EngineSetup(
            self.decoder,
            task,
            self.shapes,
            self.mesh,
            cell.sampling,
            records_experts=records_experts(cell.rl, self.decoder, self.mesh),
            policy_server=self.policy_servers.get(rollouts.server.url),
        )
        build_engine = load_engine(rollouts.engine)
        return InlinePrograms(
            cell,
            self.decoder,
            task,
            self.shapes,
            self.mesh,
            build_engine(setup),
            measures_signal,
            sweep.moments_on_host,
        )

    def open_rollouts(self, problems: CellProblems) -> RolloutSource:
        """Where the rollouts of a cell come from."""
        return self.rollout_programs.open_rollouts(problems)

    def _open_servers(self, rollouts: RolloutOptions) -> dict[str | None, PolicyServer]:
        """The servers that sample, by URL; {} where isojax samples all.

        One that samples both training and evaluations is there once, and is given each policy once.
        """
        url_of_training = rollouts.server.url if rollouts.engine != LOCAL_ROLLOUTS else None
        # None stands for "no server".
        urls = filter(None, dict.fromkeys([url_of_training, rollouts.eval_server]))
        return {
            url: PolicyServer(rollouts.server, url, self.decoder, self.mesh, rollouts.run_name)
            for url in urls
        }

    def _build_evaluator(
        self,
        problems: int,
        samples: int,
        build_engine: Callable[[EngineSetup], RolloutEngine] = local_engine,
    ) -> Evaluator:
        """An evaluator whose calls have `problems` problems with `samples` rollouts each."""
        return Evaluator(
            self.decoder,
            self.task,
            self.mesh,
            problems_per_call=problems,
            samples_per_problem=samples,
            trainer_shapes=self.shapes,
            cell=self.cell_config,
            build_engine=build_engine,
        )

    def compile(self, num_problems: int) -> None:
        """Compiles all that training and evaluation run, with so many training problems; a second
        call does nothing. A labeller apart from the evaluator is compiled by its user."""
        with COMPILE_LOCK:
            self.rollout_programs.compile(self.update_shapes(num_problems))
            self.evaluator.compile()
            release_freed_memory()

    @property
    def reads_base_params(self) -> bool:
        """Whether an update reads the base policy's parameters: for the KL, or below adapters."""
        rl = self.cell_config.rl
        return rl.kl > 0 or rl.measure_kl or self.decoder.config.lora is not None

    @property
    def state_shapes(self) -> TrainState:
        return train_state_shapes(self.decoder, self.mesh, self.cell_config.rl.critic is not None)

    def update_shapes(self, num_problems: int) -> UpdateShapes:
        """The shapes and shardings of what the update reads in addition to a batch.

        `num_problems` is the number of rows of the problem table. `base_params` are {} where the
        update does not read them.
        """
        base_params: Params = {}
        if self.reads_base_params:
            base_params = shapes_with_shardings(
                self.decoder.frozen_shapes(), self.decoder.base.shardings(self.mesh)
            )
        # Answers are columns of the table only where a device compares with them.
        answer_length = self.shapes.response_length if is_on_device(self.task) else 0
        on_all = replicated(self.mesh)
        return UpdateShapes(
            state=self.state_shapes,
            base_params=base_params,
            problem_table=problem_shapes(self.shapes, self.mesh, num_problems, answer_length),
            coefficients=jax.tree.map(
                lambda x: shape_on(on_all, (), np.asarray(x).dtype), self.coefficients
            ),
        )

    def frozen_params(self, base_params: Params) -> Params:
        """The base policy's parameters as a run keeps them: in the dtype of products.

        In another dtype than float32 the given arrays are donated: do not read them any more.
        """
        if self.decoder.options.compute_dtype == "float32":
            return base_params
        return jax.jit(self.decoder.cast_params, donate_argnums=0)(base_params)

    def initial_params(self, base_params: Params) -> Params:
        """All of the policy's parameters before its first update: with LoRA, the base policy's and
        fresh adapters. Do not read `base_params` any more (`frozen_params`)."""
        if self.decoder.config.lora is None:
            return base_params
        return policy_params(self.init(base_params).params, self.frozen_params(base_params))

    def tokenize(self, problems: list[Problem]) -> TokenizedProblems:
        return tokenize(self.task, self.cell_config.sampling, problems)


def eval_server_engine(policy_server: PolicyServer, setup: EngineSetup) -> RolloutEngine:
    """An engine that samples evaluations by a server, without log-probs: nothing reads them."""
    return ServerEngine(setup, policy_server.server, policy_server=policy_server)


def build_decoder(cell: CellConfig, sweep: SweepConfig, task_vocab: int, platform: str) -> Decoder:
    """The decoder that a sweep trains, without parameters; InputError where its vocabulary is
    smaller than the task's.

    sweep: its choices that are still None become the simplest: plain attention, nothing computed
    again. task_vocab: tokens. platform: "cpu", "gpu" or "tpu", which decides the precision.
    """
    if cell.model.vocab is not None and cell.model.vocab < task_vocab:
        raise InputError(
            where="cell.model.vocab",
            found=(
                f"given {cell.model.vocab}, which is less than the {task_vocab} tokens of "
                f"{cell.task}"
            ),
            fix="Leave it out, or raise it.",
        )
    decoder = Decoder(cell.model, cell.model.vocab or task_vocab)
    precision = cell.precision.for_platform(platform)
    return decoder.with_options(
        ComputeOptions(
            compute_dtype=precision.compute,
            cache_dtype=precision.cache,
            decode_attention=sweep.decode_attention or "plain",
            forward_attention=sweep.forward_attention or "plain",
            remat=sweep.remat or "none",
            rollout_weights=precision.rollout_weights,
        )
    )
