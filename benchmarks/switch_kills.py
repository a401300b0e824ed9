"""Runs whose n changes, killed by SIGKILL next to the changes and at random instants, and resumed
each time, against uninterrupted runs: what they leave must be equal.

    python benchmarks/switch_kills.py [--kinds stages,gradient,spend] [--kills 12] [--seed 0]

Each kind runs on the quickstart's task through the command line, with a checkpoint after every
call: `stages`, n = 2 to 32 with four changes; `gradient`, n from 2 by gradient; `spend`, an `isojax
spend`. Up to four kills come just after the last evaluation before a change of n, the others at
random. In the end the ledgers and the last checkpoints (every array's bits, and what the host knew)
must be those of the uninterrupted run, and so must spend.json.

A line for each kill goes to standard error. One JSON line per kind; the exit code is 1 where
something differs.
"""

import argparse
import json
import logging
import random
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from chaos import last_checkpoint

BUDGET = 30_000
AT_SWITCHES = 4  # of the kills
ONE_RUN = [
    "train",
    "quickstart",
    "sweep.B_p=[]",
    "sweep.n=[]",
    "sweep.seeds=1",
    f"sweep.budget={BUDGET}",
]
STAGES = "32x2, 32x4 from 500, 32x8 from 2000, 32x16 from 6000, 32x32 from 14000"
ONE_RATE = ["cell.rl.lr_scaling=constant", "cell.rl.learning_rate=5e-4"]
KINDS = {
    "stages": [*ONE_RUN, f"sweep.schedules={{grow: '{STAGES}'}}"],
    "gradient": [*ONE_RUN, *ONE_RATE, "sweep.schedules={auto: '32x2 to 32x32 by gradient'}"],
    "spend": ["spend", "quickstart", "--budget", str(BUDGET)],
}


def start(folder: Path, kind: str, seed: int) -> subprocess.Popen[str]:
    """A process of a run in `folder`, which begins or goes on."""
    settings = ["name=run", f"run.dir={folder}", f"sweep.seed={seed}", "run.checkpoint_seconds=0"]
    program = "from isojax.cli.app import main; main()"
    command = [sys.executable, "-c", program, *KINDS[kind], *settings, "--resume"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"exit code {process.returncode}\n{errors}")


def evaluations(folder: Path) -> list[list[tuple[int, float]]]:
    """Of each ledger, (C, B of the updates since the evaluation before); a torn line is left
    out."""
    ledgers = []
    for ledger in sorted(folder.glob("run/cells/*/records.jsonl")):
        rows = map(json.loads, ledger.read_bytes().split(b"\n")[1:-1])
        points = [(row["rollouts"], row["M"]) for row in rows if row["kind"] == "eval"]
        ledgers.append([(C, (C - C_0) / (M - M_0)) for (C_0, M_0), (C, M) in pairwise(points)])
    return ledgers


def kill_instants(whole: Path, kills: int, rng: random.Random) -> list[tuple[int, float]]:
    """(C of the evaluation after which a kill comes, seconds until then), by rising C."""
    all_C: list[int] = []
    before_switches: list[int] = []
    for points in evaluations(whole):
        all_C += [C for C, _ in points]
        before_switches += [C for (C, B), (_, next_B) in pairwise(points) if next_B > B]

    instants = [(C, rng.uniform(0, 0.1)) for C in sorted(before_switches)[:AT_SWITCHES]]
    while len(instants) < kills:
        instants.append((rng.choice(all_C), rng.uniform(0, 1.5)))
    return sorted(instants)


def kill(folder: Path, kind: str, seed: int, C: int, seconds: float) -> bool:
    """Go on with a run until so long after its evaluation at C, and kill it; False where it had
    ended by then."""

    def has_reached() -> bool:
        return any(C <= reached for points in evaluations(folder) for reached, _ in points)

    process = start(folder, kind, seed)
    while process.poll() is None and not has_reached():
        time.sleep(0.003)
    time.sleep(seconds)
    if process.poll() is not None:
        finish(process)
        return False
    process.kill()
    process.communicate()
    return True


def differences(one: Path, other: Path) -> list[str]:
    """The files and arrays in which two runs differ."""
    files = [path.relative_to(one) for path in sorted(one.glob("run/cells/*/records.jsonl"))]
    if (one / "run" / "spend.json").exists():
        files.append(Path("run/spend.json"))
    result = [
        str(file) for file in files if (one / file).read_bytes() != (other / file).read_bytes()
    ]

    for path in sorted(one.glob("run/cells/*/checkpoint")):
        cell = path.parent.relative_to(one)
        host, arrays = last_checkpoint(one / cell)
        host_2, arrays_2 = last_checkpoint(other / cell)
        for key in host | host_2:
            if host.get(key) != host_2.get(key):
                result.append(f"{cell}: {key}")
        for key in arrays:
            if arrays[key].tobytes() != arrays_2[key].tobytes():
                result.append(f"{cell}: {key}")
    return result


def broken(folder: Path, kind: str, kills: int, seed: int) -> dict[str, Any]:
    """A run without a break, and one that is killed; what they differ in."""
    rng = random.Random(seed)
    whole = folder / f"{kind}-whole"
    killed = folder / f"{kind}-killed"
    finish(start(whole, kind, seed))
    count = 0
    for C, seconds in kill_instants(whole, kills, rng):
        count += kill(killed, kind, seed, C, seconds)
        print(f"{kind}: kill {count}, {seconds:.2f} s after C = {C:,}", file=sys.stderr, flush=True)
    finish(start(killed, kind, seed))
    return {"kind": kind, "seed": seed, "kills": count, "differences": differences(whole, killed)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    parser.add_argument("--kills", type=int, default=12, help="of each kind")
    parser.add_argument("--seed", type=int, default=0, help="sweep.seed, and that of the instants")
    args = parser.parse_args()
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax's remarks on reading

    equal = True
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.kinds.split(","):
            result = broken(Path(folder), kind, args.kills, args.seed)
            print(json.dumps(result), flush=True)
            equal &= not result["differences"]
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
