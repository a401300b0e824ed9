"""What fuzz.py gives to the command line: files that it can use, made once, and spoilt copies of them."""

import copy
import json
import math
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from isojax.core.config import Config
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.core.yaml_files import flatten
from isojax.runs.ledger import write_run
from tests.e2e.tiny_lm import make_model

LOG_FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "runs" / "importers" / "fixtures"
# Written into a document after it has become text, as no value of Python becomes it.
LITERALS = {"@deep": "[" * 3000 + "]" * 3000, "@maps": '{"a":' * 3000 + "1" + "}" * 3000, "@digits": "9" * 5000}
VALUES: list[Any] = [
    None, True, -1, 0, 1, 7, 2**31, 2**63, -(2**63), 10**15, 10**30, 0.5, -0.0, 1e-320, 1e308, -1e308, math.nan,
    math.inf, "", " ", "nan", "1e999", "\0", "a\0b", "\x1b[2J", "x" * 300, "x" * 100_000, "../../x", "a/../..",
    "\ud800", "日本", "${oc.env:HOME}", "${cell.task}", "%s%n", [], {}, [[]], [1, 2], [None],
    {"a": {"b": 1}}, 2**20, 10**7, 10**9, "1" * 100_000 + "x", " " * 100_000 + "x", "learning_rat" * 9_000,
    "${name}" * 10_000, *LITERALS,
]  # fmt: skip
CONFIG = {
    "name": "tiny",
    "cell": {
        "model": {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "head_dim": 16, "mlp": 64},
        "base": {"steps": 20, "batch": 64},
        "data": {"candidates": 600, "validation": 40, "difficulty": [0.0, 1.0]},
        "eval": {"samples": 4, "start": 64, "ratio": 1.4},
    },
    "sweep": {"B_p": [8], "n": [2, 4], "B_max": 64, "seeds": 1, "budget": 2500},
}
TEXT_CONFIG = {
    "name": "text",
    "cell": {
        "task": "jsonl:problems.jsonl",
        "model": {"path": "lm"},
        "prompt": {"format": "chat"},
        "verifier": {"use": "integer"},
        "sampling": {"prompt_length": 64, "response_length": 3},
        "rl": {"learning_rate": 1e-3},
        "data": {"candidates": 60, "attempts": 0, "validation": 8},
        "eval": {"samples": 2, "start": 8, "ratio": 1.5},
    },
    "sweep": {"B_p": [4], "n": [2], "budget": 96, "decode_slots": 8, "microbatch": 8, "prefill_batch": 4},
    "run": {"verifier_workers": 1, "cells_at_once": 1, "compilation_cache": False},
}
LOOPS = ("{{ %s }}", "{%% for i in range(99999) %%}{%% for j in range(99999) %%}{{ %s }}{%% endfor %%}{%% endfor %%}")
BOMBS = ("'a' * 10**10", "range(10**9)|list", "'a'|center(10**9)", "messages[9].x", "'%0999999999d' % 1", "(" * 999)
KEYS = sorted(dict(flatten(Config().model_dump())))


def make_corpus(folder: Path) -> None:
    """Everything that the attempts spoil copies of."""
    make_model(folder / "lm")
    shutil.copytree(LOG_FIXTURES, folder / "logs")
    problems = [{"prompt": f"{i} + {i % 7} =", "answer": str(i + i % 7), "level": i % 3} for i in range(40)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    (folder / "tiny.yaml").write_text(yaml.safe_dump(CONFIG))
    (folder / "text.yaml").write_text(yaml.safe_dump(TEXT_CONFIG))
    logged = [{"step": i, "n": 4, "B_p": 8, "val": {"acc": reward(32 * i, 4)}} for i in range(12)]
    (folder / "logs" / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in logged))
    values = [f"a-n{n},acc,{i},{reward(32 * i, n):.4f}" for n in (4, 8) for i in range(12)]
    (folder / "logs" / "long.csv").write_text("\n".join(["run,metric,step,value", *values]) + "\n")
    charts = [[reward(32 * i, n) for n in (4, 8) for _ in range(3)] for i in range(12)]
    header = ",".join(f"a-n{n} - acc{end}" for n in (4, 8) for end in ("", "__MIN", "__MAX"))
    chart = [f"{i}," + ",".join(f"{value:.4f}" for value in row) for i, row in enumerate(charts)]
    (folder / "logs" / "wide.csv").write_text("\n".join([f"Step,{header}", *chart]) + "\n")
    lines = [f"{2**i},{2**i * 500},{reward(2**i * 500, 8):.4f},{i % 2}" for i in range(1, 12)]
    (folder / "points.csv").write_text("\n".join(["n,rollouts,reward,seed", *lines]) + "\n")
    for B_p, n in ((4, 2), (4, 8), (16, 2), (16, 8)):
        cell = Cell(B_p, n, 0)
        points = [EvalPoint(cell.B * M, M, cell.B * M, 3 * cell.B * M, {"avg@4": reward(cell.B * M, n)}, samples=4)
                  for M in (0, 1, 2, 4, 8, 16, 32, 64)]  # fmt: skip
        write_run(folder / "runs" / "tiny" / "cells" / cell.name, RunRecord(cell, tuple(points), device_hours=
                  tuple(0.1 * i for i in range(8))))  # fmt: skip
    (folder / "runs" / "tiny" / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    for words in (["fit", "runs/tiny", "--replicates", "20"], ["train", "text.yaml"]):
        command = "import sys; sys.argv[0] = 'isojax'; from isojax.cli.app import main; main()"
        subprocess.run([sys.executable, "-c", command, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def reward(C: int, n: int) -> float:
    """A learning curve."""
    return 0.2 + 0.5 / (1 + (300 * n / C) ** 0.9) if C else 0.2


def spoil_text(text: str, rng: random.Random) -> str:
    """A JSON document with one to three of its nodes changed, moved, repeated or removed."""
    document = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        containers = [node for node in _containers(document) if node]
        if not containers:
            break
        node = rng.choice(containers)
        key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        match rng.choice(("value", "value", "value", "remove", "key", "wrap", "repeat")):
            case "value":
                node[key] = copy.deepcopy(rng.choice(VALUES))
            case "remove":
                del node[key]
            case "key" if isinstance(node, dict):
                node[rng.choice(("", "\0", "x" * 300, "a.b", "kind", "n"))] = node[key]
            case "wrap":
                node[key] = [node[key]]
            case "repeat" if isinstance(node, list):
                node.extend([node[key]] * rng.choice((1, 1000)))
    text = json.dumps(document)
    for name, literal in LITERALS.items():
        text = text.replace(f'"{name}"', literal)
    return text


def _containers(node: Any) -> list[Any]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    own = [node] if isinstance(node, dict | list) else []
    return own + [container for child in children for container in _containers(child)]


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut off, removed, repeated, or put in."""
    start = rng.randrange(len(data)) if data else 0
    end = min(len(data), start + rng.choice((1, 4, 64, 4096)))
    match rng.choice(("flip", "flip", "flip", "cut", "remove", "repeat", "insert", "long")):
        case "flip":
            flipped = bytearray(data)
            for _ in range(rng.choice((1, 1, 2, 8))):
                if data:
                    flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case "cut":
            return data[:start]
        case "remove":
            return data[:start] + data[end:]
        case "repeat":
            return data[:end] + data[start:]
        case "insert":
            put_in = rng.choice((b"\0" * 16, b"\xff\xfe", b"\xed\xa0\x80", b"\n\n", b"[" * 999))
            return data[:start] + put_in + data[start:]
    return data[:start] + b"x" * rng.choice((10_000, 20_000_000)) + data[start:]


def spoil_file(path: Path, rng: random.Random) -> None:
    """The file, spoilt by its structure where it has one that is known, else, and now and then, by its bytes."""
    data = path.read_bytes()
    if rng.random() < 0.35 or not data:
        path.write_bytes(spoil_bytes(data, rng))
    elif path.suffix == ".json":
        path.write_text(spoil_text(data.decode(), rng))
    elif path.suffix == ".jsonl":
        lines = data.decode().splitlines()
        row = rng.randrange(len(lines))
        lines[row] = spoil_text(lines[row], rng)
        path.write_text("\n".join(lines) + "\n")
    elif path.suffix == ".yaml":
        path.write_text(spoil_text(json.dumps(yaml.safe_load(data)), rng))
    elif path.suffix == ".safetensors":
        size = struct.unpack("<Q", data[:8])[0]
        header = spoil_text(data[8 : 8 + size].decode(), rng).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
    elif path.suffix == ".csv":
        rows = [line.split(",") for line in data.decode().splitlines()]
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = str(rng.choice(VALUES)).encode(errors="replace").decode()
        path.write_text("\n".join(",".join(row) for row in rows) + "\n")
    else:
        path.write_bytes(spoil_bytes(data, rng))


def word(rng: random.Random) -> str:
    """A value as somebody might type it; a word of a command line holds no NUL."""
    typed = ("99999999999999999999", "1,2", "a=b", "--", "-1", "[1,2]", "{a: 1}", "!!int x")
    value = rng.choice([*VALUES, *typed])
    text = LITERALS.get(value, value) if isinstance(value, str) else json.dumps(value)
    return str(text).replace("\0", "\udcff").replace("\ud800", "\udcfe")


# Each makes its files in a folder and returns the words of a command.
def arguments(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """Options and names of commands that would work without them."""
    _copy(corpus, folder, "tiny.yaml", "runs/tiny", "points.csv", "logs/runs.csv")
    value = word(rng)
    return rng.choice((
        ["launch", "tiny.yaml", "--dry-run", f"{rng.choice(KEYS)}={value}"],
        ["launch", "tiny.yaml", "--dry-run", f"{rng.choice(KEYS)}={value}"],
        ["launch", "tiny.yaml", "--dry-run", rng.choice(("--mesh", "--process", "--topology")), value],
        ["launch", value, "--dry-run"],
        ["train", "tiny.yaml", value],
        ["lr-search", "tiny.yaml", "--dry-run", rng.choice(("--rates", "--budget", "--seeds")), value],
        ["fit", "runs/tiny", rng.choice(("--replicates", "--seed", "--run-sd", "--metric", "--compute")), value],
        ["fit", value],
        ["recommend", "runs/tiny", "--budget", value],
        ["recommend", "runs/tiny", "--budget", rng.choice(("5s", "1usd")), "--price", value],
        ["quote", "runs/tiny", "--reward", value],
        ["recommend", "runs/tiny", "--budget", "1000", rng.choice(("--epsilon", "--B-max", "--fix", "--for")), value],
        ["watch", "runs/tiny", "--run", "4x2-s0", rng.choice(("--end", "--updates", "--goal", "--sweep")), value],
        ["spend", "tiny.yaml", "--dry-run", "--budget", value],
        ["compare", "runs/tiny", "runs/tiny", rng.choice(("--labels", "--metric", "--out")), value],
        ["report", value],
        ["status", value],
        ["records", rng.choice(("check", "import")), value],
        ["records", "import", "runs.csv", "--from", "csv", "--out", "out", "--map", f"reward=reward_heldout,n={value}"],
        ["fit-curve", "points.csv", "--x", "rollouts", "--y", rng.choice(("reward", value)), "--fit-below", value],
        ["fit-law", "points.csv", "--where", f"seed={value}"],
        ["model", "import", value],
        ["difficulty", "missing.yaml", "--held-out", value],
        [value],
    ))  # fmt: skip


def configs(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """YAML files, with some of the keys that they need not set."""
    config: dict[str, Any] = json.loads(json.dumps(CONFIG))
    for key in rng.sample(KEYS, 6):
        section = config
        *parents, name = key.split(".")
        if rng.random() < 0.3 and key.count("."):
            for parent in parents:
                section = section.setdefault(parent, {})
            section.setdefault(name, rng.choice((1, 0.5, "auto", None)))
    (folder / "tiny.yaml").write_text(yaml.safe_dump(config))
    spoil_file(folder / "tiny.yaml", rng)
    return ["launch", "tiny.yaml", "--dry-run"]


def ledgers(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """A sweep's records, timing, config and fit."""
    _copy(corpus, folder, "runs/tiny")
    run = folder / "runs" / "tiny"
    spoil_file(rng.choice(sorted(p for p in run.rglob("*") if p.suffix in (".json", ".jsonl", ".yaml"))), rng)
    if rng.random() < 0.5:
        (run / "fit.json").unlink()
    return rng.choice((
        ["fit", "runs/tiny", "--replicates", "0"], ["fit", "runs/tiny", "--mode", "paper", "--replicates", "0"],
        ["records", "check", "runs/tiny"], ["status", "runs/tiny"], ["recommend", "runs/tiny", "--budget", "5000"],
        ["fit", "runs/tiny", "--compute", "device_hours", "--replicates", "0"],
        ["watch", "runs/tiny", "--run", "4x8-s0"], ["watch", "runs/tiny", "--run", "4x8-s0", "--sweep", "runs/tiny"],
        ["quote", "runs/tiny", "--reward", "0.5"], ["report", "runs/tiny"],
    ))  # fmt: skip


def logs(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """Logs of every importer."""
    name, log_format, options = rng.choice((
        ("runs.csv", "csv", "reward=reward_heldout"),
        ("own.jsonl", "jsonl", "reward=val.acc"),
        ("long.csv", "csv", "reward=acc,n=n{},B_p=4"),
        ("wide.csv", "csv", "n=n{},B_p=4"),
        ("verl_console/job-8.log", "verl_console", "B_p=16"),
        ("verl/n8.jsonl", "verl", "n=8,B_p=16"),
        ("trl/checkpoint-6", "trl", "n=4,B=16"),
        ("tensorboard/n8", "tensorboard", "n=8,B_p=4,reward=val/acc,response_length=train/length"),
        ("wandb/own/run-own.wandb", "wandb", "reward=val/acc,train_reward=train/reward"),
    ))  # fmt: skip
    _copy(corpus, folder, f"logs/{name}")
    path = folder / Path(name).name
    words = ["records", "import", path.name, "--map", options, "--out", "out"]
    words += rng.choice((["--from", log_format], ["--from", log_format], []))
    words += ["--resumed"] * (rng.random() < 0.2)
    spoilt = path if path.is_file() else rng.choice(sorted(p for p in path.iterdir()))
    if rng.random() < 0.2:
        spoilt = folder / "settings.csv"
        spoilt.write_text("run,seed,devices\na-n4,3,2\na-n8,4,2\n" + f"{path.stem},1,1\n")
        words += ["--settings", spoilt.name]
    spoil_file(spoilt, rng)
    return words


def models(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """A checkpoint as a hub gives it."""
    _copy(corpus, folder, "lm", "text.yaml", "problems.jsonl")
    template = {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    if rng.random() < 0.3:
        template = {"chat_template": rng.choice(LOOPS) % rng.choice(BOMBS)}
    tokenizer_config = folder / "lm" / "tokenizer_config.json"
    tokenizer_config.write_text(json.dumps(json.loads(tokenizer_config.read_text()) | template))
    spoil_file(rng.choice(sorted((folder / "lm").iterdir())), rng)
    return ["launch", "text.yaml", "--dry-run"]


def gguf_files(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """GGUF files: only the one whose checksum is known may be imported, whatever the others hold."""
    header = b"GGUF" + rng.choice((3, 2, 1 << 31)).to_bytes(4, "little")
    counts = b"".join(rng.choice((0, 2, 1 << 40, (1 << 64) - 1)).to_bytes(8, "little") for _ in range(2))
    (folder / "model.gguf").write_bytes(header + counts + rng.randbytes(rng.choice((0, 64, 4096))))
    return ["model", "import", "model.gguf", "--out", "out"]


def problems(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """Files of problems."""
    _copy(corpus, folder, "lm", "text.yaml", "problems.jsonl")
    spoil_file(folder / "problems.jsonl", rng)
    return ["launch", "text.yaml", "--dry-run", "cell.prompt.format=raw"]


def checkpoints(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """A trained cell's state, and the sweep's base policy and problems."""
    _copy(corpus, folder, "lm", "text.yaml", "problems.jsonl", "runs/text")
    run = folder / "runs" / "text"
    (cell,) = (run / "cells").iterdir()
    below = rng.choice((cell / "checkpoint", cell / "checkpoint", run / "base"))
    spoil_file(rng.choice(sorted(path for path in below.rglob("*") if path.is_file())), rng)
    if below.name == "base":
        return ["launch", "text.yaml", "--dry-run", "--resume"]
    return ["model", "export", str(cell.relative_to(folder)), "out"]


def tables(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """Tables of a curve, and of the points of a law."""
    _copy(corpus, folder, "points.csv")
    spoil_file(folder / "points.csv", rng)
    return rng.choice((["fit-curve", "points.csv", "--x", "rollouts", "--y", "reward"], ["fit-law", "points.csv"]))


KINDS: dict[str, Callable[[random.Random, Path, Path], list[str]]] = {
    function.__name__: function
    for function in (arguments, configs, ledgers, logs, models, gguf_files, problems, checkpoints, tables)
}


def _copy(corpus: Path, folder: Path, *names: str) -> None:
    """Parts of the corpus, runs/ as runs/, a log under its own name."""
    for name in names:
        target = folder / (name if name.startswith("runs/") else Path(name).name)
        copy = shutil.copytree if (corpus / name).is_dir() else shutil.copy
        target.parent.mkdir(parents=True, exist_ok=True)
        copy(corpus / name, target)
