"""start.json of a run, and of labels: what the check before the first update measured."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError
from isojax.core.nouns import StartReport, StartWarning
from isojax.core.table_files import paths_below, read_json_object

START_FILE = "start.json"
LABELS_FOLDER = "base"  # of a sweep: where its labels are


def write_start_report(folder: Path, report: StartReport) -> None:
    """Write a report to a run's folder, or the labels', which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / START_FILE, json.dumps(asdict(report), indent=1) + "\n")


def read_start_report(folder: Path) -> StartReport | None:
    """The report in START_FILE of a run's folder, or of the labels'; None where there is none.

    The file is {"shares": {"reward": 0.12, ...}, "warnings": [{"name": ..., "text": ...}, ...]}.
    InputError where it cannot be read.
    """
    path = folder / START_FILE
    if not path.exists():
        return None

    document = read_json_object(path)
    try:
        shares = {str(name): float(share) for name, share in document["shares"].items()}
        warnings = tuple(
            StartWarning(str(warning["name"]), str(warning["text"]))
            for warning in document["warnings"]
        )
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        raise InputError(
            where=path,
            found=f"cannot be read: {type(e).__name__}: {e}",
            fix="Remove it: nothing but what it says of the first rollouts is lost.",
        ) from e
    return StartReport(shares, warnings)


class RunReport(NamedTuple):
    """A report, and whose it is."""

    run: str  # the name of the run's folder; LABELS_FOLDER of labels
    report: StartReport


class ShownWarning(NamedTuple):
    """A warning, and who showed it."""

    run: str  # as of a RunReport
    text: str


def describe_start(folder: Path) -> list[str]:
    """What was doubtful before the first updates of a sweep, or of several, whose folder this is.

    A sentence for each symptom, such as "before the first update of 32x8-s0: 9 of 16 responses are
    empty (so in 3 of 4 runs)": the words are those of the first run that showed it. Reports are
    looked for in all folders below; [] where nothing was doubtful.
    """
    reports = _reports_below(folder)  # those of runs, then those of labels
    # By `StartWarning.name`, such as "cut_off"; in each list too the labels come last.
    warnings_by_symptom: dict[str, list[ShownWarning]] = {}
    for run, report in reports:
        for warning in report.warnings:
            shown = ShownWarning(run, warning.text)
            warnings_by_symptom.setdefault(warning.name, []).append(shown)

    # Labels are no run, and are not counted.
    num_runs = sum(run != LABELS_FOLDER for run, _ in reports)
    sentences = []
    for warnings in warnings_by_symptom.values():
        count = sum(warning.run != LABELS_FOLDER for warning in warnings)
        others = f" (so in {count} of {num_runs} runs)" if count > 1 else ""
        sentences.append(describe_warning(warnings[0].run, warnings[0].text) + others)
    return sentences


def _reports_below(folder: Path) -> list[RunReport]:
    """The reports of all runs; that of labels last, so that of a symptom that a run shows too the
    run is named."""
    reports = []
    for path in paths_below(folder, START_FILE):
        report = read_start_report(path.parent)
        if report is not None:
            reports.append(RunReport(path.parent.name, report))
    return sorted(reports, key=lambda report: report.run == LABELS_FOLDER)


def describe_warning(name: str, text: str) -> str:
    """A warning as a sentence; `name`: of the run, or of the folder of a sweep's labels."""
    when = "of the first labels" if name == LABELS_FOLDER else f"before the first update of {name}"
    return f"{when}: {text}"
