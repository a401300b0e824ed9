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
        InputError: there is no such module, or it has no such function; the message lists the names there are.
    """
    folders = [folders] if isinstance(folders, str) else list(folders)
    is_path = "." in name.strip(".")
    paths = [name] if is_path else [f"isojax.{folder}.{name.strip('.')}" for folder in folders]
    kind = folders[-1].rpartition(".")[2]
    module = None
    for path in paths:
        try:
            module = importlib.import_module(path)
            break
        except ModuleNotFoundError as e:
            if e.name is None or not path.startswith(e.name):
                raise InputError(
                    f"{kind} plug-in {name!r} needs the module {e.name}, which is not there; install it."
                ) from e
    if module is None and is_path and len(functions) == 1:
        module = module_with_function(name, functions[0])
    if module is None or not defines_any(module, functions):
        known_names = plugin_names(folders, functions)
        problem = "no such module" if module is None else f"{module.__name__} has no function {' or '.join(functions)}"
        suggestions = difflib.get_close_matches(name.rpartition(".")[2], known_names, n=1)
        hint = f" Did you mean {suggestions[0]!r}?" if suggestions else ""
        expected = f"expected one of {', '.join(known_names)}, or the module path of your own, as my_fork.NAME"
        raise InputError(f"{kind} plug-in {name!r}: {problem}; {expected}.{hint}")
    return module


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
    """A module that has the function `path` as `function`, beside what else is in its own module; None where there is
    no such function.
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
