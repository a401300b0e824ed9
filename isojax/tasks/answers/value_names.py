"""Reads the name on the left of an equals sign: Area in `\\text{Area} = 42`, f(2) in `f(2) =
17`."""

import re

from isojax.tasks.answers.cursor import Cursor, Unreadable
from isojax.tasks.answers.sentence import supposes
from isojax.tasks.answers.suppositions import GUESSED
from isojax.tasks.answers.tree import Symbol
from isojax.tasks.answers.vocabulary import FUNCTIONS, WORDS

# \text{Area} =, Total cost =, a:b =
_NAME_BEFORE_EQUALS = re.compile(
    r"""
    \s*
    (
          \\(?:text|mathrm|mbox|textbf)\s*\{[^{}]*\}(?:_\{?\w+\}?)?
        | [A-Za-z][A-Za-z ]*[A-Za-z]{3}[A-Za-z ]*
        | [A-Za-z](?:_\{?\w+\}?)?\s*:\s*[A-Za-z](?:_\{?\w+\}?)?
    )\s*=(?!=)
    """,
    re.VERBOSE,
)
# f(x) =, whose first group is f; or of a value: f(2) =, P(A) =, \gcd(4, 6) =, \angle ABC =
_FUNCTION_BEFORE_EQUALS = re.compile(
    r"""
      \s*([A-Za-z](?:_\{?\w+\}?)?'*(?:\^\{-1\})?)\s*\(\s*[a-z](?:\s*,\s*[a-z])*\s*\)\s*=(?!=)
    | \s*
      (
          (?:
                [fghkpqFGHPQTSNVACDLMREd]|Pr
              | \\(?:gcd|lcm|max|min|det|deg|varphi|phi|mathbb\{[A-Z]\}|Pr)|gcd|lcm|max|min
          )(?:_\{?\w+\}?)?'*
      )\s*[(\[]((?:[-\w.,+ \\{}/|=]|\([-\w.,+ \\/]*\))*)[)\]]\s*=(?!=)
    | \s*
      (
          (?:m\s*)?\\(?:angle|triangle|overline|overrightarrow|widehat|vec|measuredangle|arc)\s*
          (?:\{\s*)?([A-Za-z]{1,4}|\\[a-z]+|[0-9])(?:_\{?\w+\}?)?\s*\}?
      )\s*=(?!=)
    """,
    re.VERBOSE,
)


def take_name(cursor: Cursor) -> Symbol | None:
    r"""The name at the cursor, up to its equals sign: Area in `\text{Area} = 42`, f in `f(x) = 2x`,
    f(2) in `f(2) = 17`. None where there is no name, so that an expression is to be read instead.
    Unreadable where the words suppose or guess the value, or say more than a name does. After a
    name the cursor is at the equals sign; without one it has not moved."""
    match = _NAME_BEFORE_EQUALS.match(cursor.text, cursor.position)
    match = match or _FUNCTION_BEFORE_EQUALS.match(cursor.text, cursor.position)
    if not match:
        return None

    behind_name = match.end() - 1  # where the equals sign is
    name = match[1]  # words or f of f(x); None of f(2), \angle ABC and the like
    # Of f(2) the argument belongs to the name, since f(3) is another value.
    if name is None:
        cursor.position = behind_name
        return Symbol("".join(match[0].removesuffix("=").split()))

    words = name.split()
    if set(words) & WORDS or words[0] in FUNCTIONS:
        raise Unreadable(name)
    if supposes(f"{name} =") or GUESSED.search(name):
        raise Unreadable(name)
    cursor.position = behind_name
    return Symbol(name)
