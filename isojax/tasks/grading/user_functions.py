"""Functions that a user brings as verifiers: finding them, and reading their scores as outcomes of 0 or 1."""

import importlib
import importlib.util
import math
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from isojax.core.errors import InputError
from isojax.tasks.verifiers import Verdict

SCORE_TOLERANCE = 1e-6  # of a score that says 0, 1 or -1


def load_function(verifier: str, argument: str, default_name: str = "") -> Callable[..., Any]:
    """The function of `file.py:name` or `package.module:name`; InputError says where and why there is none."""
    module_or_file, _, name = argument.partition(":")
    name = name or default_name
    expected_form = f"{verifier}:FILE.py:{default_name or 'NAME'} or {verifier}:PACKAGE.MODULE:{default_name or 'NAME'}"
    if not module_or_file or not name:
        raise InputError(f"cell.verifier.use: given {verifier + ':' + argument!r}, expected {expected_form}.")
    is_file = module_or_file.endswith(".py")
    if is_file and not Path(module_or_file).is_file():
        raise InputError(
            f"cell.verifier.use: no such file: {module_or_file} (in {Path.cwd()}); expected a Python file."
        )
    try:
        module = _import_file(Path(module_or_file)) if is_file else importlib.import_module(module_or_file)
    except BaseException as e:  # whatever a user's file does when it runs, SystemExit included
        raise InputError(
            f"cell.verifier.use: the module {module_or_file} cannot be imported: {describe_exception(e)}. Correct it."
        ) from e
    function = vars(module).get(name)
    if not callable(function):
        names = [k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        raise InputError(
            f"cell.verifier.use: {module_or_file} has no function {name!r}; it has {', '.join(names) or 'none'}."
            f" Expected {expected_form}."
        )
    return function


def _import_file(path: Path) -> ModuleType:
    """The module of a file, whose folder it may import from, as a script may."""
    sys.path.append(str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # a name that ends in .py has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickles of the file look it up by name
    spec.loader.exec_module(module)
    return module


def describe_exception(error: BaseException) -> str:
    """An exception in one line: where it was raised, and its message (at most 500 characters)."""
    text = " ".join(traceback.format_exception_only(error)[-1].split())
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}: {text}"[:500]
    frames = traceback.extract_tb(error.__traceback__)
    return (f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {text}" if frames else text)[:500]


def score_to_verdict(score: Any, response: str) -> Verdict:
    """1 (or True) is correct, any other number is not; those but 0, 1 and -1 are counted as `partial` failures."""
    try:
        if isinstance(score, str):
            raise TypeError("a text is no score")
        value = float(score)
    except (TypeError, ValueError, OverflowError) as e:
        given = textwrap.shorten(f"{type(score).__name__} {score!r}", 80, placeholder="...")
        return Verdict(False, False, "error", f"expected a score of 0 or 1, given {given} ({e})")
    if not math.isfinite(value):
        return Verdict(False, False, "error", f"expected a score of 0 or 1, given {value}")
    parsed = bool(response.strip())
    if all(abs(value - plain) > SCORE_TOLERANCE for plain in (-1, 0, 1)):
        return Verdict(False, parsed, "partial", f"a score of {value:g} counts as 0: outcomes are 0 or 1")
    return Verdict(abs(value - 1) <= SCORE_TOLERANCE, parsed)
