"""Does the wheel work for someone who has nothing else, and how long does it take? Print one JSON
line of seconds.

    make dist && python benchmarks/wheel.py               some minutes
    python benchmarks/wheel.py --dry-run                  up to the sweep's plan; trains nothing

It installs packages from the registry that pip is set up for, into a virtual environment in an
empty folder. Neither knows this checkout:

    install    pip install dist/isojax-*.whl
    dry_run    isojax launch quickstart --dry-run
    sweep      isojax launch quickstart, with the fit and the report
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DIST = Path(__file__).resolve().parents[1] / "dist"


def measure(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """The wall seconds of a command, which ends well; what it prints goes to standard error."""
    start = time.monotonic()
    subprocess.run(command, cwd=folder, env=environment, stdout=sys.stderr, check=True)
    return round(time.monotonic() - start, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", nargs="?", type=Path, help="by default the one in dist/")
    parser.add_argument("--dry-run", action="store_true", help="end with the plan of the sweep")
    args = parser.parse_args()
    wheels = [args.wheel] if args.wheel else sorted(DIST.glob("isojax-*.whl"))
    if len(wheels) != 1 or not wheels[0].is_file():
        parser.error(
            f"given {', '.join(map(str, wheels)) or 'no wheel in dist/'}, expected one wheel; "
            "make dist builds it"
        )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    with tempfile.TemporaryDirectory() as name:
        venv, folder = Path(name, "venv"), Path(name, "work")
        folder.mkdir()
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        pip = [
            str(venv / "bin/python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        launch = [str(venv / "bin/isojax"), "launch", "quickstart"]
        times = {"install": measure([*pip, str(wheels[0].resolve())], folder, environment)}
        times["dry_run"] = measure([*launch, "--dry-run"], folder, environment)
        if not args.dry_run:
            times["sweep"] = measure(launch, folder, environment)
            assert (folder / "runs/quickstart/report.html").is_file()
        print(json.dumps({"wheel": wheels[0].name, "bytes": wheels[0].stat().st_size, **times}))


if __name__ == "__main__":
    main()
