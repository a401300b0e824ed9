"""Plug-ins: a file's name, looked up in the package, the config's folder and the working directory, or a module."""

import difflib
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from isojax.core.errors import InputError
from isojax.core.user_code import describe_exception, note_plugin_file, own_frames

FOLDERS_VARIABLE = "ISOJAX_PLUGIN_FOLDERS"  # the processes that this one starts inherit it


def set_plugin_folders(folders: Sequence[str]) -> None:
    """Look files of plug-ins up in these folders, before the working directory, here and in processes started here."""
    os.environ[FOLDERS_VARIABLE] = os.pathsep.join(folders)
    sys.path.extend(folder for folder in folders if folder not in sys.path)


def plugin_folders() -> list[str]:
    """The folders in which a file of a plug-in is looked up, in their order."""
    return list(dict.fromkeys([*filter(None, os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep)), os.getcwd()]))


def import_file(path: Path) -> ModuleType:
    """The module of a file, whose folder it may import from, as a script may."""
    sys.path.append(str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # a name that ends in .py has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickles of the file look it up by name
    spec.loader.exec_module(module)
    return module


_import_file_once = cache(import_file)


def load(folders: str | Sequence[str], name: str, *functions: str) -> ModuleType:
    """The plug-in `name`: the module of that name in one of `folders`, such as "rl.losses", or that of a dotted path,
    which may also name a function where `functions` has only one; InputError lists the known names."""
    folders = [folders] if isinstance(folders, str) else list(folders)
    kind = folders[-1].rpartition(".")[2]
    parent, _, last_part = name.strip(".").rpartition(".")
    files = [] if parent else [Path(folder, f"{last_part}.py") for folder in plugin_folders()]
    package_paths = [f"isojax.{folder}.{last_part}" for folder in folders]
    paths = [name] if parent else [*package_paths, *(file for file in files if os.path.isfile(file))]
    if not re.fullmatch(r"[\w-]+(\.[\w-]+)*", name):  # `..` of a path would lead out of the folders
        paths, parent, files = [], "", []
    module, missing = import_first(paths, f"{kind} plug-in {name!r}"), "no such module"
    if module is not None:
        if defines_any(module, functions):
            return module
        missing = f"the module {module.__name__} has no function {' or '.join(functions)}"
    elif (
        parent
        and len(functions) == 1
        and (parent_module := import_first([parent], f"{kind} plug-in {name!r}")) is not None
    ):
        if callable(vars(parent_module).get(last_part)):
            # A copy of the module in which the function has the name that the plug-in needs, too.
            plugin = ModuleType(name)
            vars(plugin).update(vars(parent_module) | {"__name__": name, functions[0]: vars(parent_module)[last_part]})
            return plugin
        missing = f"the module {parent} has no function and no submodule {last_part!r}"
    known_names = plugin_names(folders, functions)
    own_names = [file.stem for folder in plugin_folders() for file in Path(folder).glob("*.py")]
    suggestions = difflib.get_close_matches(name, {*own_names, *known_names} - {name}, n=1)  # for a name without a dot
    hint = f" Did you mean {suggestions[0]!r}?" if suggestions else ""
    looked_up = f", a file of your own ({', '.join(map(str, files))})" if files else ""
    expected = f"expected one of {', '.join(known_names)}{looked_up}, or the module path of your own, as my_fork.NAME"
    raise InputError(f"{kind} plug-in {name!r}: {missing}; {expected}.{hint}")


def require_constant(module: ModuleType, name: str) -> None:
    """InputError where a plug-in lacks a constant that it needs."""
    if not hasattr(module, name):
        raise InputError(f"the plug-in {module.__name__} defines no {name}, which it needs (docs/extending.md).")


def import_first(paths: Sequence[str | Path], label: str) -> ModuleType | None:
    """The first of the modules that exists; InputError where one exists and cannot be imported. `label`: what an error
    calls the plug-in that is looked for."""
    for path in paths:
        try:
            module = _import_file_once(path) if isinstance(path, Path) else importlib.import_module(path)
            if not module.__name__.startswith("isojax."):
                note_plugin_file(str(module.__file__))
            return module
        except ModuleNotFoundError as e:
            if e.name is None or not str(path).startswith(e.name):
                raise InputError(f"{label} needs the module {e.name}, which is not there.") from e
        except InputError as e:  # of a decorator, whose arguments are no traits
            frames = own_frames(e)
            place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""
            raise InputError(f"{label}: {place}{e}") from e
        except (Exception, SystemExit) as e:  # whatever the user's own module raises
            raise InputError(f"{label} cannot be imported: {describe_exception(e)}.") from e
    return None


def import_extra(extra: str, purpose: str, *modules: str) -> ModuleType:
    """The last of these modules; InputError where one cannot be imported names the extra that installs them."""
    try:
        return [__import__(module) and sys.modules[module] for module in modules][-1]
    except ImportError as e:
        raise InputError(f'{purpose} needs the package {e.name}; pip install "isojax[{extra}]".') from e
    except Exception as e:  # a package beside another version of what it needs, such as protobuf's VersionError
        problem = f"cannot be imported ({type(e).__name__}: {e})"
        raise InputError(f'{purpose}: {modules[-1]} {problem}; pip install --upgrade "isojax[{extra}]".') from e


def plugin_names(folders: Sequence[str], functions: tuple[str, ...]) -> list[str]:
    """The names of the package's own plug-ins in these folders."""
    paths = [f"isojax.{folder}.{name}" for folder in folders for name in file_names([folder])]
    return sorted(p.rpartition(".")[2] for p in paths if defines_any(importlib.import_module(p), functions))


def file_names(folders: Sequence[str]) -> list[str]:
    """The names of the files in these folders, of which none is imported."""
    specs = [importlib.util.find_spec(f"isojax.{folder}") for folder in folders]
    paths = [path for spec in specs if spec is not None for path in spec.submodule_search_locations or ()]
    return sorted(info.name for info in pkgutil.iter_modules(paths))


def defines_any(module: ModuleType, functions: tuple[str, ...]) -> bool:
    """Whether a module defines one of the functions (or imports one under that name)."""
    return any(callable(vars(module).get(function)) for function in functions)
