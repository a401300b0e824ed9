"""What a task's file brings along: PROMPT and VERIFIER beside its `source`, used where the config sets nothing."""

import functools

from isojax.core import registry
from isojax.core.config import CellConfig, PromptConfig
from isojax.core.errors import InputError
from isojax.core.terminal import note

_note_once = functools.cache(note)  # a run may read its task several times


def with_task_defaults(cell: CellConfig) -> CellConfig:
    """The cell with the prompt and the verifier of its task's file, but for the settings that a config or an override
    has set. InputError where the file's own are no such settings."""
    name = cell.task.partition(":")[0]
    module = registry.load(("tasks.device", "tasks.sources"), name, "build", "source")
    prompt, verifier = vars(module).get("PROMPT"), vars(module).get("VERIFIER")
    if prompt is not None and not isinstance(prompt, PromptConfig):
        raise _unusable(name, "PROMPT", prompt, 'a PromptConfig, as in PromptConfig(template="{prompt} =")')
    if verifier is not None and not isinstance(verifier, str):
        raise _unusable(name, "VERIFIER", verifier, "the text of a cell.verifier.use, such as math")

    prompt_settings = {}
    if prompt is not None:
        unset = prompt.model_fields_set - cell.prompt.model_fields_set
        prompt_settings = {key: value for key, value in vars(prompt).items() if key in unset}
    verifier_settings = {}
    if verifier is not None and "use" not in cell.verifier.model_fields_set:
        verifier_settings = {"use": verifier}

    taken = [f"cell.prompt.{key}" for key in prompt_settings] + [f"cell.verifier.{key}" for key in verifier_settings]
    if taken:
        _note_once(
            f"{', '.join(taken)}: as the file of the task {name} has it; a config or an override may set others."
        )
    return cell.with_settings(prompt=prompt_settings, verifier=verifier_settings)


def _unusable(task: str, name: str, value: object, expected: str) -> InputError:
    return InputError(f"cell.task = {task}: its file has {name} = {str(value)[:80]!r}; expected {expected}.")
