"""Defaults that a task's file brings along: the traits `prompt` and `verifier` of its source, used
where the config does not set them."""

import functools

from isojax.core.config import CellConfig
from isojax.core.plugins import load_plugin
from isojax.core.terminal import note
from isojax.tasks.device import device_task
from isojax.tasks.sources import source

_note_once = functools.cache(note)  # a run may read its task several times


def with_task_defaults(cell: CellConfig) -> CellConfig:
    """The cell's config with the prompt settings and the verifier of its task's file, in place of
    those that neither the config nor an override has set. Prints a note of what was set so.
    model_fields_set, of pydantic, has the fields that were given. A task on device, which has
    neither, leaves the config unchanged."""
    name = cell.task.partition(":")[0]
    plugin = load_plugin((device_task, source), name)
    if plugin.kind != source:
        return cell
    prompt = plugin.traits.prompt
    verifier = plugin.traits.verifier

    prompt_settings = {}
    if prompt is not None:
        unset = prompt.model_fields_set - cell.prompt.model_fields_set
        prompt_settings = {key: value for key, value in vars(prompt).items() if key in unset}
    verifier_settings = {}
    if verifier is not None and "use" not in cell.verifier.model_fields_set:
        verifier_settings = {"use": verifier}

    keys = [f"cell.prompt.{key}" for key in prompt_settings]
    keys += [f"cell.verifier.{key}" for key in verifier_settings]
    if keys:
        _note_once(
            f"{', '.join(keys)}: as the file of the task {name} has it; a config or an override may"
            f" set others."
        )
    return cell.with_settings(prompt=prompt_settings, verifier=verifier_settings)
