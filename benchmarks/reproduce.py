"""The small experiments of docs/reproduction.md and the sweeps of docs/quickstart.md, of minutes
each on two cores.

    python benchmarks/reproduce.py run                      train them, or go on with them; then
                                                            write the runs and the tables
    python benchmarks/reproduce.py run --only small_easy    some of them; nothing is written
    python benchmarks/reproduce.py publish FOLDER ...       add sweeps that were trained by hand
    python benchmarks/reproduce.py check                    fit the runs again, compare the pages

`check` fits isojax/runs/study.parquet and exits with code 1 where a line of a page differs.
study_tables.py makes the tables.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from config_plans import ROOT
from study_tables import SEEDS, SWEEPS, make_tables

import isojax
from isojax.core.atomic_files import write_text
from isojax.core.nouns import EvalPoint, RunRecord
from isojax.runs.study import POINT_COLUMNS, STUDY_FILE, load_study

PAGES = tuple(ROOT / "docs" / name for name in ("reproduction.md", "quickstart.md"))
# times the budget of the quickstart: the C of the runs that its forecasts are compared with
FURTHER = 4
LAUNCHED = {  # sweep -> what `isojax launch` is given
    **{f"small_{name}": [f"small/{name}"] for name in SWEEPS},
    **{
        f"quickstart_{seed}": ["quickstart", f"name=quickstart_{seed}", f"sweep.seed={seed}"]
        for seed in SEEDS
    },
    "quickstart_4x": "quickstart name=quickstart_4x sweep.seed=7 sweep.seeds=1 sweep.n=[8,16,32] "
    f"sweep.budget={FURTHER * 139_000}".split(),
}
TABLE = re.compile(r"(<!-- (\w+), by benchmarks/reproduce.py -->\n).*?(<!-- end -->)", re.DOTALL)


def git_commit() -> str:
    """The commit of this checkout."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def updated_pages() -> dict[Path, str]:
    """The pages with the tables of the committed runs."""
    tables = make_tables(load_study())
    return {
        path: TABLE.sub(lambda match: match[1] + tables[match[2]] + match[3], path.read_text())
        for path in PAGES
    }


def study_row(sweep: str, run: RunRecord, point: EvalPoint) -> dict[str, Any]:
    """The row of an evaluation, which load_study reads back."""
    row = {
        "sweep": sweep,
        "B_p": run.cell.B_p,
        "n": run.cell.n,
        "seed": run.cell.seed,
        "cell_hash": run.cell_hash,
        **{name: getattr(point, name) for name in POINT_COLUMNS},
        "counts": list(point.counts),
    }
    groups = {"metrics": point.metrics, "train": point.train, "extra": point.extra}
    for group, values in groups.items():
        row |= {f"{group}/{key}": value for key, value in values.items()}
    return row


def publish(folders: Sequence[Path]) -> None:
    """Put the sweeps of these folders into the open data, in place of those of the same name
    (isojax/runs/study.py says the columns)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = {
        key.decode(): text.decode()
        for key, text in (pq.read_schema(STUDY_FILE).metadata or {}).items()
    }
    sweeps = {**load_study(), **{folder.name: isojax.read_runs(folder) for folder in folders}}
    for folder in folders:
        metadata[f"config/{folder.name}"] = (folder / "config.yaml").read_text()
        metadata[f"commit/{folder.name}"] = git_commit()
    rows = [
        study_row(name, run, point)
        for name, runs in sweeps.items()
        for run in runs
        for point in run.points
    ]
    sums = pa.list_(pa.int16())
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    is_sums = {name: name == "counts" or name.startswith("extra/") for name in names}
    table = pa.table(
        {name: pa.array(columns[name], sums if is_sums[name] else None) for name in names}
    )
    pq.write_table(
        table.replace_schema_metadata(metadata),
        STUDY_FILE,
        compression="zstd",
        compression_level=19,
    )


def run_sweeps(folder: Path, only: Sequence[str]) -> dict[str, float]:
    """Train each sweep, or go on with it; the seconds that each took today."""
    seconds = {}
    for i, name in enumerate(only, 1):
        print(f"sweep {i} of {len(only)}: {name}", file=sys.stderr, flush=True)
        started = time.monotonic()
        words = [*LAUNCHED[name], "--resume", "--no-report", f"run.dir={folder}"]
        subprocess.run([sys.executable, "-m", "isojax.launch", *words], check=True)
        seconds[name] = round(time.monotonic() - started)
    return seconds


def main() -> int:
    """Train, or refit and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train the sweeps, or go on with them")
    run.add_argument(
        "--dir", type=Path, default=Path("runs/study"), help="the folder of the sweeps"
    )
    run.add_argument(
        "--only", nargs="+", choices=LAUNCHED, help="train these alone, and write nothing"
    )
    publication = commands.add_parser(
        "publish", help="put the sweeps of folders among the committed runs"
    )
    publication.add_argument("folders", nargs="+", type=Path)
    commands.add_parser("check", help="fit the committed runs again and compare with the pages")
    arguments = parser.parse_args()

    if arguments.command == "run":
        seconds = run_sweeps(arguments.dir, arguments.only or list(LAUNCHED))
        print(json.dumps({"benchmark": "reproduce", "seconds": seconds}))
        if arguments.only:
            return 0
        publish([arguments.dir / name for name in LAUNCHED])
    elif arguments.command == "publish":
        publish(arguments.folders)

    # `check` compares the pages, the others write them.
    different = []
    for path, new_page in updated_pages().items():
        page = path.read_text()
        if arguments.command != "check":
            write_text(path, new_page)
        elif page != new_page:
            lines = zip_longest(page.splitlines(), new_page.splitlines(), fillvalue="")
            different += [
                f"{path.name}:",
                *(f"- {old}\n+ {new}" for old, new in lines if old != new),
            ]
    if different:
        print("\n".join(["the pages differ from a fit of the committed runs:", *different]))
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
