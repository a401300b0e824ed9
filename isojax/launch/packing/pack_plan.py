"""What a config refers to, collected: the files that go to the hosts, and the config for them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from isojax.core import registry
from isojax.core.config import Config
from isojax.core.config.marks import HostPath, NamedText, with_changed_texts
from isojax.core.errors import InputError
from isojax.launch.packing.code_files import CodeFiles
from isojax.launch.packing.named_files import NamedFiles
from isojax.runs.mirror import is_url

MAX_BYTES = 2 * 2**30  # of a pack's files
# Of what a setting names where hosts may see this machine's disks: more stays where it is.
MAX_SHARED_BYTES = 100 * 2**20


class PackedFile(NamedTuple):
    """A file that goes along."""

    path: Path  # here, absolute; a link is kept as one
    reason: str  # the setting that names it, or what imports it
    size: int  # bytes


@dataclass(frozen=True)
class PackPlan:
    """What goes to the hosts, and what does not."""

    config: Config  # for a process that works in the packed working folder
    folder: Path  # the working folder here
    files: tuple[PackedFile, ...]
    in_place: tuple[Path, ...]  # what a relative path names, and hosts have at its absolute path
    on_hosts: dict[str, str]  # path of the hosts -> the setting that names it
    requirements: tuple[str, ...]  # packages that the code needs: "sympy==1.14.0"
    notes: tuple[str, ...]  # what stays, though the code names it

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def summary(self) -> str:
        """How much goes along, in words."""
        return f"{len(self.files)} files, {format_bytes(self.size)}"


def plan_pack(config: Config, is_shared: bool = False) -> PackPlan:
    """Collect what a config refers to: plug-ins and what they import, problems, models, files.

    Paths begin in the working folder, and plug-ins are looked up where the process does
    (`registry.plugin_folders`). is_shared: whether hosts may see this machine's disks: then
    absolute paths stay as they are, as does what is too large to be sent.

    InputError, with the setting or the line, where something is not there, or all is too large.
    """
    run = config.run
    for folder in run.host_folders:
        if not os.path.isabs(folder):
            raise InputError(
                where="run.host_folders",
                found=f"given {folder}",
                expected="absolute paths of the hosts, such as /mnt/models",
            )
    run_folders = [run.dir] if os.path.isabs(run.dir) else []
    named = NamedFiles(run.host_folders, run_folders, is_shared)
    packed_config = named.read(config)

    reasons: dict[Path, str] = {}
    in_place: list[Path] = []
    for item in named.paths:
        if is_shared and item.size > MAX_SHARED_BYTES:
            # Of a pattern, which is no path, each of its files.
            in_place += [item.path] if item.path.exists() else item.files
        elif not item.files:  # on the hosts
            in_place.append(item.path)
        else:
            reasons |= dict.fromkeys(item.files, item.setting)

    code = _read_code(named)
    reasons = code.reasons | reasons
    files = tuple(
        PackedFile(path, reason, path.stat().st_size) for path, reason in sorted(reasons.items())
    )
    _check_size(files)
    folders = _plugin_folders(code)
    return PackPlan(
        config=packed_config.with_settings(run={"plugin_folders": folders}),
        folder=Path.cwd(),
        files=files,
        in_place=tuple(in_place),
        on_hosts=named.on_hosts,
        requirements=tuple(code.requirements()),
        notes=tuple(code.notes),
    )


def with_host_paths_in(config: Config, folder: str) -> Config:
    """The config with what is written on this machine, as in run.dir, beginning in a folder."""

    def begin_in_folder(named: NamedText) -> str:
        is_path = isinstance(named.mark, HostPath) and not is_url(named.text)
        return os.path.join(folder, named.text) if is_path else named.text

    return with_changed_texts(config, begin_in_folder)


def with_plugin_folders_here(config: Config) -> Config:
    """The config of a pack with the folders of plug-ins beginning in the working folder, by
    absolute paths, which processes in any folder find."""
    folders = tuple(map(os.path.abspath, config.run.plugin_folders))
    return config.with_settings(run={"plugin_folders": folders})


def _read_code(named: NamedFiles) -> CodeFiles:
    """The files of the code that settings name, and of what it needs."""
    code = CodeFiles()
    scripts = [one for one in named.code if isinstance(one.file_or_module, Path)]
    for folder in registry.plugin_folders():
        code.add_folder(Path(folder))
    for script in scripts:
        code.add_folder(Path(script.file_or_module).resolve().parent)

    for one in named.code:
        if isinstance(one.file_or_module, Path):
            code.add_script(one.file_or_module, one.setting)
        else:
            code.add_module(one.file_or_module, one.setting)
    return code


def _plugin_folders(code: CodeFiles) -> tuple[str, ...]:
    """The folders of plug-ins that hold some of the code, from the working folder on, and those
    that its imports begin in."""
    own = [os.path.abspath(folder) for folder in registry.plugin_folders()]
    with_code = [
        folder for folder in own if any(file.is_relative_to(folder) for file in code.reasons)
    ]
    folders = dict.fromkeys([*with_code, *code.import_folders])
    return tuple(os.path.relpath(folder) for folder in folders)


def _check_size(files: tuple[PackedFile, ...]) -> None:
    """InputError where all files have more than MAX_BYTES."""
    total = sum(file.size for file in files)
    if total <= MAX_BYTES:
        return
    largest = max(files, key=lambda file: file.size)
    raise InputError(
        where=largest.reason,
        found=f"the files of this sweep have {format_bytes(total)}, and the largest, "
        f"{os.path.relpath(largest.path)}, {format_bytes(largest.size)}",
        expected=f"at most {format_bytes(MAX_BYTES)} that go to each host",
        fix="Copy what is large to a disk that all hosts see, write its path there, such as "
        "/mnt/models/NAME, and add run.host_folders=[/mnt/models]",
    )


def format_bytes(size: int) -> str:
    """1234 -> "1.2 KiB"."""
    number = float(size)
    for unit in ("B", "KiB", "MiB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} GiB"
