r"""The answer of a text in its last \boxed{...}, with its unit and the boxes right before it."""

import re
from dataclasses import dataclass

from isojax.tasks.answers.spelling import MAX_ANSWER_LENGTH
from isojax.tasks.answers.taken_back import TAKEN_BACK

MAX_BOXES = 64  # of a list in boxes
MAX_BETWEEN = 60  # characters between two boxes of a list
MAX_BEFORE = 40  # characters before a box in which it may be denied

# \boxed{7}, \fbox{7}, \boxed 7; the match ends before the brace, or before the 7
_BOX_COMMAND = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)|\\boxed\s+(?=[^\s{$])")
_SIMPLE_BOX = re.compile(r"\\boxed\{([^{}\\]+)\}")
_BRACE = re.compile(r"(?<!\\)[{}]")
# The comma of \boxed{1}, \boxed{2}
_BETWEEN_BOXES = re.compile(
    r"""
    (?:
          [\s,;$&]|\\[()\[\],;: ]|\\q?quad|\\(?:text|mathrm|mbox)\s*\{[\s,]*(?:and|or)\s*\}
        | \b(?:and|or|also|either)\b
    )*
    """,
    re.VERBOSE,
)
# The unit of \boxed{5} \text{cm}, \boxed{50}\%, \boxed{3} million
_BEHIND_BOX = re.compile(
    r"""
    [ ]*
    (?:
          \\(?:text|mathrm|mbox)\s*\{[^{}]*\}(?:\^\{?[0-9]\}?)?|\\?%|\^\s*\{?\\circ\}?|°
        | \$?[ ]*[万萬亿億]|\$?[ ]*(?:hundred|thousand|million|billion|trillion|dozen)s?\b
    )
    """,
    re.VERBOSE,
)
# "\boxed{41} is wrong", "\boxed{41} or 42", "\boxed{41}?"
_TAKEN_BACK = re.compile(
    rf"""
      [\s$)\\]*,?\s*
      (?:
            or\b(?!,?\s*equivalently)|is\s+(?:not\b|wrong\b|incorrect\b|false\b)
          | (?:isn|wasn)['’]t\b|\?
      )
    | [\s$)\\\].,;:!*—–-]*{TAKEN_BACK}
    """,
    re.IGNORECASE | re.VERBOSE,
)
# What goes on behind a box in its formula or sentence, and makes another number of what it holds:
# \boxed{5}/6, \boxed{52} base 8, \boxed{5} feet 3
_GOES_ON_BEHIND_BOX = re.compile(
    r"""
      \s*
      (?:
            [/^_!]|\*(?!\*)(?=\s*[0-9A-Za-z(\\])
          | \\(?:sqrt|pi|cdot|times|div|frac|d?frac|binom|p?mod|bmod)(?![A-Za-z])|[0-9]
      )
    | [\s$]*
      (?:
            out\s+of|over|times|plus|minus|divided\s+by|multiplied\s+by|(?:in\s+)?base|choose
          | mod(?:ulo)?|per
      )\s+\$?[0-9]
    | [\s$]*\((?:in\s+)?base\b
    | [\s$]*(?:feet|foot|hours?|minutes?|pounds?|yards?|meters?|metres?)\s*,?\s*(?:and\s+)?\$?
      [0-9]
    """,
    re.VERBOSE,
)
# x = -\boxed{7}
_MINUS_BEFORE_BOX = re.compile(r"(?:[$=(]\s*|\s|^)-$")
# \sqrt{\boxed{7}}, 2^\boxed{7}, 3\boxed{7}
_ROOT_BEFORE_BOX = re.compile(
    r"(?:[\^_/]|\\(?:sqrt|frac|dfrac|tfrac)(?:\{[^{}]*\})?)\s*\{?\s*$|(?<![0-9A-Za-z])[0-9]$"
)
# "it cannot be \boxed{7}"
_DENIED_BEFORE = re.compile(
    r"(?:\b(?:not|never|cannot)|n['’]t)\s*(?:be\s*|equal(?:\s+to)?\s*|=\s*)?[\s$\\(\[:*]*$",
    re.IGNORECASE,
)
_JOINS_BOXES = re.compile(r"[,;&]|and|or|also|either")
_SPACE_BETWEEN_BOXES = re.compile(r"\\[,;:]|\\mathrm")
_UNBRACED = re.compile(r"[^\s$]*")  # the 7 of \boxed 7


@dataclass(frozen=True)
class _Box:
    r"""Where a box is in its text: \boxed{7} begins at `command`, holds what is from `start` to
    `end`, and ends before `behind`."""

    command: int
    start: int
    end: int
    behind: int


@dataclass(frozen=True)
class _Boxes:
    """The boxes of a text, of which there is at least one."""

    complete: list[_Box]  # those that end, in any order
    last_unfinished: int  # where the last box begins that does not end; -1: all end

    @property
    def last(self) -> _Box | None:
        """The last box; None where it does not end."""
        if not self.complete:
            return None
        last = max(self.complete, key=lambda box: box.start)
        return last if last.command > self.last_unfinished else None


def last_box(text: str) -> str | None:
    r"""The content of the last \boxed{...} of a text, with that of the boxes right before it: "7".
    "" where the box has no closing brace, None where there is no box."""
    boxes = _find_boxes(text)
    if boxes is None:
        return None
    return "" if boxes.last is None else _content_of(text, boxes, boxes.last)


def stated_box(text: str) -> str | None:
    """The content of the last box as in `last_box`, but "" where the text around the box denies it
    or takes it back ("it cannot be [7]", "[7] is wrong"), or makes another number of it ("2^[7]").
    With a minus sign before the box the content is negated: "-(7)". None where there is no box."""
    boxes = _find_boxes(text)
    if boxes is None:
        return None
    last = boxes.last
    if last is None:
        return ""

    before = text[max(0, last.command - MAX_BEFORE) : last.command]
    if _DENIED_BEFORE.search(before) or _ROOT_BEFORE_BOX.search(before):
        return ""
    if _TAKEN_BACK.match(text, last.behind) or _GOES_ON_BEHIND_BOX.match(text, last.behind):
        return ""

    content = _content_of(text, boxes, last)
    return f"-({content})" if _MINUS_BEFORE_BOX.search(before) else content


def last_box_start(text: str) -> int:
    """Where the last box begins, whether it ends or not; -1 where there is none."""
    return max(text.rfind("\\boxed"), text.rfind("\\fbox"))


def _content_of(text: str, boxes: _Boxes, last: _Box) -> str:
    """What the last box holds, with its unit and the boxes right before it."""
    content = text[last.start : last.end]
    unit = _BEHIND_BOX.match(text, last.behind)
    if unit:
        content = f"{content} {unit[0].replace('$', '')}"
    return _with_boxes_before(text, boxes, last, content)


def _with_boxes_before(text: str, boxes: _Boxes, last: _Box, content: str) -> str:
    r"""The contents of a list of boxes that ends with `last`, joined by commas: "1, 2" for
    "\boxed{1} and \boxed{2}". Boxes belong to the list as long as there is nothing but commas,
    "and" or "or" between them. A box with the same content as the box after it in the list is left
    out: "1, 1" becomes "1". content: that of the last box, with the unit behind it, which
    text[last.start : last.end] lacks."""
    before = [box for box in boxes.complete if box.behind <= last.command]
    before.sort(key=lambda box: box.behind)

    contents = [content]
    first = last  # the first box of the list so far, which is followed backwards
    for box in reversed(before):
        is_inside_first = box.behind > first.command
        if is_inside_first:
            continue

        between = text[box.behind : first.command]
        if len(between) > MAX_BETWEEN or len(contents) == MAX_BOXES:
            break
        if not _BETWEEN_BOXES.fullmatch(between):
            break
        # With nothing but space between two boxes, such as \, or \;, the last one counts.
        if not _JOINS_BOXES.search(_SPACE_BETWEEN_BOXES.sub("", between)):
            break

        first = box
        box_content = text[box.start : box.end]
        if box_content.strip() != contents[0].strip():  # contents[0] is that of the box after it
            contents.insert(0, box_content)
    return ", ".join(contents)


def _find_boxes(text: str) -> _Boxes | None:
    """The positions of all boxes of a text, found in one pass over its braces; None where there is
    no box. A box without a closing brace counts only for `last_unfinished`."""
    if "boxed" not in text and "fbox" not in text:
        return None

    # Most responses have a single box without braces inside, which is fast to find.
    simple = _SIMPLE_BOX.search(text) if text.count("box") == 1 else None
    if simple:
        box = _Box(simple.start(), simple.start(1), simple.end(1), simple.end())
        return _Boxes([box], last_unfinished=-1)

    # Where each box begins, by the place right behind its command: its opening brace, or the
    # content itself where there is no brace.
    command_at = {match.end(): match.start() for match in _BOX_COMMAND.finditer(text)}
    complete: list[_Box] = []
    for start, command in command_at.items():
        if text[start] != "{":  # \boxed 7
            content = _UNBRACED.match(text[start : start + MAX_ANSWER_LENGTH])
            end = start + (content.end() if content else 0)
            complete.append(_Box(command, start, end, end))

    # Match each closing brace with the last open one: that pair is a box if a command precedes it.
    open_braces: list[int] = []  # positions of braces that are not closed yet, the innermost last
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            open_braces.append(brace.start())
        elif open_braces:
            start = open_braces.pop()
            if start in command_at:
                box = _Box(command_at[start], start + 1, brace.start(), brace.end())
                complete.append(box)

    unfinished = [command_at[start] for start in open_braces if start in command_at]
    if not complete and not unfinished:
        return None
    return _Boxes(complete, last_unfinished=max(unfinished, default=-1))
