"""Functions that a user brings: finding them in a file or a module, and their scores as outcomes of 0 or 1. No verifier itself."""

import importlib
import importlib.util
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from isojax.tasks.verifiers import Verdict
from isojax.types import InputError

TOLERANCE = 1e-6  # of a score that says 0, 1 or -1


def load_function(use: str, argument: str, default: str = "") -> Callable[..., Any]:
    """The function of `file.py:name` or `package.module:name`; `default` is the name where none is given.

    Raises:
        InputError: no such file, module or function, or one that cannot be imported; says where and why. `use` names the verifier.
    """
    place, _, name = argument.partition(":")
    name = name or default
    form = f"{use}:FILE.py:{default or 'NAME'} or {use}:PACKAGE.MODULE:{default or 'NAME'}"
    if not place or not name:
        raise InputError(f"cell.verifier.use: given {use + ':' + argument!r}, expected {form}.")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found = vars(module).get(name)
    if not callable(found):
        known = ", ".join(k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__)
        raise InputError(f"cell.verifier.use: {place} has no function {name!r}; it has {known or 'none'}. Expected {form}.")
    return found


def _load_file(path: Path) -> ModuleType:
    """The module of a file, whose folder it may import from, as a script may."""
    if not path.is_file():
        raise InputError(f"cell.verifier.use: no such file: {path} (in {Path.cwd()}); expected a Python file with the function.")
    sys.path.append(str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # a name that ends in .py has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickles of the file look it up by name
    try:
        spec.loader.exec_module(module)
    except BaseException as e:  # whatever a user's file does when it is run, SystemExit included, is its author's to mend
        raise InputError(f"cell.verifier.use: {path} cannot be imported: {reason(e)}. Mend it; `python {path}` shows all of it.") from e
    return module


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except BaseException as e:  # see _load_file
        raise InputError(
            f"cell.verifier.use: the module {name} cannot be imported: {reason(e)}. "
            "Expected a module of this Python environment or this folder, or a file's path ending in .py."
        ) from e


def reason(error: BaseException) -> str:
    """An exception in a line: where it was raised, what it says (at most 500 characters)."""
    text = " ".join(traceback.format_exception_only(error)[-1].split())
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}: {text}"[:500]
    frames = traceback.extract_tb(error.__traceback__)
    return (f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {text}" if frames else text)[:500]


def outcome(score: Any, response: str) -> Verdict:
    """A score as an outcome: 1 (or True) is right, any other number wrong; answered where the response is not empty.

    Scores other than 0, 1 and -1 are wrong too, and counted under `partial`; what is no finite number, under `error`.
    """
    try:
        if isinstance(score, str):
            raise TypeError("a text is no score")
        value = float(score)
    except (TypeError, ValueError, OverflowError) as e:
        return Verdict(False, False, "error", f"expected a score of 0 or 1, given {_short(score)} ({e})")
    if not math.isfinite(value):
        return Verdict(False, False, "error", f"expected a score of 0 or 1, given {value}")
    answered = bool(response.strip())
    if all(abs(value - plain) > TOLERANCE for plain in (-1, 0, 1)):
        return Verdict(False, answered, "partial", f"a score of {value:g} counts as 0: outcomes are 0 or 1")
    return Verdict(abs(value - 1) <= TOLERANCE, answered)


def _short(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 80 else text[:77] + "..."
