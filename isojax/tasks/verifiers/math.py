"""`math`: GSM8K's and MATH's answers. What a response states is compared with the reference as text and number first,
then by math-verify (extra [verify]), which also searches a response that states no answer for its last expression."""

import re
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, NamedTuple

from isojax.core.nouns import Problem
from isojax.core.registry import import_extra
from isojax.tasks.verifiers import Check, Verdict, refuse_argument

ISOLATED, PURE = True, True
MAX_ANSWER_LENGTH = 200  # characters of a number; longer ones are left to algebra

_BOX_COMMAND = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)|\\boxed\s+(?=[^\s{$])")
_BRACE = re.compile(r"(?<!\\)[{}]")
_ANSWER_IS = re.compile(r"\banswer\s*(?:\\?\*\*)?\s*(?:is|:|=)(?:\s*:)?(?:\s*\*\*)?\s*", re.IGNORECASE)
_INLINE_MATH = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_VALUE_WORDS = r"half|halves|thirds?|quarters?|fifths?|tenths?|dozens?|hundreds?|thousands?|[mbtr]+illions?|or"
_SCALE_WORD = re.compile(rf"\b(?:{_VALUE_WORDS})\b", re.IGNORECASE)
_SCALE = rf"[\s-]*(?:and\s+)?(?:(?:an?|one|two|three)[\s-]+)?(?:{_VALUE_WORDS})\b"
# "5, but actually 7", where another number follows in the sentence: what is stated then is not 5
_RETRACTION = r"\s+(?:but|actually|wait|no|sorry|rather|however|hmm|I mean)\b(?=[^\n.;!?]{0,80}?[0-9])"
_CONTINUATION = re.compile(f"{_SCALE}|,?{_RETRACTION}", re.IGNORECASE)
_SENTENCE_END = re.compile(
    rf"[.!?]?\*\*(?!{_SCALE})|[.!?](?=\s|$)|\n|;|,(?!{_RETRACTION})\s+(?!and\b|or\b)(?=[A-Za-z]{{2,}})"
    r"|(?<!\s)\s+(?=(?:because|since|which|where|so|as)\b)",
    re.IGNORECASE,
)
_LATEX_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_SPACES = re.compile(r"(?<!\\)\\[,;: ]|~|\\quad|[\u00a0\u2009\u202f]")
_UNIT = re.compile(
    r"(?:\s*\^\{?\\circ\}?|\s*°|\\degree)|\s*\\(?:text|mathrm|mbox)\s*\{([^{}0-9]*)\}(?:\^\{?[23]\}?)?"
    r"|\s+([A-Za-z][A-Za-z./ -]+[23²³]?)"
)
# Other words of one or two letters may be variables: 12 xy. Next to a longer word link words count too: 5 of them.
_SHORT_UNITS = re.compile(
    r"[mdckn]?m|[mk]?g|[mdc]?[lL]|[kM]?[WVJNK]|[kKMGT][Bb]|m?s|h|hr|Hz|lb|oz|ft|yd|mi|in|sq|cu|pt|qt|cc|ha|Pa|[ap]m|C|F"
)
_UNIT_LINK_WORDS = frozenset(["a", "an", "of", "in", "at", "on", "by", "to", "is", "no"])
_NUMBER_WORDS = re.compile(rf"\b(?:{_VALUE_WORDS}|and|to|pi|plus|minus|times|over|squared|cubed)\b", re.IGNORECASE)
_DIGITS = r"(?:[0-9]{1,3}(?:[, ][0-9]{3})+|[0-9]+)"
_TIMES_VARIABLES = re.compile(rf"[+-]?\s*{_DIGITS}(?:\.[0-9]*)?\s*([A-Za-z]{{1,2}})")
_DECIMAL = re.compile(rf"{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+")
_FRACTION = re.compile(
    rf"(?P<whole>{_DIGITS})?\s*\\frac\s*"
    r"(?:\{\s*(?P<a>[0-9]+)\s*\}\s*\{\s*(?P<b>[0-9]+)\s*\}|(?P<c>[0-9])(?P<d>[0-9]))"
)
_SLASH_FRACTION = re.compile(rf"(?:(?P<whole>{_DIGITS})\s+)?(?P<a>[0-9]+)\s*/\s*(?P<b>[0-9]+)")


def build(argument: str) -> Check:
    """The check; InputError where an argument is given, or math-verify is missing."""
    refuse_argument("math", argument)
    math_verify = import_extra("verify", "cell.verifier.use = math", "math_verify")

    # Its own timeouts are signals, which do not reach into C code; the deadline of a worker process does.
    parse = partial(math_verify.parse, parsing_timeout=None)

    @lru_cache(1024)
    def parse_reference(reference: str) -> list[Any]:
        return parse(_in_math_mode(reference))

    def check(problem: Problem, prompt: str, response: str) -> Verdict:
        reference = reference_answer(problem.answer)
        stated = stated_answer(response)
        if stated == "":
            return Verdict(False, False)
        answer = normalize_answer(response) if stated is None else stated
        is_same = answers_equal(reference, answer)
        parsed = stated is not None or is_same is True or parse_number(answer) is not None
        if is_same is None or not parsed:
            response_expressions = parse(response if stated is None else _in_math_mode(stated))
            parsed = parsed or bool(response_expressions)
            gold = parse_reference(reference)
            is_same = math_verify.verify(gold, response_expressions, allow_set_relation_comp=True, timeout_seconds=None)
        return Verdict(bool(is_same), parsed)

    check(Problem(0, "", r"\frac{1}{2}"), "", r"\boxed{2^{-1}}")  # loads its parser, which takes longer than any check
    return check


def _in_math_mode(text: str) -> str:
    """An answer as math-verify finds it: between dollars, unless there are some in it or it is words."""
    return text if "$" in text or has_words(text) else f"${' '.join(text.split())}$"


class ParsedNumber(NamedTuple):
    """A rational number, and how it was written."""

    value: Fraction
    percent: bool
    decimal: bool  # or an integer; else a fraction


def reference_answer(answer: str) -> str:
    """The answer that a reference solution states: after its last ####, else in its last \\boxed{}, else all of it."""
    if "####" in answer:
        return normalize_answer(answer.rpartition("####")[2])
    boxed_text = last_boxed(answer)
    return normalize_answer(answer if boxed_text is None else boxed_text)


def stated_answer(response: str) -> str | None:
    """The answer that a response states: in its last \\boxed{}, else after its last ####, else after "answer is"."""
    if (boxed_text := last_boxed(response)) is not None:
        return normalize_answer(boxed_text)
    if "####" in response:
        return normalize_answer(response.rpartition("####")[2].strip().partition("\n")[0])
    answer_positions = [match.end() for match in _ANSWER_IS.finditer(response)]
    if not answer_positions:
        return None
    remaining_text = response[answer_positions[-1] :]
    math_match = _INLINE_MATH.match(remaining_text)
    if math_match and not has_words(content := next(group for group in math_match.groups() if group is not None)):
        if not _CONTINUATION.match(remaining_text, math_match.end()):
            return normalize_answer(content)
        remaining_text = content + remaining_text[math_match.end() :]
    return normalize_answer(_SENTENCE_END.split(remaining_text, maxsplit=1)[0])


def last_boxed(text: str) -> str | None:
    """What the last \\boxed{...} with balanced braces holds."""
    open_braces: list[int] = []
    box_positions = {match.end() for match in _BOX_COMMAND.finditer(text)}
    start = max((position for position in box_positions if text[position] != "{"), default=-1)
    end = start + MAX_ANSWER_LENGTH
    for brace in _BRACE.finditer(text):  # one pass, whatever the response repeats
        if brace[0] == "{":
            open_braces.append(brace.start())
        elif open_braces and (position := open_braces.pop()) in box_positions and position > start:
            start, end = position, brace.start()
    if start < 0:
        return None
    return text[start + 1 : end] if text[start] == "{" else re.split(r"[\s$]", text[start:end], maxsplit=1)[0]


def normalize_answer(text: str) -> str:
    """An answer without spacing, dollars around it and a full stop; minus signs and fractions in one spelling."""
    text = re.sub(r"[\u2212\u2013]", "-", text.replace("{,}", ","))
    text = _SPACES.sub(" ", re.sub(r"\\!\s*", "", text))
    text = re.sub(r"\\(?:left|right)(?![A-Za-z])", "", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text).replace("\\%", "%")
    text = text.strip().removesuffix(".").strip("* \t\n")
    while math_match := _INLINE_MATH.fullmatch(text):
        text = next(group for group in math_match.groups() if group is not None).strip().removesuffix(".")
    return text.strip()


def has_words(text: str) -> bool:
    """Whether plain words stand in it, outside LaTeX's commands and their text."""
    return re.search(r"(?<![\\A-Za-z])[A-Za-z]{3,}", _LATEX_TEXT.sub("", text)) is not None


def parse_number(text: str) -> ParsedNumber | None:
    """The number that a normalized text is, without its currency sign or unit: 72.0, $1,234, 50%, 2 1/2, 7 apples."""
    if len(text) > MAX_ANSWER_LENGTH:
        return None
    number_text = text.replace("\\$", "$")
    percent = re.search(r"\s*(?:%|\bper ?cent\b)\s*$", number_text)
    number_text = number_text[: percent.start()] if percent else number_text
    for unit in _UNIT.finditer(number_text):
        is_last = unit.end() == len(number_text)
        if is_last and not _NUMBER_WORDS.search(unit[1] or unit[2] or "") and _is_unit(unit[2] or ""):
            number_text = number_text[: unit.start()]
            break
    signed = re.fullmatch(r"([+-]?)\s*[$€£¥]?\s*([+-]?)\s*(.+)", number_text.strip(), re.DOTALL)
    if not signed or (signed[1] and signed[2]):
        return None
    value, decimal = _parse_unsigned(signed[3])
    if value is None:
        return None
    return ParsedNumber(-value if "-" in (signed[1], signed[2]) else value, percent is not None, decimal)


def _is_unit(unit: str) -> bool:
    """Whether each word after a number is a unit's: of three letters or more, a known short one, or a link word."""
    unit_words = re.findall(r"[A-Za-z]+", unit.replace(".", ""))
    is_known = [len(word) >= 3 or _SHORT_UNITS.fullmatch(word) is not None for word in unit_words]
    words = zip(is_known, unit_words, strict=True)
    return not unit_words or (any(is_known) and all(known or word in _UNIT_LINK_WORDS for known, word in words))


def _parse_unsigned(text: str) -> tuple[Fraction | None, bool]:
    """(value, whether it is a decimal) of an unsigned number."""
    if _DECIMAL.fullmatch(text):
        return Fraction(re.sub("[, ]", "", text).rstrip(".")), True
    match = _FRACTION.fullmatch(text) or _SLASH_FRACTION.fullmatch(text)
    if not match:
        return None, False
    groups = match.groupdict()
    numerator, denominator = int(groups["a"] or groups["c"]), int(groups["b"] or groups["d"])
    if not denominator:
        return None, False
    return int(re.sub("[, ]", "", groups["whole"] or "0")) + Fraction(numerator, denominator), False


def as_words(text: str) -> str | None:
    """A normalized text as words in small letters, where it is nothing else: `\\text{Evelyn}`, `(B)`, "no solution"."""
    plain = " ".join(_LATEX_TEXT.sub(r"\1", text).split()).strip("().' ")
    if re.fullmatch(r"[A-Z]|(?=.*[A-Za-z]{3})[A-Za-z][A-Za-z ,.'-]*", plain):
        return plain.casefold()
    return None


def answers_equal(reference: str, response: str) -> bool | None:
    """Whether two normalized answers are the same, where that is clear without algebra; None where it is not."""
    if _unwrapped(reference) == _unwrapped(response):
        return True
    reference_number, response_number = parse_number(reference), parse_number(response)
    if reference_number and response_number:
        # 50% is 50 as well as 0.5 where the other side has no percent sign.
        plain, percent = sorted((reference_number, response_number), key=lambda number: number.percent)
        is_one_percent = percent.percent and not plain.percent
        if percent.value == plain.value or (is_one_percent and percent.value == 100 * plain.value):
            return True
        return False if reference_number.decimal and response_number.decimal else None
    if reference_number and reference_number.decimal and _SCALE_WORD.search(response):
        return False  # "5 or 6", "5 and a half": algebra would find 5 in them, or 6
    variables = _TIMES_VARIABLES.fullmatch(response)
    if reference_number and reference_number.decimal and variables and not _is_unit(variables[1]):
        return False  # "12 ab": math-verify takes some letters for a unit
    reference_words = as_words(reference)
    if reference_words is not None and reference_words == as_words(response):
        return True
    return False if reference_words is not None and len(reference_words) > 1 else None


def _unwrapped(text: str) -> str:
    return "".join(_LATEX_TEXT.sub(r"\1", text).split()).rstrip(".")
