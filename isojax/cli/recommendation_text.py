"""A recommendation as people read it: the answer, the measured cells behind it, and the reasons."""

from rich.markup import escape

from isojax.cli.nothing_learnt import print_nothing_learnt
from isojax.core.terminal import format_hours
from isojax.report import wording
from isojax.report.console import SafeConsole, TextTable
from isojax.report.wording import format_percent, format_range, format_reward, join_commas
from isojax.scaling.allocate.recommendation import MeasuredCell, Recommendation
from isojax.scaling.tracks import group_by

BAR_WIDTH = 20  # characters, of a probability of 1


def print_recommendation(
    console: SafeConsole, recommendation: Recommendation, budget: int | str, reward_name: str
) -> None:
    """Print the answer, every n at that budget, and the reasons. Arguments as of `print_answer`."""
    print_answer(console, recommendation, budget, reward_name)
    console.print(f"  {_regret_sentence(recommendation)}")

    num_measured_n = len({cell.n for cell in recommendation.measured_cells})
    if num_measured_n > 1:
        console.print(_measured_cells_table(recommendation))
        batch_table = _batch_table(recommendation)
        if batch_table is not None:
            console.print(batch_table)

    for sentence in (*recommendation.reasons, *wording.describe_advice(recommendation)):
        console.print(f"  {escape(sentence)}")
    for warning in recommendation.further_warnings:
        if warning != recommendation.not_settled:  # which the answer has begun with
            console.print(f"  [yellow]warning:[/yellow] {escape(warning)}")


def print_answer(
    console: SafeConsole, recommendation: Recommendation, budget: int | str, reward_name: str
) -> None:
    """Print the allocation for a budget, and its expected reward with interval.

    `budget`: rollouts, or what was typed in their place, such as "200h". `reward_name`: such as
    "avg@4".
    """
    _print_caveats(console, recommendation)

    allocation = recommendation.allocation
    budget_text = budget if isinstance(budget, str) else f"{budget:,} rollouts"
    headline = f"for {budget_text}: B_p = {allocation.B_p}, n = {allocation.n}, M = {allocation.M}"
    size = f"(B = {allocation.B}, C = {allocation.C:,})"
    range_note = " (beyond the measured range)" if recommendation.extrapolated else ""
    reward = f"expected {reward_name} {format_reward(recommendation.expected_reward)}{range_note}"
    console.print(f"[bold]{headline}[/bold] {size}, {reward}")

    if recommendation.interval and recommendation.prediction_interval:
        level = format_percent(recommendation.level)
        interval = format_range(recommendation.interval)
        new_run = format_range(recommendation.prediction_interval)
        console.print(f"  {level} interval of that {interval}; one new run will measure {new_run}")


def _print_caveats(console: SafeConsole, recommendation: Recommendation) -> None:
    """Print what must be known before the answer is read.

    That nothing was learnt at all, that all cells stand at one reward at this budget (`tie`), that
    n makes no difference (`no_effect`), or that the fit's draws have not settled (`not_settled`).
    The texts are "" where they do not hold.
    """
    print_nothing_learnt(console, recommendation.nothing_learnt)

    if recommendation.tie:
        sentence = escape(wording.sentence_of(recommendation.tie))
        console.print(f"[bold]{sentence}[/bold]", highlight=False)
    elif recommendation.no_effect and not recommendation.nothing_learnt:
        # `equal_n` are those whose best cells are within epsilon of the best of all. Where that is
        # one n alone, it is ahead by its B_p.
        if len(recommendation.equal_n) > 1:
            addition = f": any of n = {join_commas(recommendation.equal_n)} will do"
        else:
            addition = " at one and the same B_p"
        console.print(f"[bold]n makes no difference here[/bold]{addition}")

    # The interval of a tie is made without draws, so that it is good in any case.
    if recommendation.not_settled and not recommendation.tie:
        text = f"{escape(recommendation.not_settled)}; do not use these intervals"
        console.print(f"[yellow]warning:[/yellow] {text}")


def _regret_sentence(recommendation: Recommendation) -> str:
    """The regret with its interval, or why it is not known, as a sentence without its full stop."""
    if recommendation.nothing_learnt:
        return "regret unknown: no reward rises, so no cell can be compared with another"
    if recommendation.tie:
        return (
            "regret unknown: no cell has left the reward of its start, "
            "so none can be compared with another"
        )
    if recommendation.regret is None:
        return (
            "regret unknown: no measured cell agrees with these limits, "
            "so there is none to compare with"
        )
    if len(recommendation.measured_cells) == 1:
        return "regret unknown: only one cell was measured, so there is none to compare it with"

    interval = ""
    if recommendation.regret_interval:
        interval = f" ({format_range(recommendation.regret_interval)})"
    meaning = "the loss to expect against the best measured cell"
    return f"regret {recommendation.regret:.4f}{interval}: {meaning}"


def _measured_cells_table(recommendation: Recommendation) -> TextTable:
    """The table of each measured n with its best stable cell (B_p, n) at this budget.

    Unstable cells, at whose B_p runs broke, are marked; such a one is shown where its n has no
    other. A star marks an n whose best cell is within epsilon of the best of all.
    """
    # Where n makes no difference, which n is ahead by a hair says nothing, however often it is
    # ahead. n -> probability; None also without draws.
    n_probability = None if recommendation.no_effect else recommendation.n_probability
    columns = ["n", "B_p", "reward", f"{format_percent(recommendation.level)} interval"]
    if n_probability:
        columns.append("P(n is best)")

    rows = []
    cells_by_n = group_by(recommendation.measured_cells, lambda cell: cell.n)
    for n, cells in sorted(cells_by_n.items()):
        # `measured_cells` are the best first, and stay so within an n.
        cell = _first_stable(cells)
        row = [
            f"{n}{' *' if n in recommendation.equal_n else '  '}",
            f"{cell.B_p}" if cell.stable else f"{cell.B_p} unstable",
            format_reward(cell.reward),
            format_range((cell.low, cell.high)),
        ]
        if n_probability:
            probability = n_probability.get(n, 0.0)
            row.append(f"{probability:.2f} {'█' * round(BAR_WIDTH * probability)}")
        rows.append(row)

    title = (
        "forecasts at this budget, for each measured n; "
        f"* within {recommendation.epsilon:g} of the best"
    )
    return TextTable(title, columns, rows, last_is_text=bool(n_probability))


def _first_stable(cells: list[MeasuredCell]) -> MeasuredCell:
    """The best of the cells that train stably, else the best of all, so that each measured n has a
    row; `cells`: of one n, best first."""
    for cell in cells:
        if cell.stable:
            return cell
    return cells[0]


def _batch_table(recommendation: Recommendation) -> TextTable | None:
    """The table of what each measured B_p of the recommended n takes in time, a row each; None
    where fewer than two of them have times, as there is nothing to choose."""
    n = recommendation.allocation.n
    cells = [
        cell for cell in recommendation.measured_cells if cell.n == n and cell.hours is not None
    ]
    if len(cells) < 2:
        return None

    rows = []
    for cell in sorted(cells, key=lambda cell: cell.B_p):
        rows.append(
            [
                f"{cell.B_p}",
                f"{cell.M:,}",
                format_reward(cell.reward),
                format_hours(cell.hours),
                format_hours(cell.device_hours),
            ]
        )
    columns = ["B_p", "M", "reward", "wall clock", "of all devices"]
    return TextTable(f"B_p at n = {n}", columns, rows)
