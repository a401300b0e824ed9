"""Where a text says its answer: in tags, in its last box, after ####, after "the answer is" or in
its last sentence."""

import re
from enum import Enum
from typing import NamedTuple

from isojax.tasks.answers.chinese_answers import answer_at_the_end
from isojax.tasks.answers.sentence import HEDGES, values_in_sentence
from isojax.tasks.answers.spelling import (
    INLINE_MATH,
    MAX_ANSWER_LENGTH,
    has_words,
    normalize_answer,
    with_spaces_around_cjk,
    without_emphasis,
)
from isojax.tasks.answers.suppositions import GUESSED, depends_on_a_condition, is_supposed
from isojax.tasks.answers.taken_back import TAKEN_BACK, is_left_open, is_taken_back
from isojax.tasks.answers.thinking import behind_thinking
from isojax.tasks.answers.value_end import AS_OF_A_CLAUSE, NEW_READING, value_ends_at

_ANSWER_TAG = re.compile(r"<(/?)(?:final_)?answer>", re.IGNORECASE)

_ENDS_OF_TURN = ("</s>", "<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<end_of_turn>")

_CALCULATION = re.compile(r"<<[^<>\n]*>>")  # GSM8K's notes to a calculator

_BOX_COMMAND = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)|\\boxed\s+(?=[^\s{$])")
_SIMPLE_BOX = re.compile(r"\\boxed\{([^{}\\]+)\}")
_BRACE = re.compile(r"(?<!\\)[{}]")
_BETWEEN_BOXES = re.compile(
    r"""
    (?:
          [\s,;$&]|\\[()\[\],;: ]|\\q?quad|\\(?:text|mathrm|mbox)\s*\{[\s,]*(?:and|or)\s*\}
        | \b(?:and|or|also|either)\b
    )*
    """,
    re.VERBOSE,
)
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
# \text{The answer is } 42, \text{Answer: 42}
_LABEL_IN_BOX = re.compile(
    r"""
    ^(?:(\\(?:text|textbf|mathrm|mbox)\s*\{)\s*)?(?:the\s+)?(?:final\s+|correct\s+)?
    (?:answer|result|solution)\s*(?:(?:is|are)\b\s*:?|:)\s*(?=\S)
    """,
    re.IGNORECASE | re.VERBOSE,
)
# What goes on behind a box in its formula or sentence, and makes another number of what it holds.
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
_MINUS_BEFORE_BOX = re.compile(r"(?:[$=(]\s*|\s|^)-$")
_ROOT_BEFORE_BOX = re.compile(
    r"(?:[\^_/]|\\(?:sqrt|frac|dfrac|tfrac)(?:\{[^{}]*\})?)\s*\{?\s*$|(?<![0-9A-Za-z])[0-9]$"
)
_DENIED_BEFORE = re.compile(
    r"(?:\b(?:not|never|cannot)|n['’]t)\s*(?:be\s*|equal(?:\s+to)?\s*|=\s*)?[\s$\\(\[:*]*$",
    re.IGNORECASE,
)

_HEADING = re.compile(
    r"^[ \t]*#{4,}[ \t]*([^\n]*)$|(?<=[^#\n])####(?!#)[ \t]*([^\n]*)", re.MULTILINE
)
_HEADING_WORDS = re.compile(
    r"""
    (?:
          step|part|case|problem|question|solution|answer|final|method|approach|check|verif|note
        | conclusion|result
        | explanation|reasoning|summary|understand|calculat|comput|find|given|setup|analysis
        | example|idea
    )\w*\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_NUMBERED_HEADING = re.compile(
    r"\d+[.):]\s*[A-Za-z*]|(?:step|part|case)\s*\d+|\(?[a-z]\)\s+[A-Za-z]", re.IGNORECASE
)
_LABEL = re.compile(
    r"(?:the\s+)?(?:final\s+)?(?:answer|result|solution)\b\s*(?:is\b)?\s*:?", re.IGNORECASE
)

_ANSWER_IS = re.compile(
    r"""
    \banswers?(?:[ ]+(?:to|for|of)[ ][^.\n:?!=]{1,60}?)?\s*(?:\\?\*\*)?\s*
    (?:
          (?:is|are|was|(?:would|should|must|will|has[ ]to)[ ]be|equals?|comes[ ](?:out[ ])?to)
          \b
        | :|=(?!=)
    )(?:\s*,\s*(?:of[ ]course|indeed|in[ ]fact|then|thus|\w+ly|therefore)\s*,)?(?:\s*:)?
    (?:\s*\*\*)?\s*
    """,
    re.IGNORECASE | re.VERBOSE,
)
_CLAUSE_START = re.compile(r"[.,;:!?\n]")
_CLAUSE_DENIES = re.compile(
    r"""
      \b
      (?:
            not|never|cannot|doubt|wrong|incorrect|mistaken|false|unlikely|if|unless|whether
          | guess|tempting|suppose|say
          | might|could|may|possible|assum\w+|estimate\w*|neither|nobody|no\s+one|deny|denies
          | claims?
      )\b
    | n['’]t\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_VALUE_WORDS = (
    r"half|halves|thirds?|quarters?|fifths?|tenths?|dozens?|hundreds?|thousands?|[mbtr]+illions?|or"
)
_SCALE = rf"[\s-]*(?:and\s+)?(?:(?:an?|one|two|three)[\s-]+)?(?:{_VALUE_WORDS})\b"
# "5, but actually 7", where another number follows in the sentence: what is stated then is not 5
_RETRACTION = (
    r"\s+(?:but|actually|wait|no|sorry|rather|however|hmm|I[ ]mean|maybe|perhaps|possibly|probably|though)"
    r"\b(?=[^\n.;!?]{0,80}?[0-9])"
)
_CONTINUATION = re.compile(
    rf"""
      {_SCALE}|,?{_RETRACTION}|[\s,]*(?:and\s*|or\s*)?[|$0-9\\+*/^-]
    | [\s,]*(?:is\s+)?(?:not\b|wrong\b|incorrect\b)
    | [\s,]*(?:{HEDGES})\b|-?ish\b|\s+and\s+(?:some|change)\b|\s+point\b
    | \s+if\b[^\n.]{{0,80}}\b(?:otherwise|else)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_SENTENCE_END = re.compile(
    rf"""
      [.!?]?\*\*(?![-0-9(\\]|{_SCALE}|,?{_RETRACTION})|[.!?](?=\s|$)|\n|;
    | ,(?!{_RETRACTION})\s+(?!(?:and|or|otherwise|else|{NEW_READING}|{HEDGES})\b)
      (?=[A-Za-z]{{2,}})
    | (?<!\s)\s+(?=(?:because|since|which|where|so)\b)|(?<!\s){AS_OF_A_CLAUSE}
    """,
    re.IGNORECASE | re.VERBOSE,
)
_NEXT_TAKES_BACK = re.compile(
    r"""
    [.!]?[ *$]*\s?
    (?:
          No|Wait|Actually|Sorry|Hmm|Oops|Maybe|Perhaps|Possibly|Correction|Scratch[ ]that|Not
        | Or
        | Let[ ]me[ ]re\w*
    )\b[^\n]*[0-9]
    """,
    re.VERBOSE,
)
_NEXT_IN_LIST = re.compile(r";[ ]*\$?-?[0-9(\\]")
_ALTERNATIVE = re.compile(
    r"[.!;,]?[ *$]*\s?\(?(?:or\s+)?alternatively[\s,:]+(?:it\s+is\s+)?(?=[-$\\.]*[0-9(]|\\)",
    re.IGNORECASE,
)
_DISPLAY_MATH = re.compile(r"\$\$\s*(.+?)\s*\$\$|\\\[\s*(.+?)\s*\\\]", re.DOTALL)
_SENTENCES = re.compile(
    r"""
      (?<=[.!?])(?<!\bca\.)(?<!\bc\.)(?<!\bapprox\.)(?<!\bi\.e\.)(?<!\be\.g\.)(?<!\bfig\.)
      (?<!\beq\.)(?<!\bthm\.)(?<!\bp\.)(?<!\bch\.)(?<!\bprop\.)(?<!\bcor\.)(?<!\bref\.)
      (?<!\bex\.)(?<!\blem\.)(?<!\bdef\.)\s+
    | \n+
    """,
    re.IGNORECASE | re.VERBOSE,
)
# The last words of a sentence that somebody began and did not end.
_CUT_OFF = re.compile(
    r"""
      (?:
            [,;]\s+(?:and\s+)?so
          | \b
            (?:
                  and|or|but|then|therefore|thus|hence|because|since|the|which|we|is|are|equals?
                | than
            )
      )[,:]?\s*$
    | [-=+*/×÷]\s*$(?<!\*\*)
    """,
    re.IGNORECASE | re.VERBOSE,
)
_CODE_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[\w+-]*[ \t]*(?:\n|$)", re.MULTILINE)
# "The answer is not 41; it is 42" says that it is 42.
_NOT_BUT = re.compile(
    r"""
    (\b(?:is|are|was)|['’]s)(?:\s+\w+ly)?\s*(?:\bnot|n['’]t)\s+[$\\(*]*-?[0-9][0-9.,/]*(?<![.,])
    [$\\)*]*(?:\s+[a-z]+)?\s*[.,;:—–-]+\s+(?:but\s+|rather,?\s+|instead,?\s+|actually,?\s+)*
    (?:
          it|this|that|they
        | the\s+(?:correct\s+|right\s+|actual\s+|real\s+)?(?:answer|value|number|total|result)
    )(?:\s+(?:is|are|was)|['’]s)\s+(?:(?:actually|rather|instead|really|in\s+fact)\s+)?
    (?=[-$\\(*]*[0-9])
    """,
    re.IGNORECASE | re.VERBOSE,
)
_EMPHASIZED_LINE = re.compile(r"^\*([^*\n]+)\*$")
MAX_BOXES = 64  # of a list in boxes
MAX_LAST_LINES = 4000  # characters at the end of a text that states no answer


class Form(Enum):
    """How a text states its answer."""

    WHOLE = "whole"  # nothing but the answer: in a box
    SENTENCE = "sentence"  # what follows "the answer is" or ####, or stands between tags
    NOWHERE = "nowhere"  # somewhere in what the text says last


class Statement(NamedTuple):
    """A normalized answer; an empty one says that the text ends without an answer."""

    text: str
    form: Form


def final_answer(response: str) -> Statement:
    """What a response says at its end, behind its thinking; an empty WHOLE answer where it takes
    its answer back, or does not end it."""
    response = with_spaces_around_cjk(behind_thinking(_without_end_of_turn(response)))
    tag = _last_tag(response)
    if tag is not None and _last_box_start(response) < tag[1]:
        if is_taken_back(response, tag[1] + _tag_length(response, tag[1])):
            return Statement("", Form.WHOLE)
        inside = final_answer(tag[0]) if tag[0].strip() else Statement("", Form.WHOLE)
        is_one_line = inside.form is Form.NOWHERE and "\n" not in inside.text
        return Statement(normalize_answer(inside.text), Form.SENTENCE) if is_one_line else inside
    boxed = _stated_box(response)
    if boxed is not None:
        boxed = _LABEL_IN_BOX.sub(r"\1", boxed.lstrip(" ~"))  # LaTeX, where ~ is a space
        return Statement(normalize_answer(boxed), Form.WHOLE)
    response = _NOT_BUT.sub(r"\1 ", _CODE_FENCE.sub("", response))
    marked = _behind_hashes(response)
    if marked is not None:
        return Statement(marked, Form.SENTENCE)
    stated = _behind_answer_is(response)
    if stated is None:
        stated = answer_at_the_end(response)
    if stated is not None:
        return Statement(normalize_answer(stated), Form.SENTENCE)
    return Statement(_last_lines(response), Form.NOWHERE)


def reference_answer(answer: str) -> str:
    """The answer that a reference solution states: after its last ####, else in its last \\boxed{},
    else all of it."""
    answer = with_spaces_around_cjk(answer)
    if "####" in answer:
        end = answer.rpartition("####")[2].strip()
        marked = normalize_answer(end) if "\n" not in end else _behind_hashes(answer)
        if marked is not None:  # or there are only headings
            return normalize_answer(last_box(marked) or marked)
    boxed = last_box(answer)
    return normalize_answer(boxed or answer)


# --- thinking and tags


def _without_end_of_turn(response: str) -> str:
    response = response.rstrip()
    while response.endswith(_ENDS_OF_TURN):
        response = next(
            response.removesuffix(end) for end in _ENDS_OF_TURN if response.endswith(end)
        ).rstrip()
    return response


def _last_tag(response: str) -> tuple[str, int] | None:
    """What the last <answer> holds, to its </answer> or to the end, and where that is."""
    if "nswer>" not in response and "NSWER>" not in response:
        return None
    start = end = -1
    for tag in _ANSWER_TAG.finditer(response):
        if not tag[1]:
            start, end = tag.end(), -1
        elif end < 0:
            end = tag.start()
    if start < 0:
        return None
    end = end if end >= 0 else len(response)
    return response[start:end], end


def _tag_length(text: str, position: int) -> int:
    tag = _ANSWER_TAG.match(text, position)
    return len(tag[0]) if tag else 0


# --- boxes


class _Box(NamedTuple):
    """Where a box is in its text."""

    command: int  # where \boxed begins
    start: int
    end: int  # of what it holds
    behind: int


def last_box(text: str) -> str | None:
    """What the last \\boxed{...} holds, with the boxes that stand right before it; "" where it does
    not end, and None where there is none."""
    if "boxed" not in text and "fbox" not in text:
        return None
    boxes, open_command = _boxes(text)
    if not boxes:
        return None if open_command < 0 else ""
    last = max(boxes, key=_start_of)
    return "" if open_command > last.command else _content_of(text, boxes, last)


def _start_of(box: _Box) -> int:
    return box.start


def _content_of(text: str, boxes: list[_Box], last: _Box) -> str:
    """What the last box holds, with its unit and the boxes right before it."""
    content = text[last.start : last.end]
    if behind := _BEHIND_BOX.match(text, last.behind):
        content = f"{content} {behind[0].replace('$', '')}"
    return _with_boxes_before(text, boxes, last, content)


def _stated_box(text: str) -> str | None:
    """As `last_box`, and "" where its sentence denies it, or takes it back."""
    if "boxed" not in text and "fbox" not in text:
        return None
    boxes, open_command = _boxes(text)
    if not boxes:
        return None if open_command < 0 else ""
    last = max(boxes, key=_start_of)
    if open_command > last.command:
        return ""
    before = text[max(0, last.command - 40) : last.command]
    if _DENIED_BEFORE.search(before) or _ROOT_BEFORE_BOX.search(before):
        return ""
    if _TAKEN_BACK.match(text, last.behind) or _GOES_ON_BEHIND_BOX.match(text, last.behind):
        return ""
    content = _content_of(text, boxes, last)
    return f"-({content})" if _MINUS_BEFORE_BOX.search(before) else content


def _with_boxes_before(text: str, boxes: list[_Box], last: _Box, content: str) -> str:
    """A list of boxes with nothing but commas, "and" or "or" between them, each once."""
    before = sorted(
        (box for box in boxes if box.behind <= last.command), key=lambda box: box.behind
    )
    contents, first = [content], last
    for box in reversed(before):
        if box.behind > first.command:
            continue  # it is inside the next
        between = text[box.behind : first.command]
        if len(between) > 60 or len(contents) == MAX_BOXES or not _BETWEEN_BOXES.fullmatch(between):
            break
        if not re.search(r"[,;&]|and|or|also|either", re.sub(r"\\[,;:]|\\mathrm", "", between)):
            break  # with nothing but space between them, the last one counts
        first, own = box, text[box.start : box.end]
        if own.strip() != contents[0].strip():
            contents.insert(0, own)
    return ", ".join(contents)


def _boxes(text: str) -> tuple[list[_Box], int]:
    """All boxes that end, and where the last one begins that does not (-1: there is none); in one
    pass."""
    if text.count("box") == 1 and (simple := _SIMPLE_BOX.search(text)):
        return [_Box(simple.start(), simple.start(1), simple.end(1), simple.end())], -1
    commands = {match.end(): match.start() for match in _BOX_COMMAND.finditer(text)}
    boxes: list[_Box] = []
    for start, command in commands.items():
        if text[start] != "{":  # \boxed 7
            content = re.match(r"[^\s$]*", text[start : start + MAX_ANSWER_LENGTH])
            end = start + (content.end() if content else 0)
            boxes.append(_Box(command, start, end, end))
    open_braces: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            open_braces.append(brace.start())
        elif open_braces:
            start = open_braces.pop()
            if start in commands:
                boxes.append(_Box(commands[start], start + 1, brace.start(), brace.end()))
    return boxes, max((commands[start] for start in open_braces if start in commands), default=-1)


def _last_box_start(text: str) -> int:
    return max(text.rfind("\\boxed"), text.rfind("\\fbox"))


# --- #### and "the answer is"


def _behind_hashes(response: str) -> str | None:
    """What follows the last #### that is no heading."""
    if "####" not in response:
        return None
    last, end = None, 0
    for match in _HEADING.finditer(response):
        marked = match[1] if match[1] is not None else match[2]
        if not _is_heading(marked, response[match.end() :]):
            last, end = marked, match.end()
    if last is None:
        return None
    if is_taken_back(response, end):
        return ""
    last = without_emphasis(re.sub(r"(?<=\S)\s+#+\s*$", "", last))
    label = _LABEL.match(last)
    return normalize_answer(last[label.end() :] if label else last)


def _is_heading(line: str, following: str) -> bool:
    """Whether a line behind #### heads what follows: "Step 1", "2. Answer", or other words than an
    answer's."""
    content = line.strip(" *:#")
    if not content:
        return True
    label = _LABEL.match(content)
    if label:
        return not content[label.end() :].strip(" *:")
    if _NUMBERED_HEADING.match(content) or _HEADING_WORDS.match(content):
        return True
    is_words = not re.search(r"[0-9$\\]", content) and len(content) > 2
    return (
        is_words
        and bool(following.strip())
        and not re.match(r"\s*(?:Question|Q:|Problem)\b", following)
    )


def _behind_answer_is(response: str) -> str | None:
    """What follows the last "the answer is" that is neither denied nor asked."""
    for match in reversed(list(_ANSWER_IS.finditer(response))):
        clause = _CLAUSE_START.split(response[max(0, match.start() - 80) : match.start()])[-1]
        if (
            _CLAUSE_DENIES.search(clause)
            or GUESSED.search(clause)
            or is_supposed(_sentence_before(response, match))
        ):
            continue
        remaining = response[match.end() :]
        statement, end = _first_sentence(remaining)
        line_before = response[: match.start()].rpartition("\n")[2]
        if statement.endswith("*") and line_before.count("*") % 2:  # *The answer is 42*
            statement = statement.removesuffix("*")
        if remaining[end : end + 1] == "?":
            continue
        if "would" in match[0] and depends_on_a_condition(_whole_sentence(response, match)):
            continue
        if alternative := _ALTERNATIVE.match(remaining, end):
            # 1/2; alternatively 0.5: right where both are the same
            return f"{statement} = {_first_sentence(remaining[alternative.end() :])[0]}"
        if _NEXT_IN_LIST.match(remaining, end):
            return normalize_answer(remaining.partition("\n")[0])
        if _NEXT_TAKES_BACK.match(remaining, end):
            return _last_lines(remaining[end:].partition("\n")[0])
        if is_taken_back(remaining, end) or is_left_open(remaining, end):
            return ""
        return statement
    return None


def _sentence_before(text: str, part: re.Match[str]) -> str:
    return re.split(r"[.!?]\s|\n", text[max(0, part.start() - 200) : part.start()])[-1]


def _whole_sentence(text: str, part: re.Match[str]) -> str:
    """The sentence around a match, with up to 200 characters of it on each side."""
    before = _sentence_before(text, part)
    behind = re.split(r"[.!?](?:\s|$)|\n", text[part.end() : part.end() + 200])[0]
    return f"{before} {behind}"


def _first_sentence(text: str) -> tuple[str, int]:
    """The answer that a text begins with, and where it ends."""
    math = INLINE_MATH.match(text)
    if math and not _CONTINUATION.match(text, math.end()) and value_ends_at(text, math.end()):
        content = next(group for group in math.groups() if group is not None)
        if not has_words(content):
            return normalize_answer(content), math.end()
    end = _SENTENCE_END.search(text)
    stop = end.start() if end else len(text)
    return normalize_answer(text[:stop]), stop


# --- texts that state no answer


def _last_lines(response: str) -> str:
    """The end of a text, its display math in one line each."""
    end = _CALCULATION.sub("", response[-MAX_LAST_LINES:])
    return _DISPLAY_MATH.sub(
        lambda match: f"${' '.join((match[1] or match[2]).split())}$", end
    ).strip()


def last_values(text: str) -> list[str]:
    """The value in the last sentence of a text that has one, with and without the words behind it;
    empty where there is none, or it is left open."""
    sentences = _SENTENCES.split(text)
    if _CUT_OFF.search(_EMPHASIZED_LINE.sub(r"\1", sentences[-1])):
        return []
    for index, sentence in reversed(list(enumerate(sentences))):
        if re.search(r"[0-9]|\$[^$]+\$|\\[(\[]", sentence):
            if sentence.rstrip().endswith("?") or _ANSWER_IS.search(sentence):
                return []  # asked, or "I doubt that the answer is 42"
            following = " ".join(sentences[index + 1 :])
            if is_taken_back(following, 0) or is_left_open(following, 0):
                return []
            plain = re.sub(r"^[#>*\s-]+(?=[^\s0-9.#*])|^#+\s*|[.!:]+\s*$", "", sentence)
            return values_in_sentence(plain, is_statement=False)
    return []
