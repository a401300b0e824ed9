"""Does the README's plan of a 7B model on 16 TPUs fit, and how long would its sweep take? Prints
one JSON line.

    python benchmarks/readme_plan.py              needs libtpu (pip install 'isojax[tpu]'), no TPU, some minutes

It runs the README's own line with --dry-run and --topology as a user does, in a process of its own
and an empty folder; what the command prints goes to standard error. It fails unless the command
ends with exit code 0.
"""

import argparse
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def readme_command() -> list[str]:
    """The words after `isojax` of the README's line with --topology."""
    lines = (ROOT / "README.md").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("isojax launch") and "--topology" in line)
    return shlex.split(line, comments=True)[1:]


def read_plan(printed: str) -> dict[str, object]:
    """What a plan for a topology says, whatever its lines' widths."""
    text = " ".join(printed.split())
    sampling, update, device = (re.search(pattern, text) for pattern in (
        r"([\d.]+) GiB at the peak of sampling", r"([\d.]+) GiB at the update's", r"update's, of ([\d.,]+) GiB",
    ))  # fmt: skip
    sizes = re.search(
        r"sizes of each shard, chosen where they are not set: ((?:sweep\.\S+ ?)+)", text
    )
    duration = re.search(r"time: (\S+ \S+) for the sweep, from", text)
    assert sampling and update and device and sizes and duration, printed
    return {
        "fits": "it fits, by the compiler's figures" in text,
        "sampling_gib": float(sampling[1]),
        "update_gib": float(update[1]),
        "device_gib": float(device[1]),
        "sizes": dict(word.removeprefix("sweep.").split("=") for word in sizes[1].split()),
        "sweep_takes": duration[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    words = readme_command()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "100"}
    call = [sys.executable, "-m", "isojax.launch", *words[1:]]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            call, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, check=False
        )
    seconds = time.monotonic() - start
    most_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(done.stderr, file=sys.stderr)
    assert done.returncode == 0, (
        f"isojax {shlex.join(words)} ended with exit code {done.returncode}"
    )
    plan = read_plan(done.stderr)
    assert plan["fits"]
    print(json.dumps({**plan, "seconds": round(seconds), "host_gib": round(most_kib / 2**20, 1)}))


if __name__ == "__main__":
    main()
