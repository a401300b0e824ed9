"""The fit's diagnostics in sentences, what the fit leaves out, the runs flagged as broken, and the fit's flags."""

from isojax.report.page.markup import Html, bullet_list, html_section, html_table, tag
from isojax.report.wording import format_compact, format_count, format_reward, join_list
from isojax.runs.ledger import INCLUDE_FLAGGED
from isojax.scaling.result import FitDiagnostics, FitResult, TiedRange

OVERFITTING_HEADER = ("run", "from C", "training reward", "validation reward", "reason")
HEALTH_HEADER = ("run", "flag", "from C", "ran to C", "reason")
MAX_CHI_SQUARE, MIN_CHI_SQUARE = 1.5, 0.5


def diagnostics_section(fit: FitResult) -> Html:
    """Misfit, lengths of runs, ties, overfitted runs, and what was left out."""
    diagnostics = fit.diagnostics
    run_lengths = "All runs reach about the same C."
    if diagnostics.unequal_lengths:
        run_lengths = "Runs end at different C: beyond the end of the shorter the longer ones lead without a rival."
    sentences = [_describe_misfit(diagnostics), run_lengths, *map(_describe_tie, diagnostics.ties)]
    left_out = [tag("h3", "Left out of the fit"), bullet_list(diagnostics.left_out)] if diagnostics.left_out else []
    sections = [bullet_list(sentences), *left_out, *_overfitting(fit)]
    return html_section("diagnostics", "Fit diagnostics", *sections)


def _describe_misfit(diagnostics: FitDiagnostics) -> str:
    chi_square = diagnostics.reduced_chi_square
    if chi_square is None:
        return "Without the correct answers of each problem the noise is unknown, so there is no χ² of the misfit."
    verdict = "the misfit is what noise explains"
    if chi_square > MAX_CHI_SQUARE:
        verdict = "the curves miss the points by more than noise explains"
    if chi_square < MIN_CHI_SQUARE:
        verdict = "the noise is overestimated"
    degrees = diagnostics.degrees_of_freedom
    degrees_text = "" if degrees is None else f" over {degrees} degrees of freedom"
    return f"Reduced χ² is {chi_square:.2f}{degrees_text}: {verdict} (pure noise gives 1)."


def _describe_tie(tie: TiedRange) -> str:
    low, high = format_compact(tie.C_low), format_compact(tie.C_high)
    place = f"near C = {low}" if tie.C_low == tie.C_high else f"between C = {low} and {high}"
    return f"Tie: n = {join_list(tie.n)} cannot be distinguished {place}."


def _overfitting(fit: FitResult) -> list[Html]:
    if not fit.overfitting:
        return []
    rows = [
        [
            f"{run.B_p} × {run.n}, seed {run.seed}",
            format_compact(run.C),
            f"{format_reward(run.train_from)} → {format_reward(run.train_to)}",
            f"{format_reward(run.validation_from)} → {format_reward(run.validation_to)}",
            run.reason,
        ]
        for run in fit.overfitting
    ]
    count = f"{format_count(len(rows), 'run')} flagged: training reward rises while validation {fit.metric} falls."
    advice = "Stop at the peak of the validation reward; beyond it the fitted curve is held flat."
    table = html_table("Runs flagged for overfitting", OVERFITTING_HEADER, rows, text_columns=(4,))
    return [tag("h3", "Overfitting"), tag("p", f"{count} {advice}"), table]


def health_section(fit: FitResult) -> Html:
    """Which runs are flagged as broken (scaling/checks/run_health.py), from where on and why."""
    title = "Runs flagged as broken"
    if not fit.health.runs:
        checks = "none collapsed, exploded, was cut off or stopped being finite, and sampler and trainer agree"
        return html_section("health", title, tag("p", f"No run is flagged: {checks}."))
    rows = [
        [
            f"{run.B_p} × {run.n}, seed {run.seed}",
            flag.name.replace("_", " "),
            format_compact(flag.C),
            format_compact(run.C),
            flag.reason,
        ]
        for run in fit.health.runs
        for flag in run.flags
    ]
    command = tag("code", f"isojax report RUN {INCLUDE_FLAGGED}")
    status = tag("p", "They are in every fit on this page, as ", command, " requests.")
    if fit.health.left_out:
        status = tag("p", "They are left out of every fit on this page; ", command, " puts them back.")
    return html_section("health", title, status, html_table("Flagged runs", HEALTH_HEADER, rows, text_columns=(1, 4)))


def flags_section(fit: FitResult) -> Html:
    """Every flag of the fit, with its severity."""
    items = [tag("span", tag("strong", f"{flag.severity}: "), flag.text) for flag in fit.flags]
    content = bullet_list(items) if items else tag("p", "None: the fit raised no warning.")
    return html_section("flags", "Warnings", content)
