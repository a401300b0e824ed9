"""The work of a process that only samples (distributed/roles.py), beside the actors that train."""

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import jax

from isojax.core.terminal import warn
from isojax.distributed.roles import Role, TrainingFailed
from isojax.distributed.sharding import shapes_with_shardings
from isojax.launch.local.cell_devices import assign_devices, avoid_unsafe_cache
from isojax.launch.local.setup import resolve_config
from isojax.launch.planner import plan_cells
from isojax.rl.async_rl.async_rollouts import AsyncPrograms
from isojax.rl.async_rl.remote_worker import sample_jobs
from isojax.tasks.task import build_task, is_on_device
from isojax.train.programs import SweepPrograms


@contextmanager
def sampling(role: Role) -> Iterator[None]:
    """Sample in a thread while the context lasts; the context ends when training does.

    role: this process's, with links to those that train. Raises what refused the sweep, here or in
    a process that trains.
    """
    try:
        sample = prepare_sampler(role)
    except TrainingFailed as e:
        assert e.__cause__ is not None
        raise e.__cause__ from None

    thread = Thread(target=_sample_or_end, args=(sample,), name="sampler")
    thread.start()
    yield
    thread.join()


def prepare_sampler(role: Role) -> Callable[[], None]:
    """Compile the sampler; returns the function that samples until the trainers have ended.

    It waits for the config, whose sizes the processes that train have chosen. Where they ended
    before they sent one, the function does nothing. TrainingFailed where they refused the sweep.
    """
    message = role.next_message("sweep")
    if message is None:
        return lambda: None

    (config,) = message
    resolve_config(config)  # it sets the precision of products
    cells = plan_cells(config.sweep)
    pairs = sorted({pair for cell in cells for pair in cell.pairs})
    cell_devices = assign_devices(config, len(cells))
    avoid_unsafe_cache(cell_devices)
    # Several processes work on one cell at a time, with one set of meshes.
    (meshes,) = cell_devices.meshes()
    task = build_task(config.cell, config.run.verifier_workers)

    programs = SweepPrograms(
        config.cell, config.sweep, pairs, meshes.training, task, meshes.sampler, role
    )
    assert isinstance(programs.rollout_programs, AsyncPrograms)
    sampler = programs.rollout_programs.sampler
    decoder = programs.decoder
    # Shapes and shardings of the policy's parameters, as the processes that train send them.
    params = shapes_with_shardings(
        jax.eval_shape(decoder.cast_params, decoder.shapes()), sampler.param_shardings
    )
    sampler.compile(params)
    # is_graded: the processes that train grade responses, as a text task's verifier is there.
    return lambda: sample_jobs(sampler, role, params, is_graded=not is_on_device(task))


def _sample_or_end(sample: Callable[[], None]) -> None:
    """Call `sample`; an error of it ends this process.

    The driver then ends the whole group, as the processes that train would wait forever.
    """
    try:
        sample()
    except TrainingFailed:
        return  # they say why
    except Exception as e:
        traceback.print_exc()
        warn(f"sampling has failed ({type(e).__name__}: {e}); this process ends")
        # Ray ends a regular exit of an actor only from a method of it, and none runs here: `open`
        # has returned, and an error in a thread ends that thread alone. The driver, which sees
        # that the process is gone, kills the group and starts the cell again.
        os._exit(1)
