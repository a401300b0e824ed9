"""`isojax bandit`: one training problem (paper's Appendix H) simulated, its rate in updates and what a budget buys."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from isojax.cli_words import budget_number
from isojax.types import InputError

if TYPE_CHECKING:
    from isojax.rl.bandit import Bandit

CSV, PNG = "bandit.csv", "bandit.png"
MIN_UPDATES, MAX_LEARNING_RATE, MAX_HELD = 100, 50.0, 2**24
OFF = 0.1  # a slope further than this from -1, and two standard errors more, is told


@dataclass(frozen=True)
class Settings:
    """What is simulated, apart from n; --json gives it back."""

    arms: int
    p: float
    noise: float
    learning_rate: float
    baseline: str
    updates: int
    repetitions: int
    seed: int


def bandit(
    n: Annotated[str, typer.Option("--n", metavar="A,B,...", help="Samples an update, each a curve.")] = "1,2,4,8,16,32,64",
    updates: Annotated[str, typer.Option(metavar="T", help="Updates of each.")] = "10000",
    arms: Annotated[int, typer.Option(metavar="K", help="Possible responses, one of them right.")] = 10,
    p: Annotated[float, typer.Option("--p", metavar="P", help="pass@1 before training; wrong arms share the rest equally.")] = 0.1,
    noise: Annotated[float, typer.Option(metavar="Q", help="How often the verifier errs, on any arm; below .5.")] = 0.1,
    learning_rate: Annotated[float, typer.Option(metavar="RATE", help="The same for every n and all along.")] = 0.5,
    baseline: Annotated[
        Literal["none", "leave_one_out"],
        typer.Option(help="Taken from each reward: nothing (the theory's), or the mean of the other n - 1."),
    ] = "none",
    repetitions: Annotated[int, typer.Option(metavar="R", min=2, help="Independent runs behind each mean.")] = 256,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of all draws.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help=f"Write {CSV} and {PNG} there; existing ones are kept.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else there.")] = False,
) -> None:
    """One training problem, simulated: does a budget C = n t go into more samples an update (n) or more updates (t)?

    A tabular softmax policy over K responses is trained by policy gradient with n samples an update (the paper's Appendix H). Theory: its
    suboptimality, the best reward less the expected one, is at most A / (n t) + B / t: a slope of -1 in updates t whatever n, so a budget
    is best spent on updates. The table has the slope as simulated, and the suboptimality left after a few budgets. Sweeps over many
    problems find otherwise; docs/bandit.md says why.

    \b
    [bold]Examples[/bold]
      isojax bandit --out bandit                         the rate figure and every number of it
      isojax bandit --n 1,4,16 --p 0.01 --arms 100       a hard problem: nothing moves until the right arm is drawn
      isojax bandit --noise 0.25 --learning-rate 1       too large a rate for n = 1: runs settle on a wrong arm, larger n do not
      isojax bandit --n 8 --learning-rate 4 --json | jq '.curves[0].slope'
    """
    ns = _samples(n)
    asked = Settings(arms, p, noise, learning_rate, baseline, budget_number(updates, "--updates"), repetitions, seed)
    _check(ns, asked)
    from isojax.rl.bandit import one_right_arm

    problem = one_right_arm(arms, p, noise)
    folder = None if out is None else _folder(out)
    found = _simulated(problem, ns, asked)
    if folder is not None:
        _write(folder, found)
    if as_json:
        print(json.dumps(found, indent=1, allow_nan=False))
        return
    console = Console()
    console.print(_table(found))
    for note in found["notes"]:
        console.print(f"[yellow]note:[/yellow] {note}", highlight=False)
    if folder is not None:
        console.print(f"wrote {folder / CSV} and {folder / PNG}", soft_wrap=True, highlight=False, markup=False)


def _samples(text: str) -> list[int]:
    ns = [budget_number(part.strip(), "--n") for part in text.split(",")]
    if len(set(ns)) < len(ns):
        raise InputError(f"--n {text} names a number twice; expected each once, such as 1,4,16.")
    return sorted(ns)


def _check(ns: Sequence[int], asked: Settings) -> None:
    """What `rl.bandit` does not refuse itself: bounds of float32, of memory, and of what has a tail to fit."""
    from isojax.rl.bandit import MAX_UPDATES

    if not MIN_UPDATES <= asked.updates <= MAX_UPDATES:
        raise InputError(
            f"--updates {asked.updates}: expected {MIN_UPDATES} to {MAX_UPDATES}. Fewer have no tail to fit; after more, float32 rounds "
            "the small steps off."
        )
    if not 0 < asked.learning_rate <= MAX_LEARNING_RATE:
        raise InputError(
            f"--learning-rate {asked.learning_rate:g}: expected above 0 and at most {MAX_LEARNING_RATE:g}. Above, one update takes "
            "probabilities below what float32 holds."
        )
    if asked.baseline == "leave_one_out" and ns[0] == 1:
        raise InputError("--baseline leave_one_out with n = 1: there is no other sample. Leave 1 out of --n, such as --n 2,4,8.")
    for name, count in (("--n", ns[-1]), ("--arms", asked.arms)):
        if count * asked.repetitions > MAX_HELD:
            raise InputError(
                f"{name} {count} with --repetitions {asked.repetitions} holds {count * asked.repetitions} numbers at once; expected at "
                f"most {MAX_HELD}. Lower one of them."
            )


def _folder(out: Path) -> Path:
    """The folder to write in, made before any work.

    Raises:
        InputError: it cannot be made, or holds one of the files.
    """
    there = next((out / name for name in (CSV, PNG) if (out / name).exists()), None)
    if there is not None:
        raise InputError(f"{there} exists already and is kept; give --out another folder, or remove it.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InputError(f"cannot make the folder {out}: {e.strerror or e}. Give --out another one.") from e
    return out


def _simulated(problem: Bandit, ns: Sequence[int], asked: Settings) -> dict[str, Any]:
    """Everything that is printed, drawn and written, as plain data; a bar on a terminal while it runs."""
    import numpy as np

    from isojax.rl.bandit import simulate
    from isojax.scaling.bandit import budgets, curve, grid

    at, curves, err = grid(asked.updates), [], Console(stderr=True)
    with Progress(console=err, disable=not err.is_terminal, transient=True) as progress:
        bar = progress.add_task("simulating", total=len(ns) * asked.updates)
        for i, n in enumerate(ns):
            values = []
            for t, value in simulate(problem, n, at, asked.learning_rate, asked.repetitions, asked.seed, asked.baseline):
                values.append(value)
                progress.update(bar, description=f"n = {n}", completed=i * asked.updates + t)
            curves.append(curve(n, at, np.array(values), 1 - 2 * asked.noise))
    exact = [float(value[0]) for _, value in simulate(problem, None, at, asked.learning_rate, 1, asked.seed)]
    limit = (asked.arms - 1) / (asked.arms * asked.learning_rate)
    found = asdict(asked) | {"curves": curves, "exact": {"t": at, "suboptimality": exact}, "limit": limit}
    return found | {"budgets": budgets(curves), "notes": _notes(curves)}


def _notes(curves: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the rate is not seen, and why that may be."""
    said = []
    for row in curves:
        if row["lost"]:
            said.append(
                f"n = {row['n']}: {row['lost']:.1%} of the runs end on wrong arms, so the mean does not fall as 1/t yet. Either the "
                "learning rate is too large for so few samples and so noisy a verifier (lower it, or raise n), or --updates is too small."
            )
        elif abs(row["slope"] + 1) > OFF + 2 * row["slope_error"]:
            said.append(f"n = {row['n']}: the slope is {row['slope']:.3f}, not near -1 yet: the tail begins later. Ask for more --updates.")
    return said


def _table(found: Mapping[str, Any]) -> Table:
    """A row an n: its rate, then its suboptimality at each budget, the best with a star, those as good within 2 SE with =."""
    caption = "* the least at this budget, = within two standard errors of it"
    table = Table(title="suboptimality of one training problem", title_justify="left", caption=caption, caption_justify="left")
    for head in ("n", "slope in t", "t x suboptimality", "runs lost", *(f"at C = {row['C']:,}" for row in found["budgets"])):
        table.add_column(head, justify="right")
    for row in found["curves"]:
        cells = [f"{b['at'][row['n']][0]:.3g} {_mark(b, row['n'])}" for b in found["budgets"]]
        rate = f"{row['slope']:.3f} ± {row['slope_error']:.3f}"
        end = f"{row['t_suboptimality']:.3g} ± {row['t_suboptimality_error']:.2g}"
        table.add_row(str(row["n"]), rate, end, f"{row['lost']:.1%}" if row["lost"] else "0", *cells)
    return table


def _mark(budget: Mapping[str, Any], n: int) -> str:
    return "*" if n == budget["best_n"] else "=" if n in budget["tied"] else " "


def _write(folder: Path, found: Mapping[str, Any]) -> None:
    from isojax.cli_drawing import write_drawing
    from isojax.files import write_text
    from isojax.report.figures_bandit import rates

    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("n", "t", "C", "suboptimality", "standard_error"))
    for row in found["curves"]:
        for t, C, value, error in zip(row["t"], row["C"], row["suboptimality"], row["error"], strict=True):
            rows.writerow((row["n"], t, C, f"{value:.6g}", f"{error:.6g}"))
    write_text(folder / CSV, text.getvalue())
    drawing = rates(found)
    write_drawing(folder / PNG, drawing.png, drawing.pdf, "--out")
