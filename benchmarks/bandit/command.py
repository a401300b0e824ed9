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

from isojax.cli.formatting import parse_count
from isojax.core.errors import InputError

if TYPE_CHECKING:
    from benchmarks.bandit.simulate import Bandit

CSV_FILE, PNG_FILE = "bandit.csv", "bandit.png"
MIN_UPDATES, MAX_LEARNING_RATE, MAX_SAMPLES_IN_MEMORY = 100, 50.0, 2**24
SLOPE_TOLERANCE = 0.1  # a slope further than this from -1, and two standard errors more, is told


@dataclass(frozen=True)
class BanditSettings:
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
    n: Annotated[
        str, typer.Option("--n", metavar="A,B,...", help="Samples an update, each a curve.")
    ] = "1,2,4,8,16,32,64",
    updates: Annotated[str, typer.Option(metavar="T", help="Updates of each.")] = "10000",
    arms: Annotated[int, typer.Option(metavar="K", help="Possible responses, one of them right.")] = 10,
    p: Annotated[
        float, typer.Option("--p", metavar="P", help="pass@1 before training; wrong arms share the rest equally.")
    ] = 0.1,
    noise: Annotated[float, typer.Option(metavar="Q", help="How often the verifier errs, on any arm; below .5.")] = 0.1,
    learning_rate: Annotated[float, typer.Option(metavar="RATE", help="The same for every n and all along.")] = 0.5,
    baseline: Annotated[
        Literal["none", "leave_one_out"],
        typer.Option(help="Taken from each reward: nothing (the theory's), or the mean of the other n - 1."),
    ] = "none",
    repetitions: Annotated[int, typer.Option(metavar="R", min=2, help="Independent runs behind each mean.")] = 256,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of all draws.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help=f"Write {CSV_FILE} and {PNG_FILE} there; existing ones are kept."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else there.")
    ] = False,
) -> None:
    """One training problem, simulated: does a budget C = n t go into more samples an update (n) or more updates (t)?

    A tabular softmax policy over K responses is trained by policy gradient with n samples an update (the paper's
    Appendix H). Theory: its suboptimality, the best reward less the expected one, is at most A / (n t) + B / t: a slope
    of -1 in updates t whatever n, so a budget is best spent on updates. The table has the slope as simulated, and the
    suboptimality left after a few budgets. Sweeps over many problems find otherwise; docs/bandit.md says why.

    \b
    [bold]Examples[/bold]
      isojax bandit --out bandit                         the rate figure and every number of it
      isojax bandit --n 1,4,16 --p 0.01 --arms 100       a hard problem: nothing moves until the right arm is drawn
      isojax bandit --noise 0.25 --learning-rate 1       too large a rate for n = 1: runs settle on a wrong arm, larger
      n do not isojax bandit --n 8 --learning-rate 4 --json | jq '.curves[0].slope'
    """
    ns = _parse_sample_counts(n)
    settings = BanditSettings(
        arms, p, noise, learning_rate, baseline, parse_count(updates, "--updates"), repetitions, seed
    )
    _check_settings(ns, settings)
    from benchmarks.bandit.simulate import one_right_arm

    problem = one_right_arm(arms, p, noise)
    output_dir = None if out is None else _make_output_dir(out)
    results = _simulate_curves(problem, ns, settings)
    if output_dir is not None:
        _write_results(output_dir, results)
    if as_json:
        print(json.dumps(results, indent=1, allow_nan=False))
        return
    console = Console()
    console.print(_results_table(results))
    for note in results["notes"]:
        console.print(f"[yellow]note:[/yellow] {note}", highlight=False)
    if output_dir is not None:
        console.print(
            f"wrote {output_dir / CSV_FILE} and {output_dir / PNG_FILE}", soft_wrap=True, highlight=False, markup=False
        )


def _parse_sample_counts(text: str) -> list[int]:
    ns = [parse_count(item.strip(), "--n") for item in text.split(",")]
    if len(set(ns)) < len(ns):
        raise InputError(f"--n {text} names a number twice; expected each once, such as 1,4,16.")
    return sorted(ns)


def _check_settings(ns: Sequence[int], settings: BanditSettings) -> None:
    """What `rl.bandit` does not refuse itself: bounds of float32, of memory, and of what has a tail to fit."""
    from benchmarks.bandit.simulate import MAX_UPDATES

    if not MIN_UPDATES <= settings.updates <= MAX_UPDATES:
        raise InputError(
            f"--updates {settings.updates}: expected {MIN_UPDATES} to {MAX_UPDATES}. Fewer have no tail to fit; after more, float32 rounds "
            "the small steps off."
        )
    if not 0 < settings.learning_rate <= MAX_LEARNING_RATE:
        raise InputError(
            f"--learning-rate {settings.learning_rate:g}: expected above 0 and at most {MAX_LEARNING_RATE:g}. Above, one update takes "
            "probabilities below what float32 holds."
        )
    if settings.baseline == "leave_one_out" and ns[0] == 1:
        raise InputError(
            "--baseline leave_one_out with n = 1: there is no other sample. Leave 1 out of --n, such as --n 2,4,8."
        )
    for name, count in (("--n", ns[-1]), ("--arms", settings.arms)):
        if count * settings.repetitions > MAX_SAMPLES_IN_MEMORY:
            raise InputError(
                f"{name} {count} with --repetitions {settings.repetitions} holds {count * settings.repetitions} numbers at once; expected at "
                f"most {MAX_SAMPLES_IN_MEMORY}. Lower one of them."
            )


def _make_output_dir(out: Path) -> Path:
    """The folder to write in, made before any work.

    Raises:
        InputError: it cannot be made, or holds one of the files.
    """
    existing = next((out / name for name in (CSV_FILE, PNG_FILE) if (out / name).exists()), None)
    if existing is not None:
        raise InputError(f"{existing} exists already and is kept; give --out another folder, or remove it.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InputError(f"cannot make the folder {out}: {e.strerror or e}. Give --out another one.") from e
    return out


def _simulate_curves(problem: Bandit, ns: Sequence[int], settings: BanditSettings) -> dict[str, Any]:
    """Everything that is printed, drawn and written, as plain data; a bar on a terminal while it runs."""
    import numpy as np

    from benchmarks.bandit.budgets import budgets, curve, grid
    from benchmarks.bandit.simulate import simulate

    update_grid, curves, stderr_console = grid(settings.updates), [], Console(stderr=True)
    with Progress(console=stderr_console, disable=not stderr_console.is_terminal, transient=True) as progress:
        progress_task = progress.add_task("simulating", total=len(ns) * settings.updates)
        for i, n in enumerate(ns):
            values = []
            for t, value in simulate(
                problem, n, update_grid, settings.learning_rate, settings.repetitions, settings.seed, settings.baseline
            ):
                values.append(value)
                progress.update(progress_task, description=f"n = {n}", completed=i * settings.updates + t)
            curves.append(curve(n, update_grid, np.array(values), 1 - 2 * settings.noise))
    exact_suboptimality = [
        float(value[0]) for _, value in simulate(problem, None, update_grid, settings.learning_rate, 1, settings.seed)
    ]
    suboptimality_limit = (settings.arms - 1) / (settings.arms * settings.learning_rate)
    results = asdict(settings) | {
        "curves": curves,
        "exact": {"t": update_grid, "suboptimality": exact_suboptimality},
        "limit": suboptimality_limit,
    }
    return results | {"budgets": budgets(curves), "notes": _notes(curves)}


def _notes(curves: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the rate is not seen, and why that may be."""
    notes = []
    for row in curves:
        if row["lost"]:
            notes.append(
                f"n = {row['n']}: {row['lost']:.1%} of the runs end on wrong arms, so the mean does not fall as 1/t yet. Either the "
                "learning rate is too large for so few samples and so noisy a verifier (lower it, or raise n), or --updates is too small."
            )
        elif abs(row["slope"] + 1) > SLOPE_TOLERANCE + 2 * row["slope_error"]:
            notes.append(
                f"n = {row['n']}: the slope is {row['slope']:.3f}, not near -1 yet: the tail begins later. Ask for more --updates."
            )
    return notes


def _results_table(results: Mapping[str, Any]) -> Table:
    """A row an n: its rate, then its suboptimality at each budget, the best with a star, those as good within 2 SE with
    =.
    """
    caption = "* the least at this budget, = within two standard errors of it"
    table = Table(
        title="suboptimality of one training problem", title_justify="left", caption=caption, caption_justify="left"
    )
    for header in (
        "n",
        "slope in t",
        "t x suboptimality",
        "runs lost",
        *(f"at C = {row['C']:,}" for row in results["budgets"]),
    ):
        table.add_column(header, justify="right")
    for row in results["curves"]:
        cells = [f"{b['at'][row['n']][0]:.3g} {_budget_mark(b, row['n'])}" for b in results["budgets"]]
        slope_text = f"{row['slope']:.3f} ± {row['slope_error']:.3f}"
        suboptimality_text = f"{row['t_suboptimality']:.3g} ± {row['t_suboptimality_error']:.2g}"
        table.add_row(
            str(row["n"]), slope_text, suboptimality_text, f"{row['lost']:.1%}" if row["lost"] else "0", *cells
        )
    return table


def _budget_mark(budget: Mapping[str, Any], n: int) -> str:
    return "*" if n == budget["best_n"] else "=" if n in budget["tied"] else " "


def _write_results(folder: Path, results: Mapping[str, Any]) -> None:
    from benchmarks.bandit.figures import suboptimality_figure
    from isojax.cli.figure_files import write_figure
    from isojax.core.atomic_files import write_text

    csv_text = io.StringIO()
    csv_writer = csv.writer(csv_text, lineterminator="\n")
    csv_writer.writerow(("n", "t", "C", "suboptimality", "standard_error"))
    for row in results["curves"]:
        for t, C, value, error in zip(row["t"], row["C"], row["suboptimality"], row["error"], strict=True):
            csv_writer.writerow((row["n"], t, C, f"{value:.6g}", f"{error:.6g}"))
    write_text(folder / CSV_FILE, csv_text.getvalue())
    drawing = suboptimality_figure(results)
    write_figure(folder / PNG_FILE, drawing.png, drawing.pdf, "--out")
