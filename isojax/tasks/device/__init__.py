"""Tasks verified inside the compiled program, one file each: `build(argument="") -> DeviceTask`
with the decorator `@device_task`, where `argument` is what follows the colon of `cell.task`."""

from isojax.core.plugins import NoTraits, PluginKind

device_task = PluginKind("device_task", "tasks.device", NoTraits)
