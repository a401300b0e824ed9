"""Graded rewards from end to end through the command line, as a user would: problems and a reward
function of one's own, labels, two cells, fit, recommendation, report, export, and the trained
policy in transformers.
"""

from __future__ import annotations

import csv
import json
import re
import signal
import socket
import time

import pytest
from safetensors.numpy import load_file

from tests.compiler import QUICK, flags
from tests.e2e.command_line import Isojax
from tests.e2e.tiny_lm import make_model

pytestmark = [pytest.mark.slow, pytest.mark.seconds(55)]

# Numbers from 0 to 1 by problem and response, whatever the random policy says.
REWARDS = """\
from zlib import crc32
def accuracy(prompts, completions, answer):
    asked, said = prompts[0], completions[0]
    return [crc32(f"{asked}{said}".encode()) % 100 / 100 * (crc32(asked.encode()) % 17 / 16)]
def format(completions):
    return [0.5 * (completions[0][:1].isalnum()) + 0.5 * (len(completions[0]) > 1)]
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 0.25, "acc": solution_str[:1].isalnum(), "said": solution_str, "length": 70.0}
def offset(completions):
    return [1.5 + len(completions[0])]
def nothing(completions):
    return ["1.0"]
def unknown(completions):
    return [float("nan")]
def broken(completions, answer):
    scores = [0.5, -1.0, float("nan"), 2.0]
    return [scores[int(answer[0]) // 2 % 4 if completions[0] else 0]]
"""
SETTINGS = """\
name: graded
cell:
  task: jsonl:sums.jsonl
  model: {path: lm}
  prompt: {stop: ["\\n", "<|im_start|>"]}
  verifier: {use: {accuracy: "function:rewards.py:accuracy", format: "function:rewards.py:format"}}
  reward: {kind: graded, weights: {accuracy: 1.0, format: 0.25}}
  data: {attempts: 4, difficulty: [0.1, 0.7], candidates: 60, validation: 8}
  sampling: {prompt_length: 24, response_length: 3}
  rl: {learning_rate: 3.0e-3, lr_reference_batch: 16, warmup: 2}
  eval: {samples: 4, start: 16, ratio: 1.4, panel: 4}
sweep: {B_p: [4], n: [2, 4], budget: 200, decode_slots: 8, microbatch: 8, prefill_batch: 4}
run: {verifier_workers: 1, cells_at_once: 1}
"""
FLAGS = flags(QUICK, devices=1)


@pytest.fixture
def place(isojax: Isojax) -> Isojax:
    make_model(isojax.folder / "lm")
    (isojax.folder / "rewards.py").write_text(REWARDS)
    (isojax.folder / "graded.yaml").write_text(SETTINGS)
    problems = [{"prompt": f"{i} + {i + 3} =", "answer": str(2 * i + 3)} for i in range(60)]
    (isojax.folder / "sums.jsonl").write_text("".join(json.dumps(p) + "\n" for p in problems))
    return isojax


def test_from_ones_own_reward_function_to_a_policy_in_transformers(place: Isojax) -> None:
    """Sums of rewards where binary runs count, each score a metric, and "mean reward" where it is
    shown."""
    place.swept("launch", "graded.yaml", XLA_FLAGS=FLAGS)
    base = [
        json.loads(line)
        for line in (place.run("graded") / "base" / "problems.jsonl").read_text().splitlines()
    ]
    chosen = [p for p in base if p["split"] != "left out"]
    assert all(isinstance(p["solved"], float) and 0.1 <= p["solved"] / 4 <= 0.7 for p in chosen)
    assert 16 <= len(chosen) < len(base) == 60 and any(p["solved"] % 1 for p in chosen)
    for cell in ("4x2-s0", "4x4-s0"):
        for row in place.rows(cell, "graded"):
            sums, metrics, train = row["counts"], row["metrics"], row["train"]
            assert len(sums) == 8 and all(isinstance(x, float) and 0 <= x <= 4 for x in sums)
            assert metrics["avg@4"] == pytest.approx(sum(sums) / 32)
            assert metrics["worst@4"] < metrics["avg@4"] < metrics["best@4"] < 1
            mean = (metrics["reward/accuracy"] + 0.25 * metrics["reward/format"]) / 1.25
            assert metrics["avg@4"] == pytest.approx(mean, abs=1e-5)
            assert len(row["extra"]["panel"]) == 4 and metrics["verifier_failures"] == 0
            if row["M"]:
                mean = (train["reward/accuracy"] + 0.25 * train["reward/format"]) / 1.25
                assert train["reward"] == pytest.approx(mean, abs=1e-5) and train["grad_norm"] > 0
        text = (place.run("graded") / "cells" / cell / "samples.txt").read_text()
        scores = r"accuracy 0\.\d{3}, format [01]\.\d{3}"
        verdict = (
            rf"    reward 0\.\d{{3}}, the answer is \d+\n        \({scores}(, cut off after 3 "
            r"tokens)?\)\n"
        )
        assert re.search(verdict, text) and "wrong" not in text
    fitted = place.quick_ok("fit", "runs/graded").stdout
    assert "avg@k is the mean reward, not a share of correct responses" in " ".join(fitted.split())
    fit = json.loads((place.run("graded") / "fit.json").read_text())
    # So short a sweep may show nothing: then no replicate draws problems again.
    shows_nothing = "nothing_learnt" in {flag["code"] for flag in fit["flags"]}
    assert fit["intervals"]["problems"] == (None if shows_nothing else 8)
    assert (
        "expected mean reward"
        in place.quick_ok("recommend", "runs/graded", "--budget", "200").stdout
    )
    assert "graded rewards 8 x 4" in " ".join(
        place.quick_ok("records", "check", "runs/graded").stdout.split()
    )
    place.refused(
        "fit",
        "runs/graded",
        "--metric",
        "pass@2",
        saying=["avg@k for k <= 4 from its sums of graded"],
    )
    cell = str(place.run("graded") / "cells" / "4x4-s0")
    place.quick_ok("model", "export", cell, "trained", "--base", "lm")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place.folder / "trained")
    assert tokenizer("1 + 4 =")["input_ids"]
    before, after = (
        load_file(place.folder / name / "model.safetensors") for name in ("lm", "trained")
    )
    assert {k: v.shape for k, v in before.items()} == {k: v.shape for k, v in after.items()}
    assert any((before[k] != after[k]).any() for k in before)


def test_labels_are_mean_rewards(place: Isojax) -> None:
    words = ("difficulty", "graded.yaml", "cell.data.attempts=4", "--held-out", "2")
    place.quick_ok(*words, XLA_FLAGS=FLAGS)
    folder = place.folder / "difficulty" / "graded"
    rows = list(csv.DictReader((folder / "labels.csv").read_text().splitlines()))
    assert len(rows) == 60 and any(float(r["solved"]) % 1 for r in rows)
    for r in rows:
        assert float(r["avg"]) == pytest.approx(float(r["solved"]) / 4, abs=6e-5)
        assert float(r["low"]) <= float(r["avg"]) <= float(r["high"])
        assert r["part"] != "easy" or 0.3 <= float(r["avg"]) <= 0.6
    task = "cell.task=tfds:difficulty/graded/splits#easy_train"
    done = place.swept(
        "train",
        "graded.yaml",
        task,
        "cell.data.validation=4",
        "sweep.n=[2]",
        "sweep.budget=16",
        XLA_FLAGS=FLAGS,
    )
    assert "labelling" not in done.stderr  # the splits hold their labels


VERL = ("cell.verifier.use=verl:rewards.py", "cell.reward.weights=null")


ONE_CELL = (
    "graded.yaml",
    "sweep.n=[4]",
    "sweep.budget=120",
    "cell.data.attempts=0",
    "run.checkpoint_seconds=0",
)


def test_two_processes_find_what_one_finds(place: Isojax) -> None:
    """Each grades its own half of the rollouts."""
    few = (*ONE_CELL, "sweep.budget=64")
    place.swept("train", *few, "name=one", "--mesh", "fsdp=2", XLA_FLAGS=flags(QUICK, devices=2))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = (
        "isojax.train",
        *few,
        "name=two",
        "--mesh",
        "fsdp=2",
        "--coordinator",
        address,
        "--processes",
        "2",
    )
    pair = [
        place.fork(*words, "--process", str(i), XLA_FLAGS=flags(QUICK, devices=1)) for i in range(2)
    ]
    with pair[0], pair[1]:
        for process in pair:
            assert "Traceback" not in process.communicate()[1] and process.returncode == 0
    one, two = place.rows("4x4-s0", "one"), place.rows("4x4-s0", "two")
    assert len(one) == len(two) > 3
    for a, b in zip(one, two, strict=True):
        assert a["counts"] == pytest.approx(b["counts"]) and a["metrics"] == pytest.approx(
            b["metrics"], abs=1e-5
        )
        assert a["train"] == pytest.approx(b["train"], rel=2e-3, abs=1e-5)


@pytest.mark.nightly
def test_an_asynchronous_run_that_was_killed_goes_on_with_the_same_bits(place: Isojax) -> None:
    words = (
        "train",
        *ONE_CELL,
        "cell.rl.max_staleness=2",
        "sweep.decode_slots=32",
        "cell.eval.ratio=1.8",
    )
    place.swept(*words, "name=whole", XLA_FLAGS=FLAGS)
    with place.fork(*words, "name=killed", XLA_FLAGS=FLAGS) as process:
        checkpoint = place.run("killed") / "cells/4x4-s0/checkpoint"
        while not any(checkpoint.glob("[2-9]*")):
            assert process.poll() is None
            time.sleep(0.01)
    assert process.returncode == -signal.SIGKILL
    place.swept(*words, "name=killed", "--resume", XLA_FLAGS=FLAGS)
    assert place.ledgers("killed") == place.ledgers("whole")
    assert max(row["train"].get("staleness_max", 0) for row in place.rows("4x4-s0", "killed")) > 0


def test_a_dict_of_verl_weighs_its_entries(place: Isojax) -> None:
    words = ("cell.data.attempts=0", "sweep.n=[2]", "sweep.budget=32")
    weights = "cell.reward.weights={score: 1, acc: 3}"
    place.swept("train", "graded.yaml", "name=parts", *VERL, weights, *words, XLA_FLAGS=FLAGS)
    for row in place.rows("4x2-s0", "parts"):
        metrics = row["metrics"]
        assert metrics["avg@4"] == pytest.approx(0.0625 + 0.75 * metrics["reward/acc"], abs=1e-5)
        assert metrics["reward/score"] == 0.25 and 0 < metrics["reward/acc"] < 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("cell.reward.kind=binary",), "cell.reward.kind=graded"),
        (
            ("cell.reward.weights={accuracy: 1.0}",),
            "a weight for each of these, 0 for one that is recorded only",
        ),
        (("cell.reward.weights={accuracy: 1.0, format: -0.5}",), "a penalty p is a score of 1 - p"),
        (("cell.reward.weights={accuracy: 0, format: 0}",), "not all 0"),
        (("cell.reward.kind=partial",), "'binary' or 'graded'"),
        (("cell.verifier.use=5",), "a verifier such as math"),
        (("cell.verifier.use={}",), "a verifier such as math, or several as in {accuracy: math}"),
        (("cell.verifier.use={a/b: exact}",), "Rename the score 'a/b'"),
        ((*VERL, "cell.reward.weights={length: 1.0}"), "the score 'length' is 70"),
        (
            ("cell.verifier.use={accuracy: exact, format: function:rewards.py:unknown}",),
            "an empty response: the score 'format' is nan",
        ),
        (
            ("cell.verifier.use=function:rewards.py:nothing", "cell.reward.weights=null"),
            (
                "an empty response: the score 'score' is nan (rewards.py:11 (nothing) returned str "
                "'1.0' for a score"
            ),
        ),
        (
            ("cell.verifier.use={accuracy: exact, format: function:rewards.py:nothing}",),
            (
                "the score 'format' is nan (format: rewards.py:11 (nothing) returned str '1.0' for "
                "a score"
            ),
        ),
        (
            (*VERL, "cell.reward.weights={format: 1.0}"),
            "no score 'format', which cell.reward.weights names; given",
        ),
        (
            ("cell.verifier.use=function:rewards.py:offset", "cell.reward.weights=null"),
            (
                "an empty response: the score 'score' is 1.5; graded rewards are made of numbers "
                "from 0 to 1"
            ),
        ),
        (
            ("cell.task=solvers", "cell.model.path=null", "cell.verifier.use=math"),
            "verifies on device",
        ),
    ],
)
def test_what_cannot_be_a_reward_is_refused_before_any_work(
    place: Isojax, settings: tuple[str, ...], message: str
) -> None:
    place.refused("launch", "graded.yaml", *settings, saying=[message])


def test_labels_that_a_broken_function_gave_are_made_again(place: Isojax) -> None:
    """One that fails for half of the problems, and so is warned of: the labels are of another file
    than the mended one, with which the same command continues."""
    rewards = place.folder / "rewards.py"
    words = ("launch", "graded.yaml", "cell.data.difficulty=[0.9, 1]")
    rewards.write_text(
        REWARDS.replace(
            "asked, said =", "said = answer[int(int(answer[0]) % 4 > 1)]; asked, said ="
        )
    )
    refused = place.quick(*words, XLA_FLAGS=FLAGS)
    assert (
        refused.returncode == 2 and "of 60 problems have avg@4" in refused.stderr.splitlines()[-1]
    )
    assert "warning: of the first labels: 120 of 240 checks failed (error 120)" in refused.stderr
    assert "rewards.py:3: IndexError" in refused.stderr
    rewards.write_text(REWARDS)
    few = ("sweep.n=[4]", "sweep.budget=32")
    again = place.swept("train", "graded.yaml", *few, XLA_FLAGS=FLAGS)
    assert "they are made again" in again.stderr and len(place.rows("4x4-s0", "graded")) > 1


def test_scores_that_are_no_reward_cost_their_rollout_only(place: Isojax) -> None:
    """Below 0, above 1 and not a number: reward 0, counted as verifier_score."""
    use = (
        "cell.verifier.use=function:rewards.py:broken",
        "cell.reward.weights=null",
        "cell.data.attempts=0",
    )
    done = place.swept(
        "train", "graded.yaml", *use, "sweep.n=[2]", "sweep.budget=32", XLA_FLAGS=FLAGS
    )
    assert (
        "verifier score: problem" in done.stderr
        and "graded rewards are made of numbers from 0 to 1" in done.stderr
    )
    rows = place.rows("4x2-s0", "graded")
    assert all(row["metrics"]["verifier_failures"] > 0 for row in rows)
    assert {reward_sum % 0.5 for row in rows for reward_sum in row["counts"]} == {0.0}
    assert sum(row["train"].get("verifier_score", 0) for row in rows) > 0
