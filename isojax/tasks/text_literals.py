"""Reads lists and objects that a table has as text: lists of messages in prompts, objects in cells.

pandas.to_csv and str() write them as Python does, NumPy without commas between the elements, others
as JSON.
"""

import ast
import json
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

MAX_LITERAL_CHARACTERS = 1_000_000

_MESSAGE_KEY = r"['\"](?:role|content|from|value|messages)['\"]\s*:"
_OPENS_LIKE_MESSAGES = re.compile(rf"\s*(?:(?:np\.|numpy\.)?array\(\s*)?\[?\s*\{{\s*{_MESSAGE_KEY}")
_NUMPY_ARRAY = re.compile(r"\s*(?:np\.|numpy\.)?array\((.*?),?\s*(?:dtype=\w+)?\s*\)\s*", re.DOTALL)
_BETWEEN_OBJECTS = re.compile(r"\}\s+\{(?=\s*['\"])")  # of a NumPy array, which prints no commas


def parse_literal(text: str) -> Any:
    """The list or object that a text writes, in JSON or as Python prints it; None where it writes
    none."""
    if len(text) > MAX_LITERAL_CHARACTERS:
        return None
    for parse in (json.loads, _parse_python):
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            value = parse(text.strip())
            return value if isinstance(value, list | dict) else None
    return None


def parse_messages(text: str) -> list[Any] | None:
    """The messages, each a {role, content}, that a text writes out, in JSON or as Python or NumPy
    print them; None for any other text. ValueError where the text looks like a list of messages but
    cannot be read as one. A single message, and {"messages": [...]}, are read too."""
    if not _OPENS_LIKE_MESSAGES.match(text):
        return None

    array = _NUMPY_ARRAY.fullmatch(text) if not text.lstrip().startswith(("[", "{")) else None
    list_text = array[1] if array else text
    value = parse_literal(list_text)
    if value is None:
        value = parse_literal(_BETWEEN_OBJECTS.sub("}, {", list_text))

    if isinstance(value, Mapping):
        value = value.get("messages", [value])
    if isinstance(value, list) and value and all(map(_is_message, value)):
        return value

    # It cannot be read. It is refused if it names two of the keys and ends as a list or an object
    # does. `from` and `value` are the keys of ShareGPT, which are recognized here to be refused.
    keys = [
        key
        for key in ("role", "content", "from", "value")
        if re.search(rf"['\"]{key}['\"]\s*:", text)
    ]
    is_whole = text.rstrip().endswith(("]", "}", ")"))
    if is_whole and len(keys) >= 2:
        raise ValueError("a text that looks like a list of messages and cannot be read as one")
    return None


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and {"role", "content"} <= set(value)


def _parse_python(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of a backslash that escapes nothing
        return ast.literal_eval(text)
