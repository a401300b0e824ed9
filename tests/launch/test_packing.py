"""Packs: all that a config refers to goes along, means there what it means here, and what is
missing is refused here."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from isojax.cli.commands.pack_command import pack
from isojax.cli.options import read_config
from isojax.core.config import Config, config_hash
from isojax.launch.packing import pack_plan
from isojax.launch.packing.pack_file import unpack_file, write_pack
from isojax.launch.packing.pack_plan import PackPlan, format_bytes, plan_pack
from isojax.tasks.verifiers import load_verifier
from isojax.train.verifier_copies import changed_verifier_files, keep_verifier_files
from tests.refusals import refused

ADVANTAGE = """\
from isojax.rl.advantages import advantage
from scales import SCALE
@advantage(needs_group=True)
def my_advantage(batch):
    return batch.rewards * SCALE
"""
REWARDS = '''\
"""notes.md is in no code."""
import json
from pathlib import Path
from helper import right
from parts.last import LAST
WORDS = Path(__file__).with_name("good words.txt")
KEY = open(".env") if Path("/nowhere").exists() else None
def score(completions, answer, **columns):
    import no_such_module_unless_it_is_called
def reward(completions, answer, **columns):
    return [float(right(text, one)) for text, one in zip(completions, answer)]
'''
PROBLEMS = '{"prompt": "1 + 1 =", "answer": "2"}\n'


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a user, with others beside it; what commands change is as before
    after the test."""
    folder = tmp_path / "my project" / "work"
    write(
        folder,
        {
            "rewards.py": REWARDS,
            "helper.py": "def right(text, answer): return answer in text\n",
            "parts/__init__.py": "",
            "parts/last.py": "from . import first\nLAST = 1\n",
            "parts/first.py": "",
            "parts/.hidden/x.py": "",
            "parts/data.json": "{}",
            "good words.txt": "yes\n",
            "notes.md": "",
            ".env": "KEY=x",
            "runs/old/cells/huge.py": "",
            "data/train.jsonl": PROBLEMS,
            "held out/train.jsonl": PROBLEMS.replace("1", "2"),
            "over.yaml": "sweep: {seeds: 3}\n",
            "../configs/my.yaml": "cell: {task: 'jsonl:data/train.jsonl', "
            "verifier: {use: 'function:rewards.py:reward'}, rl: {advantage: my_advantage}}\n",
            "../configs/my_advantage.py": ADVANTAGE,
            "../configs/scales.py": "SCALE = 2.0\n",
            "../configs/runs/huge.bin": "",
        },
    )
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ISOJAX_PLUGIN_FOLDERS", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    return folder


CONFIG = ["quickstart", "../configs/my.yaml", "over.yaml"]
OVERRIDES = ["cell.data.held_out=jsonl:held out/train.jsonl", "sweep.n=[2]"]


def plan_of(words: Sequence[str], is_shared: bool = False) -> PackPlan:
    return plan_pack(read_config(words, None, None), is_shared)


def packed_names(plan: PackPlan) -> dict[str, str]:
    """Why each file goes along, by its path from the working folder on."""
    return {os.path.relpath(file.path): file.reason for file in plan.files}


def set_values(section: BaseModel) -> dict[str, Any]:
    """What is set, and not by default, in a section and those below it."""
    return {
        name: set_values(value) if isinstance(value, BaseModel) else value
        for name, value in vars(section).items()
        if name in section.model_fields_set
    }


def elsewhere(plan: PackPlan, place: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The config of a pack as another machine reads it, in another folder and an empty home."""
    place.mkdir()
    write_pack(plan, place / "my.pack.tgz")
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(place / "home"))
    return read_config(["my.pack.tgz", "sweep.seeds=4"], "fsdp=2", None)


def test_all_that_a_config_refers_to_goes_along(project: Path) -> None:
    plan = plan_of([*CONFIG, *OVERRIDES])
    assert packed_names(plan) == {
        "rewards.py": "cell.verifier.use",
        "helper.py": "imported by rewards.py:4",
        "parts/__init__.py": "imported by rewards.py:5",
        "parts/last.py": "imported by rewards.py:5",
        "parts/first.py": "imported by rewards.py:5",
        "good words.txt": "named by rewards.py:6",
        "data/train.jsonl": "cell.task",
        "held out/train.jsonl": "cell.data.held_out",
        "../configs/my_advantage.py": "cell.rl.advantage",
        "../configs/scales.py": "imported by ../configs/my_advantage.py:2",
    }
    assert plan.size == sum(Path(name).stat().st_size for name in packed_names(plan))
    assert [note.partition(",")[0] for note in plan.notes] == [".env"]  # it may hold a secret
    assert not plan.requirements


def test_a_pack_means_elsewhere_what_it_means_here(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = read_config([*CONFIG, *OVERRIDES], None, None)
    keep_verifier_files(tmp_path / "base", here.cell.verifier.use)
    there = elsewhere(plan_pack(here), tmp_path / "host", monkeypatch)

    # --resume compares these, and the ledger names the runs by them.
    assert set_values(there)["cell"] == set_values(here)["cell"]
    assert config_hash(there.cell) == config_hash(here.cell)
    assert there.name == here.name == "quickstart"
    assert (there.sweep.seeds, there.sweep.n, there.run.mesh) == (4, (2,), "fsdp=2")
    assert there.run.dir == str(tmp_path / "host/runs")  # not among the files of the pack

    assert tmp_path / "host/home" in Path.cwd().parents and Path.cwd() != project
    assert Path("held out/train.jsonl").read_text() == PROBLEMS.replace("1", "2")
    assert not Path(".env").exists() and not Path("runs").exists()
    assert not changed_verifier_files(tmp_path / "base", there.cell.verifier.use)
    # As here: the folder of the last config first, which is the working folder.
    first_folder, second_folder = there.run.plugin_folders
    assert Path(first_folder) == Path.cwd()
    assert Path(second_folder, "my_advantage.py").read_text() == ADVANTAGE
    assert tmp_path / "host/home" in Path(second_folder).parents


def test_the_same_files_give_the_same_pack_which_is_unpacked_once(
    project: Path, tmp_path: Path
) -> None:
    plan = plan_of(CONFIG)
    for name in "ab":
        write_pack(plan, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    first = unpack_file(tmp_path / "a")
    (first.folder / "mark").touch()
    assert unpack_file(tmp_path / "b") == first and (first.folder / "mark").exists()

    (project / "helper.py").write_text("def right(text, answer): return True\n")
    write_pack(plan_of(CONFIG), tmp_path / "b")
    assert unpack_file(tmp_path / "b").folder != first.folder


def test_absolute_paths_become_those_of_the_pack(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "outside", {"problems.jsonl": PROBLEMS, "judge.py": "from near import f\n"})
    write(tmp_path / "outside", {"near.py": "def f(completions, **columns): return [1.0]\n"})
    write(tmp_path / "home", {"more.jsonl": PROBLEMS})
    config = read_config(
        [
            "quickstart",
            f"cell.task=jsonl:{tmp_path}/outside/problems.jsonl",
            f"cell.verifier.use=function:{tmp_path}/outside/judge.py:f",
            "cell.eval.extra={more: 'jsonl:~/more.jsonl'}",
        ],
        None,
        None,
    )
    there = elsewhere(plan_pack(config), tmp_path / "host", monkeypatch)
    assert there.cell.task == "jsonl:../../outside/problems.jsonl"
    assert there.cell.eval.extra == {"more": "jsonl:../../home/more.jsonl"}
    assert Path("../../outside/problems.jsonl").read_text() == PROBLEMS
    assert Path("../../home/more.jsonl").is_file()
    check = load_verifier(there.cell.verifier.use)
    assert check.build() is not None  # its module was imported, with the one beside it

    # Where the hosts see this machine's disks, absolute paths stay, and the run's identity too.
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    shared = plan_pack(config, is_shared=True)
    assert shared.config.cell == config.cell
    assert [str(path) for path in shared.on_hosts] == [
        f"{tmp_path}/outside/problems.jsonl",
        f"{tmp_path}/outside/judge.py",
        f"{tmp_path}/home/more.jsonl",
    ]
    assert not shared.files


def test_links_stay_links(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward that is a link imports from the folder that the link leads to."""
    write(tmp_path / "lab", {"judge.py": "from common_rules import f\n"})
    write(tmp_path / "lab", {"common_rules.py": "def f(completions, **columns): return [1.0]\n"})
    write(tmp_path / "lab", {"data/p.jsonl": PROBLEMS})
    (project / "linked.py").symlink_to(tmp_path / "lab/judge.py")
    (project / "linked_data").symlink_to(tmp_path / "lab/data")
    plan = plan_of(
        [
            "quickstart",
            "cell.verifier.use=function:linked.py:f",
            "cell.task=jsonl:linked_data/p.jsonl",
        ]
    )
    assert set(packed_names(plan)) == {
        "linked.py",
        "linked_data/p.jsonl",
        "../../lab/common_rules.py",
    }
    there = elsewhere(plan, tmp_path / "host", monkeypatch)
    assert Path("linked.py").resolve().parent == Path("../../lab").resolve()
    assert Path("linked_data/p.jsonl").read_text() == PROBLEMS
    assert load_verifier(there.cell.verifier.use).build() is not None


def test_what_the_hosts_have_stays_here(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below run.host_folders, or below run.dir of the hosts; it need not be here."""
    big = tmp_path / "disk/model"
    write(big, {"config.json": "{}", "model.safetensors": "x" * 100})
    (project / "lm").symlink_to(big)
    words = [
        "quickstart",
        "run.dir=/mnt/runs",
        "cell.task=jsonl:/mnt/runs/train.jsonl",
        "cell.data.held_out=jsonl:/elsewhere/test.jsonl",
        "cell.model.path=lm",
    ]
    host_folders = f"run.host_folders=[/elsewhere,{tmp_path}/disk]"
    plan = plan_of([*words, host_folders])
    assert not plan.files and plan.in_place == (project / "lm",)
    assert plan.config.cell.task == "jsonl:/mnt/runs/train.jsonl"
    there = elsewhere(plan, tmp_path / "host", monkeypatch)
    assert there.run.dir == "/mnt/runs"
    assert Path("lm").readlink() == project / "lm" and Path("lm/config.json").read_text() == "{}"

    monkeypatch.chdir(project)
    with refused(where="cell.data.held_out", fix="run.host_folders=[/elsewhere]"):
        plan_of(words)


def test_a_model_a_sweep_and_further_files_go_along(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        project,
        {
            "lm/config.json": "{}",
            "lm/chat_template.jinja": "x",
            "lm/original/x.json": "{}",
            "lm/.cache/x": "",
            "runs/first/config.yaml": "{}",
            "runs/first/base/labels.jsonl": "",
            "runs/first/cells/4x2-s0/checkpoint/big": "",
            "tables/a.csv": "",
        },
    )
    plan = plan_of(
        ["quickstart", "cell.model.path=lm", "run.base_from=runs/first", "run.files=[tables]"]
    )
    assert packed_names(plan) == {
        "lm/config.json": "cell.model.path",
        "lm/chat_template.jinja": "cell.model.path",
        "lm/original/x.json": "cell.model.path",
        "runs/first/config.yaml": "run.base_from",
        "runs/first/base/labels.jsonl": "run.base_from",
        "tables/a.csv": "run.files",
    }
    monkeypatch.setattr(pack_plan, "MAX_SHARED_BYTES", 4)
    shared = plan_of(["quickstart", "cell.model.path=lm", "run.files=[tables]"], is_shared=True)
    assert shared.in_place == (project / "lm",)
    assert set(packed_names(shared)) == {"tables/a.csv"}


def test_tables_by_folder_and_pattern(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    write(project, {"t/a.parquet": "", "t/b.parquet": "", "t/c.txt": "", "t/deep/d.parquet": ""})
    write(project, {"set/dataset_info.json": "", "set/all.array_record": ""})
    folder = plan_of(["quickstart", "cell.task=parquet:t"])
    assert set(packed_names(folder)) == {"t/a.parquet", "t/b.parquet"}
    pattern = plan_of(["quickstart", "cell.task=parquet:t/a*.parquet"])
    assert set(packed_names(pattern)) == {"t/a.parquet"}
    monkeypatch.setattr(pack_plan, "MAX_SHARED_BYTES", -1)
    shared = plan_of(["quickstart", "cell.task=parquet:t/*.parquet"], is_shared=True)
    assert shared.in_place == (project / "t/a.parquet", project / "t/b.parquet")
    data_set = plan_of(["quickstart", "cell.task=tfds:set#all"])
    assert set(packed_names(data_set)) == {"set/dataset_info.json", "set/all.array_record"}


def test_a_plug_in_of_any_kind_and_its_argument(project: Path) -> None:
    """By file or module, in the working folder or run.plugin_folders; what else its name has."""
    write(
        project,
        {
            "my_source.py": "VERIFIER = 'function:rewards.py:reward'\nOTHER = 'unused.py'\n",
            "unused.py": "import gone\n",
            "my_hook.py": "",
            "fork/__init__.py": "",
            "fork/logs.py": "def begin(): ...\n",
            "more/my_loss.py": "",
            "my_command.py": "",
        },
    )
    plan = plan_of(
        [
            "quickstart",
            "cell.task=my_source:data/train.jsonl,limit=5",
            "cell.rl.loss=my_loss",
            "run.on_update=my_hook",
            "run.loggers=[fork.logs.begin]",
            "run.plugin_folders=[more]",
        ]
    )
    names = packed_names(plan)
    assert names["my_source.py"] == names["data/train.jsonl"] == "cell.task"
    assert names["rewards.py"] == "named by my_source.py:1"
    assert names["more/my_loss.py"] == "cell.rl.loss"
    assert names["my_hook.py"] == "run.on_update"
    assert {"fork/__init__.py", "fork/logs.py", "helper.py"} <= set(names)
    assert plan.config.run.plugin_folders == ("more", ".")
    assert {note.partition(",")[0] for note in plan.notes} == {".env", "unused.py"}


def test_packages_that_the_code_needs_are_named(project: Path) -> None:
    write(project, {"rewards.py": "import numpy\nimport _pytest.mark\nimport isojax\nimport ast\n"})
    plan = plan_of(["quickstart", "cell.verifier.use=function:rewards.py:f"])
    assert plan.requirements == (f"pytest=={importlib.metadata.version('pytest')}",)


@pytest.mark.parametrize(
    ("override", "where", "found"),
    [
        ("cell.rl.advantage=not_there", "cell.rl.advantage", "no plug-in 'not_there'"),
        ("run.on_update=fork.hook", "run.on_update", "no module or function fork.hook"),
        ("run.on_update=parts.gone.f", "run.on_update", "no module or function parts.gone.f"),
        ("cell.task=jsonl:gone.jsonl", "cell.task", "gone.jsonl"),
        ("cell.eval.extra={x: 'jsonl:gone.jsonl'}", "cell.eval.extra.x", "gone.jsonl"),
        ("cell.verifier.use=function:gone.py:f", "cell.verifier.use", "gone.py"),
        ("cell.verifier.use={a: math, b: 'verl:gone.py'}", "cell.verifier.use.b", "gone.py"),
        ("cell.verifier.use=function:broken.py:f", "broken.py, line 2", "Python"),
        ("cell.verifier.use=function:alone.py:f", "alone.py, line 1", "imports gone_helper"),
        ("cell.verifier.use=function:part.py:f", "part.py, line 1", "imports parts.gone"),
        ("cell.model.path=gone", "cell.model.path", "gone"),
        ("run.base_from=gone", "run.base_from", "gone"),
        ("run.files=[gone.txt]", "run.files", "gone.txt"),
        ("run.host_folders=[models]", "run.host_folders", "given models"),
    ],
)
def test_what_is_missing_is_refused(override: str, where: str, found: str, project: Path) -> None:
    write(
        project,
        {
            "alone.py": "import gone_helper\n",
            "part.py": "from parts.gone import f\n",
            "broken.py": "x = 1\ndef f(:\n",
        },
    )
    with refused(where=where, found=found):
        plan_of(["quickstart", override])


def test_too_much_is_refused_with_what_is_largest(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, {"lm/config.json": "{}", "lm/model.safetensors": "x" * 3000})
    monkeypatch.setattr(pack_plan, "MAX_BYTES", 2048)
    with refused(where="cell.model.path", found="lm/model.safetensors, 2.93 KiB"):
        plan_of(["quickstart", "cell.model.path=lm"])
    assert [format_bytes(size) for size in (0, 1023, 1536, 5 * 2**20, 3 * 2**30)] == [
        "0 B",
        "0.999 KiB",
        "1.5 KiB",
        "5 MiB",
        "3 GiB",
    ]


def test_what_is_no_pack_is_refused(project: Path, tmp_path: Path) -> None:
    write_pack(plan_of(CONFIG), project / "good")
    (project / "cut").write_bytes((project / "good").read_bytes()[:400])
    (project / "gzip").write_bytes(b"\x1f\x8b nothing")
    with tarfile.open(project / "tar", "w:gz") as archive:
        archive.add("helper.py")
    # One that would write outside of its folder.
    manifest = {"format": 1, "folder": "files", "in_place": {"../../../out": "/etc/passwd"}}
    (project / "pack.json").write_text(json.dumps(manifest))
    with tarfile.open(project / "leading out", "w:gz") as archive:
        archive.add("pack.json")
    for name in ("cut", "gzip", "tar", "leading out"):
        with refused(where=name, found="no pack"):
            read_config([name], None, None)
    packs = tmp_path / "home/.cache/isojax/packs"
    assert {path.suffix for path in packs.iterdir()} == {".lock"}  # nothing is left of them
    with refused(found="given good and good"):
        read_config(["good", "good"], None, None)


def test_the_command_writes_a_pack_and_no_other_file(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack([*CONFIG, "name=mine"], list_only=True)
    assert "rewards.py" in capsys.readouterr().out and not Path("mine.pack.tgz").exists()
    for _ in range(2):  # an older pack is replaced
        pack([*CONFIG, "name=mine"])
    out = capsys.readouterr().out
    assert "9 files, " in out and "isojax launch mine.pack.tgz" in out
    assert "note: .env, which rewards.py:7 names, stays here" in out
    with refused(where="notes.md", found="exists already"):
        pack(CONFIG, out=Path("notes.md"))
    assert Path("notes.md").read_text() == ""
