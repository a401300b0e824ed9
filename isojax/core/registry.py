"""Plug-ins: a file in a folder of the package, known by its file name, or a module path that a fork passes."""

import difflib
import importlib
import pkgutil
import re
from collections.abc import Sequence
from types import ModuleType

from isojax.core.errors import InputError


def load(folders: str | Sequence[str], name: str, *functions: str) -> ModuleType:
    """The plug-in `name`: the module of that name in one of `folders`, such as "rl.losses", or that of a dotted path,
    which may also name a function where `functions` has only one; InputError lists the known names."""
    folders = [folders] if isinstance(folders, str) else list(folders)
    kind = folders[-1].rpartition(".")[2]
    parent, _, last_part = name.strip(".").rpartition(".")
    paths = [name] if parent else [f"isojax.{folder}.{last_part}" for folder in folders]
    if not re.fullmatch(r"[\w-]+(\.[\w-]+)*", name):  # `..` of a path would lead out of the folders
        paths, parent = [], ""
    module, missing = _import_first(paths, name, kind), "no such module"
    if module is not None:
        if defines_any(module, functions):
            return module
        missing = f"the module {module.__name__} has no function {' or '.join(functions)}"
    elif parent and len(functions) == 1 and (parent_module := _import_first([parent], name, kind)) is not None:
        if callable(vars(parent_module).get(last_part)):
            # A copy of the module in which the function has the name that the plug-in needs, too.
            plugin = ModuleType(name)
            vars(plugin).update(vars(parent_module) | {"__name__": name, functions[0]: vars(parent_module)[last_part]})
            return plugin
        missing = f"the module {parent} has no function and no submodule {last_part!r}"
    known_names = plugin_names(folders, functions)
    suggestions = difflib.get_close_matches(name, known_names, n=1)  # of the package's names, for a name without a dot
    hint = f" Did you mean {suggestions[0]!r}?" if suggestions else ""
    raise InputError(
        f"{kind} plug-in {name!r}: {missing}; expected one of {', '.join(known_names)}, or the module path of your own,"
        f" as my_fork.NAME.{hint}"
    )


def _import_first(paths: Sequence[str], name: str, kind: str) -> ModuleType | None:
    """The first of the modules that exists; InputError where one exists and imports another that does not."""
    for path in paths:
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as e:
            if e.name is None or not path.startswith(e.name):
                raise InputError(
                    f"{kind} plug-in {name!r} needs the module {e.name}, which is not there; install it."
                ) from e
        except Exception as e:  # whatever the user's own module raises
            raise InputError(f"{kind} plug-in {name!r} cannot be imported: {type(e).__name__}: {e}.") from e
    return None


def plugin_names(folders: Sequence[str], functions: tuple[str, ...]) -> list[str]:
    """The names of the package's own plug-ins in these folders."""
    names = []
    for folder in folders:
        package = importlib.import_module(f"isojax.{folder}")
        for info in pkgutil.iter_modules(package.__path__):
            if defines_any(importlib.import_module(f"{package.__name__}.{info.name}"), functions):
                names.append(info.name)
    return sorted(names)


def defines_any(module: ModuleType, functions: tuple[str, ...]) -> bool:
    """Whether a module defines one of the functions (or imports one under that name)."""
    return any(callable(vars(module).get(function)) for function in functions)
