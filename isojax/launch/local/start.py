"""What every command that computes begins with: jax, the resolved config, and the task."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.machine import cores
from isojax.models.hf import hf_load
from isojax.tasks.build import build_task
from isojax.tasks.protocol import Task, is_on_device


def start_jax(config: Config) -> None:
    """Configure jax before its first use: a device for every core of a CPU (unless XLA_FLAGS says otherwise), and the
    persistent compilation cache."""
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", cores())
    if config.run.compilation_cache and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache_folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "isojax" / "xla"
        jax.config.update("jax_compilation_cache_dir", str(cache_folder))


def resolve_config(config: Config) -> Config:
    """The config with its model's shape, read from the checkpoint if it names one, and its precision on this
    backend."""
    model = hf_load.resolve_model(config.cell.model)
    hf_load.check_weights(model)
    precision = config.cell.precision.for_platform(jax.default_backend())
    if precision.compute == "float32":  # the default of accelerators has fewer bits
        jax.config.update("jax_default_matmul_precision", "highest")
    return config.model_copy(update={"cell": config.cell.model_copy(update={"model": model, "precision": precision})})


@contextmanager
def open_task(config: Config) -> Iterator[Task]:
    """The task of `cell.task`, with its verifier running; both end with the context."""
    task, model = build_task(config.cell, config.run.verifier_workers), config.cell.model
    if is_on_device(task):
        if model.path is not None and model.vocab != task.vocab:
            raise InputError(
                f"cell.task = {config.cell.task} has {task.vocab} tokens of its own, and the model in {model.path} has "
                f"{model.vocab} others; expected a task in text with cell.model.path, such as cell.task=addition or "
                "cell.task=jsonl:FILE."
            )
        yield task
        return
    try:
        task.start_verifier()
        yield task
    finally:
        task.close()
