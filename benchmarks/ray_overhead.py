"""What Ray costs a sweep of one machine: `isojax launch CONFIG` against the same with `--ray
local`, and whether both write the same.

    python benchmarks/ray_overhead.py [CONFIG KEY=VALUE ...]          (quickstart: some minutes)

Each begins with nothing, not even compiled programs. One JSON line: wall seconds of either, their
ratio, and whether all ledgers are equal, bit for bit; the exit code is 1 where they are not.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(folder: Path, words: list[str]) -> float:
    """Wall seconds of a launch into an empty folder, with a compilation cache of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"} | {
        "XDG_CACHE_HOME": str(folder / "cache")
    }
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "isojax.launch", *words, f"run.dir={folder}"],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.monotonic() - began


def ledgers(folder: Path) -> dict[str, bytes]:
    """The ledger of each cell."""
    return {path.parent.name: path.read_bytes() for path in folder.glob("*/cells/*/records.jsonl")}


def main() -> None:
    """Measure and print."""
    words = sys.argv[1:] or ["quickstart"]
    with tempfile.TemporaryDirectory() as location:
        here, ray = Path(location, "here"), Path(location, "ray")
        seconds = run(here, words), run(ray, [*words, "--ray", "local"])
        result, known = ledgers(ray), ledgers(here)
    line = {
        "config": " ".join(words),
        "local": round(seconds[0], 1),
        "ray": round(seconds[1], 1),
        "ratio": round(seconds[1] / seconds[0], 3),
    }
    print(json.dumps(line | {"cells": len(known), "equal": result == known}))
    sys.exit(result != known)


if __name__ == "__main__":
    main()
