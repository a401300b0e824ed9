"""What fuzz.py gives to the command line: the words of a command, and spoilt copies of the files
that it reads."""

import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
import yaml
from fuzz_corpus import CONFIG
from fuzz_spoil import VALUES, make_odd, spoil_bytes, spoil_file, word

from isojax.cli.app import COMMANDS
from isojax.core.config import Config
from isojax.core.yaml_files import flatten

# Chat templates that take without end what a bomb takes once.
LOOPS = (
    "{{ %s }}",
    "{%% for i in range(99999) %%}{%% for j in range(99999) %%}{{ %s }}"
    "{%% endfor %%}{%% endfor %%}",
)
BOMBS = (
    "'a' * 10**10",
    "range(10**9)|list",
    "'a'|center(10**9)",
    "messages[9].x",
    "'%0999999999d' % 1",
    "(" * 999,
)
KEYS = sorted(dict(flatten(Config().model_dump())))


def cli_commands() -> set[str]:
    """Every command that the command line has, those within records and model too."""
    names = set()
    for lazy_command in COMMANDS:
        subcommands = getattr(typer.main.get_command(lazy_command.load()), "commands", None)
        if subcommands:
            names |= {f"{lazy_command.name} {name}" for name in subcommands}
        else:
            names.add(lazy_command.name)
    return names


def words_by_command(value: str, rng: random.Random) -> dict[str, list[list[str]]]:
    """For each command, which would work without it, the places of a value; fuzz.py compares them
    with `cli_commands`."""
    key = rng.choice(KEYS)
    advice = ["--epsilon", "--B-max", "--fix", "--for"]
    return {
        "launch": [
            ["tiny.yaml", "--dry-run", f"{key}={value}"],
            [
                "tiny.yaml",
                "--dry-run",
                rng.choice(("--mesh", "--process", "--processes", "--topology")),
                value,
            ],
            [value, "--dry-run"],
            ["tiny.yaml", "--dry-run", f"sweep.schedules={{a: {json.dumps(value)}}}"],
            ["text.yaml", "--dry-run", f"{key}={value}"],
        ],
        "train": [
            ["tiny.yaml", value],
            ["tiny.yaml", "--dry-run", "sweep.B_p=[4]", "sweep.n=[2]", f"{key}={value}"],
        ],
        "pack": [["tiny.yaml", "--list", f"{key}={value}"], [value, "--list"]],
        # Of a config that is not there: a check that begins takes a minute.
        "accelerator": [["missing.yaml", value]],
        "lr-search": [
            ["tiny.yaml", "--dry-run", rng.choice(("--rates", "--budget", "--seeds")), value]
        ],
        "fit": [
            [
                "runs/tiny",
                rng.choice(("--replicates", "--seed", "--run-sd", "--metric", "--compute")),
                value,
            ],
            [value],
        ],
        "recommend": [
            ["runs/tiny", "--budget", value],
            ["runs/tiny", "--budget", rng.choice(("5s", "1usd")), "--price", value],
            ["runs/tiny", "--budget", "1000", rng.choice(advice), value],
            ["runs/tiny", "--budget", "1000", "--growing", "--write", value],
        ],
        "quote": [
            ["runs/tiny", "--reward", value],
            ["runs/tiny", "--reward", "0.5", "--price", value],
            [value],
        ],
        "watch": [
            [
                "runs/tiny",
                "--run",
                "4x2-s0",
                rng.choice(("--end", "--updates", "--goal", "--sweep")),
                value,
            ],
            ["runs/tiny", "--run", value],
            [value, "--from", rng.choice(("csv", value))],
        ],
        "spend": [
            ["tiny.yaml", "--dry-run", "--budget", value],
            ["tiny.yaml", "--dry-run", "--budget", "2e3", f"{key}={value}"],
        ],
        "compare": [
            ["runs/tiny", "runs/tiny", rng.choice(("--labels", "--metric", "--out")), value]
        ],
        "report": [[value]],
        "status": [[value]],
        "records check": [[value]],
        "records merge": [
            [value, "runs/tiny", "--out", "out"],
            ["runs/tiny", "runs/other", "--out", value],
        ],
        "clean": [[value, "--yes"], ["runs/tiny", value, "--dry-run"]],
        "settings": [[value]],
        "records import": [
            [value],
            [
                "runs.csv",
                "--from",
                "csv",
                "--out",
                "out",
                "--map",
                f"reward=reward_heldout,n={value}",
            ],
            ["runs.csv", "--out", value],
            ["runs.csv", "--out", "out", "--from", value],
        ],
        "fit-curve": [
            [
                "points.csv",
                "--x",
                "rollouts",
                "--y",
                rng.choice(("reward", value)),
                "--fit-below",
                value,
            ],
            [
                "points.csv",
                "--x",
                "rollouts",
                "--y",
                "reward",
                rng.choice(("--where", "--group", "--plot")),
                value,
            ],
        ],
        "fit-law": [["points.csv", "--where", f"seed={value}"], [value]],
        "model import": [[value], [f"{value}.gguf"]],
        "model export": [
            [value, "out"],
            ["runs/tiny/cells/4x2-s0", value],
            ["runs/tiny/cells/4x2-s0", "out", "--dtype", value],
        ],
        "difficulty": [["text.yaml", "--held-out", value, "--out", "/dev/null"], [value]],
        "template": [[value]],
    }


# Each makes its files in a folder and returns the words of a command.
def arguments(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """Options and names of commands that would work without them."""
    configs_and_problems = ("tiny.yaml", "text.yaml", "problems.jsonl", "lm")
    _copy(corpus, folder, *configs_and_problems, "runs/tiny", "points.csv", "logs/runs.csv")

    value = word(rng)
    if rng.random() < 0.03:
        return [value]
    places = words_by_command(value, rng)
    command = rng.choice(list(places))
    return [*command.split(), *rng.choice(places[command])]


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
    files = sorted(p for p in run.rglob("*") if p.suffix in (".json", ".jsonl", ".yaml"))
    spoil_file(rng.choice(files), rng)
    if rng.random() < 0.5:
        (run / "fit.json").unlink()
    return rng.choice(
        (
            ["fit", "runs/tiny", "--replicates", "0"],
            ["fit", "runs/tiny", "--mode", "paper", "--replicates", "0"],
            ["records", "check", "runs/tiny"],
            ["status", "runs/tiny"],
            ["recommend", "runs/tiny", "--budget", "5000"],
            ["fit", "runs/tiny", "--compute", "device_hours", "--replicates", "0"],
            ["watch", "runs/tiny", "--run", "4x8-s0"],
            ["watch", "runs/tiny", "--run", "4x8-s0", "--sweep", "runs/tiny"],
            ["quote", "runs/tiny", "--reward", "0.5"],
            ["report", "runs/tiny"],
        )
    )


def logs(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """Logs of every importer."""
    name, log_format, options = rng.choice(
        (
            ("runs.csv", "csv", "reward=reward_heldout"),
            ("own.jsonl", "jsonl", "reward=val.acc"),
            ("long.csv", "csv", "reward=acc,n=n{},B_p=4"),
            ("wide.csv", "csv", "n=n{},B_p=4"),
            ("verl_console/job-8.log", "verl_console", "B_p=16"),
            ("verl/n8.jsonl", "verl", "n=8,B_p=16"),
            ("trl/checkpoint-6", "trl", "n=4,B=16"),
            (
                "tensorboard/n8",
                "tensorboard",
                "n=8,B_p=4,reward=val/acc,response_length=train/length",
            ),
            ("wandb/own/run-own.wandb", "wandb", "reward=val/acc,train_reward=train/reward"),
        )
    )
    _copy(corpus, folder, f"logs/{name}")
    path = folder / Path(name).name
    words = ["records", "import", path.name, "--map", options, "--out", "out"]
    words += rng.choice((["--from", log_format], ["--from", log_format], []))
    if rng.random() < 0.2:
        words.append("--resumed")

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
    """GGUF files: only the one whose checksum is known may be imported, whatever the others
    hold."""
    header = b"GGUF" + rng.choice((3, 2, 1 << 31)).to_bytes(4, "little")
    counts = b""
    for _ in range(2):  # of tensors, and of metadata
        counts += rng.choice((0, 2, 1 << 40, (1 << 64) - 1)).to_bytes(8, "little")
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


def adapters(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """A cell trained by LoRA, exported."""
    _copy(corpus, folder, "lm", "text.yaml", "problems.jsonl", "runs/lora")
    run = folder / "runs" / "lora"
    (cell,) = (run / "cells").iterdir()
    parts = (run / "config.yaml", folder / "lm", cell / "checkpoint", cell / "checkpoint")
    part = rng.choice(parts)
    spoil_file(rng.choice(sorted(path for path in (part, *part.rglob("*")) if path.is_file())), rng)
    options = rng.choice(
        ([], ["--adapter"], ["--adapter"], ["--dtype", "bfloat16"], ["--base", "lm"])
    )
    return ["model", "export", str(cell.relative_to(folder)), "out", *options]


def sweeps(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """What reads another sweep: its fit, its ledgers, its config."""
    _copy(corpus, folder, "tiny.yaml", "runs/tiny")
    run = folder / "runs" / "tiny"
    shutil.copytree(run, folder / "runs" / "other")
    if rng.random() < 0.7:
        files = sorted(p for p in run.rglob("*") if p.suffix in (".json", ".jsonl", ".yaml"))
        spoil_file(rng.choice((run / "fit.json", *files)), rng)
    schedule = rng.choice(
        (
            "n*(C) of runs/tiny at B_p=4",
            "n*(2C) of runs/tiny/fit.json at B_p=16",
            "8x2, 8x4 from 1000",
            "8x2 to 8x8 as C^0.5 from 500",
            "8x2 to 8x8 by gradient",
        )
    )
    if rng.random() < 0.6:
        start = rng.randrange(len(schedule))
        numbers = ("0", "9" * 30, "1e9", "1e99", "-1")
        typed = rng.choice((*numbers, "x", " ", "*", ",", "from", "nan", word(rng)))
        schedule = schedule[:start] + typed + schedule[start + rng.choice((0, 1, 2)) :]

    return rng.choice(
        (
            ["compare", "runs/tiny", "runs/other"],
            ["compare", "runs/other", "runs/tiny/fit.json", "--json"],
            ["quote", "runs/tiny", "--reward", "0.5", "--price", "3"],
            ["report", "runs/tiny"],
            [
                "recommend",
                "runs/tiny",
                "--budget",
                "9e3",
                "--growing",
                "--write",
                "out.yaml",
                "--for",
                rng.choice(("isojax", "trl", "verl")),
            ],
            [
                "recommend",
                "runs/tiny",
                "--budget",
                rng.choice(("20s", "1h", "1usd")),
                "--price",
                "2",
            ],
            ["watch", "runs/other", "--run", "4x8-s0", "--sweep", "runs/tiny"],
            *[
                [
                    "launch",
                    "tiny.yaml",
                    "--dry-run",
                    f"sweep.schedules={{a: {json.dumps(schedule)}}}",
                ]
            ]
            * 3,
        )
    )


def states(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """What a driver, a run that ended and `isojax spend` leave: status, health, spending and
    times."""
    _copy(corpus, folder, "tiny.yaml", "runs/spent")
    run = folder / "runs" / "spent"
    cell = rng.choice(sorted((run / "cells").iterdir()))
    files = [run / name for name in ("status.json", "spend.json", "spend.json", "config.yaml")]
    files += [cell / name for name in ("health.json", "timing.jsonl", "timing.jsonl")]
    spoil_file(rng.choice(files), rng)

    return rng.choice(
        (
            ["status", "runs/spent"],
            ["status", "runs/spent", "--json"],
            ["status", "runs/spent", "runs/spent"],
            ["spend", "tiny.yaml", "name=spent", "--budget", "2500", "--dry-run", "--resume"],
            ["spend", "runs/spent/config.yaml", "--dry-run", "--resume"],
            ["records", "check", "runs/spent", "--json"],
            [
                "fit",
                "runs/spent",
                "--compute",
                "device_hours",
                "--replicates",
                "0",
                "--include-flagged",
            ],
            ["watch", "runs/spent", "--run", cell.name],
        )
    )


def packed(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """Gzipped tables and logs, and Parquet."""
    if rng.random() < 0.5:
        _copy(corpus, folder, "lm", "text.yaml")
        path = folder / rng.choice(sorted((corpus / "parquet").iterdir())).name
        data = (corpus / "parquet" / path.name).read_bytes()
        path.write_bytes(spoil_bytes(data, rng) if rng.random() < 0.6 else data)
        settings = [f"cell.task=parquet:{path.name}", "cell.prompt.format=raw"]
        return ["launch", "text.yaml", "--dry-run", *settings]

    name, words = rng.choice(
        (
            ("points.csv", ["fit-curve", "points.csv.gz", "--x", "rollouts", "--y", "reward"]),
            ("points.csv", ["fit-law", "points.csv.gz"]),
            (
                "logs/own.jsonl",
                ["records", "import", "own.jsonl.gz", "--map", "reward=val.acc", "--out", "out"],
            ),
            (
                "logs/runs.csv",
                ["watch", "runs.csv.gz", "--map", "reward=reward_heldout", "--run", "16x8-s0"],
            ),
            (
                "problems.jsonl",
                ["launch", "text.yaml", "--dry-run", "cell.task=jsonl:problems.jsonl.gz"],
            ),
        )
    )
    _copy(corpus, folder, name, "lm", "text.yaml")
    path = folder / Path(name).name
    if rng.random() < 0.4:
        spoil_file(path, rng)

    data = gzip.compress(path.read_bytes())
    draw = rng.random()
    if draw < 0.5:
        data = spoil_bytes(data, rng)
    elif draw < 0.6:  # unpacks to more than a table may have
        repeated = rng.choice((b"\n", b"1,2,.3,0\n", b"x"))
        data += gzip.compress(repeated * 300_000_000, compresslevel=1)
    path.with_name(f"{path.name}.gz").write_bytes(data)
    path.unlink()
    return words


def odd_files(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """Pipes, links and folders in the place of what a command reads."""
    dry_run = ["launch", "text.yaml", "--dry-run"]
    export = ["model", "export", "runs/lora/cells/4x2-s0", "out"]
    spend = ["spend", "runs/spent/config.yaml", "--dry-run", "--resume"]
    sources, words = rng.choice(
        (
            (("points.csv",), ["fit-law", "points.csv"]),
            (("points.csv",), ["fit-curve", "points.csv", "--x", "rollouts", "--y", "reward"]),
            (
                ("logs/runs.csv",),
                ["records", "import", "runs.csv", "--map", "reward=reward_heldout", "--out", "out"],
            ),
            (
                ("logs/runs.csv",),
                ["watch", "runs.csv", "--map", "reward=reward_heldout", "--run", "16x8-s0"],
            ),
            (
                ("logs/tensorboard/n8",),
                ["records", "import", "n8", "--map", "n=8,B_p=4,reward=val/acc", "--out", "out"],
            ),
            (
                ("logs/wandb/own/run-own.wandb",),
                ["records", "import", "run-own.wandb", "--map", "reward=val/acc", "--out", "out"],
            ),
            (
                ("logs/trl/checkpoint-6",),
                ["records", "import", "checkpoint-6", "--map", "n=4,B=16", "--out", "out"],
            ),
            (("runs/tiny",), ["fit", "runs/tiny", "--replicates", "0"]),
            (("runs/tiny",), ["records", "check", "runs/tiny"]),
            (("runs/tiny",), ["report", "runs/tiny"]),
            (("runs/tiny",), ["quote", "runs/tiny", "--reward", ".5"]),
            (("runs/tiny",), ["recommend", "runs/tiny", "--budget", "5000"]),
            (("runs/spent",), ["status", "runs/spent"]),
            (("runs/spent",), spend),
            *[(("lm", "text.yaml", "problems.jsonl"), dry_run)] * 3,
            *[(("lm", "text.yaml", "problems.jsonl", "runs/text"), [*dry_run, "--resume"])] * 2,
            *((("lm", "runs/lora"), export), (("lm", "runs/lora"), [*export, "--adapter"])),
        )
    )
    _copy(corpus, folder, *sources)
    paths = sorted(path for path in folder.rglob("*") if path.suffix != ".lock")
    if rng.random() < 0.8:
        paths = [path for path in paths if path.is_file()]
    make_odd(rng.choice(paths), rng)
    return words


def notebook(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """The Python API, given spoilt sweeps, frames with values of any kind, and numbers and texts
    where it wants those: Python itself refuses other types. `python` is no command of isojax."""
    _copy(corpus, folder, "runs/tiny")
    value = repr(rng.choice(VALUES))
    number = repr(rng.choice([v for v in VALUES if isinstance(v, int | float)]))
    text = repr(word(rng))
    if rng.random() < 0.3:
        records = sorted(p for p in (folder / "runs").rglob("*") if p.suffix == ".jsonl")
        spoil_file(rng.choice(records), rng)

    # Lines of Python before what is tried: a fit, and its evaluations with one value replaced.
    fit_with = "isojax.fit('runs/tiny', options=isojax.FitOptions("
    options = "options=isojax.FitOptions(replicates=20)"
    fit = f"law = isojax.fit(isojax.read_runs('runs/tiny'), {options}); "
    frame = fit + "rows = law.frame('evaluations').astype(object); "
    column = rng.choice(("B_p", "n", "seed", "step", "rollouts", "avg@4"))
    spoilt_frame = f"rows.iat[{rng.randrange(20)}, {rng.randrange(6)}] = {value}; "
    return [
        "python",
        rng.choice(
            (
                f"isojax.read_runs({value})",
                f"isojax.fit({value})",
                f"isojax.read_runs(['runs/tiny', {text}])",
                f"isojax.fit(isojax.read_runs('runs/tiny'), {text})",
                f"isojax.fit('runs/tiny', compute={text})",
                f"{fit_with}replicates={number}, mode='paper', seed={number}))",
                f"{fit_with}replicates=0, mode={text}))",
                f"{fit_with}replicates=0, run_sd={number}))",
                fit + f"law.recommend({number})",
                fit + f"law.recommend(isojax.TimeBudget({number}))",
                fit + f"law.recommend(1e4, epsilon={number})",
                fit + f"law.recommend(1e4, B_max={number})",
                fit + f"law.recommend(1e4, fix={{{text}: {number}}})",
                fit + f"law.recommend(1e4, fix={{'B_p': {number}}})",
                fit + f"law.quote({number})",
                fit + f"law.plot({text})",
                fit + f"law.frame({text})",
                fit + f"isojax.compare([law, law], [{text}, 'b'])",
                fit + "isojax.compare([law], ['a', 'b'])",
                *[f"{frame}{spoilt_frame}isojax.fit(rows, {options})"] * 4,
                frame + f"isojax.read_runs(rows.drop(columns={column!r}))",
                frame + f"isojax.read_runs(rows.rename(columns={{{column!r}: {text}}}))",
                frame + f"isojax.read_runs(rows, {text})",
            )
        ),
    ]


def tables(rng: random.Random, corpus: Path, folder: Path) -> list[str]:
    """Tables of a curve, and of the points of a law."""
    _copy(corpus, folder, "points.csv")
    spoil_file(folder / "points.csv", rng)
    return rng.choice(
        (["fit-curve", "points.csv", "--x", "rollouts", "--y", "reward"], ["fit-law", "points.csv"])
    )


KINDS: dict[str, Callable[[random.Random, Path, Path], list[str]]] = {
    function.__name__: function
    for function in (
        arguments, configs, ledgers, logs, models, gguf_files, problems, checkpoints,
        tables, adapters, sweeps, states, packed, odd_files, notebook,
    )
}  # fmt: skip
KINDS_OF_TRAINED_RUNS = {"checkpoints", "adapters", "odd_files"}


def _copy(corpus: Path, folder: Path, *names: str) -> None:
    """Parts of the corpus, runs/ as runs/, a log under its own name."""
    for name in names:
        target = folder / (name if name.startswith("runs/") else Path(name).name)
        copy = shutil.copytree if (corpus / name).is_dir() else shutil.copy
        target.parent.mkdir(parents=True, exist_ok=True)
        copy(corpus / name, target)
