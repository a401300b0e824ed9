"""A process that only samples: the sweep and its requests come from the processes that train (rl/async_rl)."""

import threading

import jax

from isojax.core import preemption
from isojax.distributed.roles import PREEMPTED, Role
from isojax.distributed.sharding import shapes_with_shardings
from isojax.launch.local.setup import assign_devices, resolve_config
from isojax.launch.planner import plan_cells
from isojax.rl.async_rl.async_rollouts import AsyncPrograms
from isojax.rl.async_rl.remote_worker import sample_jobs
from isojax.tasks.task import build_task, is_on_device
from isojax.train.programs import SweepPrograms


def sample_for_trainers(role: Role, dry_run: bool) -> None:
    """Samples until the processes that train have ended; raises the error by which they did. A SIGTERM is passed on to
    them: they save their state, and end the run."""
    with preemption.handle_sigterm():
        threading.Thread(target=_pass_preemption_on, args=(role,), daemon=True).start()
        if (message := role.next_message("sweep")) is None:
            return
        (config,) = message
        resolve_config(config)  # it sets the precision of products
        cells = plan_cells(config.sweep)
        pairs = sorted({pair for cell in cells for pair in cell.pairs})
        ((mesh, sampler_mesh),) = assign_devices(config, len(cells)).meshes()
        task = build_task(config.cell, config.run.verifier_workers)
        programs = SweepPrograms(config.cell, config.sweep, pairs, mesh, task, sampler_mesh, role)
        assert isinstance(programs.rollout_programs, AsyncPrograms)
        sampler, decoder = programs.rollout_programs.sampler, programs.decoder
        sent = jax.eval_shape(decoder.cast_params, decoder.shapes())
        params = shapes_with_shardings(sent, sampler.param_shardings)
        if not dry_run:
            sampler.compile(params)
        sample_jobs(sampler, role, params, not is_on_device(task))


def _pass_preemption_on(role: Role) -> None:
    preemption.REQUESTED.wait()
    for link in role.peers.values():
        link.send(PREEMPTED)
