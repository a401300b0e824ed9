"""`math`: GSM8K's and MATH's answers.

What a response states is compared with the reference as text, as a number and as an expression;
expressions that isojax does not read, such as integrals, are left to math-verify (extra [verify]).
"""

import re
from fractions import Fraction
from functools import lru_cache

from isojax.core.nouns import Problem
from isojax.core.registry import import_extra
from isojax.tasks.answers.arithmetic import Arithmetic
from isojax.tasks.answers.computer_algebra import ComputerAlgebra
from isojax.tasks.answers.cursor import Unreadable
from isojax.tasks.answers.equality import Equality
from isojax.tasks.answers.final_answer import (
    Form,
    Statement,
    final_answer,
    last_values,
    reference_answer,
)
from isojax.tasks.answers.glosses import find_gloss
from isojax.tasks.answers.multiple_choice import (
    is_same_letter,
    option_alone,
    option_letters,
    option_with_value,
    stated_option,
    value_of_option,
)
from isojax.tasks.answers.sentence import values_in_sentence
from isojax.tasks.answers.spelling import (
    MAX_ANSWER_LENGTH,
    as_words,
    canonical_text,
    is_matchable,
    is_prose,
    normalize_answer,
)
from isojax.tasks.answers.thinking import never_ends_thinking
from isojax.tasks.answers.tree import Node, Number, Quantity
from isojax.tasks.answers.units import read_unit
from isojax.tasks.answers.whole_answer import read_answer
from isojax.tasks.verifiers import Check, Verdict, refuse_argument, verifier

# 1234, -1,234.5
_PLAIN_NUMBER = re.compile(r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")
# $1,234.50 or 42 apples: the number, and its unit
_PLAIN_ANSWER = re.compile(rf"\$?({_PLAIN_NUMBER.pattern})(?: ([A-Za-z]{{3,}}))?")
_DECIMAL_COMMA = re.compile(r"(-?[0-9]+),([0-9]{1,2}|[0-9]{4,})")  # 3,5 but not 3,500
_ABOUT = re.compile(r"^\s*(?:\\(?:approx|simeq)(?![A-Za-z])|≈|about\b|approximately\b)\s*")
_LETTER_UNIT = re.compile(r"(.*[0-9])([mgsLlhVWJNCF])")  # 5m
_EXPONENT_OR_E = re.compile(r"[0-9][eE]-[0-9]")


@verifier(isolated=True, pure=True)
def build(argument: str) -> Check:
    """The check that compares a response's final answer with the reference; InputError where an
    argument is given, or a package of the extra [verify] is missing. The check uses `equality` and
    `algebra`, which are made once for all checks of the process."""
    refuse_argument("math", argument)
    math_verify = import_extra("verify", "cell.verifier.use = math", "math_verify")
    mpmath = import_extra("verify", "cell.verifier.use = math", "mpmath")
    equality = Equality(Arithmetic(mpmath.MPContext()))
    algebra = ComputerAlgebra(math_verify)

    @lru_cache(1024)
    def reference_of(answer: str) -> str:
        return reference_answer(answer)

    def check(problem: Problem, prompt: str, response: str) -> Verdict:
        if never_ends_thinking(prompt, response):
            return Verdict(correct=False, parsed=False)
        reference = reference_of(problem.answer)
        statement = final_answer(response)
        return _judge(reference, statement, equality, algebra)

    # math-verify loads its parser with its first expression, which takes longer than any check.
    algebra.same(r"\int_0^1 x dx", r"\frac{1}{2}")
    return check


def _judge(
    reference: str, statement: Statement, equality: Equality, algebra: ComputerAlgebra
) -> Verdict:
    """Compare the answer that a response states with the reference, cheap comparisons first: as
    options, plain numbers and text, then as expressions. reference: normalized
    (`reference_answer`), such as "42" or "(C) 12". parsed in the verdict: whether there is an
    answer at all. In a text that marks no answer (Form.NOWHERE) there is one only if a value can be
    read."""
    if not statement.text:
        return Verdict(correct=False, parsed=False)
    is_stated = statement.form is not Form.NOWHERE
    answer = statement.text if is_stated else normalize_answer(statement.text)

    # As options, as plain numbers, as texts.
    if _is_option(reference) and _same_options(reference, statement, answer):
        return Verdict(correct=True, parsed=True)
    is_same_number = _same_plain_numbers(reference, answer)  # None: not both are plain numbers
    if is_same_number is not None:
        return Verdict(is_same_number, parsed=True)
    if not is_matchable(reference):  # such as N/A, which no answer equals
        return Verdict(correct=False, parsed=is_stated)
    if not is_prose(reference) and _same_text(reference, answer):
        return Verdict(correct=True, parsed=True)

    # As expressions. Either may be read in several ways; one in common is enough. The value of an
    # option, 12 in "C. 12", counts only where the letters agree.
    reference_nodes = _read_reference(reference)
    nodes = _read_whole(statement.form, answer)  # () where a part of it cannot be read
    option_value = value_of_option(answer)
    if option_value is not None and option_with_value(answer) == option_with_value(reference):
        nodes += read(normalize_answer(option_value))
    if any(isinstance(node, Number | Quantity) for node in reference_nodes):
        nodes += _read_for_a_number(answer)  # 3,5 as 3.5, and 5m with a unit
    # Only what isojax cannot read is left to math-verify.
    if not (reference_nodes and nodes) and algebra.same(reference, answer):
        return Verdict(correct=True, parsed=True)
    # A box holds nothing but the answer (Form.WHOLE); of a sentence, read the value that it states.
    if not nodes and statement.form is not Form.WHOLE:
        nodes = _read_statement(statement)
    is_correct = _same_nodes(reference_nodes, nodes, equality)
    return Verdict(is_correct, parsed=is_stated or bool(nodes))


@lru_cache(1024)
def _is_option(reference: str) -> bool:
    """Whether a problem asks for one or several of A, B, C ..."""
    return option_with_value(reference) is not None or option_letters(reference) is not None


def _same_options(reference: str, statement: Statement, answer: str) -> bool:
    """Whether an answer chooses what the reference does: C, or C with a value where the reference
    has none. reference: an option or a list of options (`_is_option`); answer: normalized."""
    letters = option_letters(reference)
    if letters is not None:
        return letters == option_letters(answer)
    letter = option_with_value(reference)
    if statement.form is Form.NOWHERE:
        return letter == stated_option(statement.text)
    has_value = len(as_words(reference) or "") != 1
    return letter == (option_alone(answer) if has_value else option_with_value(answer))


def _same_plain_numbers(reference: str, answer: str) -> bool | None:
    """Whether two integers or decimals are equal; None where reference or answer is anything else.
    The answer may have a dollar sign or a unit: "$1,234.50", "42 apples".

    Most answers are of this kind, and are decided here, which is fast. Both are normalized; a False
    is final, and no further comparison is made.
    """
    if reference == answer and reference.isdigit():
        return True
    number = _PLAIN_ANSWER.fullmatch(answer)
    if number is None or not _PLAIN_NUMBER.fullmatch(reference):
        return None
    if max(len(reference), len(answer)) > MAX_ANSWER_LENGTH:
        return None
    unit = number[2]
    if unit and read_unit(unit) is None:  # thousand, half: a word that changes the number
        return None

    reference_number = reference.replace(",", "")
    answer_number = number[1].replace(",", "")
    if reference_number == answer_number:
        return True
    return Fraction(reference_number) == Fraction(answer_number)


def _read_for_a_number(answer: str) -> tuple[Node, ...]:
    """What an answer may also be where a number is asked for: 3,5 is 3.5, and 5m has a unit, not a
    variable."""
    comma = _DECIMAL_COMMA.fullmatch(answer)
    if comma:
        return read(f"{comma[1]}.{comma[2]}")
    unit = _LETTER_UNIT.fullmatch(answer)
    if unit:
        return read(f"{unit[1]} {unit[2]}")
    return ()


def _same_nodes(
    references: tuple[Node, ...], responses: tuple[Node, ...], equality: Equality
) -> bool:
    """Whether any reading of the reference is the same as any reading of the response."""
    return any(
        equality.same(reference, response) for reference in references for response in responses
    )


@lru_cache(1024)
def _read_reference(reference: str) -> tuple[Node, ...]:
    """The trees of a reference; of a sentence, of the value that it states."""
    reference = _ABOUT.sub("", reference)
    option_value = value_of_option(reference)
    nodes = read(normalize_answer(option_value)) if option_value is not None else ()
    nodes += read(reference)
    return nodes if nodes else _read_statement(final_answer(reference))


def _read_statement(statement: Statement) -> tuple[Node, ...]:
    """The trees of the value that a sentence states, or of a value in a text that marks no answer;
    () where it states none, or several. Several trees are readings of one value (`read`)."""
    if statement.form is Form.NOWHERE:
        values = last_values(statement.text)
    else:
        nodes = _read_whole(statement.form, statement.text)
        if nodes:
            return nodes
        # is_statement: the text is what follows "the answer is".
        values = values_in_sentence(statement.text, is_statement=True)

    for value in values:  # with its unit first, then without
        nodes = read(normalize_answer(value))
        if nodes:
            return nodes
    return ()


def _read_whole(form: Form, text: str) -> tuple[Node, ...]:
    """The trees of a text as one answer. In a sentence 12 (6 + 6) is no product but 12 and its
    explanation."""
    is_explained = form is Form.SENTENCE and find_gloss(text) is not None
    return () if is_explained else read(text)


def _same_text(reference: str, answer: str) -> bool:
    """Whether two answers are the same letter by letter, or as words in small letters."""
    if canonical_text(reference) == canonical_text(answer) or is_same_letter(reference, answer):
        return True
    words = as_words(reference)
    return words is not None and words == as_words(answer)


@lru_cache(4096)
def read(text: str) -> tuple[Node, ...]:
    """The trees that an answer may be, in the order of what is more likely; none where it cannot be
    read whole."""
    # 3e-1 may be 0.3, or 3 e - 1.
    readings_of_e = (True, False) if _EXPONENT_OR_E.search(text) else (True,)

    nodes: list[Node] = []
    for with_exponents in readings_of_e:
        try:
            nodes.append(read_answer(text, with_exponents=with_exponents))
        except (Unreadable, RecursionError):
            continue
    return tuple(nodes)
