"""How good is the fitter? Fits random worlds of known law (tests/scaling/synthetic.py) and compares
with the truth.

For each kind of world one JSON line on standard output, a table and progress on standard error:

    python benchmarks/fit_quality.py                              200 worlds of each kind
    python benchmarks/fit_quality.py --kinds hill,same --worlds 20
    python benchmarks/fit_quality.py --seed 7 --out seven.jsonl   other worlds, a line for each
    python benchmarks/fit_quality.py --read one.jsonl two.jsonl   what --out wrote; fits nothing

fit_quality_world.py judges one world, and has the baselines. Figures of the judged mode and of each
baseline, in the range that was measured, at 25 budgets a world:

    n_right         share of (world, budget) pairs whose n is within one step of the best measured n
    worlds_right    share of worlds with at least 95% of their budgets right
    law_right       n_right of the law n*(C)
    bias            mean over worlds of (fitted - true reward of the frontier)
    bias_se         its standard error
    bias_abs        mean over worlds of |bias of a world|
    ..._on_problems the same against the expected reward on the world's own validation problems

With the last 4x of compute hidden, at 8 hidden budgets a world:

    error       mean |promised reward - true reward of the best n, on the world's problems|
    within      share of budgets whose chosen n is within one step of the best
    regret      true reward lost by the choice
    ..._at_end  the same at the last of them alone, 4 times the compute that was seen

Of 90% intervals, `coverage`: the share that holds the truth, the cases, and the mean width of those
that are closed (of crossovers in decades).
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


# What a kind of world must keep to; figures that are not here are only reported.
_RANGE = (Bound("n_right", low=0.95), Bound("bias", high=0.005))
_BEYOND = (Bound("within", low=0.95), Bound("regret", high=0.01))
_CURVES = (Bound("coverage.frontier", 0.85, 0.95), Bound("coverage.A_determined", 0.85, 0.95))
_CROSSOVERS = Bound("coverage.crossovers", 0.85, 0.95)
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
# Figures of which larger is better; of the others, nearer to 0.
RISING = ("n_right", "worlds_right", "law_right", "within", "within_at_end")


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _standard_error(values: Sequence[float]) -> float | None:
    """Of the mean; None of a single value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def _method(lines: Sequence[Line], name: str) -> dict[str, float | None]:
    """The figures of one method over worlds."""
    inside = [line["in_range"][name] for line in lines if name in line["in_range"]]
    beyond = [line["hold_out"][name] for line in lines if name in line["hold_out"]]

    # Only the fits have a law and take time; the baselines that read off measurements do not.
    result: dict[str, float | None] = {
        "n_right": _mean([w["n_right"] for w in inside]),
        "worlds_right": _mean([w["n_right"] >= 0.95 for w in inside]),
        "law_right": _mean([w["law_right"] for w in inside if "law_right" in w]),
    }
    for figure in ("bias", "bias_on_problems"):
        biases = [w[figure] for w in inside]
        result[figure] = _mean(biases)
        result[f"{figure}_abs"] = _mean([abs(bias) for bias in biases])
        result[f"{figure}_se"] = _standard_error(biases)

    for figure in ("error", "within", "regret", "error_at_end", "within_at_end", "regret_at_end"):
        result[figure] = _mean([w[figure] for w in beyond])

    seconds = [w["seconds"] for w in inside if "seconds" in w]
    result["seconds"] = statistics.median(seconds) if seconds else None
    return result


def _coverage(lines: Sequence[Line], name: str) -> dict[str, float | int | None]:
    """Intervals pooled over worlds; all worlds count, closed intervals make the width."""
    total = {
        key: sum(line["coverage"][name][key] for line in lines)
        for key in ("cases", "hits", "closed", "width")
    }
    cases, closed = total["cases"], total["closed"]
    return {
        "share": total["hits"] / cases if cases else None,
        "cases": cases,
        "open": cases - closed,
        "width": total["width"] / closed if closed else None,
    }


def _asked(kind: str, figures: dict[str, float | None]) -> list[dict[str, Any]]:
    """Each bound of a kind: the figure, what was asked, and whether it is met (None where the
    figure is absent)."""
    rows = []
    for bound in BOUNDS[kind]:
        limits = []
        if bound.low > 0:
            limits.append(f">= {bound.low:g}")
        if bound.high < float("inf"):
            limits.append(f"<= {bound.high:g}")

        value = figures[bound.figure]
        is_met = None if value is None else bound.low <= abs(value) <= bound.high
        row = {"figure": bound.figure, "value": value, "asked": " and ".join(limits), "met": is_met}
        rows.append(row)
    return rows


def _beaten(
    figures: dict[str, dict[str, float | None]], mode: str, names: Sequence[str]
) -> dict[str, dict[str, bool]]:
    """For each figure: whether the judged mode is at least as good as each baseline."""
    result: dict[str, dict[str, bool]] = {}
    for name in names:
        judged = figures[mode][name]
        for baseline, its_figures in figures.items():
            value = its_figures[name]
            if baseline == mode or judged is None or value is None:
                continue
            is_as_good = judged >= value if name in RISING else abs(judged) <= abs(value)
            result.setdefault(name, {})[baseline] = is_as_good
    return result


def summary(kind: str, lines: Sequence[Line]) -> Line:
    """The figures of one kind of world, from the lines of its worlds."""
    mode = lines[0]["mode"]
    result: Line = {
        "benchmark": "fit_quality",
        "kind": kind,
        "mode": mode,
        "replicates": lines[0]["replicates"],
        "worlds": len(lines),
        "seeds": [lines[0]["seed"], lines[-1]["seed"]],
        "failed": {str(line["seed"]): line["failed"] for line in lines if line["failed"]},
    }
    fitted = [line for line in lines if line["failed"] is None]
    if not fitted:
        return result

    # The judged mode stands first.
    methods = list(dict.fromkeys([mode, *fitted[0]["in_range"]]))
    figures = {method: _method(fitted, method) for method in methods}
    for of_method in figures.values():
        of_method |= dict.fromkeys(MEANINGLESS.get(kind, ()))

    coverage = {name: _coverage(fitted, name) for name in fitted[0]["coverage"]}
    forms = {
        name: _mean([line[name] for line in fitted if line[name] is not None])
        for name in ("constant", "no_effect", "monotone_rejected")
    }

    shares = {f"coverage.{name}": row["share"] for name, row in coverage.items()}
    compared = ("n_right", "bias", "bias_abs", "error", "within", "regret")
    return {
        **result,
        "methods": figures,
        "coverage": coverage,
        "forms": forms,
        "asked": _asked(kind, figures[mode] | shares | forms),
        "beaten": _beaten(figures, mode, compared),
    }


def _shown(value: float | int | bool | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _tables(result: Line) -> Iterator[Table]:
    """The summary, to read."""
    title = f"{result['kind']}: {result['worlds']} worlds, {len(result['failed'])} failed"
    if "methods" not in result:
        yield Table(title=title)
        return

    methods = Table("figure", *result["methods"], title=title)
    for name in result["methods"][result["mode"]]:
        methods.add_row(name, *(_shown(m[name]) for m in result["methods"].values()))
    yield methods

    bounds = Table("asked", "", "found", "met", "not worse than")
    met_words = {True: "yes", False: "NO", None: "-"}
    for row in result["asked"]:
        compared = result["beaten"].get(row["figure"], {})
        beaten = ", ".join(name for name, is_beaten in compared.items() if is_beaten)
        bounds.add_row(
            row["figure"], row["asked"], _shown(row["value"]), met_words[row["met"]], beaten
        )
    yield bounds

    coverage = Table("90% intervals", "coverage", "cases", "open", "mean width")
    for name, row in result["coverage"].items():
        coverage.add_row(name, *(_shown(row[key]) for key in ("share", "cases", "open", "width")))
    yield coverage


def _judged(
    kinds: Sequence[str], arguments: argparse.Namespace, console: Console
) -> Iterator[Line]:
    """One line a world, as they are done."""
    # Processes are spawned: NumPy reads these variables when it is imported, which a forked process
    # has already done. One thread each, because there is a process for each core.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    spawn = multiprocessing.get_context("spawn")

    first_seed = arguments.seed * SEEDS_A_CHUNK
    work = [(kind, first_seed + i) for kind in kinds for i in range(arguments.worlds)]
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
                kind, seed = futures[future]
                e.add_note(f"in the {kind} world of seed {seed}")
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
            if file:  # at once, so that an interrupt loses no world
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
                line = json.loads(text)
                _ = line["kind"], line["seed"]  # a KeyError of what is no line of a world
            except (ValueError, TypeError, KeyError) as e:
                raise InputError(
                    f"{path}:{number}: no line of a world ({e!r}); expected what --out wrote. "
                    "Leave the file out."
                ) from e
            lines.append(line)

    if len({(line["mode"], line["replicates"]) for line in lines}) > 1:
        raise InputError(
            "the files hold different modes or numbers of replicates; expected one. "
            "Put each together on its own."
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
    parser.add_argument("--worlds", type=int, default=200, help="worlds of each kind")
    parser.add_argument(
        "--seed", type=int, default=0, help=f"world seeds start at {SEEDS_A_CHUNK} times this"
    )
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="kinds of worlds, with commas between: %(default)s"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes; give each a core")
    parser.add_argument("--replicates", type=int, default=200, help="draws of each fit")
    parser.add_argument("--mode", default="hierarchical", help="the mode to judge")
    parser.add_argument("--out", type=Path, help="a new file: one line a world")
    parser.add_argument(
        "--read", type=Path, nargs="+", help="files of --out to put together instead of fitting"
    )
    return parser.parse_args()


def _check(arguments: argparse.Namespace, kinds: Sequence[str]) -> None:
    """Raises InputError where arguments are unknown, too small, or exclude each other."""
    unknown = [kind for kind in kinds if kind not in BOUNDS]
    if unknown or min(arguments.worlds, arguments.jobs) < 1 or arguments.seed < 0:
        raise InputError(
            f"kinds {arguments.kinds}, {arguments.worlds} worlds, {arguments.jobs} jobs, "
            f"seed {arguments.seed}; expected kinds among {', '.join(BOUNDS)}, at least one world "
            "and one job, and a seed >= 0."
        )
    judged_modes = [mode for mode in MODES if mode != "paper"]
    if arguments.mode not in judged_modes:
        raise InputError(
            f"--mode {arguments.mode}; expected one of {', '.join(judged_modes)}. "
            "The mode paper is a baseline of each."
        )
    if arguments.read and arguments.out:
        raise InputError(
            "--read fits nothing, so --out has nothing to write; expected one of them. "
            "Leave one out."
        )


def run(arguments: argparse.Namespace, console: Console) -> None:
    """Judge or read the worlds, and print."""
    kinds = arguments.kinds.split(",")
    _check(arguments, kinds)
    if arguments.read:
        lines = _read(arguments.read)
    else:
        lines = _written(_judged(kinds, arguments, console), arguments.out)
    lines.sort(key=lambda line: line["seed"])

    for kind in kinds:
        lines_of_kind = [line for line in lines if line["kind"] == kind]
        if not lines_of_kind:
            continue
        result = summary(kind, lines_of_kind)
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
