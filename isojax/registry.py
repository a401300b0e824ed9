"""Names to modules: a file in a folder of the package is a plug-in, known by its file name; a fork passes its own module path."""

import importlib
import pkgutil
from types import ModuleType

from isojax.types import InputError


def load(folder: str, name: str, function: str) -> ModuleType:
    """The module `isojax.<folder>.<name>`, or, where `name` has a dot in it, the module of that path; it must have `function`.

    Raises:
        InputError: no such module, or one without the function; lists the names there are.
    """
    path = name if "." in name.strip(".") else f"isojax.{folder}.{name.strip('.')}"
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as e:
        if e.name is None or not path.startswith(e.name):
            raise
        module = None
    if module is None or not callable(vars(module).get(function)):
        package = importlib.import_module(f"isojax.{folder}")
        every = {m.name: importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)}
        known = ", ".join(sorted(n for n, m in every.items() if function in vars(m)))
        what = "no such module" if module is None else f"{path} has no function {function}"
        raise InputError(f"{folder} plug-in {name!r}: {what}; expected one of {known}, or the module path of your own, as my_fork.{name}.")
    return module
