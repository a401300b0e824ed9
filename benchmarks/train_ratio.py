"""Is training slower than at an earlier commit? Two trees train the same run by turns; the ratio of
their seconds.

    python benchmarks/train_ratio.py --commit HEAD~1
    python benchmarks/train_ratio.py --commit HEAD~50 --pairs 12

The run is a cell of the quickstart, 32 x 16, or of the config and settings that are given. A time
is the sum of the seconds after the second evaluation (timing.jsonl); the ratio is the geometric
mean over pairs of runs, of which each tree begins every second one: the first of a pair is a few
per cent slower. It also says whether both ledgers have the same bits. Run it on an idle machine;
with the defaults it takes nine minutes on two cores."""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAIN = "from isojax.cli.app import main; main()"
RUN = ("quickstart", "sweep.B_p=[32]", "sweep.n=[16]", "sweep.seeds=1", "sweep.budget=140000")


def train(tree: Path, words: list[str], folder: Path) -> tuple[float, bytes]:
    """The seconds of one run after its second evaluation, and its ledger; the base policy in
    `folder` is used again."""
    shutil.rmtree(folder / "run" / "cells", ignore_errors=True)
    settings = ["name=run", f"run.dir={folder}", "--resume"]
    command = [sys.executable, "-c", MAIN, "train", *words, *settings]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, check=False, cwd=folder, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()

    (cell,) = (folder / "run" / "cells").iterdir()
    lines = (cell / "timing.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    return sum(seconds[2:]), (cell / "records.jsonl").read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", default=RUN, help="a config of one run, and settings")
    parser.add_argument("--commit", required=True, help="what to compare this tree with")
    parser.add_argument("--pairs", type=int, default=8, help="an even number")
    arguments = parser.parse_args()
    if arguments.pairs < 2 or arguments.pairs % 2:
        parser.error(
            f"--pairs {arguments.pairs}: expected an even number, so that each tree begins as often"
        )
    with tempfile.TemporaryDirectory() as name:
        old_tree = Path(name) / "tree"
        subprocess.run(["git", "clone", "-q", "--shared", ROOT, old_tree], check=True)
        subprocess.run(["git", "checkout", "-q", arguments.commit], cwd=old_tree, check=True)
        trees = {"then": old_tree, "now": ROOT}
        folders = {which: Path(name) / which for which in trees}
        for folder in folders.values():
            folder.mkdir()

        ratios = []
        same_bits = True
        for pair in range(arguments.pairs + 1):
            runs = {}
            for which in sorted(trees, reverse=pair % 2 == 1):  # each begins every second pair
                runs[which] = train(trees[which], list(arguments.words), folders[which])
            now, now_ledger = runs["now"]
            then, then_ledger = runs["then"]
            same_bits &= now_ledger == then_ledger
            if pair > 0:  # the first only makes base policies and compiled programs
                ratios.append(now / then)
            print(f"then {then:.2f} s, now {now:.2f} s", file=sys.stderr)

    line = {
        "commit": arguments.commit,
        "now_over_then": round(statistics.geometric_mean(ratios), 3),
        "smallest": round(min(ratios), 3),
        "largest": round(max(ratios), 3),
        "same_bits": same_bits,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
