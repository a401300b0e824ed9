"""The tasks that are verified on device, without what tasks in text need.

A plan has no responses to read.
"""

from isojax.core.config import CellConfig, VerifierConfig
from isojax.core.errors import InputError
from isojax.core.plugins import load_plugin
from isojax.tasks.device import device_task
from isojax.tasks.protocol import DeviceTask
from isojax.tasks.sources import source
from isojax.tasks.turns import check_device_reply


def build_device_task(task: str) -> DeviceTask | None:
    """The task on device that a task string names; None where it names a source of text."""
    name, _, argument = task.partition(":")
    plugin = load_plugin((device_task, source), name)
    if plugin.kind != device_task:
        return None
    return plugin(argument) if argument else plugin()


def device_task_of(cell: CellConfig) -> DeviceTask | None:
    """The task on device that cell.task names; None where it names a source of text.

    InputError for settings that only a text task has, and where the task cannot be made.
    """
    task = build_device_task(cell.task)
    if task is None:
        return None

    has_own_verifier = cell.verifier.use != VerifierConfig().use
    for key, value in (
        ("verifier.use", cell.verifier.use if has_own_verifier else None),
        ("reward.weights", cell.reward.weights),
        ("sampling.interrupt", cell.sampling.interrupt),
    ):
        if value is not None:
            raise InputError(
                where=f"cell.{key}",
                found=f"set and cell.task = {cell.task} writes no text and verifies on device",
                fix="Leave it out, or set a text task, such as jsonl:FILE.",
            )

    # 1 where the response length is not set: the check needs the shape of arrays, not this length.
    if task.stops.reply is not None:
        check_device_reply(cell.task, task.stops.reply, cell.sampling.response_length or 1)
    return task
