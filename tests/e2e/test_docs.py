"""Every command in README and docs runs, in the order it is written, on a sweep small enough to run
here."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.hub_stand_in import serve_hub
from tests.compiler import QUICK, flags
from tests.e2e import tiny_lm
from tests.e2e.command_line import REPOSITORY, TINY, Fork, Isojax, Nursery

pytestmark = [pytest.mark.slow, pytest.mark.seconds(200)]

PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
SMALL = (
    (r"sweep\.budget=\d+", "sweep.budget=400"),
    (r"sweep\.seeds=4", "sweep.seeds=2"),
    (r"--budget \S+", "--budget 700"),
    ("--validate", "--validate --replicates 10"),
    (r"^(isojax fit runs/(?!.*--replicates).*)", r"\1 --replicates 20"),
    (r"cell\.data\.candidates=\d+", "cell.data.candidates=300"),
    ("32x2 to 32x32", "32x2 to 32x8"),
)
# A sweep for every page: commands that run and end, whatever it finds.
SWEEP = TINY.replace("B_max: 64", "B_max: 1024").replace("budget: 2500", "budget: 700")
SWEEP = SWEEP.replace("steps: 60", "steps: 20").replace("candidates: 600", "candidates: 300")
SWEEP = SWEEP.replace("seeds: 2", "seeds: 1")
FEW = ("sweep.budget=400", "--no-report")  # for two processes that wait for each other on few cores
FORK = {
    "my_module.py": "docs/extending.md",
    "my_problems.py": "docs/extending.md",
    "my_words.py": "docs/extending.md",
    "my_advantage.py": "docs/extending.md",
    "my_hook.py": "docs/extending.md",
    "my_format.py": "docs/extending.md",
    "run-1.mine": "docs/extending.md",
    "warmer.py": "docs/extending.md",
    "halving.py": "docs/extending.md",
    "make_problems.py": "docs/tutorials/own-model.md",
    "rewards.py": "docs/tutorials/own-model.md",
    "own.yaml": "docs/tutorials/own-model.md",
}  # what a page tells its reader to write
# the stand-in for a model solves nothing
ANY_DIFFICULTY = ("difficulty: [0.05, 0.95]", "difficulty: [0, 1]")
LOGS = {
    "README.md": REPOSITORY / "tests/runs/importers/fixtures",
    "logs.md": REPOSITORY / "tests/runs/importers/fixtures",
    "laws.md": REPOSITORY / "tests/scaling/fixtures",
}  # what stands for the reader's own logs/

# By page: what the commands begin with that another page runs on the same sweep, and which does.
ELSEWHERE = {
    "tour.md": {"isojax spend": "growing-n.md", "isojax launch quickstart --dry-run": "install.md"},
    "when-a-run-does-not-learn.md": {
        "isojax difficulty": "problems.md",
        "isojax lr-search": "recipes.md",
    },
    "faq.md": {"isojax launch quickstart --resume": "faults.md"},
}


def commands(page: Path) -> list[str]:
    """The lines of a page's bash blocks, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(), re.S)
    lines = [re.sub(r"\s+#.*", "", line).strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def is_read(line: str, of_page: list[str]) -> bool:
    """Whether a later command of the page fits, itself, the sweep that this one launches."""
    config, *settings = line.split()[2:]
    name = next(
        (word.removeprefix("name=") for word in settings if word.startswith("name=")), config
    )
    later = of_page[of_page.index(line) + 1 :]
    return any(
        words[1] in ("fit", "compare") and f"runs/{name}" in words
        for words in map(str.split, later)
    )


def runs_elsewhere(line: str, page: Path) -> bool:
    """Whether a page that goes on with what the command leaves runs it, the same word for word once
    it is small."""
    for start, name in ELSEWHERE.get(page.name, {}).items():
        if line.startswith(start):
            assert small(line) in map(small, commands(REPOSITORY / "docs" / name)), (
                f"{name} no longer runs {line!r}"
            )
            return True
    return False


def small(line: str) -> list[str]:
    for pattern, replacement in SMALL:
        line = re.sub(pattern, replacement, line)
    return shlex.split(line)


def language_models(folder: Path) -> None:
    """What stands for SmolLM2 (made before it is imported), a 7B model, GSM8K and the configs that
    name them."""
    for name in ("smollm2-135m", "qwen"):
        tiny_lm.make_model(folder / "models" / name)
    for name, count in (("train", 40), ("test", 16)):
        (folder / "gsm8k").mkdir(exist_ok=True)
        rows = [
            {"question": f"{name} {i}?", "answer": f"{i} + 1.\n#### {i + 1}"} for i in range(count)
        ]
        (folder / "gsm8k" / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    (folder / "stand_in").mkdir()
    (folder / "stand_in" / "coin.py").write_text(tiny_lm.COIN)
    held_out, task = ", held_out: 'jsonl:gsm8k/test.jsonl'", "jsonl:gsm8k/train.jsonl"
    configs = {
        "smollm2_cpu": tiny_lm.CONFIG.format(
            name="smollm2_cpu", task="addition", attempts=0, data=""
        ),
        "gsm8k": tiny_lm.CONFIG.format(name="gsm8k", task=task, attempts=16, data=held_out),
        "models/smollm2-135m": "cell: {prompt: {format: raw}}",
        "models/qwen2.5-7b-instruct": "cell: {model: {layers: 2}, prompt: {format: chat}}",
    }
    (folder / "configs/models").mkdir()
    for name, text in configs.items():
        assert (REPOSITORY / "configs" / f"{name}.yaml").is_file()
        (folder / "configs" / f"{name}.yaml").write_text(text)


def write_configs(folder: Path) -> None:
    """The sweeps of the small task that the pages name."""
    (folder / "configs").mkdir()
    for name in ("quickstart", "hard"):
        (folder / "configs" / f"{name}.yaml").write_text(
            SWEEP.replace("name: tiny", f"name: {name}")
        )


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Path:
    """The sweep's folder that `make quickstart` leaves; to be read only."""
    place = Isojax(tmp_path_factory.mktemp("quickstart") / "work", nursery)
    write_configs(place.folder)
    place.quick_ok("launch", "quickstart", "--resume", fit=True, report=False)
    return place.run("quickstart")


def test_the_pages_have_commands() -> None:
    assert len(commands(REPOSITORY / "README.md")) > 8


@pytest.mark.timeout(1800)  # a page is many commands, each with a limit of its own
@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: p.name)
def test_every_command_of_a_page_runs(page: Path, isojax: Any, quickstart: Path) -> None:
    write_configs(isojax.folder)
    for path, written_in in FORK.items():
        if written_in.endswith(page.name):
            file = isojax.folder / path
            file.parent.mkdir(exist_ok=True)
            code = re.search(rf"```\w+\n# {path}\n(.*?)```", page.read_text(), re.S)
            assert code, f"{page.name} no longer shows {path}"
            file.write_text(code[1].replace(*ANY_DIFFICULTY))
    if "smollm2" in page.read_text():
        language_models(isojax.folder)
    if page.name in LOGS:
        shutil.copytree(LOGS[page.name], isojax.folder / "logs")
    extra: list[Fork] = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for path in re.findall(r"(?<= )docs/\S+", " ".join(commands(page))):
        (isojax.folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / path, isojax.folder / path)
    for line in commands(page):
        if runs_elsewhere(line, page):
            continue
        words = small(line.replace("127.0.0.1:29500", f"127.0.0.1:{port}"))
        goes_on = line.startswith(("make quickstart", "isojax launch quickstart --resume"))
        if goes_on and not isojax.run("quickstart").exists():
            shutil.copytree(quickstart, isojax.run("quickstart"))
        if words[-1] == "&":
            extra.append(isojax.fork(*words[1:-1], *FEW, XLA_FLAGS=flags(QUICK, devices=1)))
        elif words[0] == "make":
            done = subprocess.run(
                ["make", "-n", *words[1:]],
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stderr}"
        elif words[:2] == ["python", "-m"] and words[2].startswith("isojax."):
            isojax.quick_ok(*words[2:], report=False)
        elif words[0] == "python" and words[1] in FORK:
            subprocess.run([sys.executable, words[1]], cwd=isojax.folder, timeout=60, check=True)
        elif words[0] == "python" and words[1].startswith("benchmarks/"):
            assert (REPOSITORY / words[1]).is_file(), line
        elif words[:2] == ["pip", "install"]:
            extras = re.search(r"\[(.*)\]", words[-1])
            declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"][
                "optional-dependencies"
            ]
            assert set(extras[1].split(",") if extras else []) <= set(declared), line
        elif words[:4] == [
            "isojax",
            "model",
            "import",
            "smollm2",
        ]:  # tests/cli/test_model_import.py imports it
            assert (isojax.folder / "models/smollm2-135m").is_dir()
        elif words[:3] == ["isojax", "model", "import"]:
            with serve_hub() as hub:
                hub.add(words[3], isojax.folder / "models/qwen")
                isojax.ok(*words[1:], HF_ENDPOINT=hub.url, HF_HOME=str(isojax.folder / "hub"))
        elif words[0] == "isojax":
            few, settings = (FEW, {"XLA_FLAGS": flags(QUICK, devices=1)}) if extra else ((), {})
            launch = words[1] == "launch"
            isojax.quick_ok(
                *words[1:],
                *few,
                fit=not (launch and is_read(line, commands(page))),
                report=not launch,
                **settings,
            )
        else:
            assert words[0] in (".ci/run", "pre-commit", ".venv/bin/pre-commit", "git"), (
                f"{page.name}: how is {line!r} tested?"
            )
    for process in extra:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, out + err
