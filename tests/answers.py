"""Golden answers: the numbers of whole answers, kept in a file and compared with a tolerance.

They see any change to the numerics, and say nothing of which is right: where a value is known
otherwise, a test of it is worth more. An answer is kept as lines, one for each number, text or
short list in it, by its path, such as "joint.n_star.law.k"; of a long list a summary. The
tolerances leave room for other versions of NumPy and SciPy and for other processors.

`pytest --write-answers FILE...` writes those of the tests that it runs; read the difference before
you commit it.
"""

from __future__ import annotations

import fcntl
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

RELATIVE, ABSOLUTE = 1e-3, 1e-6  # tolerances
MAX_LISTED = 12  # items of a list; a longer one is summarised
MAX_SHOWN = 40  # lines of a difference
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
Lines = dict[str, Any]


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-answers",
        action="store_true",
        help="write golden answers to their files instead of comparing them",
    )


def to_lines(answer: Any, path: str = "") -> Lines:
    """The numbers and texts of an answer by their paths, to six digits."""
    return dict(_walk(_plain(answer), path))


def _plain(value: Any) -> Any:
    """Models, dataclasses, arrays and tuples as dicts and lists."""
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if isinstance(value, str | int | None):
        return value
    return [_plain(item) for item in value]


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The lines of a plain value; what is None or empty has no line."""
    if value is None or value in ("", [], {}):
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}" if path else key)
    elif not isinstance(value, list):
        yield path, value
    elif isinstance(value[0], dict) and all(isinstance(item, dict | None) for item in value):
        # a table, by its columns
        rows = [item or {} for item in value]
        for key in dict.fromkeys(key for row in rows for key in row):
            yield from _walk([row.get(key) for row in rows], f"{path}[].{key}")
    else:
        items = list(_flat(value))
        if any(isinstance(item, dict) for item in items):
            for i, item in enumerate(value):
                yield from _walk(item, f"{path}[{i}]")
        elif any(item is not None for item in items):
            yield path, value if len(items) <= MAX_LISTED else _summary(items)


def _flat(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield value


def _summary(values: Sequence[Any]) -> list[Any]:
    """Of a long list: its length, three of its items, its mean, and a mean in which order counts;
    of texts also how often each occurs."""
    ends = [values[0], values[len(values) // 2], values[-1]]
    numbers = [v for v in values if isinstance(v, int | float)]
    if not numbers:
        return [len(values), *ends, len(set(values))]
    weights = np.cos(np.arange(len(numbers)))
    means = [float(np.mean(numbers)), float(np.mean(weights * numbers))]
    return [len(values), *ends, *(float(f"{mean:.6g}") for mean in means)]


def is_same(before: Any, now: Any, relative: float = RELATIVE) -> bool:
    """Whether two lines of an answer agree: numbers by the tolerances, those in a text to within
    their last digit too, all else exactly."""
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(
            is_same(a, b, relative) for a, b in zip(before, now, strict=True)
        )
    if isinstance(before, str) and isinstance(now, str):
        return _NUMBER.sub("#", before) == _NUMBER.sub("#", now) and all(
            _is_same_in_text(a, b, relative)
            for a, b in zip(_NUMBER.findall(before), _NUMBER.findall(now), strict=True)
        )
    if isinstance(before, bool) or isinstance(now, bool):
        return before is now
    if isinstance(before, int | float) and isinstance(now, int | float):
        return math.isclose(before, now, rel_tol=relative, abs_tol=ABSOLUTE)
    return bool(before == now)


def numbers_in(text: str) -> list[str]:
    return _NUMBER.findall(text)


def _is_same_in_text(before: str, now: str, relative: float) -> bool:
    a, b = (float(text.replace(",", "")) for text in (before, now))
    mantissa = now.partition("e")[0]
    last_digit = 10.0 ** -len(mantissa.partition(".")[2]) if "." in mantissa else 0.0
    return math.isclose(a, b, rel_tol=relative, abs_tol=1.01 * last_digit)


def differences(before: Lines, now: Lines, relative: float = RELATIVE) -> list[str]:
    """A line for each path whose values differ: the path, the file's value and today's."""
    none = "(no such line)"
    changed = [
        (path, before.get(path, none), now.get(path, none))
        for path in dict.fromkeys([*before, *now])
        if path not in before or path not in now or not is_same(before[path], now[path], relative)
    ]
    return [f"{path}\n    file {a}\n    now  {b}" for path, a, b in changed]


def check_answer(
    request: pytest.FixtureRequest, file: Path, name: str, answer: Any, relative: float = RELATIVE
) -> None:
    """Compares an answer with the one of this name in the file, or writes it there."""
    now = to_lines(answer)
    if request.config.getoption("--write-answers"):
        _write(file, name, now)
        return

    changed = differences(json.loads(file.read_text("utf-8")).get(name, {}), now, relative)
    if changed:
        shown = "\n  ".join(changed[:MAX_SHOWN])
        pytest.fail(
            f"{len(changed)} of {len(now)} lines of {name} in {file.name} differ:\n  {shown}\n"
            f"If the new ones are right, write them: pytest --write-answers {request.node.nodeid}",
            pytrace=False,
        )


def _write(file: Path, name: str, lines: Lines) -> None:
    """Puts one answer into the file; the workers of pytest take turns."""
    with file.open("a+", encoding="utf-8") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        answers = json.loads(opened.read() or "{}") | {name: lines}
        texts = []
        for key, of_name in sorted(answers.items()):
            rows = [f"{json.dumps(p)}: {json.dumps(v)}" for p, v in of_name.items()]
            texts.append(f"{json.dumps(key)}: {{\n  " + ",\n  ".join(rows) + "\n}")
        opened.seek(0)
        opened.truncate()
        opened.write("{\n" + ",\n".join(texts) + "\n}\n")
