"""How many wrong answers does the `math` verifier accept, how many right ones does it refuse, and
how fast is it? Print one JSON line for it, for math-verify alone and for TRL's accuracy_reward.

    python benchmarks/math_verifiers.py tests/tasks/math_answers.tsv

PATH: lines of reference, response (⏎ is a line break), 1 or 0 (what is right), and kind, between
tabs. All run in this process, one after the other, each pair once; seconds are the processor's.
math-verify and TRL get the reference between dollars, as in their documentation. accuracy_reward is
not imported: it is the two calls of math-verify below, as in TRL 1.16.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify

from isojax.core.nouns import Problem
from isojax.tasks.verifiers import math as maths

TRL_EXTRACTION = LatexExtractionConfig(
    normalization_config=NormalizationConfig(units=True),
    boxed_match_priority=0,
    try_extract_without_anchor=False,
)


@dataclass(frozen=True)
class Pair:
    """A reference and a response."""

    reference: str
    response: str
    is_right: bool


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file."""
    rows = [
        line.split("\t")
        for line in path.read_text().splitlines()
        if line and not line.startswith("#")
    ]
    return [
        Pair(reference, response.replace("⏎", "\n"), right == "1")
        for reference, response, right, _ in rows
    ]


def isojax_verifier() -> Callable[[Pair], bool]:
    """isojax's `math`."""
    check = maths.build("")
    return lambda pair: check(Problem(0, "?", pair.reference), "?", pair.response).correct


def math_verify_alone(pair: Pair) -> bool:
    """math-verify as its README calls it."""
    return bool(verify(parse(f"${pair.reference}$"), parse(pair.response)))


def trl_accuracy_reward(pair: Pair) -> bool:
    """TRL's accuracy_reward; a reference that cannot be parsed has no reward there."""
    reference = parse(f"${pair.reference}$", parsing_timeout=10)
    if not reference:
        return False
    response = parse(
        pair.response,
        extraction_config=[TRL_EXTRACTION],
        extraction_mode="first_match",
        parsing_timeout=10,
    )
    return bool(verify(reference, response, timeout_seconds=5))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    pairs = read_pairs(parser.parse_args().path)
    num_right = sum(pair.is_right for pair in pairs)
    verifiers: dict[str, Callable[[Pair], bool]] = {
        "isojax math": isojax_verifier(),
        f"math-verify {version('math-verify')}": math_verify_alone,
        "accuracy_reward of TRL 1.16": trl_accuracy_reward,
    }
    for name, is_accepted in verifiers.items():
        # loads what is loaded once
        is_accepted(Pair(r"\frac{7}{8}", r"\boxed{\sqrt{7}}", is_right=False))
        began = time.process_time()
        accepted = [is_accepted(pair) for pair in pairs]
        seconds = time.process_time() - began
        line = {
            "benchmark": "math_verifiers",
            "verifier": name,
            "wrong_pairs": len(pairs) - num_right,
            "wrong_accepted": sum(
                yes and not pair.is_right for yes, pair in zip(accepted, pairs, strict=True)
            ),
            "right_pairs": num_right,
            "right_refused": sum(
                pair.is_right and not yes for yes, pair in zip(accepted, pairs, strict=True)
            ),
            "checks_per_second": round(len(pairs) / seconds),
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
