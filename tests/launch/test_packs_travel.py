"""All that a config refers to reaches the hosts by each of the four ways, and the launch there
begins: in another folder, with an empty home, after the files here are gone.

gcloud, sbatch, srun and kubectl are stand-ins that do on this machine what is asked of a host;
isojax is itself, with --dry-run behind what the hosts run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e import tiny_lm
from tests.launch.command_flags import TOOLS, check_call, recorded
from tests.launch.templates import LAUNCH

pytestmark = [pytest.mark.slow, pytest.mark.seconds(60)]

# Every tool notes what it is asked for, a line of JSON each.
NOTE = f"""#!{sys.executable}
import json, os, shutil, subprocess, sys
words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
with open(os.environ["ASKED"], "a") as file:
    print(json.dumps([os.environ["HOME"], words]), file=file)
"""
# On the first host the sweep is planned, on others all files are listed: from the pack, by isojax.
ISOJAX = """
words = words[1:]
if os.environ.get("HOST") and words[0] == "launch":
    packed = next(word for word in words if word.endswith(".pack.tgz"))
    over = [word for word in words if word.endswith(".yaml") or word.startswith("run.dir=")]
    words = ["launch", packed, *over, "--dry-run"]
    if os.environ["HOST"] != "0":
        words = ["pack", packed, "--list"]
sys.argv = ["isojax", *words]
from isojax.cli.app import main
main()
"""
GCLOUD = """
hosts = os.environ["HOSTS"]
if "describe" in words:
    sys.exit(1)  # there is no slice yet
worker = next((word for word in words if word.startswith("--worker=")), "")
command = next((word for word in words if word.startswith("--command=")), "")
for host in "01":
    home = os.path.join(hosts, host)
    if worker in ("--worker=all", f"--worker={host}"):
        os.makedirs(home + "/.isojax/bin", exist_ok=True)
        if "scp" in words:
            shutil.copy(words[5], os.path.join(home, words[6].partition(":")[2]))
        else:
            environment = os.environ | {"HOME": home, "HOST": host}
            done = subprocess.run(
                ["bash", "-c", command.partition("=")[2]], cwd=home, env=environment
            )
            if done.returncode:
                sys.exit(done.returncode)
"""
# The files that a job was submitted with are gone when it begins.
SBATCH = """
shutil.rmtree(os.environ["PROJECT"])
os.makedirs(os.environ["PROJECT"])
home = os.path.join(os.environ["HOSTS"], "0")
os.makedirs(home)
environment = os.environ | {"SLURM_JOB_ID": "8", "HOME": home, "HOST": "0"}
done = subprocess.run(["bash", *words[1:]], cwd=os.environ["PROJECT"], env=environment)
sys.exit(done.returncode)
"""
SRUN = """
while words[1].startswith("-"):
    del words[1]
sys.exit(subprocess.run(words[1:]).returncode)
"""
# A volume, which pods have at /runs, and a ConfigMap at /etc/isojax; a RayJob's entrypoint is run.
KUBECTL = """
import yaml
pod = os.path.join(os.environ["HOSTS"], "0")
places = {"/runs": pod + "/volume", "/etc/isojax": pod + "/etc"}
def here(text):
    for place, folder in places.items():
        text = text.replace(place, folder)
    return text
if words[1] == "cp":
    shutil.copy(words[2], here(words[3].partition(":")[2]))
if words[1] == "apply":
    step = words[words.index("-l") + 1].partition("=")[2]
    for document in yaml.safe_load_all(open(words[words.index("-f") + 1])):
        if document["metadata"].get("labels") != {"step": step}:
            continue
        if document["kind"] == "PersistentVolumeClaim":
            os.makedirs(places["/runs"])
        if document["kind"] == "ConfigMap":
            os.makedirs(places["/etc/isojax"])
            for name, text in document["data"].items():
                text = here(text).replace("mesh: fsdp=16", "mesh: auto")
                open(os.path.join(places["/etc/isojax"], name), "w").write(text)
        if document["kind"] == "RayJob":
            environment = os.environ | {"HOME": pod, "HOST": "0"}
            entrypoint = here(document["spec"]["entrypoint"])
            sys.exit(subprocess.run(entrypoint, shell=True, cwd=pod, env=environment).returncode)
"""
TOOL_TEXTS = {
    "isojax": ISOJAX,
    "gcloud": GCLOUD,
    "sbatch": SBATCH,
    "srun": SRUN,
    "kubectl": KUBECTL,
    **dict.fromkeys(("python", "python3", "sudo", "pkill", "mountpoint"), ""),
    "pgrep": "sys.exit(1)\n",
}
ADVANTAGE = """\
from isojax.rl.advantages import advantage
from scales import SCALE
@advantage(needs_group=True)
def my_advantage(batch):
    return batch.rewards * SCALE
"""
FILES = {
    "rewards.py": "from helper import right\n"
    "def reward(completions, answer, **columns):\n"
    "    return [float(right(text, one)) for text, one in zip(completions, answer)]\n",
    "helper.py": "def right(text, answer): return answer in text\n",
    "plugins/my_advantage.py": ADVANTAGE,
    "plugins/scales.py": "SCALE = 1.0\n",
    "my data/train.jsonl": "".join(
        json.dumps({"prompt": f"{i} + 1 =", "answer": str(i + 1)}) + "\n" for i in range(40)
    ),
}
CONFIG = {
    "name": "my",
    "cell": {
        "task": "jsonl:my data/train.jsonl",
        "model": {"path": "lm"},
        "verifier": {"use": "function:rewards.py:reward"},
        "prompt": {"stop": ["\n"]},
        "rl": {"advantage": "my_advantage", "learning_rate": 1e-3},
        "sampling": {"prompt_length": 24, "response_length": 3},
        "data": {"candidates": 40, "attempts": 0, "validation": 8},
        "eval": {"samples": 2, "start": 8, "ratio": 1.5},
    },
    "sweep": {"B_p": [4], "n": [2], "budget": 96},
    "run": {"plugin_folders": ["plugins"], "loggers": []},
}
TRAVELLED = [*FILES, "lm/config.json", "lm/model.safetensors", "lm/tokenizer.json"]
RECORD = recorded()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_lm.make_model(tmp_path_factory.mktemp("model") / "lm")


class Journey:
    """A project with a config, tools that stand for a cluster, and hosts with empty homes."""

    def __init__(self, folder: Path, model: Path):
        self.project, self.hosts, tools = folder / "project", folder / "hosts", folder / "tools"
        self.asked_file = folder / "asked"
        for path in (self.project, self.hosts, tools, folder / "user"):
            path.mkdir()
        shutil.copytree(model, self.project / "lm")
        for name, text in FILES.items():
            (self.project / name).parent.mkdir(exist_ok=True)
            (self.project / name).write_text(text)
        (self.project / "my.yaml").write_text(yaml.safe_dump(CONFIG))
        for name, text in TOOL_TEXTS.items():
            (tools / name).write_text(NOTE + text)
            (tools / name).chmod(0o755)
        (folder / "venv/bin").mkdir(parents=True)
        for name in ("isojax", "python"):
            shutil.copy(tools / name, folder / "venv/bin" / name)
        own = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
        self.environment = own | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "HOME": str(folder / "user"),
            "ASKED": str(self.asked_file),
            "HOSTS": str(self.hosts),
            "PROJECT": str(self.project),
            "RUNS": str(folder / "runs"),
            "VENV": str(folder / "venv"),
            "ISOJAX": "isojax",
            "SLICE": "v5e:2x4",
            "CHECK": "0",
            "JAX_PLATFORMS": "cpu",
        }

    def run(self, command: str, code: int = 0) -> str:
        """What a command of the user's prints; its calls of tools have flags that these know."""
        done = subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=self.project,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        for call in self.asked():
            if call[0] in TOOLS:
                check_call(call, RECORD)
        return done.stdout + done.stderr

    def asked(self, tool: str = "") -> list[list[str]]:
        lines = self.asked_file.read_text().splitlines() if self.asked_file.exists() else []
        calls = [json.loads(line)[1] for line in lines]
        return [call for call in calls if tool in ("", call[0])]

    def unpacked(self, home: Path) -> list[Path]:
        """The working folders of the packs in a host's home; each has all that was referred to."""
        roots = [path for path in home.glob(".cache/isojax/packs/*") if path.suffix != ".lock"]
        folders = [root / json.loads((root / "pack.json").read_text())["folder"] for root in roots]
        for folder in folders:
            assert not [name for name in TRAVELLED if not (folder / name).is_file()]
        return folders


@pytest.fixture
def journey(tmp_path: Path, model: Path) -> Journey:
    return Journey(tmp_path, model)


WAYS = {
    "pod": f"bash {LAUNCH}/tpu_pod.sh run my.yaml sweep.seeds=2 --yes",
    "slurm": f"MODE=one GPUS=1 SLURM_JOB_NUM_NODES=1 bash {LAUNCH}/slurm.sh my.yaml sweep.seeds=2",
    "gke": "",  # the commands at the top of its template
}


def gke_commands() -> str:
    """The commands at the top of the template, up to the one that starts the sweep."""
    text = (LAUNCH / "gke_kuberay.yaml").read_text()
    lines = re.findall(
        r"^#   ((?:isojax pack|kubectl (?:apply|wait|cp|delete pod)) .*)$", text, re.M
    )
    commands = [re.sub(r" {2,}.*", "", line) for line in lines]
    assert len(commands) == 6 and commands[-1].endswith("step=sweep")
    return "\n".join(commands).replace("launch/", f"{LAUNCH}/")


@pytest.mark.parametrize("way", WAYS)
def test_all_files_reach_the_hosts_and_the_launch_there_begins(way: str, journey: Journey) -> None:
    said = journey.run(WAYS[way] or gke_commands().replace("my.yaml", "my.yaml sweep.seeds=2"))
    (first,) = journey.unpacked(journey.hosts / "0")
    assert (first / "my data/train.jsonl").read_text() == FILES["my data/train.jsonl"]
    # The plan of the two seeds, by the plug-ins and the problems in the pack.
    assert (
        re.search(r"\b2 runs\b|4x2-s1", said)
        and "recipe: loss grpo, advantage my_advantage" in said
    )
    if way == "pod":
        (second,) = journey.unpacked(journey.hosts / "1")
        assert second.relative_to(journey.hosts / "1") == first.relative_to(journey.hosts / "0")


@pytest.mark.parametrize("way", WAYS)
def test_a_missing_file_is_refused_before_anything_is_created(way: str, journey: Journey) -> None:
    (journey.project / "helper.py").unlink()
    said = journey.run(WAYS[way] or gke_commands(), code=2)
    assert "error: rewards.py, line 1: imports helper, which is not there" in said
    assert not any(call[0] in TOOLS for call in journey.asked())


def test_by_ray_a_process_works_in_the_pack(journey: Journey, tmp_path: Path) -> None:
    """As Ray starts it: without the driver's folder, with the pack's bytes."""
    driver = f"""
from pathlib import Path
from isojax.cli.options import read_config
from isojax.launch.packing.pack_file import pack_bytes
from isojax.launch.packing.pack_plan import plan_pack, with_host_paths_in
import pickle
plan = plan_pack(read_config(["my.yaml"], None, None), is_shared=True)
config = with_host_paths_in(plan.config, "{tmp_path}")
Path("{tmp_path}/sent").write_bytes(pickle.dumps([config, pack_bytes(plan)]))
"""
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    process = f"""
import pickle, sys
from pathlib import Path
from isojax.launch.planner import plan_cells
from isojax.launch.process_group import ProcessGroup
from isojax.launch.ray.process_status import TOKEN_FILE
from isojax.launch.ray.ray_actor import RayActor
config, pack = pickle.loads(Path("{tmp_path}/sent").read_bytes())
folder = Path(config.run.dir, config.name)
folder.mkdir(parents=True)
(folder / TOKEN_FILE).write_text("x")
actor = RayActor("{tmp_path}/nowhere", "{tmp_path}/log")
group = ProcessGroup("127.0.0.1:{port}", 1, 0, detect_cluster=False)
actor.open(config, plan_cells(config.sweep), "x", group, 1, [], pack)
actor.close()
"""
    python = sys.executable
    for program, folder, home in (
        (driver, journey.project, "user"),
        (process, journey.hosts, "hosts/0"),
    ):
        done = subprocess.run(
            [python, "-c", program],
            cwd=folder,
            env=journey.environment | {"HOME": str(tmp_path / home)},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        log = tmp_path / "log"
        assert done.returncode == 0, done.stderr + (log.read_text() if log.exists() else "")
        if program is driver:
            shutil.rmtree(journey.project)
    assert len(journey.unpacked(journey.hosts / "0")) == 1
    saved = yaml.safe_load((tmp_path / "runs/my/config.yaml").read_text())
    assert saved["cell"]["task"] == CONFIG["cell"]["task"]  # type: ignore[index]
