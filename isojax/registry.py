"""Names to modules: a file in a folder of the package is a plug-in, known by its file name; a fork passes its own module path."""

import difflib
import importlib
import pkgutil
from types import ModuleType

from isojax.types import InputError


def load(folder: str, name: str, *functions: str) -> ModuleType:
    """The module `isojax.<folder>.<name>`, or, where `name` has a dot in it, the module of that path; it must have one of `functions`.

    Where there is but one, the path may also name a function: that of its last word in the module before it, in the place of that one.

    Raises:
        InputError: no such module, or one without such a function; lists the names there are.
    """
    path = name if "." in name.strip(".") else f"isojax.{folder}.{name.strip('.')}"
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as e:
        if e.name is None or not path.startswith(e.name):
            raise InputError(f"{folder} plug-in {name!r} needs the module {e.name}, which is not there; install it.") from e
        module = module_with_function(path, functions[0]) if len(functions) == 1 and path == name else None
    if module is None or not defines_any(module, functions):
        package = importlib.import_module(f"isojax.{folder}")
        modules = {m.name: importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)}
        known_names = sorted(n for n, m in modules.items() if defines_any(m, functions))
        problem = "no such module" if module is None else f"{path} has no function {' or '.join(functions)}"
        suggestions = difflib.get_close_matches(name.rpartition(".")[2], known_names, n=1)
        hint = f" Did you mean {suggestions[0]!r}?" if suggestions else ""
        raise InputError(
            f"{folder} plug-in {name!r}: {problem}; expected one of {', '.join(known_names)}, or the module path of your own, as my_fork.NAME.{hint}"
        )
    return module


def module_with_function(path: str, function: str) -> ModuleType | None:
    """A module that has the function `path` as `function`, beside what else is in its own module; None where there is no such function."""
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
