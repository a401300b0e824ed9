"""GSM8K from its files to a trained policy, through the command line alone, at a size for one CPU
core. Print one JSON line.

    python benchmarks/gsm8k_end_to_end.py FOLDER MODEL              ten minutes on one core
    python benchmarks/gsm8k_end_to_end.py FOLDER MODEL --keep OUT   what it wrote stays in OUT

The ten minutes are those of SmolLM2-135M. samples.txt has responses to read.

FOLDER holds train.jsonl and test.jsonl, or both as .jsonl.gz, of {"question", "answer"}, the answer
ending in "#### 18".

    isojax difficulty    labels --problems of the training file by avg@4, and writes them as a data
                         set with splits
    isojax train         2 updates of 4 problems x 4 rollouts on that data set, with avg@2 on 8 test
                         problems before, between and after

It shows that the parts fit together; whether a model learns is another question, that 2 updates do
not answer. The prompt is two worked problems and then the question, and the answer ends with its
line: that suits a model this small, which gets nothing right as a chat.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ISOJAX = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'isojax'; from isojax.cli.app import main; main()",
]
SMALL = """\
name: end_to_end
cell:
  prompt:
    format: raw
    template: |-
      Question: A box holds 6 pens. Tom buys 3 boxes and gives away 4 pens. How many pens \
has he left?
      Answer: Tom buys 6*3=18 pens. He has 18-4=14 left.
      #### 14

      Question: Ann earns $12 an hour. She works 5 hours and spends $20. How much money \
has she left?
      Answer: Ann earns 12*5=60 dollars. She has 60-20=40 left.
      #### 40

      Question: {prompt}
      Answer:
    stop: ["\\n\\n", "\\nQuestion:"]
  data: {attempts: 4, difficulty: [0.0, 1.0], validation: 8}
  sampling: {prompt_length: 224, response_length: 128}
  rl: {learning_rate: 1.0e-3}
  eval: {samples: 2, start: 16, ratio: 2.0}
sweep: {B_p: [4], n: [4], budget: 32, decode_slots: 16, microbatch: 4}
"""
DROPPED = re.compile(r"(\d+) of (\d+) (.*) dropped")


def file_of(folder: Path, name: str) -> Path:
    """train.jsonl or train.jsonl.gz of a folder, absolute."""
    for path in (folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"):
        if path.is_file():
            return path.resolve()
    sys.exit(f"error: {folder} has no {name}.jsonl and no {name}.jsonl.gz")


def isojax(place: Path, *words: str) -> tuple[float, str]:
    """Run a command in `place`: its seconds, and what it said on standard error."""
    began = time.monotonic()
    done = subprocess.run([*ISOJAX, *words], cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(
            f"isojax {' '.join(words)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
    return time.monotonic() - began, done.stderr


def sizes(info: Path) -> dict[str, int]:
    """The splits of a data set and their problems, as its dataset_info.json has them."""
    return {
        split["name"]: sum(map(int, split["shardLengths"]))
        for split in json.loads(info.read_text())["splits"]
    }


def measure(place: Path, folder: Path, model: Path, problems: int) -> dict[str, Any]:
    """Run the two commands in `place` and say what came of them."""
    (place / "small.yaml").write_text(SMALL)
    train = file_of(folder, "train")
    test = file_of(folder, "test")
    model_setting = f"cell.model.path={model.resolve()}"
    common = ["gsm8k", "small.yaml", model_setting, f"cell.data.held_out=jsonl:{test}"]

    source = [f"cell.task=jsonl:{train}", f"cell.data.candidates={problems}"]
    labelling, output = isojax(place, "difficulty", *common, *source, "--out", "labels")
    labelled = ["cell.task=tfds:labels/splits#all", "cell.data.candidates=1000000"]
    training, more = isojax(place, "train", *common, *labelled)

    # What the commands left.
    labels = list(csv.DictReader((place / "labels/labels.csv").open()))
    solved = [int(row["solved"]) for row in labels]
    run = place / "runs/end_to_end"
    rows = map(json.loads, (run / "cells/4x4-s0/records.jsonl").read_text().splitlines())
    points = [row for row in rows if row["kind"] == "eval"]
    chosen_problems = map(json.loads, (run / "base/problems.jsonl").read_text().splitlines())
    sides = [problem["split"] for problem in chosen_problems]
    return {
        "problems": problems,
        "dropped": {what: int(count) for count, _, what in DROPPED.findall(output + more)},
        "labelled": len(labels),
        "solved_of_4": {k: solved.count(k) for k in sorted(set(solved))},
        "avg@4": round(sum(solved) / 4 / len(solved), 4),
        "splits": sizes(place / "labels/splits/dataset_info.json"),
        "sides": {side: sides.count(side) for side in sorted(set(sides))},
        "evaluations": [
            {"C": point["rollouts"], "counts": point["counts"], **point["metrics"]}
            for point in points
        ],
        "train": [point["train"] for point in points if point["train"]],
        "seconds": {"difficulty": round(labelling), "train": round(training)},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="with GSM8K's train and test file")
    parser.add_argument("model", type=Path, help="a folder with a language model")
    parser.add_argument("--problems", type=int, default=24, help="problems to label")
    parser.add_argument("--keep", type=Path, help="work in this new folder and leave it")
    inputs = parser.parse_args()
    if inputs.keep is not None:
        inputs.keep.mkdir(parents=True)
        print(json.dumps(measure(inputs.keep, inputs.folder, inputs.model, inputs.problems)))
        return
    with tempfile.TemporaryDirectory() as location:
        print(json.dumps(measure(Path(location), inputs.folder, inputs.model, inputs.problems)))


if __name__ == "__main__":
    main()
