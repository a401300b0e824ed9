"""How good is the fitter? Fit random worlds of known law (tests.scaling.synthetic) and compare with
the truth.

For each kind of world one JSON line on standard output, a table and progress on standard error:

    python benchmarks/fit_quality.py                                  200 worlds of each kind, world seeds 0 .. 199
    python benchmarks/fit_quality.py --kinds hill,same --worlds 20    fewer
    python benchmarks/fit_quality.py --seed 7 --out seven.jsonl       world seeds 700000 .. 700199, one line a world in
    a new file python benchmarks/fit_quality.py --read one.jsonl two.jsonl       put chunks together, fit nothing

fit_quality_world.py has the baselines and says how one world is judged. Figures of the judged mode
and of each baseline:

    n_right            share of (world, budget) pairs, 25 budgets a world, whose n is within one step of the truly best
    measured n worlds_right       share of worlds with at least 95% of their budgets right;  law_right: n_right of the
    law n*(C) bias, bias_se      mean over worlds of (fitted - true frontier reward), its standard error;  bias_abs:
    mean of |a world's bias| ..._on_problems    the same against the expected reward on the world's own validation
    problems error              the last 4x of compute hidden: mean |reward promised - true reward of the best n|, on
    the problems, over 8 budgets within, regret     share of them whose chosen n is within one step of the best; true
    reward lost by the choice ..._at_end         the same at the last of them alone, 4 times the compute that was seen
    coverage           share of 90% intervals that hold the truth, cases, mean width of the closed ones (crossovers: in
    decades)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the worlds are in tests/scaling

import numpy as np
from fit_quality_world import judge
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from isojax.core.errors import InputError
from isojax.scaling.fit import MODES
from tests.scaling.synthetic_kinds import KINDS

SEEDS_A_CHUNK = 100_000
Line = dict[str, Any]


@dataclass(frozen=True)
class Bound:
    """What a figure of the judged mode must keep to: its absolute value within [low, high]."""

    figure: str
    low: float = 0.0
    high: float = float("inf")


_RANGE = (Bound("n_right", low=0.95), Bound("bias", high=0.005))
_BEYOND = (Bound("within", low=0.95), Bound("regret", high=0.01))
_CURVES = (Bound("coverage.frontier", 0.85, 0.95), Bound("coverage.A_determined", 0.85, 0.95))
_CROSSOVERS = Bound("coverage.crossovers", 0.85, 0.95)
# What was asked for, kind by kind; figures that are not here are reported only.
BOUNDS: dict[str, tuple[Bound, ...]] = {
    "hill": (*_RANGE, Bound("error", high=0.012), *_BEYOND, *_CURVES, _CROSSOVERS),
    "stretched": (*_RANGE, Bound("error", high=0.02), *_BEYOND, *_CURVES, _CROSSOVERS),
    "decline": (*_RANGE, Bound("coverage.frontier", 0.85, 0.95), _CROSSOVERS),
    "same": (Bound("bias", high=0.005), *_CURVES, Bound("constant", low=0.9)),
    "non_monotone": (
        *_RANGE,
        Bound("coverage.frontier", 0.85, 0.95),
        Bound("monotone_rejected", low=0.8),
    ),
}
# Where n makes no difference any n is right.
MEANINGLESS = {"same": {"n_right", "worlds_right", "law_right", "within", "within_at_end"}}
RISING = (
    "n_right",
    "worlds_right",
    "law_right",
    "within",
    "within_at_end",
)  # larger is better; of the others, nearer to 0


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _method(lines: Sequence[Line], name: str) -> dict[str, float | None]:
    """The figures of one method over worlds."""
    inside = [line["in_range"][name] for line in lines if name in line["in_range"]]
    beyond = [line["hold_out"][name] for line in lines if name in line["hold_out"]]
    result: dict[str, float | None] = {"n_right": _mean([w["n_right"] for w in inside])}
    result["worlds_right"] = _mean([w["n_right"] >= 0.95 for w in inside])
    result["law_right"] = _mean([w["law_right"] for w in inside if "law_right" in w])
    for name in ("bias", "bias_on_problems"):
        bias = [w[name] for w in inside]
        result |= {name: _mean(bias), f"{name}_abs": _mean([abs(b) for b in bias])}
        result[f"{name}_se"] = statistics.stdev(bias) / len(bias) ** 0.5 if len(bias) > 1 else None
    beyond_names = ("error", "within", "regret", "error_at_end", "within_at_end", "regret_at_end")
    result |= {name: _mean([w[name] for w in beyond]) for name in beyond_names}
    result["seconds"] = (
        statistics.median(seconds)
        if (seconds := [w["seconds"] for w in inside if "seconds" in w])
        else None
    )
    return result


def _coverage(lines: Sequence[Line], name: str) -> dict[str, float | int | None]:
    """Intervals pooled over worlds; all worlds count, closed intervals make the width."""
    cases, hits, closed, width = (
        sum(line["coverage"][name][k] for line in lines)
        for k in ("cases", "hits", "closed", "width")
    )
    return {
        "share": hits / cases if cases else None,
        "cases": cases,
        "open": cases - closed,
        "width": width / closed if closed else None,
    }


def _asked(kind: str, figures: dict[str, float | None]) -> list[dict[str, Any]]:
    """Each bound of a kind: the figure, what was asked, and whether it is met (None where the
    figure is absent)."""
    result = []
    for b in BOUNDS[kind]:
        value = figures[b.figure]
        words = " and ".join(
            [f">= {b.low:g}"] * (b.low > 0) + [f"<= {b.high:g}"] * (b.high < float("inf"))
        )
        result.append(
            {
                "figure": b.figure,
                "value": value,
                "asked": words,
                "met": None if value is None else b.low <= abs(value) <= b.high,
            }
        )
    return result


def _beaten(
    figures: dict[str, dict[str, float | None]], mode: str, names: Sequence[str]
) -> dict[str, dict[str, bool]]:
    """For each figure: whether the judged mode is at least as good as each baseline."""
    result: dict[str, dict[str, bool]] = {}
    for name in names:
        specific = figures[mode][name]
        for other, theirs in figures.items():
            value = theirs[name]
            if other != mode and specific is not None and value is not None:
                result.setdefault(name, {})[other] = (
                    specific >= value if name in RISING else abs(specific) <= abs(value)
                )
    return result


def summary(kind: str, lines: Sequence[Line]) -> Line:
    """The figures of one kind of world, from the lines of its worlds."""
    mode, done = lines[0]["mode"], [line for line in lines if line["failed"] is None]
    result: Line = {
        "benchmark": "fit_quality",
        "kind": kind,
        "mode": mode,
        "replicates": lines[0]["replicates"],
        "worlds": len(lines),
    }
    result |= {
        "seeds": [lines[0]["seed"], lines[-1]["seed"]],
        "failed": {str(x["seed"]): x["failed"] for x in lines if x["failed"]},
    }
    if not done:
        return result
    names = list(dict.fromkeys([mode, *done[0]["in_range"]]))
    figures = {name: _method(done, name) for name in names}
    for method in figures.values():
        method |= dict.fromkeys(MEANINGLESS.get(kind, ()))
    coverage = {name: _coverage(done, name) for name in done[0]["coverage"]}
    forms = {
        k: _mean([w[k] for w in done if w[k] is not None])
        for k in ("constant", "no_effect", "monotone_rejected")
    }
    judged = figures[mode] | {f"coverage.{k}": v["share"] for k, v in coverage.items()} | forms
    result |= {
        "methods": figures,
        "coverage": coverage,
        "forms": forms,
        "asked": _asked(kind, judged),
    }
    return result | {
        "beaten": _beaten(
            figures, mode, ("n_right", "bias", "bias_abs", "error", "within", "regret")
        )
    }


def _shown(value: float | int | bool | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _tables(result: Line) -> Iterator[Table]:
    """The summary, to read."""
    title = f"{result['kind']}: {result['worlds']} worlds, {len(result['failed'])} failed"
    if "methods" not in result:
        yield Table(title=title)
        return
    methods = Table(title=title)
    for heading in ("figure", *result["methods"]):
        methods.add_column(heading)
    for name in result["methods"][result["mode"]]:
        methods.add_row(name, *(_shown(m[name]) for m in result["methods"].values()))
    yield methods
    requested = Table("asked", "", "found", "met", "not worse than")
    for a in result["asked"]:
        beaten = ", ".join(
            name for name, is_beaten in result["beaten"].get(a["figure"], {}).items() if is_beaten
        )
        requested.add_row(
            a["figure"],
            a["asked"],
            _shown(a["value"]),
            {True: "yes", False: "NO", None: "-"}[a["met"]],
            beaten,
        )
    yield requested
    coverage = Table("90% intervals", "coverage", "cases", "open", "mean width")
    for name, c in result["coverage"].items():
        coverage.add_row(name, *(_shown(c[k]) for k in ("share", "cases", "open", "width")))
    yield coverage


def _judged(
    kinds: Sequence[str], arguments: argparse.Namespace, console: Console
) -> Iterator[Line]:
    """One line a world, as they are done. Processes are spawned, not forked, and each computes on
    one thread."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    first = arguments.seed * SEEDS_A_CHUNK
    work = [(kind, first + i) for kind in kinds for i in range(arguments.worlds)]
    spawn = multiprocessing.get_context("spawn")
    with Progress(console=console) as progress, ProcessPoolExecutor(arguments.jobs, spawn) as pool:
        bar = progress.add_task("worlds", total=len(work))
        futures = {
            pool.submit(judge, kind, seed, arguments.mode, arguments.replicates): (kind, seed)
            for kind, seed in work
        }
        for future in as_completed(futures):
            try:
                yield future.result()
            except Exception as e:  # raised again, with the world it happened in
                e.add_note("in the {} world of seed {}".format(*futures[future]))
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            progress.advance(bar)


def _written(lines: Iterator[Line], path: Path | None) -> list[Line]:
    """All lines, each appended to a new file as it comes.

    Raises:
        InputError: the file exists or cannot be made.
    """
    try:
        out = path.open("x") if path else contextlib.nullcontext()
    except OSError as e:
        raise InputError(
            f"{path}: {e.strerror}; expected a file that does not exist yet, in a folder that does."
        ) from e
    done = []
    with out as file:
        for line in lines:
            done.append(line)
            if file:
                print(json.dumps(line), file=file, flush=True)
    return done


def _read(files: Sequence[Path]) -> list[Line]:
    """The lines of earlier --out files.

    Raises:
        InputError: a file that cannot be read, a line that is no JSON, or lines of different modes.
    """
    lines: list[Line] = []
    for path in files:
        try:
            texts = path.read_text().splitlines()
        except OSError as e:
            raise InputError(f"{path}: {e.strerror}; expected a file that --out wrote.") from e
        for number, text in enumerate(texts, 1):
            try:
                lines.append(json.loads(text))
                _ = lines[-1]["kind"], lines[-1]["seed"]
            except (ValueError, TypeError, KeyError) as e:
                raise InputError(
                    f"{path}:{number}: no line of a world ({e!r}); expected what --out wrote. Leave the file out."
                ) from e
    if len({(line["mode"], line["replicates"]) for line in lines}) > 1:
        raise InputError(
            "the files hold different modes or numbers of replicates; expected one. Put each together on its own."
        )
    if len({(line["kind"], line["seed"]) for line in lines}) < len(lines):
        raise InputError(
            "a world stands in the files twice; expected each once. Leave one file out."
        )
    return lines


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=200, help="of each kind")
    parser.add_argument(
        "--seed", type=int, default=0, help=f"world seeds start at {SEEDS_A_CHUNK} times this"
    )
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--mode", default="hierarchical", help="the mode to judge")
    parser.add_argument("--out", type=Path, help="a new file: one line a world")
    parser.add_argument(
        "--read", type=Path, nargs="+", help="files of --out to put together instead of fitting"
    )
    return parser.parse_args()


def run(arguments: argparse.Namespace, console: Console) -> None:
    """Judge or read the worlds, and print."""
    kinds = arguments.kinds.split(",")
    unknown = [k for k in kinds if k not in BOUNDS]
    if unknown or min(arguments.worlds, arguments.jobs) < 1 or arguments.seed < 0:
        inputs = f"kinds {arguments.kinds}, {arguments.worlds} worlds, {arguments.jobs} jobs, seed {arguments.seed}"
        raise InputError(
            f"{inputs}; expected kinds among {', '.join(BOUNDS)}, at least one world and one job, and a seed >= 0."
        )
    judged_modes = [mode for mode in MODES if mode != "paper"]
    if arguments.mode not in judged_modes:
        raise InputError(
            f"--mode {arguments.mode}; expected one of {', '.join(judged_modes)}. The mode paper is a baseline of each."
        )
    if arguments.read and arguments.out:
        raise InputError(
            "--read fits nothing, so --out has nothing to write; expected one of them. Leave one out."
        )
    lines = (
        _read(arguments.read)
        if arguments.read
        else _written(_judged(kinds, arguments, console), arguments.out)
    )
    lines.sort(key=lambda line: line["seed"])
    for kind in kinds:
        specific = [line for line in lines if line["kind"] == kind]
        if specific:
            result = summary(kind, specific)
            print(json.dumps(result), flush=True)
            for table in _tables(result):
                console.print(table)


def main() -> None:
    """Run, or say what is wrong with what was given and exit with 2."""
    try:
        run(_parse(), Console(stderr=True, width=None if sys.stderr.isatty() else 120))
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        raise SystemExit(2) from e


if __name__ == "__main__":
    main()
