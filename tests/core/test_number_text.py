"""What to write for a number that another language, or a spreadsheet, wrote."""

import pytest

from isojax.core.number_text import number_advice

EXPORT = "export with decimal points and without thousands separators."


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("12,345,678", "12345678"),
        ("1,23,456", "123456"),  # Indian
        ("1,234.5", "1234.5"),
        ("1.234,5", "1234.5"),
        ("1.234.567", "1234567"),
        ("1 234", "1234"),
        ("1\u00a0280,5", "1280.5"),
        ("12\u202f345\u202f678", "12345678"),
        ("1'234", "1234"),
        ("1\u2019234.5", "1234.5"),
        ("1_000", "1000"),
        ("-1 234", "-1234"),
    ],
)
def test_separators_of_thousands(text: str, plain: str) -> None:
    assert number_advice(text) == f"Write {plain}, or {EXPORT}"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("0,532", "0.532"),
        ("12,5", "12.5"),
        ("-0,25", "-0.25"),
        ("1,5e3", "1.5e3"),
        ("0,1234", "0.1234"),
    ],
)
def test_decimal_commas(text: str, plain: str) -> None:
    assert (
        number_advice(text)
        == f"Write a decimal comma as a point ({plain}), or export with decimal points."
    )


@pytest.mark.parametrize("text", ["1,234", "100,000", "-12,345"])
def test_a_comma_before_three_digits_has_two_meanings_but_in_a_count(text: str) -> None:
    thousands, decimals = text.replace(",", ""), text.replace(",", ".")
    assert f"thousands, write {thousands}, where decimals, {decimals}: {EXPORT}" in number_advice(
        text
    )
    assert number_advice(text, is_whole=True) == f"Write {thousands}, or {EXPORT}"


def test_percent_and_suffixes() -> None:
    assert (
        number_advice("28.79%")
        == number_advice("28,79 %")
        == "Write percent as a part of 1 (0.2879)."
    )
    assert number_advice("1.28k") == "Write it in full (1280)."
    assert number_advice("3M", is_whole=True) == "Write it in full (3000000)."


@pytest.mark.parametrize(
    "text", ["", "eight", "0x10", "1,2,3", "12 s", "1,000,00", "1e5", "32, 64", "2026-01-02"]
)
def test_no_number(text: str) -> None:
    assert number_advice(text) == ""


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("\u22120.1", "Write -0.1, with the signs of a keyboard."),
        ("0\u00b75", "Write 0.5, with the signs of a keyboard."),
        ("0.12 \u00b1 0.01", "Write 0.12 alone, and what is beside it in a column of its own."),
        ("0.12 +/- 0.01", "Write 0.12 alone, and what is beside it in a column of its own."),
        ("0.12 (0.01)", "Write 0.12 alone, and what is beside it in a column of its own."),
    ],
)
def test_signs_of_typesetters_and_errors_beside_a_number(text: str, advice: str) -> None:
    assert number_advice(text) == advice
