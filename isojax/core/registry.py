"""Names to modules: a file in a folder of the package is a plug-in, known by its file name; a fork passes its own
module path.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Sequence
from types import ModuleType

from isojax.core.errors import InputError


def load(folders: str | Sequence[str], name: str, *functions: str) -> ModuleType:
    """The plug-in `name`: the module of that name in one of the package's `folders`, such as "rl.losses"; or, where
    `name` has a dot in it, the module of that path. It must have one of `functions`. Where there is one function only,
    the path may also name a function.

    Raises:
        InputError: there is no such module, or it has no such function; the message says which of the two, and lists
        the known names.
    """
    folders = [folders] if isinstance(folders, str) else list(folders)
    is_path = "." in name.strip(".")
    paths = [name] if is_path else [f"isojax.{folder}.{name.strip('.')}" for folder in folders]
    kind = folders[-1].rpartition(".")[2]
    module = _import_first(paths, name, kind)
    if module is None and is_path and len(functions) == 1:
        module = module_with_function(name, functions[0])
    if module is not None and defines_any(module, functions):
        return module
    known_names = plugin_names(folders, functions)
    suggestions = difflib.get_close_matches(name.rpartition(".")[2], known_names, n=1)
    hint = f" Did you mean {suggestions[0]!r}?" if suggestions else ""
    raise InputError(
        f"{kind} plug-in {name!r}: {_describe_missing(module, name, kind, functions)}; expected one of"
        f" {', '.join(known_names)}, or the module path of your own, as my_fork.NAME.{hint}"
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
    return None


def _describe_missing(module: ModuleType | None, name: str, kind: str, functions: Sequence[str]) -> str:
    """What of a plug-in is missing: the module, or a function of it."""
    if module is not None:
        return f"the module {module.__name__} has no function {' or '.join(functions)}"
    parent, _, last_part = name.rpartition(".")
    if parent.strip(".") and len(functions) == 1 and _import_first([parent], name, kind) is not None:
        return f"the module {parent} has no function and no submodule {last_part!r}"
    return "no such module"


def plugin_names(folders: Sequence[str], functions: tuple[str, ...]) -> list[str]:
    """The names of the package's own plug-ins in these folders."""
    names = []
    for folder in folders:
        package = importlib.import_module(f"isojax.{folder}")
        for info in pkgutil.iter_modules(package.__path__):
            if defines_any(importlib.import_module(f"{package.__name__}.{info.name}"), functions):
                names.append(info.name)
    return sorted(names)


def module_with_function(path: str, function: str) -> ModuleType | None:
    """A copy of the module that holds the function `path`, with that function under the name `function` too; None where
    there is no such function.
    """
    parent, _, function_name = path.rpartition(".")
    try:
        namespace = vars(importlib.import_module(parent))
    except ModuleNotFoundError as e:
        if e.name is None or not parent.startswith(e.name):
            raise
        return None
    if not callable(namespace.get(function_name)):
        return None
    module = ModuleType(path)
    vars(module).update(namespace | {"__name__": path, function: namespace[function_name]})
    return module


def defines_any(module: ModuleType, functions: tuple[str, ...]) -> bool:
    """Whether a module defines one of the functions (or imports one under that name)."""
    return any(callable(vars(module).get(function)) for function in functions)
