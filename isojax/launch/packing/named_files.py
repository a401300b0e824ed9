"""What the settings of a config name: files and folders here, code, and what the hosts have.

A setting's mark says what its text names (core/config/marks.py).
"""

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isojax.core import registry
from isojax.core.argument_path import ArgumentPath
from isojax.core.config import Config
from isojax.core.config.marks import (
    NamedText,
    PathName,
    PluginName,
    with_changed_texts,
)
from isojax.core.errors import InputError
from isojax.runs.mirror import is_url
from isojax.tasks.sources import source
from isojax.tasks.verifiers import verifier

KINDS_WITH_ARGUMENTS = (source, verifier)


@dataclass(frozen=True)
class NamedPath:
    """A file or folder that a setting names."""

    setting: str
    path: Path  # absolute, without following links
    files: tuple[Path, ...]  # which of it are read: the file itself, or files of the folder

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.stat().st_size for file in self.files)


@dataclass(frozen=True)
class NamedCode:
    """A file of Python, or the dotted name of a module, that a setting names."""

    setting: str
    file_or_module: Path | str


@dataclass
class NamedFiles:
    """What the settings of a config name, once `read` was called."""

    # Folders of the hosts: what is named in them is not looked at. In the second ones that is what
    # absolute paths name: run.dir may be around the working folder.
    host_folders: Sequence[str]
    run_folders: Sequence[str]
    # Whether hosts may see this machine's disks: absolute paths then stay as they are.
    is_shared: bool
    paths: list[NamedPath] = field(default_factory=list)
    code: list[NamedCode] = field(default_factory=list)
    on_hosts: dict[str, str] = field(default_factory=dict)  # path -> the setting that names it

    def read(self, config: Config) -> Config:
        """Collect what a config names. Returns the config as it is for hosts that have all this
        from the working folder on: absolute paths that are sent have become relative ones.

        InputError, with the setting, where something is not there.
        """
        return with_changed_texts(config, self._resolve)

    def _resolve(self, named: NamedText) -> str:
        """Collect what a text names, and return the text for the hosts."""
        if isinstance(named.mark, PathName):
            return self._resolve_path(named.setting, named.text, named.mark.inside)
        if isinstance(named.mark, PluginName):
            return self._resolve_plugin(named.setting, named.text, named.mark.folders)
        return named.text

    def _resolve_path(self, setting: str, text: str, inside: Sequence[str]) -> str:
        """Collect the files of a path, and return the path for the hosts.

        inside: which files of a folder, as patterns from it on.
        """
        if is_url(text):
            return text
        written = os.path.expanduser(text)
        path = Path(os.path.abspath(written))
        is_absolute = os.path.isabs(written)
        if self._is_on_hosts(path, is_absolute):
            self.on_hosts[str(path)] = setting
            if not is_absolute:  # The hosts have it below another path.
                self.paths.append(NamedPath(setting, path, ()))
            return text

        files = _files_of(path, inside)
        if not files:
            raise _missing(setting, text, path)
        self.paths.append(NamedPath(setting, path, tuple(files)))
        return os.path.relpath(path) if is_absolute else text

    def _is_on_hosts(self, path: Path, is_absolute: bool) -> bool:
        if is_absolute and self.is_shared:
            return True
        folders = [*self.host_folders, *(self.run_folders if is_absolute else ())]
        places = (path, Path(os.path.realpath(path)))
        return any(place.is_relative_to(folder) for place in places for folder in folders)

    def _resolve_plugin(self, setting: str, text: str, folders: Sequence[str]) -> str:
        """Collect the file of a user's plug-in, and what the argument behind its name refers to.

        folders: of isojax's own plug-ins of this setting.
        """
        name, colon, argument = text.partition(":")
        if name in registry.file_names(folders):
            argument = self._resolve_argument(setting, name, argument, folders)
        else:
            self.code.append(NamedCode(setting, _plugin_file(setting, name, folders)))
            argument = self._resolve_pieces(setting, argument)
        return f"{name}{colon}{argument}"

    def _resolve_argument(
        self, setting: str, name: str, argument: str, folders: Sequence[str]
    ) -> str:
        """Collect what the argument of one of isojax's own plug-ins refers to, as the plug-in's
        trait `path` says; returns the argument for the hosts."""
        for kind in KINDS_WITH_ARGUMENTS:
            if argument and kind.folder in folders and name in kind.names():
                read_path = kind.load(name).traits.path
                named: ArgumentPath = read_path(argument) if read_path else ArgumentPath("")
                if named.is_module:
                    self.code.append(NamedCode(setting, named.text))
                elif named.text:
                    return self._resolve_in_argument(setting, argument, named)
        return argument

    def _resolve_in_argument(self, setting: str, argument: str, named: ArgumentPath) -> str:
        """`argument` with the path in it as it is for the hosts; code in it is collected, too."""
        on_host = self._resolve_path(setting, named.text, named.inside)
        path = Path(os.path.abspath(os.path.expanduser(named.text)))
        if path.suffix == ".py" and str(path) not in self.on_hosts:
            self.code.append(NamedCode(setting, path))
        return argument.replace(named.text, on_host, 1)

    def _resolve_pieces(self, setting: str, argument: str) -> str:
        """Collect what looks like a file in the argument of a user's plug-in, whose form is not
        known; returns the argument for the hosts."""
        for piece in dict.fromkeys([argument, *re.split(r"[,:;=#\s]", argument)]):
            path = os.path.expanduser(piece)
            is_folder = os.sep in piece and os.path.isdir(path)
            if os.path.isfile(path) or is_folder:
                argument = self._resolve_in_argument(setting, argument, ArgumentPath(piece))
        return argument


def _files_of(path: Path, inside: Sequence[str]) -> list[Path]:
    """A file itself; of a folder the files of these patterns, but hidden ones; the files that a
    pattern means. [] where nothing is there."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        return [Path(name) for name in sorted(glob.glob(str(path))) if os.path.isfile(name)]

    files: dict[Path, None] = {}
    for pattern in inside:
        for file in sorted(path.glob(pattern)):
            parts = file.relative_to(path).parts
            is_hidden = any(part.startswith((".", "__pycache__")) for part in parts)
            if file.is_file() and not is_hidden:
                files[file] = None
    return list(files)


def _missing(setting: str, text: str, path: Path) -> InputError:
    """The error of a setting that names nothing that is here."""
    host_folder = str(path.parent)
    on_hosts = "if the hosts have it"
    if not os.path.isabs(os.path.expanduser(text)):
        host_folder = "/mnt/data"
        on_hosts += f", write its path there, such as {host_folder}/{path.name}"
    return InputError(
        where=setting,
        found=f"given {text}, and there is no such file or folder with files (in {Path.cwd()})",
        expected="what is to go to the hosts",
        fix=f"Correct it; or, {on_hosts}, and add run.host_folders=[{host_folder}]",
    )


def _plugin_file(setting: str, name: str, folders: Sequence[str]) -> Path | str:
    """The file of a user's plug-in, or its dotted name; InputError where it can be neither."""
    if re.fullmatch(r"[\w-]+(\.[\w-]+)+", name):
        return name
    places = [Path(folder, f"{name}.py") for folder in registry.plugin_folders()]
    for file in places:
        if re.fullmatch(r"[\w-]+", name) and file.is_file():
            return file.absolute()
    own_names = ", ".join(registry.file_names(folders))
    raise InputError(
        where=setting,
        found=f"no plug-in {name!r}",
        expected=f"one of {own_names}, or a file of your own ({', '.join(map(str, places))})",
    )
