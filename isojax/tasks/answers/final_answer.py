"""Finds the answer that a text states: in <answer> tags, in its last \\boxed{}, after ####, after
"the answer is", or in its last sentence. These places are tried in this order."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from isojax.tasks.answers.boxes import last_box, last_box_start, stated_box
from isojax.tasks.answers.chinese_answers import answer_at_the_end
from isojax.tasks.answers.sentence import HEDGES, values_in_sentence
from isojax.tasks.answers.spelling import (
    INLINE_MATH,
    has_words,
    normalize_answer,
    with_spaces_around_cjk,
    without_emphasis,
)
from isojax.tasks.answers.suppositions import GUESSED, depends_on_a_condition, is_supposed
from isojax.tasks.answers.taken_back import is_left_open, is_taken_back
from isojax.tasks.answers.thinking import behind_thinking
from isojax.tasks.answers.value_end import AS_OF_A_CLAUSE, NEW_READING, value_ends_at

_ANSWER_TAG = re.compile(r"<(/?)(?:final_)?answer>", re.IGNORECASE)

_ENDS_OF_TURN = ("</s>", "<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<end_of_turn>")

_CALCULATION = re.compile(r"<<[^<>\n]*>>")  # GSM8K's notes to a calculator

# \text{The answer is } 42, \text{Answer: 42}
_LABEL_IN_BOX = re.compile(
    r"""
    ^(?:(\\(?:text|textbf|mathrm|mbox)\s*\{)\s*)?(?:the\s+)?(?:final\s+|correct\s+)?
    (?:answer|result|solution)\s*(?:(?:is|are)\b\s*:?|:)\s*(?=\S)
    """,
    re.IGNORECASE | re.VERBOSE,
)
# #### 42; the first group of a line of its own, the second behind other text
_HEADING = re.compile(
    r"^[ \t]*#{4,}[ \t]*([^\n]*)$|(?<=[^#\n])####(?!#)[ \t]*([^\n]*)", re.MULTILINE
)
# #### Step by step, #### Verification
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
# #### 2. Answer, #### (b) Area
_NUMBERED_HEADING = re.compile(
    r"\d+[.):]\s*[A-Za-z*]|(?:step|part|case)\s*\d+|\(?[a-z]\)\s+[A-Za-z]", re.IGNORECASE
)
_NEXT_PROBLEM = re.compile(r"\s*(?:Question|Q:|Problem)\b")
_CLOSING_HASHES = re.compile(r"(?<=\S)\s+#+\s*$")  # #### 42 ####
# The label of #### Final answer: 42
_LABEL = re.compile(
    r"(?:the\s+)?(?:final\s+)?(?:answer|result|solution)\b\s*(?:is\b)?\s*:?", re.IGNORECASE
)

# "the answer to the question is", "Answer:", "the answer would be"
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
# "I doubt that the answer is"
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
    r"\s+(?:but|actually|wait|no|sorry|rather|however|hmm|I[ ]mean|maybe|perhaps|possibly|probably"
    r"|though)"
    r"\b(?=[^\n.;!?]{0,80}?[0-9])"
)
# What goes on behind $5$: "$5$ and a half", "$5$ or $6$", "$5$, but actually"
_CONTINUATION = re.compile(
    rf"""
      {_SCALE}|,?{_RETRACTION}|[\s,]*(?:and\s*|or\s*)?[|$0-9\\+*/^-]
    | [\s,]*(?:is\s+)?(?:not\b|wrong\b|incorrect\b)
    | [\s,]*(?:{HEDGES})\b|-?ish\b|\s+and\s+(?:some|change)\b|\s+point\b
    | \s+if\b[^\n.]{{0,80}}\b(?:otherwise|else)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Where "42" ends in "42. So", "42, which is", "42** and", "42 because"
_SENTENCE_END = re.compile(
    rf"""
      [.!?]?\*\*(?![-0-9(\\]|{_SCALE}|,?{_RETRACTION})|[.!?](?=\s|$)|\n|;
    | ,(?!{_RETRACTION})\s+(?!(?:and|or|otherwise|else|{NEW_READING}|{HEDGES})\b)
      (?=[A-Za-z]{{2,}})
    | (?<!\s)\s+(?=(?:because|since|which|where|so)\b)|(?<!\s){AS_OF_A_CLAUSE}
    """,
    re.IGNORECASE | re.VERBOSE,
)
# "42. Wait, it is 43"
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
# "42; 43"
_NEXT_IN_LIST = re.compile(r";[ ]*\$?-?[0-9(\\]")
# "1/2; alternatively, 0.5"
_ALTERNATIVE = re.compile(
    r"[.!;,]?[ *$]*\s?\(?(?:or\s+)?alternatively[\s,:]+(?:it\s+is\s+)?(?=[-$\\.]*[0-9(]|\\)",
    re.IGNORECASE,
)
_DISPLAY_MATH = re.compile(r"\$\$\s*(.+?)\s*\$\$|\\\[\s*(.+?)\s*\\\]", re.DOTALL)
# Where one sentence ends and the next begins; not behind "Eq." or "e.g."
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
_HAS_VALUE = re.compile(r"[0-9]|\$[^$]+\$|\\[(\[]")
# The marks of a line in Markdown, such as "## " and "> - ", and the end of its sentence.
_LINE_MARKS = re.compile(r"^[#>*\s-]+(?=[^\s0-9.#*])|^#+\s*|[.!:]+\s*$")
MAX_LAST_LINES = 4000  # characters at the end of a text that states no answer


class Form(Enum):
    """How a text states its answer."""

    WHOLE = "whole"  # nothing but the answer: in a box
    SENTENCE = "sentence"  # what follows "the answer is" or ####, or stands between tags
    NOWHERE = "nowhere"  # somewhere in what the text says last


class Statement(NamedTuple):
    """A normalized answer (`normalize_answer`), such as "42" or "x = 5", and how it was stated; ""
    where the text ends without an answer. With Form.NOWHERE the text is not normalized."""

    text: str
    form: Form


def final_answer(response: str) -> Statement:
    """The final answer of a response, without its thinking.

    An answer in the last box or tag that is taken back, or a box that is not finished, gives ""
    with Form.WHOLE. An answer after #### or "the answer is" that is taken back gives "" with
    Form.SENTENCE. Where no answer is marked as such, the text is the last lines, with
    Form.NOWHERE.
    """
    response = with_spaces_around_cjk(behind_thinking(_without_end_of_turn(response)))

    # A box behind the last tag states the answer; one inside the tag is found by the recursion.
    tag = _last_tag(response)
    if tag is not None and last_box_start(response) < tag.end:
        return _answer_in_tag(response, tag)

    # The helpers below give None where there is no such answer, and "" where it is taken back.
    boxed = stated_box(response)
    if boxed is not None:
        # LaTeX, where ~ is a space. "Answer: 42" becomes "42"; what opened the label, such as
        # \text{, stays, because its brace is closed behind the label.
        boxed = _LABEL_IN_BOX.sub(r"\1", boxed.lstrip(" ~"))
        return Statement(normalize_answer(boxed), Form.WHOLE)

    # "The answer is not 41; it is 42" becomes "The answer is 42".
    response = _NOT_BUT.sub(r"\1 ", _CODE_FENCE.sub("", response))
    marked = _behind_hashes(response)
    if marked is not None:
        return Statement(marked, Form.SENTENCE)  # normalized by `_behind_hashes`

    stated = _behind_answer_is(response)
    if stated is None:
        stated = answer_at_the_end(response)
    if stated is not None:
        return Statement(normalize_answer(stated), Form.SENTENCE)
    return Statement(_last_lines(response), Form.NOWHERE)


def reference_answer(answer: str) -> str:
    r"""The answer that a reference solution states, normalized: after its last ####, else in its
    last \boxed{}, else all of it. "" where nothing is there. answer: a problem's reference, such as
    "42" or "9 * 2 = 18\n#### 18"."""
    answer = with_spaces_around_cjk(answer)
    if "####" in answer:
        end = answer.rpartition("####")[2].strip()
        marked = normalize_answer(end) if "\n" not in end else _behind_hashes(answer)
        if marked is not None:  # None: there are only headings
            return normalize_answer(last_box(marked) or marked)
    return normalize_answer(last_box(answer) or answer)


# --- tags


def _without_end_of_turn(response: str) -> str:
    response = response.rstrip()
    while response.endswith(_ENDS_OF_TURN):
        for end in _ENDS_OF_TURN:
            response = response.removesuffix(end).rstrip()
    return response


@dataclass(frozen=True)
class _Tag:
    """The last <answer> of a text: what it holds, and where that ends, which is before </answer> or
    at the end of the text."""

    content: str
    end: int


def _last_tag(response: str) -> _Tag | None:
    """The content of the last <answer> or <final_answer> tag, whether it is closed or not; None
    where there is no tag. An end tag before the last opening tag does not count."""
    # Most responses have no tag, which this finds faster than the pattern.
    if "nswer>" not in response and "NSWER>" not in response:
        return None

    start = -1  # where the content of the last opening tag begins
    end = -1  # where it ends; -1: no end tag has been seen behind `start`
    for tag in _ANSWER_TAG.finditer(response):
        is_end_tag = bool(tag[1])
        if not is_end_tag:
            start = tag.end()
            end = -1
        elif end < 0:
            end = tag.start()
    if start < 0:
        return None
    if end < 0:
        end = len(response)
    return _Tag(response[start:end], end)


def _answer_in_tag(response: str, tag: _Tag) -> Statement:
    """The answer inside a tag of the response, which is read as if it were a response; "" with
    Form.WHOLE where the tag is empty, or the text behind it takes the answer back."""
    end_tag = _ANSWER_TAG.match(response, tag.end)
    behind = end_tag.end() if end_tag else tag.end
    if is_taken_back(response, behind) or not tag.content.strip():
        return Statement("", Form.WHOLE)

    inside = final_answer(tag.content)
    if inside.form is Form.NOWHERE and "\n" not in inside.text:
        # One line between tags is the answer, with or without words around it.
        return Statement(normalize_answer(inside.text), Form.SENTENCE)
    return inside


# --- #### and "the answer is"


def _behind_hashes(response: str) -> str | None:
    """The normalized answer after the last ####, as in GSM8K: "42" for "#### 42". Headings of
    Markdown, "#### Step 1", do not count. "" where the text takes the answer back, None where there
    is no such answer."""
    if "####" not in response:
        return None

    last_line: str | None = None
    end = 0  # of that line
    for match in _HEADING.finditer(response):
        line = match[1] if match[1] is not None else match[2]  # what is behind the hashes
        if not _is_heading(line, response[match.end() :]):
            last_line = line
            end = match.end()
    if last_line is None:
        return None
    if is_taken_back(response, end):
        return ""

    answer = without_emphasis(_CLOSING_HASHES.sub("", last_line))
    label = _LABEL.match(answer)
    return normalize_answer(answer[label.end() :] if label else answer)


def _is_heading(line: str, following: str) -> bool:
    """Whether the line after #### is a heading of Markdown, and no answer: "Step 1", "2. Answer",
    or words that are followed by more text. line: without its hashes; an empty one is a heading;
    following: the text after the line, up to the end of the response."""
    content = line.strip(" *:#")
    if not content:
        return True
    # "Final answer" alone is a heading, and "Final answer: 42" states 42.
    label = _LABEL.match(content)
    if label:
        return not content[label.end() :].strip(" *:")
    if _NUMBERED_HEADING.match(content) or _HEADING_WORDS.match(content):
        return True

    # A line of words is a heading where text follows that is not the next problem of a list. One or
    # two characters may be an option, such as C.
    is_words = len(content) > 2 and not re.search(r"[0-9$\\]", content)
    is_followed = bool(following.strip()) and not _NEXT_PROBLEM.match(following)
    return is_words and is_followed


def _behind_answer_is(response: str) -> str | None:
    """The normalized answer after the last "the answer is" (or "Answer:" and the like) that is not
    denied, supposed or a question. "" where the text takes the answer back, None where there is no
    such statement. Each _ANSWER_IS match ends where the answer begins."""
    for match in reversed(list(_ANSWER_IS.finditer(response))):
        if _is_denied_or_supposed(response, match):
            continue

        remaining = response[match.end() :]
        stated = _first_sentence(remaining)
        if remaining[stated.end : stated.end + 1] == "?":
            continue
        # "The answer would be 42 if" states nothing; "the answer would be 42" does.
        if "would" in match[0] and depends_on_a_condition(_whole_sentence(response, match)):
            continue

        answer = stated.answer
        line_before = response[: match.start()].rpartition("\n")[2]
        if answer.endswith("*") and line_before.count("*") % 2:  # *The answer is 42*
            answer = answer.removesuffix("*")
        return _with_what_follows(answer, remaining, stated.end)
    return None


def _is_denied_or_supposed(response: str, match: re.Match[str]) -> bool:
    """Whether the words before "the answer is" deny it, guess it or suppose it: "I doubt that"."""
    before = response[max(0, match.start() - 80) : match.start()]
    clause = _CLAUSE_START.split(before)[-1]
    if _CLAUSE_DENIES.search(clause) or GUESSED.search(clause):
        return True
    return is_supposed(_sentence_before(response, match))


def _with_what_follows(answer: str, remaining: str, end: int) -> str:
    """An answer, as the text behind it leaves it or corrects it; "" where that text takes it back.
    remaining: the text that begins with the answer; end: where the answer ends in it."""
    alternative = _ALTERNATIVE.match(remaining, end)
    if alternative:
        # 1/2; alternatively 0.5: right where both are the same
        return f"{answer} = {_first_sentence(remaining[alternative.end() :]).answer}"
    if _NEXT_IN_LIST.match(remaining, end):  # 42; 43: the whole list
        return normalize_answer(remaining.partition("\n")[0])
    if _NEXT_TAKES_BACK.match(remaining, end):  # 42. Wait, it is 43: the rest of that line
        return _last_lines(remaining[end:].partition("\n")[0])
    if is_taken_back(remaining, end) or is_left_open(remaining, end):
        return ""
    return answer


def _sentence_before(text: str, part: re.Match[str]) -> str:
    """What comes before a match in its sentence, of at most 200 characters."""
    return re.split(r"[.!?]\s|\n", text[max(0, part.start() - 200) : part.start()])[-1]


def _whole_sentence(text: str, part: re.Match[str]) -> str:
    """The sentence around a match, with up to 200 characters of it on each side."""
    before = _sentence_before(text, part)
    behind = re.split(r"[.!?](?:\s|$)|\n", text[part.end() : part.end() + 200])[0]
    return f"{before} {behind}"


@dataclass(frozen=True)
class _FirstSentence:
    """The answer that a text begins with, and where it ends in that text."""

    answer: str
    end: int


def _first_sentence(text: str) -> _FirstSentence:
    """The normalized answer at the beginning of a text: a formula between dollars that is a whole
    value, else everything up to the end of the sentence."""
    math = INLINE_MATH.match(text)
    if math and not _CONTINUATION.match(text, math.end()) and value_ends_at(text, math.end()):
        content = next(group for group in math.groups() if group is not None)
        if not has_words(content):
            return _FirstSentence(normalize_answer(content), math.end())

    sentence_end = _SENTENCE_END.search(text)
    end = sentence_end.start() if sentence_end else len(text)
    return _FirstSentence(normalize_answer(text[:end]), end)


# --- texts that state no answer


def _last_lines(response: str) -> str:
    """The end of a text, at most MAX_LAST_LINES characters, each formula of its display math in one
    line between single dollars, so that `last_values` does not split it."""

    def in_one_line(match: re.Match[str]) -> str:
        formula = match[1] or match[2]
        return f"${' '.join(formula.split())}$"

    end = _CALCULATION.sub("", response[-MAX_LAST_LINES:])
    return _DISPLAY_MATH.sub(in_one_line, end).strip()


def last_values(text: str) -> list[str]:
    """The value that the last sentence with a value states, for a text that marks no answer: with
    and without the words after it, ["17 birds", "17"]. [] where there is none, or where it is asked
    for, denied or taken back. text: of a Statement with Form.NOWHERE."""
    sentences = _SENTENCES.split(text)
    if _CUT_OFF.search(_EMPHASIZED_LINE.sub(r"\1", sentences[-1])):
        return []

    with_value = [index for index, sentence in enumerate(sentences) if _HAS_VALUE.search(sentence)]
    if not with_value:
        return []

    last = with_value[-1]
    sentence = sentences[last]
    if sentence.rstrip().endswith("?") or _ANSWER_IS.search(sentence):
        return []  # it is asked, or "I doubt that the answer is 42"
    following = " ".join(sentences[last + 1 :])
    if is_taken_back(following, 0) or is_left_open(following, 0):
        return []
    # is_statement=False: the sentence does not follow "the answer is".
    return values_in_sentence(_LINE_MARKS.sub("", sentence), is_statement=False)
