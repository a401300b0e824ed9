"""The `math` verifier: what a response states, and whether it is the reference's answer."""

import sys
import time
from pathlib import Path

import pytest

from isojax.core.config import VerifierConfig
from isojax.core.nouns import Problem
from isojax.tasks.answers.final_answer import Form, final_answer, reference_answer
from isojax.tasks.grading import Checker
from isojax.tasks.verifiers import Check
from isojax.tasks.verifiers import math as maths
from tests.linear_time import assert_linear
from tests.refusals import refused

RIGHT, WRONG, NONE = (True, True), (False, True), (False, False)  # (right, answered)
PAIRS = [
    tuple(line.split("\t"))
    for line in Path(__file__).with_name("math_answers.tsv").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.fixture(scope="module")
def check() -> Check:
    return maths.build("")


def judged(check: Check, answer: str, response: str) -> tuple[bool, bool]:
    verdict = check(Problem(5, "?", answer), "?", response)
    assert verdict.failure == ""
    return verdict[:2]


# Thousands of pairs: a test for each kind, not for each pair, whose overhead would be most of its
# time.
@pytest.mark.parametrize("kind", sorted({kind for *_, kind in PAIRS}))
def test_math_answers(check: Check, kind: str) -> None:
    judged_otherwise = []
    for reference, response, right, pair_kind in PAIRS:
        if pair_kind == kind:
            correct, _ = judged(check, reference, response.replace("⏎", "\n"))
            if correct != (right == "1"):
                judged_otherwise.append((reference, response, f"is {right}, judged {correct:d}"))
    assert not judged_otherwise


@pytest.mark.parametrize(
    ("reference", "response", "right"),
    [
        ("-50", r"\boxed{-50^\circ}", True),
        (r"-50^\circ", r"\boxed{-50}", True),
        (r"-25\%", r"\boxed{-25}", True),
        ("-25", "The change is -25%.", True),
        ("25", r"\boxed{-25\%}", False),
        (r"-25\%", r"\boxed{25\%}", False),
    ],
)
def test_a_sign_belongs_to_what_is_before_a_percent_sign(
    check: Check, reference: str, response: str, right: bool
) -> None:
    assert judged(check, reference, response) == (right, True)


def test_the_distance_of_a_matrix_rows_is_no_part_of_it(check: Check) -> None:
    spaced = r"\boxed{\begin{pmatrix} \frac{1}{5} \\[4pt] -\frac{18}{5} \end{pmatrix}}"
    assert judged(check, r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", spaced) == RIGHT
    assert judged(check, r"\begin{pmatrix} 1/5 \\[1ex] 18/5 \end{pmatrix}", spaced) == WRONG


@pytest.mark.parametrize(
    ("answer", "stated"),
    [
        ("She makes 9 * 2 = <<9*2=18>>18.\n#### 18", "18"),
        ("#### 1,000 ", "1,000"),
        (r"So $x = \boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\boxed{1}, then \boxed{\text{(\{a\}, b)}}", r"\text{(\{a\}, b)}"),
        (r"$\boxed 7$", "7"),
        (r"$\dfrac{3}{4}$", r"\frac{3}{4}"),
        ("42", "42"),
    ],
)
def test_gold_answers(answer: str, stated: str) -> None:
    assert reference_answer(answer) == stated


@pytest.mark.parametrize(
    ("response", "stated"),
    [
        (r"So \boxed{\frac{1}{2}} and \boxed{3}", r"\frac{1}{2}, 3"),
        (r"So \boxed{\frac{1}{2}}, so \boxed{3}", "3"),
        (r"So \boxed{\frac{1}{2}} and \boxed{3", ""),
        (r"\boxed{1} no, \boxed{2}. The answer is 3. #### 4", "2"),
        (r"\boxed{}", ""),
        ("The answer is 3.\n#### 4\nQuestion: how many? #", "4"),
        ("The answer is $18 per day, which is $20", "$18 per day"),
        ("The answer is 18.", "18"),
        ("The answer is: $\\frac{1}{2}$.", r"\frac{1}{2}"),
        ("**Answer:** 18", "18"),
        ("Answer: **18**.", "18"),
        ("The answer is 3.5 hours, because 7/2 = 3.5", "3.5 hours"),
        ("the final answer is x = 2, y = 3", "x = 2, y = 3"),
        ("The answer is\n\n18\n\nNext", "18"),
        ("The answer is 1. No: the answer is 2!", "2"),
        (r"answer: \[ 5 \]", "5"),
    ],
)
def test_final_answers(response: str, stated: str) -> None:
    assert final_answer(response).text == stated


def test_tags_around_math_and_around_several_lines(check: Check) -> None:
    assert judged(check, r"\frac{1}{2}", r"<answer>$\frac{2}{4}$</answer>") == RIGHT
    assert judged(check, "7", "<answer>We add 3 and 4.\nSo it is 7.</answer>") == RIGHT
    assert judged(check, "3", "<answer>We add 3 and 4.\nSo it is 7.</answer>") == WRONG


def test_a_response_that_states_nothing_is_read_to_its_end() -> None:
    assert final_answer("It is 18").form is Form.NOWHERE


def test_a_response_that_repeats_boxes_is_read_in_one_pass() -> None:
    assert final_answer(r"\boxed{7} " + r"\boxed{" * 100_000).text == ""


@pytest.mark.parametrize(
    "repeated", [", but", ", " + " " * 9, "** ", " and a", ". No, wait", " if it were"]
)
def test_a_response_that_repeats_itself_after_its_answer_is_read_in_one_pass(repeated: str) -> None:
    def read(count: int) -> None:
        final_answer("The answer is 7" + repeated * count)
        final_answer("The answer is $7$" + repeated * count)

    assert_linear(read, 8_000)


def test_spaces_after_an_answer_are_read_in_one_pass() -> None:
    assert_linear(lambda count: final_answer("The answer is 7" + " " * count + "x"), 100_000)


def pairs(table: str) -> list[tuple[str, str]]:
    """(answer, response) of a table: `answer | response`, several to a line between semicolons."""
    return [
        (a.strip(), b.strip())
        for a, b in (
            cell.split(" | ") for cell in table.replace("\n", " ; ").split(" ; ") if cell.strip()
        )
    ]


NUMBERS = pairs(r"""
    72 | 72.0 ; 72 | $72 ; 72 | 72. ; 72 | 072 ; 1234 | 1,234 ; 1234 | 1{,}234
    1234.5 | \$1,234.50 ; -5 | −5
    -5 | - 5 ; -5 | -$5 ; 50\% | 50 ; 50\% | 0.5 ; 50 | 50% ; 90 | 90^\circ ; 90 | 90°
    12 | 12\text{ cm}
    12 | 12 \text{ cm}^2 ; 18 | 18 dollars per day ; 0.5 | \frac{1}{2} ; \frac{1}{2} | 2/4
    1.5 | 1 1/2
    \frac34 | .75 ; 1\frac{1}{2} | 3/2 ; 10000 | 10 000 ; 7 | 7\, ; 120 | 1.2 \times 10^2
    3 | x=3 ; x=3 | 3
    6 | \frac{36}{6} ; 11,\! 111 | 11111 ; \frac{-1}{2} | -0.5 ; 5\% | 0.05 ; p=\frac{3}{4} | 0.75
    3:2 | 3:2
""")
NOT_NUMBERS = pairs(r"""
    72 | 73 ; 72 | 27 ; 72 | -72 ; 72 | 720 ; 72 | 7.2 ; 5 | 5 and a half ; 3 | 3 million
    0.5 | 50 ; 50 | 0.5
    18 | 18 \text{ or } 19 ; 18 | 18, 19 ; 2 | 1,2,3 ; 1 | 1/0 ; 0.33 | 1/3 ; 3 | x ; 5 | 5x
    -5 | 5
    6 | 5 or 6
""")
ALGEBRA = pairs(r"""
    \sqrt{8} | 2\sqrt{2} ; \dfrac{\sqrt3}{2} | \frac{\sqrt{3}}{2} ; \frac{\pi}{6} | \pi/6
    3\pi | 3 \pi
    (1,2] | \left(1, 2\right] ; (-\infty,2)\cup(3,\infty) | (3,\infty) \cup (-\infty,2)
    \{1,2\} | \{2,1\}
    2, 3 | 3, 2 ; (1, -2) | \left(1,-2\right) ; x^2-1 | (x-1)(x+1) ; y=2x+1 | y = 1+2x ; 3+4i | 4i+3
    1 \pm \sqrt{2} | 1+\sqrt2, 1-\sqrt2 ; \log_2 8 | 3 ; 5! | 120
    \begin{pmatrix} 1 \\ 2 \end{pmatrix} | \begin{pmatrix}1\\2\end{pmatrix} ; 10^{-3} | 0.001
    x \in [1,2] | [1,2] ; x<3 | x < 3 ; 2^{10} | 1024 ; \frac{x+1}{2} | \frac{1}{2}x+\frac12
    3\sqrt{2}\text{ cm} | 3\sqrt2 ; [1,5) | 1 \leq x < 5 ; 1 \le x < 5 | [1,5) ; \pm 3 | 3, -3
    \sqrt[3]{2} | 2^{1/3}
    -\frac{1}{2}x | \frac{x}{-2} ; \cot x | \frac{\cos x}{\sin x} ; \infty | \infty
""")
NOT_ALGEBRA = pairs(r"""
    \sqrt{8} | 2\sqrt{3} ; (1,2] | [1,2] ; (1,2] | (1,3] ; (1, -2) | (-2, 1) ; \{1,2\} | \{1,3\}
    \{1,2\} | 1
    3+4i | 3-4i ; x^2-1 | x^2+1
    \begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix}2\\1\end{pmatrix} ; 3\pi | 3
    x<3 | x>3 ; y=2x+1 | y=2x-1 ; \frac{\pi}{6} | \frac{\pi}{3}
""")
WORDS = pairs(r"""
    \text{Evelyn} | Evelyn ; even | \text{Even} ; \text{(B)} | B ; (C) | \textbf{(C)}
    no solution | \text{no  solution} ; \text{6:30 p.m.} | 6:30 p.m. ; \text{June 20} | June 20
""")
NOT_WORDS = pairs(r"""
    \text{even} | veen ; \text{Evelyn} | \text{Briana} ; B | C ; \text{even} | 5 ; no solution | 0
""")


FORMS = ("\\boxed{{{}}}", "#### {}", "The answer is {}.", "The answer is ${}$.")


@pytest.mark.parametrize(("gold", "given"), NUMBERS + ALGEBRA + WORDS)
def test_math_right(check: Check, gold: str, given: str) -> None:
    for form in FORMS[: 1 if "$" in given else 4]:
        assert judged(check, gold, f"We find 17, 3 then {form.format(given)}") == RIGHT, form
    assert judged(check, f"So \\boxed{{{gold}}}.", f"\\boxed{{{given}}}") == RIGHT


@pytest.mark.parametrize(("gold", "given"), NOT_NUMBERS + NOT_ALGEBRA + NOT_WORDS)
def test_math_wrong(check: Check, gold: str, given: str) -> None:
    for form in FORMS:
        assert judged(check, gold, f"We find {gold}; then {form.format(given)}") == WRONG, form


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("18", RIGHT),
        ("There are 5, so 9 * 2 = 18 dollars.", RIGHT),
        ("There are 18, so 9 * 2 = 19.", WRONG),
        ("She makes $18.", RIGHT),
        ("no idea", NONE),
        ("", NONE),
        (r"\boxed{}", NONE),
        ("The answer is", NONE),
        ("She makes \\boxed{18", NONE),
        ("The answer is \nnot known", WRONG),
    ],
)
def test_math_of_a_response_that_does_not_state_its_answer(
    check: Check, response: str, expected: tuple[bool, bool]
) -> None:
    assert judged(check, "Janet sells 9.\n#### 18", response) == expected


@pytest.mark.parametrize(
    ("gold", "response", "expected"),
    [
        ("12", "The answer is 12 xy.", WRONG),
        ("12", "The answer is 12 x y.", WRONG),
        ("12", "#### 12 ab", WRONG),
        ("12", "The answer is 12 a.", WRONG),
        ("12", "The answer is 12 b.", WRONG),
        ("12", "The answer is 12 cm.", RIGHT),
        ("12", "The answer is 12 sq. ft", RIGHT),
        ("12", "The answer is $12 a day.", RIGHT),
        ("12", "\\boxed{12ab}", WRONG),
        ("12", "\\boxed{12cm}", RIGHT),
        ("12", "The answer is 12 of them.", RIGHT),
        ("12", "The answer is 12 km/h.", RIGHT),
        ("12", "The answer is 12 p.m.", RIGHT),
        ("1", "the answer is $1$ billion", WRONG),
        ("1", "the answer is \\(1\\) billion.", WRONG),
        ("1", "the answer is **1** billion", WRONG),
        ("1", "the answer is $1$ and a half", WRONG),
        ("5", "the answer is $5$ or $6$.", WRONG),
        ("1 billion", "the answer is $1$ billion", RIGHT),
        ("5", "the answer is $5$ and the others are 3.", RIGHT),
        ("5", "the answer is $5$ dollars, a half of 10.", RIGHT),
        ("5", "The answer is 5, but actually 7", WRONG),
        ("5", "The answer is 5 but actually 7", WRONG),
        ("5", "The answer is $5$, but actually $7$.", WRONG),
        ("5", "The answer is 5, no, 7.", WRONG),
        ("7", "The answer is 5, but actually 7", RIGHT),
        ("5", "The answer is 5, but units were not asked for.", RIGHT),
        ("5", "The answer is 5, but see above. 7 is not it.", RIGHT),
        ("5", "The answer is 5, since 2 + 3 = 5.", RIGHT),
    ],
)
def test_math_of_words_after_a_number(
    check: Check, gold: str, response: str, expected: tuple[bool, bool]
) -> None:
    assert judged(check, gold, response) == expected


@pytest.mark.parametrize(
    ("reference", "response", "right"),
    [
        (r"\frac{1}{3}", r"\int_0^1 x^2 dx", True),
        (r"\frac{1}{3}", r"\int_0^1 x^3 dx", False),
        (r"\frac{\pi^2}{6}", r"\sum_{n=1}^{\infty} \frac{1}{n^2}", True),
        ("1", r"\lim_{x \to 0} \frac{\sin x}{x}", True),
        # of which math-verify's parser reads the integral
        (r"\frac{1}{3}", r"\int_0^1 x^2 dx \heartsuit 5", False),
        ("42", r"\int_0^{42} 1 dx, 5", False),
    ],
)
def test_integrals_limits_and_endless_sums_are_left_to_math_verify(
    check: Check, reference: str, response: str, right: bool
) -> None:
    assert judged(check, reference, f"\\boxed{{{response}}}") == (right, True)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("N/A", WRONG),
        ("null", WRONG),
        ('["42", "43"]', WRONG),
        ("Let p be prime. " * 20, WRONG),
        ("42.", RIGHT),
        ("1 234 567", RIGHT),
        ("[42, 43]", RIGHT),
        (r"1, 2, \ldots", RIGHT),
        ("Tom has 42 apples.", RIGHT),
    ],
)
def test_a_reference_against_itself(
    check: Check, reference: str, expected: tuple[bool, bool]
) -> None:
    """Missing values, lists of strings and proofs can be matched by no response."""
    assert judged(check, reference, f"\\boxed{{{reference}}}") == expected


@pytest.mark.parametrize(
    ("reference", "response", "expected"),
    [
        (r"\frac{100}{3}", r"\frac{100}{3} \approx 33.3", RIGHT),
        ("33.3", r"\frac{100}{3} \approx 33.3", RIGHT),
        ("420", r"420 \approx 423", WRONG),
        ("423", r"420 \approx 423", WRONG),
        (r"\frac{100}{3}", r"\frac{100}{3} \approx 33.4", WRONG),
    ],
)
def test_an_approximation_is_no_second_guess(
    check: Check, reference: str, response: str, expected: tuple[bool, bool]
) -> None:
    assert judged(check, reference, f"\\boxed{{{response}}}") == expected


def test_a_reference_that_is_a_sentence_states_its_value(check: Check) -> None:
    assert judged(check, "Tom has 42 apples.", r"\boxed{42}") == RIGHT
    assert (
        judged(check, "#### Step 1\nAdd 2 and 3.\n#### Step 2\nThe answer is 5.", r"\boxed{5}")
        == RIGHT
    )


@pytest.mark.parametrize(
    "response",
    [
        "9^{9^{9^{9}}}", r"\binom{10^9}{5 \cdot 10^8}", "(10^{18})!", "((10!)!)!",
        r"\sum_{k=1}^{5000} k!",
        r"\sum_{i=1}^{2000} \sum_{j=1}^{2000} ij", r"\tan(10^{50})", "1e99999",
        "+".join(["x"] * 900),
        "0." + "3" * 1900, ",".join(map(str, range(900))), "(" * 900 + "7" + ")" * 900,
        "2^{100000} + 1",
    ],
)  # fmt: skip
def test_what_would_take_long_is_not_the_answer(check: Check, response: str) -> None:
    began = time.process_time()
    for reference in ("7", "x + 7", "2^{100000}"):
        assert judged(check, reference, f"\\boxed{{{response}}}") == WRONG
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "response", ["é", "中", "k = é", r"\frac{Ω}{2}", "x_é", "2²é", "e_1", "\U0001d7d9", "٣", "ª"]
)
def test_letters_of_other_scripts_are_no_error(check: Check, response: str) -> None:
    """What an untrained policy writes: a check that raises would count as failed."""
    assert judged(check, "7", f"\\boxed{{{response}}}") == WRONG


def test_math_that_never_ends_costs_its_own_rollout() -> None:
    with Checker(VerifierConfig(use="math", timeout=1), num_workers=1) as checker:
        responses = [
            r"\boxed{5}",
            r"\boxed{9^{9^{9^{9^{9}}}} + x}",
            r"\boxed{\frac{10}{2}}",
            r"\boxed{5}",
            "\\boxed{" * 50_000 + "5" + "}" * 50_000,
        ]
        problem = Problem(3, "?", "5")
        grades = checker.grade([problem] * 5, ["?"] * 5, responses)
    assert grades.rewards.tolist() == [1, 0, 1, 1, 1]
    assert set(grades.failures) <= {"timeout", "memory"}


def test_math_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with refused(where="cell.verifier.use = math"):
        maths.build("")


@pytest.mark.parametrize(
    "response",
    [
        "The answer is 42; alternatively 43.",
        "The answer is $42$; alternatively, $43$.",
        "The answer is 42. Alternatively, 43.",
        "The answer is 42 | 43",
        "The answer is $42$ | $43$",
        "The answer is 42 if it rains and 43 otherwise.",
        "The answer is $42$ if it rains and $43$ otherwise.",
        "The answer is 42 if it rains, otherwise 43.",
        "He has 42 apples if it rains and 43 if it does not.",
        "The answer fails to be 42.",
        "The answer is hardly 42.",
        "For example, 42.",
        "The answer is 42, for example.",
        "The answer has 42 digits.",
        "The answer is 42 point 5",
        "The answer is 42 point five.",
        "The answer is 42 and some.",
        "The answer is 42, give or take.",
        "The answer is $42$, give or take.",
        "The answer is 42 dollars, give or take.",
        "The answer is 42, more or less.",
        "The answer is 42ish",
        "The answer is 42-ish.",
        "The answer is roughly 42.",
        "The answer is around 42.",
        "The answer is 42, approximately.",
        "It costs about $42.",
        "So there are approximately $42$ of them.",
        "~42",
        "It is ~42.",
        "The answer is ≈ 42",
        r"\boxed{\approx 42}",
        r"\boxed{x \approx 42}",
    ],
)
def test_a_second_answer_and_a_guess_are_no_answer(check: Check, response: str) -> None:
    for reference in ("42", "43"):
        correct, _ = judged(check, reference, response)
        assert not correct


@pytest.mark.parametrize(
    ("reference", "response"),
    [
        ("0.5", r"The answer is $\frac{1}{2}$; alternatively, 0.5."),
        ("42", "The answer is 42. Alternatively, we may add 40 and 2 to get 42."),
        ("42", "The answer is 42 points."),
        ("42", "The answer is 42 if we count all of them."),
        ("42", "If it rains, the total is 42."),
        ("42", "For example, 40 + 2 = 42."),
        ("42", "So the answer has the value 42."),
        ("42", "I would say 42."),
        ("42", r"\boxed{~42}"),
        ("33.3", "The answer is about 33.3."),
        ("33.3", r"\boxed{x \approx 33.3}"),
        (r"\approx 42", "The answer is 42."),
        (r"x \approx 42", r"\boxed{42}"),
    ],
)
def test_what_only_looks_like_a_guess(check: Check, reference: str, response: str) -> None:
    assert judged(check, reference, response) == RIGHT


@pytest.mark.parametrize(
    ("reference", "right", "wrong"),
    [
        (r"\frac{1}{3}", "0.333333", "0.333334"),
        (r"\frac{1}{3}", "0.3333333333", "0.3333333334"),
        (r"\frac{100}{3}", "33.333333", "33.333334"),
        (r"-\frac{1}{3}", "-0.333333", "-0.333334"),
        (r"\frac{2}{3}", "0.666667", "0.666668"),
        (r"\frac{2}{3}", "0.666666", "0.666665"),
        (r"\frac{1}{7}", "0.142857", "0.142858"),
        (r"\sqrt{2}", "1.414214", "1.414215"),
        (r"\sqrt{2}", "1.414213", "1.414212"),
        # half of the last digit is rounded up
        (r"\frac{2469135}{20000000}", "0.123457", "0.123458"),
    ],
)
def test_a_decimal_is_cut_or_rounded_to_the_digits_it_has(
    check: Check, reference: str, right: str, wrong: str
) -> None:
    assert judged(check, reference, right) == RIGHT
    assert judged(check, reference, wrong) == WRONG


@pytest.mark.parametrize(
    ("reference", "response", "right"),
    [
        ("42", r"\boxed{41} \boxed{42}", True),
        ("41", r"\boxed{41} \boxed{42}", False),
        ("42", "\\boxed{41}\n\n\\boxed{42}", True),
        ("42", r"$\boxed{41}$ \quad $\boxed{42}$", True),
        ("42", r"\boxed{41}, \boxed{42}", False),
        ("42", r"\boxed{41} or \boxed{42}", False),
        ("41, 42", r"\boxed{41} and \boxed{42}", True),
        ("41, 42", r"\boxed{41} \text{ and } \boxed{42}", True),
    ],
)
def test_the_last_box_counts_unless_boxes_are_joined(
    check: Check, reference: str, response: str, right: bool
) -> None:
    assert judged(check, reference, response) == (right, True)


@pytest.mark.parametrize(
    "end", ["</s>", "<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<end_of_turn>\n", "</s></s>"]
)
def test_a_token_that_ends_a_turn_is_no_part_of_the_answer(check: Check, end: str) -> None:
    for response in ("The answer is 42", "42", r"\boxed{42}", "<answer>42</answer>"):
        assert judged(check, "42", response + end) == RIGHT
        assert judged(check, "43", response + end) == WRONG


@pytest.mark.parametrize(
    "response",
    [
        "答案是42。",
        "因此，答案是42。",
        "所以答案是42",
        "答えは42です。",
        "共有42个苹果。",
        "所以共有４２个。",
        "정답은 42입니다.",
        r"\boxed{42元}",
        r"\boxed{42\text{元}}",
        r"\boxed{42个苹果}",
        r"答案是$42$。",
        r"所以 $6 \times 7 = 42$。",
        "约翰有42元。",
        "不能少买，所以总共是42元。",
    ],
)
def test_answers_in_text_without_spaces(check: Check, response: str) -> None:
    assert judged(check, "42", response) == RIGHT
    assert judged(check, "43", response)[0] is False


@pytest.mark.parametrize(
    "response",
    [
        "答案不是42。",
        "答案是41或42。",
        "答案是42或43。",
        "答案是42和43。",
        "大约42个。",
        "至少42个。",
        "答案是42吗？",
        "共有42万人。",
        "答案是42亿。",
        "第42题。",
        "答案是42的一半。",
        "答案是42点5。",
        "答案是42多。",
        "答案是负42。",
        "答えは42ではありません。",
        "答えは42以上です。",
        "42は間違いです。",
        "정답은 42가 아닙니다.",
        "42 이상입니다.",
        r"\boxed{42万}",
        r"\boxed{42}万",
        r"\boxed{42\text{千}}",
        r"\boxed{42个半}",
        r"\boxed{大约42}",
        "答案是42、43。",
        "答案是142。",
    ],
)
def test_what_is_denied_or_scaled_in_text_without_spaces_is_no_answer(
    check: Check, response: str
) -> None:
    assert judged(check, "42", response)[0] is False


def test_units_in_text_without_spaces(check: Check) -> None:
    assert judged(check, r"42 \text{ cm}", r"\boxed{42厘米}") == RIGHT
    assert judged(check, r"42 \text{ cm}", r"\boxed{0.42米}") == RIGHT
    assert judged(check, r"42 \text{ cm}", r"\boxed{42米}") == WRONG
    assert judged(check, "北京，上海", r"\boxed{北京，上海}") == RIGHT


@pytest.mark.parametrize(
    ("reference", "response", "right"),
    [
        ("(3,4)", "The point is (3, 4).", True),
        ("(3,4)", "The point is (4, 3).", False),
        ("(3,4)", "The point is not (3, 4).", False),
        ("(3,4)", "The point is (3, 4) or (4, 3).", False),
        ("4", "The point is (3, 4).", False),
        ("2 and 3", "The roots are 2 and 3.", True),
        ("2,3", "The roots are 3 and 2.", True),
        ("1, 2, 3", "The roots are 1, 2, and 3.", True),
        ("2", "The roots are 2 and 3.", False),
        ("3", "The roots are 2 and 3.", False),
        ("2,3", "The roots are not 2 and 3.", False),
        ("2,3", "The roots are 2, 3 and 4.", False),
        ("A", "The correct option is A.", True),
        ("A", "The correct choice is (A).", True),
        ("B", "The correct option is A.", False),
        ("A", "The correct option is not A.", False),
        ("A", "The correct option is A or B.", False),
        ("3/4", "The answer is 3/4. The correct option is C.", True),
        ("3/4", "The correct choice is C, which is 3/4.", True),
        ("42", r"\boxed{42_{10}}", True),
        ("42_{10}", r"\boxed{42}", True),
        ("42", r"\boxed{43_{10}}", False),
        ("42", r"\boxed{42_8}", False),
        ("34", r"\boxed{42_8}", False),
        (r"\frac{1}{3}", "0.333...", True),
        (r"\frac{1}{3}", "$0.333...$", True),
        (r"\frac{1}{3}", "The answer is 0.333...", True),
        (r"\frac{1}{3}", "0.334...", False),
        (r"\frac{1}{3}", "0.333.", False),
    ],
)
def test_several_values_options_bases_and_dots(
    check: Check, reference: str, response: str, right: bool
) -> None:
    assert judged(check, reference, response)[0] is right


BEGUN = "<|im_start|>user\n6 * 7?<|im_end|>\n<|im_start|>assistant\n<think>\n"


@pytest.mark.parametrize(
    ("prompt", "response", "verdict"),
    [
        (BEGUN, "42", NONE),
        (BEGUN, r"So $\boxed{42}$. But wait", NONE),
        (BEGUN, "<answer>42</answer>", NONE),
        (BEGUN, "#### 42", NONE),
        (BEGUN, "6 * 7 is 42.\n</think>\nThe answer is 42.", RIGHT),
        (BEGUN, "6 * 7 is 42.\n</think>\nThe answer is 43.", WRONG),
        (BEGUN, "6 * 7 is 42.\n</think>\n", NONE),
        (BEGUN, "<think>6 * 7</think> 42", RIGHT),
        (BEGUN, "6 * 7</think> 42 <think> or not", NONE),
        ("Add: 6 * 7\n<think>", "42", NONE),  # a raw template
        ("User: 6 * 7 Assistant: <THINKING> ", "42", NONE),
        ("<|begin_of_thought|>\n\n", "42", NONE),
        ("<|begin_of_thought|>\n\n", "so <|end_of_thought|> 42", RIGHT),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "42", RIGHT),  # Qwen3 without thinking
        ("Write your thoughts after <think> and before </think>.", "42", RIGHT),
        ("Begin with <think>.\nassistant:", "42", RIGHT),
        ("<|im_start|>assistant\n<answer>", "42", RIGHT),
        ("", "42", RIGHT),
    ],
)
def test_thinking_that_the_prompt_begins(
    check: Check, prompt: str, response: str, verdict: tuple[bool, bool]
) -> None:
    assert check(Problem(5, "6 * 7?", "42"), prompt, response)[:2] == verdict
