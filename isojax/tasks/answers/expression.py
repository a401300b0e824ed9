"""Reads answers in LaTeX, or as people type them, into trees (tree.py): numbers, algebra, lists,
sets, intervals, equations.

An answer that cannot be read to its last character is `Unreadable`, so that no part of an answer
passes for the whole.
"""

import re
from fractions import Fraction

from isojax.tasks.answers.commands import COMMANDS, take_function, take_root
from isojax.tasks.answers.cursor import Cursor, Unreadable
from isojax.tasks.answers.measures import (
    is_scale,
    is_unit_next,
    take_money,
    take_per_cent,
    take_scale,
    take_unit,
)
from isojax.tasks.answers.numerals import take_colon, take_number
from isojax.tasks.answers.tree import (
    INFINITY,
    PI,
    Apply,
    Group,
    Node,
    Number,
    Quantity,
    Relation,
    Residue,
    SetOperation,
    Symbol,
)
from isojax.tasks.answers.units import Unit, is_unit_name, product
from isojax.tasks.answers.value_names import take_name
from isojax.tasks.answers.vocabulary import (
    FUNCTIONS,
    GREEK,
    TEXT,
    WORDS,
    letter_symbol,
    plain_name,
)

_RELATIONS = {
    "<=": "<=", r"\leq": "<=", r"\le": "<=", r"\leqslant": "<=",
    ">=": ">=", r"\geq": ">=", r"\ge": ">=", r"\geqslant": ">=",
    "<": "<", r"\lt": "<", ">": ">", r"\gt": ">",
    "!=": "!=", r"\neq": "!=", r"\ne": "!=",
    "=": "=", "==": "=", r"\equiv": "=",
    r"\approx": "~", r"\simeq": "~", r"\in": "in",
}  # fmt: skip
# <=, \leq, =; the sign is the first group
_RELATION = re.compile(
    r"""
    \s*
    (
          \\(?:leqslant|leq|le|geqslant|geq|ge|neq|ne|in|lt|gt|approx|simeq|equiv)(?![A-Za-z])
        | [<>!=]=|[=<>]
    )
    """,
    re.VERBOSE,
)
_ABOUT = re.compile(r"\s*\\(?:approx|simeq)(?![A-Za-z])")
_SET_OPERATION = re.compile(r"\s*(\\(?:cup|cap|setminus|backslash)(?![A-Za-z]))")
_SET_OPERATORS = {r"\cup": "|", r"\cap": "&", r"\setminus": "-", r"\backslash": "-"}
_CONDITIONS = frozenset(["se", "si"])  # if, in some languages: "Se x = 5"
_PRODUCT = re.compile(r"\s*(\*\*|\*|/|\\(?:cdot|times|div|ast)(?![A-Za-z]))")
_AND_IN_CJK = "(?:或者?|以?及|[和与與]|または|もしくは|또는|와|과)"
_AND = rf"(?:and\b|or\b|{_AND_IN_CJK})"
_AND_IN_TEXT = rf"(?:and|or|{_AND_IN_CJK}|oder|und|ou|et|o|y|u|e|или|и)"
# What parts items of a list: ",", ", and", ", \text{or}", "\text{ and }", "or", 和, "\vee"
_SEPARATOR = re.compile(
    rf"""
    \s*
    (?:
          [,;]\s*
          (?:
                \\(?:text|mathrm|mbox)\s*\{{\s*{_AND_IN_TEXT}\s*\}}|{_AND}
              | \\(?:vee|wedge|lor|land)(?![A-Za-z])
          )?
        | \\(?:text|mathrm|mbox)\s*\{{\s*,?\s*{_AND_IN_TEXT}\s*\}}|\b(?:and|or)\b|{_AND_IN_CJK}
        | \\(?:vee|wedge|lor|land)(?![A-Za-z])
    )
    """,
    re.VERBOSE,
)
# What stands before a modulus: \pmod{, \pmod 7 (with the 7), (mod, \bmod, \text{mod}
_MODULUS = re.compile(
    r"""
    \s*
    (?:
          \\pmod\s*(\{)|\\pmod\s*([0-9a-z])
        | \(?\s*(?:\\[bp]?mod|\\(?:text|mathrm|operatorname)\{\s*mod\s*\}|mod\b)\s*
    )
    """,
    re.VERBOSE,
)
_DEGREE = Unit((("degree", 1),))

_SIGN_FUNCTIONS = {"-": "negate", r"\pm": "pm", r"\mp": "mp"}
_CONSTANTS = {"pi": PI, "infinity": INFINITY, "inf": INFINITY}
_DEGREE_SIGN = re.compile(r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])")
_POWER_SIGN = re.compile(r"\s*(?:\^|\*\*)")
_FACTORIAL_SIGN = re.compile(r"\s*!(?![=!])")
_PERCENT_SIGN = re.compile(r"\s*%")
_DIGIT = re.compile(r"[0-9]")
_LETTER = re.compile(r"[A-Za-z]")
_LETTERS = re.compile(r"[A-Za-z]+")
# _1, _{10}, _{\text{max}}
_SUBSCRIPT = re.compile(
    r"_\s*(?:\{\s*(?:\\(?:text|mathrm)\s*\{)?([\w ,+-]+)\}?\s*\}|([0-9A-Za-z]))"
)
_MODULUS_NEXT = re.compile(r"\(?\s*(?:mod\b|\\[bp]?mod(?![A-Za-z])|\\text\{\s*mod)")
# Commands that may follow a factor without a sign: 2\frac{1}{x}
_FACTOR_COMMAND_TEXT = "frac sqrt binom dbinom pi lfloor lceil lvert sum prod begin infty"
_FACTOR_COMMANDS = frozenset(_FACTOR_COMMAND_TEXT.split())


def is_decimal(node: Node) -> bool:
    """Whether a number, with its sign and unit, is written with a decimal point."""
    if isinstance(node, Quantity):
        return is_decimal(node.value)
    if isinstance(node, Apply):
        return is_decimal(node.arguments[0])
    return isinstance(node, Number) and node.decimals is not None


def _names_again(word_unit: Unit, sign_unit: Unit) -> bool:
    """Whether a unit in words is the one that a sign says: $5 dollars, 30° Celsius."""
    dimensions = dict(word_unit.dimensions)
    if any(name in dimensions for name, _ in sign_unit.dimensions):
        return True
    return sign_unit is _DEGREE and ("celsius" in dimensions or "fahrenheit" in dimensions)


def sign_inside(node: Node) -> Node:
    """-(50%) as (-50)%, and so of degrees: what a percent sign or a unit belongs to is the whole
    number."""
    if not isinstance(node, Apply) or node.function != "negate":
        return node
    (inner,) = node.arguments
    if not isinstance(inner, Apply) or inner.function not in ("percent", "degree"):
        return node
    return Apply(inner.function, (Apply("negate", inner.arguments),))


class ExpressionReader:
    """Reads an answer from left to right by recursive descent; each method leaves the cursor behind
    what it has read, and raises Unreadable where something else stands there. After Unreadable the
    reader and its cursor must not be used any more.

    cursor.take(pattern) gives the match of a pattern at the cursor, and moves behind it; where
    there is none it gives None, and the cursor stays. The functions take_... of other modules read
    at the cursor likewise.

    items:     relation, relation ...
    relation:  set_expression < set_expression ...
    set_expression:  quantity \\cup quantity ...
    quantity:  a sum with its currency, scale, percent sign and unit
    sum:       term + term ...
    term:      power * power ..., also without a sign
    power:     primary with its exponents, ! and %
    primary:   a number, a variable, a command or an expression in brackets
    """

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor

    # --- lists, relations, sets

    def read_all(self) -> Node:
        """The tree of the whole text; of several items, a Group without brackets."""
        items = self.items()
        if not self.cursor.at_end():
            raise Unreadable(self.cursor.text[self.cursor.position :])
        return items[0] if len(items) == 1 else Group("", tuple(items))

    def items(self) -> list[Node]:
        items = [self.relation()]
        while self.cursor.take(_SEPARATOR):
            items.append(self.relation())
        return items

    def relation(self) -> Node:
        """A set expression, or several with relation signs between them: x, x = 5, 1 < x <= 3.
        Unreadable for a congruence without a modulus, and for a guess such as "\\approx 7".

        A name in words, as in "\\text{Area} = 42", is read by `take_name`, up to its equals sign.
        """
        is_about = self.cursor.take(_ABOUT) is not None
        operators: list[str] = []
        sides: list[Node] = [take_name(self.cursor) or self.set_expression()]
        is_congruence = False
        while True:
            sign = self.cursor.take(_RELATION)
            if sign is None:
                break
            is_congruence = is_congruence or sign[1] == r"\equiv"
            operators.append(_RELATIONS[sign[1]])
            sides.append(self.set_expression())

        if is_congruence and not isinstance(sides[-1], Residue):
            raise Unreadable("congruent modulo nothing")
        if is_about and not (len(sides) == 1 and is_decimal(sides[0])):
            # "About 7" is a guess; 33.3 may be rounded because that was asked for.
            raise Unreadable("about")
        return Relation(tuple(operators), tuple(sides)) if operators else sides[0]

    def set_expression(self) -> Node:
        """A quantity, or several with \\cup, \\cap or \\setminus between them (left first)."""
        node = self.quantity()
        while True:
            sign = self.cursor.take(_SET_OPERATION)
            if sign is None:
                return node
            node = SetOperation(_SET_OPERATORS[sign[1]], node, self.quantity())

    # --- a number and its unit

    def quantity(self) -> Node:
        """A sum with its currency sign, scale, percent sign, modulus or unit: $3 million, 50%,
        5 mod 7, 3 cm; also a time or ratio, 2:30 pm. They are read in this order: currency sign,
        sum, modulus, scales, percent sign, unit."""
        colon = take_colon(self.cursor)
        if colon is not None:
            return self.with_unit(colon, None)

        money = take_money(self.cursor)
        node = sign_inside(self.sum())  # -(50%) as (-50)%
        if money and money.is_negative:  # -$5
            node = Apply("negate", (node,))
        modulus = self.modulus()
        if modulus is not None:
            return Residue(node, modulus)

        # Several scales may follow each other: 5 hundred thousand.
        while True:
            scale = take_scale(self.cursor)
            if scale is None:
                break
            node = Apply("*", (node, Number(Fraction(scale))))
        if take_per_cent(self.cursor):
            node = Apply("percent", (node,))
        return self.with_unit(node, money.unit if money else None)

    def with_unit(self, node: Node, sign_unit: Unit | None) -> Node:
        """A number with the unit that its sign says ($ or a degree sign), and with the unit that
        stands here in words. sign_unit: of the currency sign; None where there is none. A node
        without either is returned unchanged."""
        if isinstance(node, Apply) and node.function == "degree":
            node = node.arguments[0]
            sign_unit = _DEGREE

        word_unit = take_unit(self.cursor)
        if word_unit is None:
            return node if sign_unit is None else Quantity(node, sign_unit)
        if sign_unit is None or _names_again(word_unit, sign_unit):
            return Quantity(node, word_unit)
        return Quantity(node, product(sign_unit, word_unit))  # $5 per hour

    def modulus(self) -> Node | None:
        r"""The modulus at the cursor: 7 for \pmod{7}, \pmod 7, (mod 7) or \bmod 7; None where there
        is none, and the cursor stays. The first group of the match is the brace of \pmod{, the
        second the first character of a modulus without one."""
        match = self.cursor.take(_MODULUS)
        if match is None:
            return None

        is_in_braces = match[1] is not None
        if is_in_braces:
            with self.cursor.inside(commas_separate=False):
                node = self.sum()
            self.cursor.expect("}")
            return node

        is_unbraced_pmod = match[2] is not None
        if is_unbraced_pmod:
            self.cursor.position -= 1  # the match has the first character of the modulus
            return self.power()

        node = self.sum()
        if "(" in match[0]:
            self.cursor.expect(")")
        return node

    # --- arithmetic

    def sum(self) -> Node:
        """Terms with signs between them; 1 - x is Apply("+", (1, Apply("negate", (x,))))."""
        terms = [self.term()]
        while True:
            sign = self.take_sign()
            if not sign:
                return terms[0] if len(terms) == 1 else Apply("+", tuple(terms))
            term = self.term()
            terms.append(term if sign == "+" else Apply(_SIGN_FUNCTIONS[sign], (term,)))

    def take_sign(self) -> str:
        """The sign +, -, \\pm or \\mp that stands here; empty where there is none."""
        for sign in ("+", "-"):
            if self.cursor.take_text(sign):
                return sign
        command = self.cursor.command()
        if command in (r"\pm", r"\mp"):
            self.cursor.position += len(command)
            return command
        return ""

    def term(self) -> Node:
        """A product or quotient, with signs before it: -2x, 6 \\times 7, (x+1)(x-1)/2. Factors
        follow each other with an operator or without, and are joined from left to right: 1/2x is
        (1/2) x."""
        sign = self.take_sign()
        if sign:
            term = self.term()
            return term if sign == "+" else Apply(_SIGN_FUNCTIONS[sign], (term,))

        node = self.power()
        while True:
            operator = self.cursor.take(_PRODUCT)
            if operator:
                if operator[1] == "**":  # no product; `power` reads it where it has its place
                    raise Unreadable("**")
                is_negative = self.cursor.take_text("-")
                factor = self.power()
                if is_negative:
                    factor = Apply("negate", (factor,))
                is_division = operator[1] in ("/", r"\div")
                node = Apply("/" if is_division else "*", (node, factor))
            elif self.starts_a_factor(node):
                node = Apply("*", (node, self.power()))
            else:
                return node

    def starts_a_factor(self, previous: Node) -> bool:
        """Whether what follows the node `previous` is a further factor without an operator: the x
        of 2x, the second bracket of (x+1)(x-1); not a unit, a modulus or a word. The cursor moves
        over spaces only. (cursor.bars counts the bars | that are open here.)"""
        before = self.cursor.position
        self.cursor.skip_space()
        rest = self.cursor.text[self.cursor.position :]
        is_apart = self.cursor.position > before
        if not rest or _MODULUS_NEXT.match(rest):
            return False

        character = rest[0]
        if character == "(":
            return not isinstance(previous, Group)
        if character in "[.":
            return False
        if character.isdigit():  # 3!7!, but neither 3 7 nor 37
            return not is_apart and self.cursor.text[before - 1 : before] == "!"
        if character == "|":
            return self.cursor.bars == 0  # elsewhere it ends an absolute value
        if character == "{":
            return True
        if character == "\\":
            return self.is_factor_command(rest)
        letters = _LETTERS.match(rest)
        if letters is None:
            return False
        behind_letters = rest[letters.end() :].lstrip()
        return self.is_factor_word(previous, letters[0], behind_letters, is_apart=is_apart)

    def is_factor_word(self, previous: Node, letters: str, behind: str, *, is_apart: bool) -> bool:
        """Whether letters behind `previous` are a factor, rather than its unit or words: the x of
        2x, not the m of 2 m."""
        is_degrees = isinstance(previous, Apply) and previous.function == "degree"
        if is_degrees and letters in ("C", "F"):
            return False
        if not self.is_algebra(letters):
            return False
        is_function = letters in FUNCTIONS or letters == "sqrt"
        has_argument = is_function and behind[:1] in ("(", "{")
        may_be_unit = is_apart and isinstance(previous, Number) and not has_argument
        return not (may_be_unit and is_unit_next(self.cursor))

    def is_factor_command(self, rest: str) -> bool:
        """Whether a command that a text begins with is a factor: \\frac, \\pi, \\mathrm{x}; not
        \\text{cm}."""
        text = TEXT.match(rest)
        if text:
            return plain_name(text[1]) is not None and not is_unit_name(text[1].strip())
        name = self.cursor.command()[1:]
        return name in _FACTOR_COMMANDS or name in GREEK or name in FUNCTIONS

    def is_algebra(self, letters: str) -> bool:
        """Whether letters in a row are a function or a product of variables, rather than a word or
        a unit."""
        if letters in FUNCTIONS or letters in ("pi", "sqrt"):
            return True
        if len(letters) > 2 or letters in WORDS or is_scale(letters):
            return False
        return len(letters) == 1 or not is_unit_name(letters)  # m is a variable, cm is not

    def power(self) -> Node:
        """A primary with the signs behind it, in any number and order: x^2, 5!, 50%, 30°."""
        node = self.primary()
        while True:
            if self.cursor.take(_DEGREE_SIGN):
                node = Apply("degree", (node,))
            elif self.cursor.take(_POWER_SIGN):
                node = Apply("^", (node, self.exponent()))
            elif self.cursor.take(_FACTORIAL_SIGN):
                node = Apply("!", (node,))
            elif self.cursor.take(_PERCENT_SIGN):
                node = Apply("percent", (node,))
            else:
                return node

    def exponent(self) -> Node:
        """What follows ^: a sum in braces, or a primary, which may have a minus sign."""
        self.cursor.skip_space()
        if self.cursor.next_is("{"):
            return self.braces()
        if self.cursor.take_text("-"):
            return Apply("negate", (self.primary(),))
        return self.primary()

    def braces(self) -> Node:
        """A sum in braces."""
        self.cursor.expect("{")
        with self.cursor.inside(commas_separate=False):
            node = self.sum()
        self.cursor.expect("}")
        return node

    def braced_items(self) -> Node:
        """A group, or a list: {1, 2} without its backslashes, which only the outermost braces of an
        answer can be (depth 0: no bracket is open)."""
        self.cursor.expect("{")
        with self.cursor.inside(commas_separate=self.cursor.depth == 0):
            items = self.items()
        self.cursor.expect("}")

        if len(items) > 1 and self.cursor.depth == 0:
            return Group("", tuple(items))
        if len(items) > 1 or isinstance(items[0], Relation):
            raise Unreadable("list")
        return items[0]

    def argument(self) -> Node:
        """What \\frac takes: a group, a digit, a letter or a command."""
        if self.cursor.next_is("{"):
            return self.braces()
        digit = self.cursor.take(_DIGIT)
        if digit:
            return Number(Fraction(int(digit[0])))
        letter = self.cursor.take(_LETTER)
        if letter:
            return letter_symbol(letter[0])
        if self.cursor.command()[1:] in GREEK | {"pi", "sqrt"}:
            return self.primary()
        raise Unreadable("argument")

    def primary(self) -> Node:
        """A number, a variable, a command with its arguments, or an expression in brackets, by the
        character at the cursor; Unreadable where no primary begins with it."""
        self.cursor.skip_space()
        if self.cursor.position == len(self.cursor.text):
            raise Unreadable("end")

        character = self.cursor.text[self.cursor.position]
        if character.isdigit() or character == ".":
            return take_number(self.cursor)
        if character in "([":
            return self.bracketed(character)
        if character == "{":
            return self.braced_items()
        if character == "|":
            return self.bar()
        if character == "\\":
            return self.command_node()
        if character.isascii() and character.isalpha():
            return self.letters()
        raise Unreadable(character)

    def bracketed(self, opening: str) -> Node:
        """An expression in brackets, a tuple or an interval, with the cursor at its opening bracket
        "(" or "[": (x + 1), (1, 2), [0, 1). A single item is returned itself, without a Group."""
        self.cursor.position += 1
        # (Within other brackets `items` refuses an empty one.)
        if self.cursor.depth == 0 and self.cursor.text.startswith(")", self.cursor.position):
            raise Unreadable("()")
        with self.cursor.inside(commas_separate=True):
            items = self.items()
            self.cursor.skip_space()
            closing = self.cursor.text[self.cursor.position : self.cursor.position + 1]
        if closing not in (")", "]"):
            raise Unreadable("bracket")
        self.cursor.position += 1

        if len(items) > 1:
            return Group(opening + closing, tuple(items))
        # Of one item: the brackets must match, as they need not for an interval such as [0, 1).
        if opening + closing not in ("()", "[]") or isinstance(items[0], Relation):
            raise Unreadable("bracket")
        return items[0]

    def bar(self) -> Node:
        """An absolute value, |x|, with the cursor at its first bar."""
        self.cursor.position += 1
        self.cursor.bars += 1
        node = self.sum()
        self.cursor.expect("|")
        self.cursor.bars -= 1
        return Apply("abs", (node,))

    def letters(self) -> Node:
        """A function with its argument, a constant, or a variable, which begins with a letter at
        the cursor: sin x, pi, x. Of two letters such as xy only the first is read. Longer words are
        Unreadable."""
        match = _LETTERS.match(self.cursor.text, self.cursor.position)
        assert match is not None
        letters = match[0]
        if letters in FUNCTIONS:
            self.cursor.position = match.end()
            return take_function(self, letters)
        if letters == "sqrt":
            self.cursor.position = match.end()
            return take_root(self)
        if letters in _CONSTANTS:
            self.cursor.position = match.end()
            return _CONSTANTS[letters]

        # WORDS: those that are no product of variables, such as "is".
        begins_a_sentence = letters.istitle() and letters.casefold() in WORDS | _CONDITIONS
        if len(letters) > 2 or letters in WORDS or begins_a_sentence:
            raise Unreadable(letters)
        self.cursor.position += 1  # what follows the first letter is the next factor
        return self.with_subscript(letter_symbol(letters[0]))

    def with_subscript(self, node: Node) -> Node:
        """A variable with the subscript at the cursor, if there is one: x_1 as Symbol("x_1")."""
        subscript = self.cursor.take(_SUBSCRIPT)
        if not subscript:
            return node
        if not isinstance(node, Symbol):
            raise Unreadable(subscript[0])
        return Symbol(f"{node.name}_{(subscript[1] or subscript[2]).strip()}")

    def command_node(self) -> Node:
        """A LaTeX command with its arguments, with the cursor at its backslash: \\mathrm{x},
        \\alpha_1, \\sin x, \\frac{1}{2}. Unreadable for unknown commands and for words."""
        text = self.cursor.take(TEXT)  # \text{...}, \mathrm{...}
        if text:
            name = plain_name(text[1])  # a letter or a function's name; None for other text
            if name is None:
                raise Unreadable(text[0])
            if name in FUNCTIONS:
                return take_function(self, name)
            return self.with_subscript(letter_symbol(name))

        command = self.cursor.command()
        self.cursor.position += len(command)
        name = command[1:]
        if name in GREEK:
            return self.with_subscript(Symbol(name))
        if name in FUNCTIONS:
            return take_function(self, name)
        if name not in COMMANDS:
            raise Unreadable(command)
        return COMMANDS[name](self)
