"""The files of a user's code that plug-ins need: what they import, and files that their texts name.

Code is read, never run.
"""

import ast
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NamedTuple

from isojax.core.errors import InputError
from isojax.core.user_code import is_library_file

# A file that a text of the code names, and that is larger, stays: the text may mean another one.
MAX_NAMED_BYTES = 64 * 2**20
# Names of files that may hold a secret: such a file goes along where a setting names it alone.
SECRETS = (".*", "*.pem", "*.key", "*.p12", "*.pfx", "id_*", "*credential*", "*secret*")
SYSTEM_FOLDERS = ("/dev/", "/etc/", "/proc/", "/sys/", "/usr/")


class ImportedName(NamedTuple):
    """A module that code imports."""

    name: str  # such as "my_pkg.scores"
    line: int
    is_needed: bool  # the file cannot be imported without it


class NamedInCode(NamedTuple):
    """A text of the code."""

    text: str
    line: int


@dataclass
class CodeFiles:
    """The files of the code that `add_script` and `add_module` are called with, and of what it
    needs.

    All scripts' folders should be added by `add_folder` before: they may import one another's
    files.
    """

    # Where modules are looked up, as in a process that runs the plug-ins; "" is the working folder.
    search_path: list[str] = field(default_factory=lambda: [*sys.path])
    # Each file, as it is reached (a link is not followed), and why it is needed.
    reasons: dict[Path, str] = field(default_factory=dict)
    # The folders in which the first part of a module's dotted name was found.
    import_folders: dict[str, None] = field(default_factory=dict)
    other_modules: dict[str, None] = field(default_factory=dict)  # of packages that pip installs
    # What stays, though the code names it: a sentence for each.
    notes: dict[str, None] = field(default_factory=dict)

    def add_folder(self, folder: Path) -> None:
        """Let code import from a folder, as the file of a plug-in may import from its own."""
        if str(folder) not in self.search_path:
            self.search_path.append(str(folder))

    def add_script(self, file: Path, reason: str) -> None:
        """Add a file that is run by its path, and what it needs; InputError as of `_read_code`."""
        self.add_folder(file.resolve().parent)
        self._add(file, reason)

    def add_module(self, name: str, reason: str) -> None:
        """Add the module of a dotted name, or that which has a function of this name.

        reason: the setting that names it. InputError where it is not there.
        """
        parent = name.rpartition(".")[0] or name
        is_there = self._add_import(parent, reason)
        if not is_there and not self._add_import(name, reason):
            raise InputError(
                where=reason,
                found=f"no module or function {name}",
                expected=f"one that can be imported in {Path.cwd()}",
                fix="Correct its name, or install its package.",
            )

    def requirements(self) -> list[str]:
        """What pip must install for the code, besides isojax: ["sympy==1.14.0"]."""
        if not self.other_modules:
            return []
        distributions = importlib.metadata.packages_distributions()
        of_isojax = _distributions_of_isojax()
        names = {name for module in self.other_modules for name in distributions.get(module, ())}
        return sorted(
            f"{name}=={importlib.metadata.version(name)}"
            for name in names
            if _normal_name(name) not in of_isojax
        )

    def _add(self, file: Path, reason: str) -> None:
        """Add a file, and what it needs where it is Python."""
        if file in self.reasons:
            return
        self.reasons[file] = reason
        if file.suffix == ".py":
            self._read_code(file)

    def _read_code(self, file: Path) -> None:
        """Add what a file of Python needs; InputError where it cannot be read, or imports a module
        that is not there."""
        shown = os.path.relpath(file)
        try:
            tree = ast.parse(file.read_bytes(), filename=str(file))
        except (SyntaxError, ValueError, OSError) as e:
            line = f", line {e.lineno}" if isinstance(e, SyntaxError) else ""
            reason = e.msg if isinstance(e, SyntaxError) else e
            raise InputError(
                where=f"{shown}{line}",
                found=f"cannot be read as Python ({reason})",
                fix="Correct it, as the hosts would refuse it too.",
            ) from e

        for imported in _imports(tree, is_needed=True):
            is_there = self._add_import(imported.name, f"imported by {shown}:{imported.line}")
            if imported.is_needed and not is_there:
                raise InputError(
                    where=f"{shown}, line {imported.line}",
                    found=f"imports {imported.name}, which is not there",
                    expected="a file of yours, or an installed package",
                    fix="Correct the name, or install its package.",
                )
        for named in _texts(tree):
            self._add_named(named, file)

    def _add_import(self, name: str, reason: str) -> bool:
        """Add the files of a module: itself, or all Python files of the first part of its name.
        Whether it is there; that of a package of others is not looked for."""
        first = name.partition(".")[0]
        if first == "isojax":
            return True
        spec = self._find(first)
        if spec is None:
            return first in sys.stdlib_module_names

        folders = [Path(folder).absolute() for folder in spec.submodule_search_locations or ()]
        place = str(folders[0] / "x") if folders else str(spec.origin)
        if first in sys.stdlib_module_names and is_library_file(place):
            return True
        if is_library_file(place):
            self.other_modules[first] = None
            return True

        if folders:
            for folder in folders:
                self.import_folders[str(folder.parent)] = None
                for file in _python_files(folder):
                    self._add(file, reason)
        else:
            file = Path(str(spec.origin)).absolute()
            self.import_folders[str(file.parent)] = None
            self._add(file, reason)
        return self._is_module(name)

    def _find(self, first: str) -> ModuleSpec | None:
        """Where a module without dots in its name is, without importing it; None: nowhere."""
        spec = PathFinder.find_spec(first, self.search_path)
        if spec is not None or first in sys.stdlib_module_names:
            return spec
        try:
            return importlib.util.find_spec(first)  # by what pip install -e adds to Python
        except (ImportError, ValueError):
            return None

    def _is_module(self, name: str) -> bool:
        """Whether a module such as "my_pkg.scores" is there; none is imported."""
        first, *parts = name.split(".")
        spec = self._find(first)
        for part in parts:
            if spec is None:
                return False
            spec = PathFinder.find_spec(part, list(spec.submodule_search_locations or ()))
        return spec is not None

    def _add_named(self, named: NamedInCode, file: Path) -> None:
        """Add the files that a text of the code in `file` names, from its folder or the working
        folder on, such as "words.txt" or "function:scores.py:score"."""
        shown = f"{os.path.relpath(file)}:{named.line}"
        for piece in dict.fromkeys([named.text, *named.text.split(":")]):
            if not 0 < len(piece) <= 255 or "\n" in piece:
                continue
            for folder in (Path.cwd(), file.parent):
                path = Path(os.path.abspath(folder / piece))
                if not os.path.isfile(path) or path in self.reasons:
                    continue
                if os.path.isabs(piece):
                    if not piece.startswith(SYSTEM_FOLDERS):
                        reason = "the path is one of this machine"
                        self.notes[f"{shown} names {piece}, which stays here: {reason}"] = None
                    break
                self._add_named_file(path, shown, _may_be_secret(piece))

    def _add_named_file(self, path: Path, shown: str, may_be_secret: bool) -> None:
        """Add a file that code names at the place `shown`, unless it may be a secret or is huge."""
        named_by = f"{os.path.relpath(path)}, which {shown} names"
        if may_be_secret or path.stat().st_size > MAX_NAMED_BYTES:
            limit = f"{MAX_NAMED_BYTES // 2**20} MiB"
            reason = "it may hold a secret" if may_be_secret else f"it has over {limit}"
            self.notes[f"{named_by}, stays here: {reason} (run.files sends it)"] = None
        elif path.suffix == ".py":
            try:
                self.add_script(path, f"named by {shown}")
            except InputError as e:  # It may be another file than the one that is meant.
                self.notes[f"{named_by}: {e}"] = None
        else:
            self._add(path, f"named by {shown}")


def _may_be_secret(path: str) -> bool:
    """Whether the name of a file, or of one of the folders before it, is one of SECRETS."""
    names = [name for name in Path(path).parts if name != ".."]
    return any(fnmatch(name, pattern) for name in names for pattern in SECRETS)


def _imports(tree: ast.AST, is_needed: bool) -> Iterator[ImportedName]:
    """What code imports. Within functions, `try`, `if` and `with` it may do without."""
    optional = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Try, ast.If, ast.With)
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield ImportedName(alias.name, node.lineno, is_needed)
        # One that begins with a dot is within a package, all of which is added.
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield ImportedName(node.module, node.lineno, is_needed)
        elif isinstance(node, ast.Call) and _is_import_call(node):
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield ImportedName(argument.value.lstrip("."), node.lineno, is_needed=False)
        yield from _imports(node, is_needed and not isinstance(node, optional))


def _is_import_call(call: ast.Call) -> bool:
    """Whether it is importlib.import_module(...) or __import__(...)."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if isinstance(call.func, ast.Name):
        name = call.func.id
    return name in ("import_module", "__import__")


def _texts(tree: ast.AST) -> Iterator[NamedInCode]:
    """The texts of the code, but docstrings."""
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.Constant) or isinstance(node, ast.Expr):
                continue  # no constant, or a docstring
            if isinstance(child.value, str):
                yield NamedInCode(child.value, child.lineno)


def _python_files(folder: Path) -> list[Path]:
    """The Python files of a package, but those of hidden folders and of virtual environments."""
    files: list[Path] = []
    for parent, folder_names, file_names in os.walk(folder):
        folder_names[:] = [
            name
            for name in sorted(folder_names)
            if not name.startswith((".", "__pycache__"))
            and not Path(parent, name, "pyvenv.cfg").is_file()
        ]
        files += [Path(parent, name) for name in sorted(file_names) if name.endswith(".py")]
    return files


def _distributions_of_isojax() -> set[str]:
    """The packages that isojax without extras installs, by their normal names."""
    known: set[str] = set()
    waiting = ["isojax"]
    while waiting:
        name = _normal_name(waiting.pop())
        if name in known:
            continue
        known.add(name)

        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            # A requirement of another platform, or an isojax that runs from its checkout alone.
            continue

        # Names alone: versions and conditions follow them. Extras are not installed on hosts.
        for requirement in requirements:
            match = re.match(r"[\w.-]+", requirement)
            if match and "extra ==" not in requirement:
                waiting.append(match[0])
    return known


def _normal_name(distribution: str) -> str:
    """As package indexes compare names: "Foo.Bar_baz" is "foo-bar-baz"."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
