"""What fuzz.py spoils copies of: files that isojax can use, made once."""

import datetime
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml

from isojax.core.nouns import Cell, EvalPoint, Leg, RunRecord, Spending
from isojax.launch.status_file import CellStatus, driver_status, write_status
from isojax.runs.ledger import HEALTH_FILE, write_run
from isojax.runs.spend_file import write_spending
from tests.e2e.tiny_lm import CHAT_CONFIG, make_model

LOG_FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "runs" / "importers" / "fixtures"
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
# A process that runs commands one after another.
COMMANDS = """\
import json, sys
from isojax.cli.app import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["isojax", *words]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""
TEXT_CONFIG = CHAT_CONFIG | {
    "sweep": {**CHAT_CONFIG["sweep"], "decode_slots": 8, "microbatch": 8, "prefill_batch": 4},
    "run": {"verifier_workers": 1, "cells_at_once": 1, "compilation_cache": False},
}


def make_corpus(folder: Path, with_trained_runs: bool = True) -> None:
    """Everything that the attempts spoil copies of; runs that were trained take a minute."""
    make_model(folder / "lm")
    problems = [
        {"prompt": f"{i} + {i % 7} =", "answer": str(i + i % 7), "level": i % 3} for i in range(40)
    ]
    _write_lines(folder / "problems.jsonl", map(json.dumps, problems))
    (folder / "tiny.yaml").write_text(yaml.safe_dump(CONFIG))
    (folder / "text.yaml").write_text(yaml.safe_dump(TEXT_CONFIG))

    _make_logs(folder / "logs")
    lines = [f"{2**i},{2**i * 500},{reward(2**i * 500, 8):.4f},{i % 2}" for i in range(1, 12)]
    _write_lines(folder / "points.csv", ["n,rollouts,reward,seed", *lines])
    _make_parquet(folder / "parquet")

    _make_sweep(folder / "runs" / "tiny")
    _make_spending(folder / "runs" / "tiny", folder / "runs" / "spent")
    commands = [["fit", "runs/tiny", "--replicates", "20"]]
    if with_trained_runs:
        commands.append(["train", "text.yaml"])
        commands.append(["train", "text.yaml", "name=lora", "cell.model.lora.rank=2"])
    words = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def reward(C: int, n: int) -> float:
    """A learning curve."""
    return 0.2 + 0.5 / (1 + (300 * n / C) ** 0.9) if C else 0.2


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def _make_logs(folder: Path) -> None:
    """Logs of other trainers, and tables in three layouts."""
    shutil.copytree(LOG_FIXTURES, folder)
    logged = [{"step": i, "n": 4, "B_p": 8, "val": {"acc": reward(32 * i, 4)}} for i in range(12)]
    _write_lines(folder / "own.jsonl", map(json.dumps, logged))

    rows = [f"a-n{n},acc,{i},{reward(32 * i, n):.4f}" for n in (4, 8) for i in range(12)]
    _write_lines(folder / "long.csv", ["run,metric,step,value", *rows])

    columns = [f"a-n{n} - acc{end}" for n in (4, 8) for end in ("", "__MIN", "__MAX")]
    rows = []
    for i in range(12):
        rewards = [f"{reward(32 * i, n):.4f}" for n in (4, 8) for _ in range(3)]
        rows.append(",".join([str(i), *rewards]))
    _write_lines(folder / "wide.csv", [",".join(["Step", *columns]), *rows])


def _make_sweep(folder: Path) -> None:
    """Ledgers of four cells, and the config."""
    for B_p, n in ((4, 2), (4, 8), (16, 2), (16, 8)):
        cell = Cell(B_p, n, 0)
        points = []
        for M in (0, 1, 2, 4, 8, 16, 32, 64):
            C = cell.B * M
            points.append(EvalPoint(C, M, C, 3 * C, {"avg@4": reward(C, n)}, samples=4))
        hours = tuple(0.1 * i for i in range(len(points)))
        record = RunRecord(cell, tuple(points), device_hours=hours)
        write_run(folder / "cells" / cell.name, record)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))


def _make_parquet(folder: Path) -> None:
    """Problems as verl writes them and in columns, and tables of types that no problem has."""
    folder.mkdir()
    count = 40
    texts = [f"{i} + {i % 7} =" for i in range(count)]
    answers = [str(i + i % 7) for i in range(count)]
    verl = []
    for text, answer in zip(texts, answers, strict=True):
        messages = [{"role": "user", "content": text}]
        verl.append({"prompt": messages, "reward_model": {"ground_truth": answer}})

    # Types that Arrow knows and no problem has; of bytes that are no UTF-8 also as a text column.
    not_utf8 = pyarrow.array([b"\xff\xfe"] * count, pyarrow.binary())
    odd_columns: dict[str, Any] = {
        "bytes": not_utf8,
        "broken": pyarrow.StringArray.from_buffers(count, *not_utf8.buffers()[1:]),
        "late": pyarrow.array([3 * 10**17] * count, pyarrow.timestamp("us")),
        "nanoseconds": pyarrow.array([7] * count, pyarrow.duration("ns")),
        "date": [datetime.date(2026, 1, 1)] * count,
        "null": pyarrow.nulls(count),
        "nested": [[[[1]]]] * count,
        "number": [float("nan")] * count,
    }

    tables = {
        "verl": pyarrow.Table.from_pylist(verl),
        "flat": pyarrow.table({"prompt": texts, "answer": answers}),
    }
    for name, column in odd_columns.items():
        tables[name] = pyarrow.table({"prompt": texts, "answer": column, "level": column})
        tables[f"{name}-prompt"] = pyarrow.table({"prompt": column, "answer": answers})
    for name, table in tables.items():
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")


def _make_spending(sweep: Path, folder: Path) -> None:
    """What `isojax spend` leaves, and how a driver and the cells' health say that it went."""
    shutil.copytree(sweep, folder)
    settings = {"strategy": "spend", "seeds": 1, "n": [2, 8], "B_p": [4]}
    config = {**CONFIG, "name": "spent", "sweep": CONFIG["sweep"] | settings}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    pilots = [Leg(Cell(4, n, 0), n, 0, 125) for n in (2, 8)]
    chosen = replace(pilots[1], C_start=125, C_end=2500, expected=0.4, interval=(0.3, 0.5))
    write_spending(folder, Spending(2500, "avg@4", (*pilots, chosen)))
    statuses = {}
    for cell_folder in (folder / "cells").iterdir():
        health = {"cell": cell_folder.name, "C": 512, "flags": [{"name": "collapse", "value": 0.1}]}
        (cell_folder / HEALTH_FILE).write_text(json.dumps(health, indent=1) + "\n")
        statuses[cell_folder.name] = CellStatus(
            state="running", rollouts=100, reward=0.5, attempts=1, where="node-1"
        )
    write_status(folder, driver_status(False, statuses))
