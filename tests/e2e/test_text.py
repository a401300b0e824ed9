"""A language model from end to end through the command line: a sweep, killed and resumed;
labelling, killed and resumed; both ended by a time limit; a mixture of what it wrote, with a
further set; the trained policy exported."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from isojax.core.config import DataConfig, ModelConfig
from isojax.models.hf.hf_export import write_json
from isojax.models.hf.hf_load import SOURCE_FILE, resolve_model
from isojax.tasks.problem_sources import open_source
from tests.compiler import QUICK, flags
from tests.e2e.command_line import SECONDS, Fork, Isojax, Nursery
from tests.e2e.tiny_lm import make_model

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

# Rates from 0 to 1 by problem, whatever the random policy says; 2 ms a check, so that a kill finds
# work half done.
REWARDS = """\
import time
from zlib import crc32
def reward(prompts, completions, **columns):
    time.sleep(0.002)
    asked, said = prompts[0], completions[0]
    return [int(crc32(f"{asked}{said}".encode()) % 100 < 100 * (crc32(asked.encode()) % 17 / 16))]
"""
SETTINGS = """\
name: sums
cell:
  task: addition
  model: {path: lm}
  prompt: {template: "3 + 4 = 7\\n{prompt}", stop: ["\\n", "<|im_start|>"]}
  verifier: {use: function:rewards.py:reward}
  data: {attempts: 0, candidates: 60, validation: 8}
  sampling: {prompt_length: 24, response_length: 3, temperature: 0.8, top_p: 0.9}
  rl: {learning_rate: 3.0e-3, lr_reference_batch: 16, warmup: 2, kl: 0.01}
  eval: {samples: 4, start: 16, ratio: 1.4}
sweep: {B_p: [4], n: [2, 4], budget: 200, decode_slots: 8, microbatch: 8, prefill_batch: 4}
run: {verifier_workers: 1, cells_at_once: 1}
"""
FLAGS = flags(QUICK, devices=1)
TARGETS = [0, 16, 23, 32, 44, 62, 87, 121, 169]
CELLS = {
    "4x2-s0": (8, TARGETS),
    "4x4-s0": (16, [t for t in TARGETS if t != 23]),
}  # 2 updates of 16 reach 23 and 32: the latter stands
LABELLING = (
    "difficulty",
    "sums.yaml",
    "cell.data.candidates=150",
    "cell.data.attempts=16",
    "--held-out",
    "4",
)


SOURCE = {"hub": "https://hub.example", "repository": "org/lm", "commit": "0" * 40}


def prepare(place: Isojax) -> Isojax:
    """A folder with a language model, a verifier and sums.yaml."""
    write_json(make_model(place.folder / "lm") / SOURCE_FILE, SOURCE)
    (place.folder / "rewards.py").write_text(REWARDS)
    (place.folder / "sums.yaml").write_text(SETTINGS)
    return place


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Isojax:
    """Where sweep and labelling have run without a break; to be read only."""
    location = prepare(Isojax(tmp_path_factory.mktemp("text") / "work", nursery))
    location.swept("launch", "sums.yaml", XLA_FLAGS=FLAGS)
    location.quick_ok(*LABELLING, XLA_FLAGS=FLAGS)
    return location


def killed_at(process: Fork, path: Path, lines: int) -> None:
    """SIGKILL as soon as a file has so many lines."""
    last = time.monotonic() + SECONDS
    try:
        while not path.exists() or path.read_bytes().count(b"\n") < lines:
            assert process.poll() is None and time.monotonic() < last, process.communicate()
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def test_what_a_sweep_leaves(unbroken: Isojax) -> None:
    """Every count, every metric, and samples that a person can read."""
    assert set(unbroken.ledgers("sums")) == set(CELLS)
    problems = [
        json.loads(line)
        for line in (unbroken.run("sums") / "base" / "problems.jsonl").read_text().splitlines()
    ]
    validation = [p for p in problems if p["split"] == "validation"]
    assert (
        json.loads((unbroken.run("sums") / "base" / "about.json").read_text())["source"] == SOURCE
    )
    assert (
        len(problems) == 60 and len(validation) == 8 and all(p["attempts"] == 0 for p in problems)
    )
    for cell, (B, targets) in CELLS.items():
        rows = unbroken.rows(cell, "sums")
        assert [row["target"] for row in rows] == targets
        assert [row["M"] for row in rows] == [-(-target // B) for target in targets]
        assert all(row["rollouts"] == B * row["M"] for row in rows)
        for row in rows:
            counts, metrics = row["counts"], row["metrics"]
            assert set(metrics) == {
                "avg@4",
                "best@4",
                "worst@4",
                "parsed_fraction",
                "truncated",
                "verifier_failures",
            }
            assert metrics["avg@4"] == pytest.approx(sum(counts) / 32)
            assert (metrics["best@4"], metrics["worst@4"]) == (
                sum(c > 0 for c in counts) / 8,
                sum(c == 4 for c in counts) / 8,
            )
            assert (
                0.7 < metrics["parsed_fraction"] <= 1 and metrics["verifier_failures"] == 0
            )  # an empty response holds no answer
            assert not row["M"] or (
                row["train"]["sampler_logp_gap"] < 1e-4
                and 0 < row["train"]["reward"] < 1
                and row["train"]["grad_norm"] > 0
            )
        text = (unbroken.run("sums") / "cells" / cell / "samples.txt").read_text()
        heads = [line for line in text.splitlines() if line.startswith("C = ")]
        assert [int(line.split()[2]) for line in heads] == [row["rollouts"] for row in rows]
        verdicts = re.findall("    (correct|wrong, .*)\n", text)
        assert {"correct"} < set(verdicts) and set(verdicts) - {"correct"} <= {
            f"wrong, the answer is {p['answer']}" for p in validation
        }
        assert len(verdicts) == 4 * len(heads)
        assert text.count("    3 + 4 = 7\n") == 1  # what all prompts begin with is said once
        assert all(f"\n    {p['prompt']}" in text for p in validation[:4])


def test_a_sweep_killed_and_resumed_leaves_the_same_bits(isojax: Isojax, unbroken: Isojax) -> None:
    """Also with moments in the host's memory, where the unbroken sweep had them on the device."""
    prepare(isojax)
    words = "launch", "sums.yaml", "run.checkpoint_seconds=0", "sweep.moments_on_host=true"
    ledger = isojax.run("sums") / "cells" / "4x4-s0" / "records.jsonl"
    killed_at(isojax.fork(*words, XLA_FLAGS=FLAGS), ledger, 5)
    assert 5 <= ledger.read_bytes().count(b"\n") < 9, "the cell was finished before the kill"
    done = isojax.swept(*words, "--resume", XLA_FLAGS=FLAGS)
    assert done.stderr.count("done before") == 1
    assert isojax.ledgers("sums") == unbroken.ledgers("sums")


def test_a_sweep_in_a_bucket_goes_on_where_a_time_limit_has_ended_it(
    isojax: Isojax, unbroken: Isojax, nursery: Nursery
) -> None:
    """On another machine: at another path, and without the first one's scratch folder."""
    prepare(isojax)
    home = isojax.folder.parent
    words = ("launch", "sums.yaml", f"run.dir=file://{home}/bucket", "--resume")
    cut = isojax.quick(
        *words,
        "run.time_limit=8h",
        fit=False,
        XLA_FLAGS=FLAGS,
        XDG_CACHE_HOME=str(home / "cache"),
        time_limit_at="4x4-s0 at 5",
    )
    assert cut.returncode == 143 and "(run.time_limit)" in cut.stderr.splitlines()[-1], cut.stderr
    cells = home / "bucket" / "sums" / "cells"
    assert [path.name for path in cells.glob("4x4-s0/checkpoint/*.whole")] == ["5.whole"]
    shutil.rmtree(home / "cache")

    other = Isojax(shutil.move(isojax.folder, home / "elsewhere"), nursery)
    other.swept(*words, XLA_FLAGS=FLAGS, XDG_CACHE_HOME=str(home / "another"))
    ledgers = {path.parent.name: path.read_bytes() for path in cells.glob("*/records.jsonl")}
    assert ledgers == unbroken.ledgers("sums")


def test_labelling_killed_and_called_again_finds_the_same(isojax: Isojax, unbroken: Isojax) -> None:
    """And a splits/ that holds them all, each part by its range; what is done is not done again."""
    prepare(isojax)
    folder, full = (location.folder / "difficulty" / "sums" for location in (isojax, unbroken))
    in_time = isojax.quick(*LABELLING, "run.time_limit=8h", XLA_FLAGS=FLAGS, time_limit_at="labels")
    assert in_time.returncode == 143
    assert "(run.time_limit); the labels made so far" in in_time.stderr.splitlines()[-1]
    first_labels = (folder / "labels.jsonl").read_bytes()
    lines = first_labels.count(b"\n")  # the first is a header
    assert 1 < lines < 100

    killed_at(isojax.fork(*LABELLING, XLA_FLAGS=FLAGS), folder / "labels.jsonl", lines + 1)
    half = (folder / "labels.jsonl").read_bytes()
    assert half.startswith(first_labels)
    assert half.count(b"\n") < 151, "all was labelled before the kill"
    done = isojax.quick_ok(*LABELLING, XLA_FLAGS=FLAGS)
    assert (folder / "labels.jsonl").read_bytes().startswith(half[: half.rindex(b"\n") + 1])
    assert (folder / "labels.csv").read_bytes() == (
        full / "labels.csv"
    ).read_bytes() and "150 problems" in done.stdout
    rows = list(csv.DictReader((folder / "labels.csv").read_text().splitlines()))
    assert len(rows) == 150 and all(
        float(r["low"]) <= float(r["avg"]) == int(r["solved"]) / 16 <= float(r["high"])
        for r in rows
    )
    parts = {"hard": (0, 1 / 16), "easy": (0.3, 0.6), "very_easy": (0.6, 0.9)}
    for part, (low, high) in parts.items():
        result = {
            int(r["id"]) for r in rows if low <= float(r["avg"]) <= high and r["part"] == part
        }
        split = [
            open_source(f"tfds:{location}/splits#{part}_{side}", DataConfig()).problems(
                999, np.random.default_rng(0)
            )
            for location in (folder, full)
            for side in ("train", "validation")
        ]
        assert len(split[1]) == 4 == len(split[3]) and len(split[0]) + 4 == len(result)
        assert {p.id for p in split[0] + split[1]} == result == {p.id for p in split[2] + split[3]}
    isojax.refused(*LABELLING, saying=["splits: exists"])


def test_a_mixture_with_a_further_set(isojax: Isojax, unbroken: Isojax) -> None:
    prepare(isojax)
    shutil.copytree(unbroken.folder / "difficulty", isojax.folder / "difficulty")
    words = (
        "name=mixed",
        "cell.task=tfds:difficulty/sums/splits",
        "cell.data.mixture={hard: 0.5, easy: 0.5}",
        "cell.data.validation=4",
    )
    extra = "cell.eval.extra={most: 'tfds:difficulty/sums/splits#very_easy_validation'}"
    done = isojax.quick_ok(
        "train", "sums.yaml", *words, extra, "sweep.n=[2]", "sweep.budget=40", XLA_FLAGS=FLAGS
    )
    assert "mixture" in done.stderr
    problems = [
        json.loads(line)
        for line in (isojax.run("mixed") / "base" / "problems.jsonl").read_text().splitlines()
    ]
    training = [p["solved"] / p["attempts"] for p in problems if p["split"] == "training"]
    hard = sum(rate <= 1 / 16 for rate in training)
    assert (
        len(training) >= 8
        and abs(2 * hard - len(training)) <= 1
        and all(rate <= 1 / 16 or 0.3 <= rate <= 0.6 for rate in training)
    )
    further = [p for p in problems if p["split"] == "extra/most"]
    assert len(further) == 4 and all(0.6 < p["solved"] / p["attempts"] <= 0.9 for p in further)
    for row in isojax.rows("4x2-s0", "mixed"):
        assert len(row["counts"]) == 4 == len(row["extra"]["most"])
        assert row["metrics"]["most/avg@4"] == pytest.approx(sum(row["extra"]["most"]) / 16)
        assert row["metrics"]["avg@4"] == pytest.approx(sum(row["counts"]) / 16)


def test_the_trained_policy_is_exported_and_reloads(isojax: Isojax, unbroken: Isojax) -> None:
    prepare(isojax)
    isojax.quick_ok(
        "model", "export", str(unbroken.run("sums") / "cells" / "4x4-s0"), "trained", "--base", "lm"
    )
    before, after = (
        load_file(isojax.folder / name / "model.safetensors") for name in ("lm", "trained")
    )
    assert {k: v.shape for k, v in before.items()} == {k: v.shape for k, v in after.items()}
    moved = [np.linalg.norm(after[k] - before[k]) / np.linalg.norm(before[k]) for k in before]
    assert min(moved) > 1e-4 and max(moved) < 1
    shapes = [
        resolve_model(ModelConfig(path=str(isojax.folder / name))) for name in ("lm", "trained")
    ]
    assert shapes[0].model_copy(update={"path": shapes[1].path}) == shapes[1]
    isojax.quick_ok("launch", "sums.yaml", "name=further", "cell.model.path=trained", "--dry-run")
    isojax.refused(
        "model",
        "export",
        str(unbroken.run("sums") / "cells" / "4x4-s0"),
        "trained",
        "--base",
        "lm",
        saying=["trained"],
    )
