"""start.json of a run, and of labels: what the check before the first update measured, and what it
doubts."""

import json
from dataclasses import asdict
from pathlib import Path

from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError
from isojax.core.nouns import StartReport, StartWarning
from isojax.core.table_files import paths_below, read_json_object

START_FILE = "start.json"
LABELS_FOLDER = "base"  # of a sweep: where its labels are


def write_start_report(folder: Path, report: StartReport) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / START_FILE, json.dumps(asdict(report), indent=1) + "\n")


def read_start_report(folder: Path) -> StartReport | None:
    """That of a run's or a label's folder; None where there is none. InputError where it cannot be
    read."""
    path = folder / START_FILE
    if not path.exists():
        return None
    document = read_json_object(path)
    try:
        shares = {str(name): float(share) for name, share in document["shares"].items()}
        warnings = tuple(StartWarning(str(w["name"]), str(w["text"])) for w in document["warnings"])
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        fix = "Remove it: nothing but what it says of the first rollouts is lost"
        raise InputError(f"cannot read {path}: {type(e).__name__}: {e}. {fix}.") from e
    return StartReport(shares, warnings)


def describe_start(folder: Path) -> list[str]:
    """What was doubtful before the first updates of a sweep, or of several, whose folder this is: a
    sentence for each symptom, of the first run that showed it, and how many did."""
    reports = [
        (path.parent.name, read_start_report(path.parent))
        for path in paths_below(folder, START_FILE)
    ]
    # labels last: what a run shows too is told of the run
    reports.sort(key=lambda named: named[0] == LABELS_FOLDER)
    texts_by_symptom: dict[str, list[tuple[str, str]]] = {}
    for name, report in reports:
        for warning in report.warnings if report else ():
            texts_by_symptom.setdefault(warning.name, []).append((name, warning.text))

    num_runs = sum(name != LABELS_FOLDER for name, _ in reports)
    sentences = []
    for texts in texts_by_symptom.values():
        first_name, first_text = texts[0]
        count = sum(name != LABELS_FOLDER for name, _ in texts)
        others = f" (so in {count} of {num_runs} runs)" if count > 1 else ""
        sentences.append(describe_warning(first_name, first_text) + others)
    return sentences


def describe_warning(name: str, text: str) -> str:
    """A warning as a sentence; `name`: of the run, or of the folder of a sweep's labels."""
    place = "of the first labels" if name == LABELS_FOLDER else f"before the first update of {name}"
    return f"{place}: {text}"
