"""Names to modules: a file in a folder of the package is a plug-in, known by its file name; a fork passes its own module path."""

import importlib
import pkgutil
from types import ModuleType

from isojax.types import InputError


def load(folder: str, name: str) -> ModuleType:
    """The module `isojax.<folder>.<name>`, or, where `name` has a dot in it, the module of that path.

    Raises:
        InputError: no such module; lists the names there are.
    """
    path = name if "." in name else f"isojax.{folder}.{name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as e:
        if e.name is None or not path.startswith(e.name):
            raise
        package = importlib.import_module(f"isojax.{folder}")
        known = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
        raise InputError(
            f"no {folder} plug-in {name!r}: expected one of {', '.join(known)}, or the module path of your own, as my_fork.{name}."
        ) from e
