"""The shell templates, run: srun, scontrol, gcloud, Ray, isojax and the hosts' tools are stand-ins
that write down what they are asked.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isojax import __version__
from isojax.launch.tpu_hosts import num_hosts
from tests.launch.command_flags import TOOLS, check_call, recorded
from tests.launch.templates import LAUNCH, ROOT, check_command

pytestmark = pytest.mark.slow

WRITE = """#!/bin/bash
note() { local line; printf -v line '%s\\x1f' "$HOST" "$@"; printf '%s\\x1e' "$line" >> "$ASKED"; }
note "${0##*/}" "$@"
"""
HOLD = (
    """trap 'kill $!; note "${0##*/}" ended; exit 143' TERM; note "${0##*/}" up; sleep 60 & wait"""
)
STAND_INS = {
    # SLURM: a step is run here.
    "scontrol": "printf 'node-%s\\n' a b c\n",
    "srun": 'while [[ $1 == -* ]]; do shift; done; exec "$@"\n',
    "sbatch": 'while [[ $1 == -* ]]; do shift; done; SLURM_JOB_ID=8 exec bash "$@"\n',
    # Ray's nodes stay until they are asked to end; its head is there as soon as it was started. A
    # sweep begins when all nodes have.
    "ray": f"""note token "$RAY_AUTH_MODE" "$RAY_AUTH_TOKEN"
        case $* in *--block*) {HOLD} ;;
        status*) tr '\\037' ' ' < "$ASKED" | grep -q 'start --head' && note ray answered ;;
        esac\n""",
    # Where ENDS is set, its next word is how a sweep ends: CODE:STATE, with the slice's state after
    # it; `stopped` is that of tpu_pod.sh's stop.
    # What packs a config is isojax itself, once for the same words: my.yaml is that of all tests.
    "isojax": f"""if [ "$1" = pack ]; then
            out=${{@: -1}} words=("${{@:1:$#-2}}")
            packed=$PACKS/$(printf '%s\n' "${{words[@]}}" | sha1sum | cut -c1-16)
            [ -e "$packed" ] || "$PYTHON" -c 'from isojax.cli.app import main; main()' \
                "${{words[@]}}" --out "$packed" || exit
            cp "$packed" "$out"; exit
        fi
        note token "$RAY_AUTH_MODE" "$RAY_AUTH_TOKEN"
        note cache "$JAX_COMPILATION_CACHE_DIR"
        if [ -n "$ENDS" ] && [ "$HOST" = 7 ] && [[ $* == launch* && $* != *--dry-run* ]]; then
            [ -e ends ] || tr ' ' '\n' <<<"$ENDS" >ends
            read -r end <ends; sed -i 1d ends
            case $end in *:stopped) touch .isojax/stopped ;; *) echo "${{end#*:}}" >state ;; esac
            exit "${{end%:*}}"
        fi
        until [ "$(tr '\\036' '\\n' < "$ASKED" | grep -c 'ray.up')" -ge "$NODES" ]
        do sleep 0.05; done
        if [ -n "$LASTS" ]; then {HOLD}; fi; exit "${{FAILS:-0}}"\n""",
    # A slice of two hosts; what is asked of a host is run here, in the home of that host.
    "gcloud": """[[ $* != *"describe"* ]] || { case $* in
        *networkEndpoints*) echo 10.0.0.7 ;;
        *state.state*)
            tr '\\037' ' ' < "$ASKED" | grep -q 'queued-resources create' && echo ACTIVE ;;
        *) if [ -e state ]; then cat state; else [ -n "$STATE" ] && echo "$STATE"; fi ;; esac
        exit; }
    [[ $* != *" delete "* ]] || rm -f state
    [[ $* != *" create "* ]] || { [ -z "$ENDS" ] || echo READY >state; exit "${FAILS:-0}"; }
    [[ $* != *" scp "* ]] || { to=$HOME/${6#*:}; [ "$5" -ef "$to" ] || cp "$5" "$to"; exit; }
    [[ $* == *" ssh "* ]] || exit 0
    for last; do :; done
    for HOST in 7 8; do
        [[ $* == *--worker=0* && $HOST = 8 ]] || HOST=$HOST bash -c "${last#--command=}" || exit
    done\n""",
    "hostname": 'echo "10.0.0.$HOST 172.17.0.1"\n',
    "mountpoint": "exit 1\n",
    "pgrep": "exit 1\n",
    "lsb_release": "echo jammy\n",
    **dict.fromkeys(("pkill", "sudo", "python", "python3", "curl"), ""),
}


RECORD = recorded()
# An unpacked sdist has no commit for the hosts to install.
COMMIT = ("git", "-C", str(ROOT), "cat-file", "-e", "HEAD:./isojax/__init__.py")
HAS_COMMIT = not subprocess.run(COMMIT, stderr=subprocess.DEVNULL, check=False).returncode


class Stage:
    """A folder with stand-ins and my.yaml, in which templates are run."""

    def __init__(self, folder: Path):
        self.folder, bin = folder, folder / ".isojax/bin"
        bin.mkdir(parents=True)
        for name, script in STAND_INS.items():
            (bin / name).write_text(WRITE + script)
            (bin / name).chmod(0o755)
        shutil.copy(ROOT / "configs/quickstart.yaml", folder / "my.yaml")
        slurm = {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "node-[a-c]",
            "SLURM_JOB_NUM_NODES": "3",
            "SLURM_CPUS_PER_TASK": "8",
            "SLURM_NTASKS_PER_NODE": "8",
        }
        specific = {
            "PATH": f"{bin}:{os.environ['PATH']}",
            "HOME": str(folder),
            "ASKED": str(folder / "asked"),
            "HOST": "7",
            "RUNS": "/mnt/runs",
            "ISOJAX": "" if HAS_COMMIT else "isojax",
            "PYTHON": sys.executable,
        }
        self.environment = {
            **os.environ,
            **slurm,
            **specific,
            "LASTS": "",
            "FAILS": "",
            "ENDS": "",
            "POLL": "0",
            "STATE": "",
            "NODES": "0",
        }

    def start(
        self, template: str, *words: str, stdin: int = subprocess.DEVNULL, **environment: str
    ) -> subprocess.Popen[str]:
        pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = ["bash", str(LAUNCH / template), *words]
        if template == "slurm.sh":  # whose jobs write on this machine
            environment = {"RUNS": str(self.folder / "runs")} | environment
        return subprocess.Popen(
            command, cwd=self.folder, env={**self.environment, **environment}, text=True, **pipes
        )  # type: ignore[call-overload]

    def run(
        self,
        template: str,
        *words: str,
        code: int = 0,
        stdin: int = subprocess.DEVNULL,
        **environment: str,
    ) -> str:
        """What it prints, after it has ended with `code`; what it asked of the tools is what their
        flags allow."""
        process = self.start(template, *words, stdin=stdin, **environment)
        out, err = process.communicate(timeout=30)
        assert process.returncode == code, err
        for _, call in self.asked():
            if call[0] in TOOLS and call[1] not in ("answered", "ended", "up"):
                check_call(call, RECORD)
        return err + out

    def asked(self, *beginning: str) -> list[tuple[str, list[str]]]:
        """(host, words) of the commands so far whose words begin so."""
        path = self.folder / "asked"
        lines = path.read_text().split("\x1e")[:-1] if path.exists() else []
        result = [(host, words) for host, *words in (line.split("\x1f")[:-1] for line in lines)]
        return [
            (host, words) for host, words in result if tuple(words[: len(beginning)]) == beginning
        ]


@pytest.fixture
def stage(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Stage:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    (packs := tmp_path_factory.getbasetemp() / "packs").mkdir(exist_ok=True)
    monkeypatch.setenv("PACKS", str(packs))
    return Stage(tmp_path)


def test_slurm_makes_a_ray_cluster_in_the_allocation_and_ends_it(stage: Stage) -> None:
    stage.run("slurm.sh", "my.yaml", "sweep.seeds=2", NODES="2")
    everything = [words for _, words in stage.asked()]
    check, head, workers = [words for words in everything if words[0] == "srun"]
    assert check[1:4] == ["--nodes=3", "--ntasks=3", "--ntasks-per-node=1"]
    assert stage.asked("python") == [("7", ["python", "-c", "import isojax,jax,ray"])]
    ((_, driver),) = stage.asked("isojax", "launch")
    assert {"--nodes=1", "--ntasks=1", "--nodelist=node-a", "--cpus-per-task=64"} <= set(head)
    assert head[head.index("ray") :][:4] == ["ray", "start", "--head", "--block"]
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--exclude=node-a"} <= set(workers)
    assert workers[workers.index("ray") :] == ["ray", "start", "--block", "--address=10.0.0.7:6379"]
    assert (
        everything.index(head)
        < everything.index(["ray", "answered"])
        < min(everything.index(workers), everything.index(driver))
    )
    assert ["ray", "status", "--address", "10.0.0.7:6379"] in everything
    assert driver[driver.index("--ray") + 1] == "10.0.0.7:6379"
    config = check_command(driver)
    assert config is not None
    assert (config.sweep.seeds, config.run.mesh, config.run.process_group.gpus, config.run.dir) == (
        2,
        "fsdp=8",
        8,
        str(stage.folder / "runs"),
    )
    assert len(stage.asked("ray", "ended")) == 2
    tokens = {tuple(words[1:]) for _, words in stage.asked("token")}
    ((mode, secret),) = tokens  # the same for every process
    assert mode == "token" and len(secret) == 64


def test_slurms_signal_reaches_the_sweep_and_its_code_is_the_jobs(stage: Stage) -> None:
    process = stage.start("slurm.sh", "my.yaml", LASTS="1", NODES="2")
    deadline = time.monotonic() + 20
    while not stage.asked("isojax", "up") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert stage.asked("isojax", "up")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 143, err
    assert len(stage.asked("isojax", "ended")) == 1 and len(stage.asked("ray", "ended")) == 2
    stage.run("slurm.sh", "my.yaml", FAILS="2", code=2)


def test_slurm_starts_a_process_for_each_gpu_as_one_run(stage: Stage) -> None:
    stage.run("slurm.sh", "my.yaml", MODE="one", GPUS="4")
    (_, check), (_, step) = stage.asked("srun")
    assert check[-1] == "import isojax,jax"
    assert step[:2] == ["srun", "--ntasks-per-node=4"]
    ((_, one),) = stage.asked("isojax", "launch")
    assert one[3:6] == ["--resume", "--processes", "auto"]
    config = check_command(one)
    assert config is not None and config.run.mesh == "fsdp=-1"
    assert config.run.dir == str(stage.folder / "runs")
    assert not stage.asked("ray")


@pytest.mark.parametrize(
    ("words", "environment", "says"),
    [
        ([], {}, "given no config"),
        (["my.yaml"], {"MODE": "two"}, "given MODE=two, expected ray or one"),
        (
            ["my.yaml"],
            {"SLURM_JOB_ID": "", "PATH": "/usr/bin:/bin"},
            "neither a job nor sbatch",
        ),
        (["my.yaml"], {"SLURM_JOB_ID": "", "VENV": "/nowhere"}, "given VENV=/nowhere"),
        (["gone.yaml"], {}, "no such file or name"),
        (["gone.yaml"], {"SLURM_JOB_ID": ""}, "no such file or name"),
        (
            ["my.yaml"],
            {"VENV": "/nowhere"},
            "given VENV=/nowhere, expected an environment on every node",
        ),
    ],
)
def test_slurm_refuses_before_it_starts_anything(
    words: list[str], environment: dict[str, str], says: str, stage: Stage
) -> None:
    assert says in stage.run("slurm.sh", *words, code=2, **environment)
    assert not stage.asked("isojax", "launch") and not stage.asked("ray")
    assert not stage.asked("pip") and not stage.asked("sbatch")


def on_hosts(stage: Stage) -> list[tuple[str, list[str]]]:
    """The sweeps started on hosts; the check of the config on this machine is left out."""
    return [
        (host, words) for host, words in stage.asked("isojax", "launch") if "--dry-run" not in words
    ]


@pytest.mark.skipif(not HAS_COMMIT, reason="no git checkout")
def test_a_tpu_pod_is_made_installed_and_runs_one_command_on_every_host(stage: Stage) -> None:
    said = stage.run(
        "tpu_pod.sh", "run", "my.yaml", "sweep.seeds=2", "--yes", NFS="10.0.0.2:/runs", SPOT="1"
    )
    verbs = [words[4] for _, words in stage.asked("gcloud", "compute", "tpus", "tpu-vm")]
    # isojax, its installation, the share; the pack, its packages, the sweep
    assert verbs == ["describe", "create", "scp", "ssh", "ssh", "scp", "ssh", "ssh"]
    ((_, create),) = stage.asked("gcloud", "compute", "tpus", "tpu-vm", "create")
    assert create[5:] == [
        "isojax",
        "--version=v2-alpha-tpuv5-lite",
        "--zone=us-west4-a",
        "--accelerator-type=v5litepod-16",
        "--network=default",
        "--spot",
    ]
    installs = [
        (host, words[-1]) for host, words in stage.asked("python3", "-m", "uv", "pip", "install")
    ]
    assert installs == [
        (host, f"isojax[ray,tpu,verify] @ file://{stage.folder}/isojax.tar.gz") for host in "78"
    ]
    assert [
        host for host, _ in stage.asked("sudo", "mount", "-t", "nfs", "10.0.0.2:/runs", "/mnt/runs")
    ] == ["7", "8"]
    (first, line), (second, same) = on_hosts(stage)
    assert (first, second) == ("7", "8") and line == same and "--processes" in line
    config = check_command(line)
    assert config is not None and (config.sweep.seeds, config.run.mesh, config.run.dir) == (
        2,
        "fsdp=16",
        "/mnt/runs",
    )
    assert (
        "note: isojax in us-west4-a costs as long as it exists" in said
        and "launch/tpu_pod.sh down" in said
    )


def test_a_plan_prints_what_would_be_created_and_its_cost_and_checks_the_config(
    stage: Stage,
) -> None:
    said = stage.run(
        "tpu_pod.sh",
        "plan",
        "my.yaml",
        PRICE="1.20",
        SLICE="v5p:2x2x2",
        ZONE="us-east5-a",
        QUEUED="1",
    )
    for line in (
        r"slice +isojax in us-east5-a",
        r"type +v5p:2x2x2, 8 chips on 2 hosts \(v5p-16, software v2-alpha-tpuv5\)",
        r"terms +on demand; from the queue",
        r"cost +9.60 an hour, 230 a day",
        (
            "command +gcloud compute tpus queued-resources create isojax "
            ".*--runtime-version=v2-alpha-tpuv5 "
        ),
    ):
        assert re.search(line, said), said
    ((_, check),) = stage.asked("isojax", "launch")
    assert check[3:] == [
        "--dry-run",
        "--compile",
        "--topology",
        "v5p:2x2x2",
        "--mesh",
        "fsdp=8",
        "run.dir=/mnt/runs",
    ]
    assert check_command(check) is not None
    assert re.search(
        r"spot, .*; no queue\ncost +PRICE is not given", stage.run("tpu_pod.sh", "plan", SPOT="1")
    )
    assert not stage.asked("gcloud")


def test_nothing_is_created_without_a_yes(stage: Stage) -> None:
    assert "expected --yes" in stage.run("tpu_pod.sh", "run", "my.yaml", code=2, SLICE="v5e:2x4")
    assert "expected --yes" in stage.run("tpu_pod.sh", "join", HEAD="10.0.0.99", code=2)
    answers, terminal = os.openpty()
    os.write(answers, b"n\n")
    assert "nothing was changed" in stage.run(
        "tpu_pod.sh", "run", "my.yaml", code=1, stdin=terminal, SLICE="v5e:2x4"
    )
    assert not stage.asked("gcloud", "compute", "tpus", "tpu-vm", "create") and not on_hosts(stage)
    os.write(answers, b"y\n")
    stage.run("tpu_pod.sh", "run", "my.yaml", stdin=terminal, SLICE="v5e:2x4")
    assert stage.asked("gcloud", "compute", "tpus", "tpu-vm", "create") and on_hosts(stage)


def test_a_config_that_isojax_refuses_creates_nothing(stage: Stage) -> None:
    said = stage.run("tpu_pod.sh", "run", "my.yaml", "--yes", code=2, FAILS="2", SLICE="v5e:2x4")
    assert "isojax refuses this sweep" in said and "CHECK=0" in said and "note:" not in said
    assert not stage.asked("gcloud", "compute", "tpus", "tpu-vm", "create")
    (stage.folder / ".isojax/bin/isojax").unlink()
    # of a checkout without .venv
    copy = shutil.copytree(LAUNCH, stage.folder / "checkout/launch") / "tpu_pod.sh"
    path = f"{stage.folder}/.isojax/bin:/usr/bin:/bin"
    assert "no isojax on this machine" in stage.run(
        str(copy), "run", "my.yaml", "--yes", code=2, PATH=path, SLICE="v5e:2x4", ISOJAX="isojax"
    )


@pytest.mark.parametrize("verb", ["plan", "run", "ray"])
def test_a_template_that_is_in_no_checkout_says_what_to_set(verb: str, stage: Stage) -> None:
    """As `isojax template` writes it; nothing is created before it knows what the hosts install."""
    script = shutil.copytree(LAUNCH, stage.folder / "launch") / "tpu_pod.sh"
    said = stage.run(str(script), verb, "my.yaml", "--yes", code=2, NFS="10.0.0.2:/runs", ISOJAX="")
    assert (
        f"expected ISOJAX='isojax[ray,tpu,verify]=={__version__}', or the file of a wheel" in said
    )
    said = stage.run(
        str(script), verb, "my.yaml", "--yes", code=2, NFS="10.0.0.2:/runs", ISOJAX="isojax-1.whl"
    )
    assert "given ISOJAX=isojax-1.whl, and there is no such file" in said
    assert not stage.asked("gcloud") and not stage.asked("isojax")


def test_a_pod_installs_a_wheel(stage: Stage) -> None:
    script = shutil.copytree(LAUNCH, stage.folder / "launch") / "tpu_pod.sh"
    wheel = stage.folder / "dist/isojax-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    stage.run(str(script), "run", "my.yaml", STATE="READY", ISOJAX=f"dist/{wheel.name}")
    copies = [words[5:7] for _, words in stage.asked("gcloud", "compute", "tpus", "tpu-vm", "scp")]
    assert copies[0] == [f"dist/{wheel.name}", f"isojax:{wheel.name}"]
    installs = {words[-1] for _, words in stage.asked("python3", "-m", "uv", "pip", "install")}
    assert installs == {f"isojax[ray,tpu,verify] @ file://{stage.folder}/{wheel.name}"}


def test_a_slice_that_gcloud_refuses_leaves_no_reminder(stage: Stage) -> None:
    said = stage.run("tpu_pod.sh", "run", "my.yaml", "--yes", code=1, CHECK="0", FAILS="1")
    assert (
        "gcloud did not create isojax" in said
        and "tpu-vm list --zone=us-west4-a" in said
        and "note:" not in said
    )


def test_a_tpu_pod_that_is_there_becomes_a_ray_cluster(stage: Stage) -> None:
    said = stage.run("tpu_pod.sh", "ray", "my.yaml", STATE="READY", ISOJAX="isojax[ray,tpu]")
    assert not stage.asked("gcloud", "compute", "tpus", "tpu-vm", "create")
    assert {words[-1] for _, words in stage.asked("python3", "-m", "uv", "pip", "install")} >= {
        "isojax[ray,tpu]"
    }
    starts = [(host, words[2:]) for host, words in stage.asked("ray", "start")]
    assert starts == [
        ("7", ["--head", "--node-ip-address=10.0.0.7", "--port=6379"]),
        ("8", ["--address=10.0.0.7:6379"]),
    ]
    ((host, line),) = stage.asked("isojax", "launch")
    assert host == "7" and line[line.index("--ray") + 1] == "auto"
    config = check_command(line)
    assert config is not None and (config.run.mesh, config.run.process_group.tpu) == (
        "fsdp=16",
        "v5e:4x4",
    )
    assert "costs as long as it exists" in said
    token = stage.folder / ".ray/auth_token"  # it was made, and copied before Ray started
    assert len(token.read_text()) == 64 and token.stat().st_mode & 0o777 == 0o600
    everything = [words for _, words in stage.asked()]
    (copied,) = [words for words in stage.asked("gcloud") if "isojax:.ray/auth_token" in words[1]]
    assert str(token) in copied[1] and everything.index(copied[1]) < everything.index(
        ["ray", "start", *starts[0][1]]
    )
    assert {words[1] for _, words in stage.asked("token")} == {"token"}


def test_another_slice_joins(stage: Stage) -> None:
    stage.run("tpu_pod.sh", "join", STATE="READY", NAME="more", HEAD="10.0.0.99", ISOJAX="isojax")
    assert [(host, words[2:]) for host, words in stage.asked("ray", "start")] == [
        (host, ["--address=10.0.0.99:6379"]) for host in "78"
    ]


def test_a_slice_from_the_queue_is_stopped_and_deleted(stage: Stage) -> None:
    stage.run(
        "tpu_pod.sh", "run", "my.yaml", "--yes", QUEUED="1", ISOJAX="isojax", NFS="10.0.0.2:/runs"
    )
    ((_, create),) = stage.asked("gcloud", "compute", "tpus", "queued-resources", "create")
    assert {"--node-id=isojax", "--runtime-version=v2-alpha-tpuv5-lite"} <= set(create)
    assert len(on_hosts(stage)) == 2
    stage.run("tpu_pod.sh", "status", "my")
    assert stage.asked("isojax", "status") == [("7", ["isojax", "status", "/mnt/runs/my"])]
    assert "costs as long as it exists" in stage.run("tpu_pod.sh", "stop")
    assert [host for host, _ in stage.asked("ray", "stop")] == ["7", "8"]
    # before the sweep begins too, as one may be left of a connection that broke
    assert [host for host, _ in stage.asked("pkill", "-TERM")] == ["7", "8", "7", "8"]
    assert "expected --yes" in stage.run("tpu_pod.sh", "down", code=2)
    assert not stage.asked("gcloud", "compute", "tpus", "queued-resources", "delete")
    said = stage.run("tpu_pod.sh", "down", "--yes", NFS="10.0.0.2:/runs")
    assert stage.asked("gcloud")[-1][1][3:] == [
        "queued-resources",
        "delete",
        "isojax",
        "--zone=us-west4-a",
        "--force",
        "--quiet",
    ]
    assert "What stays, and goes on costing" in said and "10.0.0.2:/runs" in said


def test_down_deletes_what_is_there(stage: Stage) -> None:
    stage.run("tpu_pod.sh", "down", "--yes", STATE="PREEMPTED")
    assert stage.asked("gcloud")[-1][1][3:] == [
        "tpu-vm",
        "delete",
        "isojax",
        "--zone=us-west4-a",
        "--quiet",
    ]
    assert "nothing was deleted" in stage.run("tpu_pod.sh", "down", "--yes", code=1)


def until_done(stage: Stage, *words: str, code: int = 0, **environment: str) -> str:
    """`run my.yaml --until-done` with its runs on a share, with a yes, and a wheel's name to
    install."""
    settings = {"NFS": "10.0.0.2:/runs", "ISOJAX": "isojax"} | environment
    return stage.run(
        "tpu_pod.sh", "run", "my.yaml", "--until-done", "--yes", *words, code=code, **settings
    )


def slices(stage: Stage) -> list[str]:
    """What was done to slices: create and delete, in this order."""
    verbs = [words[4] for _, words in stage.asked("gcloud", "compute", "tpus", "tpu-vm")]
    return [verb for verb in verbs if verb in ("create", "delete")]


def test_a_sweep_goes_on_after_preemptions_until_it_is_done(stage: Stage) -> None:
    """Preempted twice: by a connection that breaks, and by another process that is lost."""
    said = until_done(stage, "--down", ENDS="255:PREEMPTED 75:PREEMPTED 0:READY")
    assert slices(stage) == ["create", "delete"] * 3
    launches = [words for host, words in on_hosts(stage) if host == "7"]
    assert len(launches) == 3
    for words in launches:
        config = check_command(words)
        assert config is not None and config.run.max_idle_starts == 3 and "--resume" in words
    assert len(stage.asked("isojax", "launch")) - len(on_hosts(stage)) == 1  # checked here once
    assert re.findall(r"exit code (\d+), the slice is (\w+): (.*)", said) == [
        ("255", "PREEMPTED", "going on"),
        ("75", "PREEMPTED", "going on"),
        ("0", "READY", "the sweep is done"),
    ]
    assert "costs as long as it exists" not in said


def test_the_slice_stays_where_only_the_sweep_ended(stage: Stage) -> None:
    """By a signal, the time limit, or a connection that broke; and without --down at the end."""
    said = until_done(stage, ENDS="143:READY 255:READY 137:READY 0:READY")
    assert slices(stage) == ["create"]
    assert len([host for host, _ in on_hosts(stage) if host == "7"]) == 4
    assert said.count("costs as long as it exists") == 1


@pytest.mark.parametrize(
    ("ends", "code", "says"), [("1:READY", 1, "failed"), ("2:READY", 2, "refused")]
)
def test_what_would_fail_again_is_not_tried_again(
    ends: str, code: int, says: str, stage: Stage
) -> None:
    said = until_done(stage, "--down", code=code, ENDS=f"{ends} 0:READY")
    assert slices(stage) == ["create", "delete"] and len(on_hosts(stage)) == 1
    assert f"exit code {code}, the slice is READY: {says}, for the reason above" in said


def test_a_failure_on_a_slice_that_is_preempted_is_no_failure(stage: Stage) -> None:
    until_done(stage, ENDS="1:PREEMPTED 0:READY")
    assert slices(stage) == ["create", "delete", "create"]


def test_a_config_that_is_refused_here_creates_nothing_until_done_either(stage: Stage) -> None:
    until_done(stage, code=2, FAILS="2", ENDS="0:READY")
    assert not slices(stage) and not on_hosts(stage)


def test_attempts_that_get_no_slice_have_an_end(stage: Stage) -> None:
    said = until_done(stage, code=1, FAILS="1", CHECK="0")
    assert slices(stage) == ["create"] * 3 and not on_hosts(stage)
    assert "no slice could be prepared in 3 attempts" in said


def test_stop_ends_the_attempts_too_and_keeps_the_slice(stage: Stage) -> None:
    said = until_done(stage, "--down", code=143, ENDS="143:stopped 0:READY")
    assert slices(stage) == ["create"] and "ended by:" in said
    # the mark of the one does not end the next
    until_done(stage, ENDS="143:READY 0:READY")
    stage.run("tpu_pod.sh", "stop")
    assert (stage.folder / ".isojax/stopped").exists()


def test_ray_goes_on_too(stage: Stage) -> None:
    stage.run(
        "tpu_pod.sh",
        "ray",
        "my.yaml",
        "--until-done",
        "--down",
        "--yes",
        NFS="10.0.0.2:/runs",
        ISOJAX="isojax",
        ENDS="143:PREEMPTED 0:READY",
    )
    assert slices(stage) == ["create", "delete"] * 2
    heads = [words for _, words in stage.asked("ray", "start") if "--head" in words]
    assert len(heads) == 2 and len(on_hosts(stage)) == 2


def test_what_is_said_of_a_new_slice_reaches_gcloud(stage: Stage) -> None:
    given = {
        "SERVICE_ACCOUNT": "runs@project.iam.gserviceaccount.com",
        "SCOPES": "cloud-platform",
        "RESERVED": "1",
        "FLAGS": "--internal-ips --labels=team=rl",
    }
    flags = {
        "--service-account=runs@project.iam.gserviceaccount.com",
        "--scopes=cloud-platform",
        "--reserved",
        "--internal-ips",
        "--labels=team=rl",
    }
    small = {"SLICE": "v5e:2x4", "ISOJAX": "isojax"}
    stage.run("tpu_pod.sh", "run", "my.yaml", "--yes", **given, **small)
    ((_, create),) = stage.asked("gcloud", "compute", "tpus", "tpu-vm", "create")
    assert flags <= set(create)

    queued = {"QUEUED": "1", "VALID_FOR": "6h"}
    stage.run("tpu_pod.sh", "run", "my.yaml", "--yes", **given, **small, **queued)
    ((_, create),) = stage.asked("gcloud", "compute", "tpus", "queued-resources", "create")
    assert {*flags, "--valid-until-duration=6h"} <= set(create)


def test_a_bucket_is_mounted_on_every_host_and_keeps_compiled_programs(stage: Stage) -> None:
    stage.run("tpu_pod.sh", "run", "my.yaml", "--yes", BUCKET="mine", RUNS="", ISOJAX="isojax")
    mounts = stage.asked("sudo", "gcsfuse")
    assert [(host, words[-2:]) for host, words in mounts] == [
        (host, ["mine", "/mnt/runs"]) for host in "78"
    ]
    assert len(on_hosts(stage)) == 2
    for host, words in on_hosts(stage):
        config = check_command(words)
        assert config is not None and config.run.dir == "/mnt/runs"
        assert (host, ["cache", "/mnt/runs/.xla"]) in stage.asked("cache")


@pytest.mark.skipif(not HAS_COMMIT, reason="no git checkout")
def test_a_bucket_without_a_mount_is_passed_on(stage: Stage) -> None:
    stage.run("tpu_pod.sh", "run", "my.yaml", "--yes", RUNS="gs://mine/runs")
    assert not stage.asked("sudo")
    assert len(on_hosts(stage)) == 2
    for host, words in on_hosts(stage):
        config = check_command(words)
        assert config is not None and config.run.dir == "gs://mine/runs"
        assert (host, ["cache", "gs://mine/runs/.xla"]) in stage.asked("cache")
    installs = [words[-1] for _, words in stage.asked("python3", "-m", "uv", "pip", "install")]
    assert all(text.startswith("isojax[ray,tpu,verify,gcs] @") for text in installs)


def test_the_script_counts_hosts_as_isojax_does(stage: Stage) -> None:
    for topology in ("v4:2x2x1", "v4:2x2x2", "v5e:2x4", "v5e:4x4", "v5p:2x2x2", "v6e:4x8"):
        said = stage.run("tpu_pod.sh", "plan", SLICE=topology)
        match = re.search(r"chips on (\d+) hosts? ", said)
        assert match and int(match[1]) == num_hosts(topology), topology


@pytest.mark.parametrize(
    ("words", "environment", "code", "says"),
    [
        ([], {}, 2, "launch/tpu_pod.sh run my.yaml"),
        (["run"], {}, 2, "launch/tpu_pod.sh run my.yaml"),
        (["--help"], {}, 0, "launch/tpu_pod.sh run my.yaml"),
        (["join"], {}, 2, "given no HEAD"),
        (["plan"], {"SLICE": "v5litepod-16"}, 2, "given SLICE=v5litepod-16, expected"),
        (["plan"], {"SLICE": "v5e:16"}, 2, "expected a shape such as 4x4"),
        (["plan"], {"PRICE": "cheap"}, 2, "given PRICE=cheap, expected a number"),
        (["plan"], {"SPOT": "no"}, 2, "SPOT=no"),
        (["plan"], {"VALID_FOR": "6h"}, 2, "given VALID_FOR=6h without QUEUED=1"),
        (["plan"], {"NFS": "10.0.0.2:/runs", "BUCKET": "mine"}, 2, "expected one of them"),
        (["run", "my.yaml", "--yes"], {}, 2, "given no NFS, and v5e:4x4 has several hosts"),
        (
            ["run", "my.yaml", "--yes"],
            {"SLICE": "v5p:2x2x2"},
            2,
            "given no NFS, and v5p:2x2x2 has several hosts",
        ),
        (["run", "my.yaml", "--down"], {}, 2, "given --down without --until-done"),
        (
            ["run", "my.yaml", "--until-done"],
            {"SLICE": "v5e:2x4"},
            2,
            "given --until-done without NFS or BUCKET",
        ),
        (["status", "my", "--until-done"], {}, 2, "launch/tpu_pod.sh run my.yaml"),
        (["run", "my.yaml"], {"STATE": "PREEMPTED"}, 1, "down"),
    ],
)
def test_what_a_pod_cannot_do_is_said(
    words: list[str], environment: dict[str, str], code: int, says: str, stage: Stage
) -> None:
    assert says in stage.run("tpu_pod.sh", *words, code=code, **environment)
    assert not stage.asked("isojax", "launch")


@pytest.mark.parametrize(
    "page",
    ["docs/clusters.md", "docs/tutorials/tpu-pod.md", "launch/tpu_pod.sh", "launch/slurm.sh"],
)
def test_the_commands_of_a_page_run(page: str, stage: Stage) -> None:
    """As they are written, with a yes, on a slice that is there; a job is submitted by slurm.sh
    itself, or by sbatch."""
    mine = re.search(r"```yaml\n(name: mine\n.*?)```", (ROOT / page).read_text(), re.S)
    if mine:  # it names files that the hosts have
        (stage.folder / "mine.yaml").write_text(mine[1])
    lines = re.findall(
        r"(?:^|[ `])((?:[A-Z]+=[\w.:/-]+ )*)(sbatch )?launch/(\w+\.sh)((?: [a-z][\w./-]*)+)",
        (ROOT / page).read_text().replace("sbatch\n", "sbatch "),
        re.M,
    )
    assert len(lines) >= 2
    for settings, sbatch, template, words in lines:
        environment = dict(setting.split("=") for setting in settings.split())
        if template == "slurm.sh" and not sbatch:
            environment["SLURM_JOB_ID"] = ""
        nodes = "0" if environment.get("MODE") == "one" else "2"
        yes = ["--yes"] if template == "tpu_pod.sh" else []
        (stage.folder / "asked").unlink(missing_ok=True)
        stage.run(
            template,
            *words.split(),
            *yes,
            **{"NODES": nodes if template == "slurm.sh" else "0", "STATE": "READY"} | environment,
        )
    if page == "docs/clusters.md":
        (plan,) = re.findall(r" +(slice  .*?) +```", (ROOT / page).read_text(), re.S)
        said = stage.run("tpu_pod.sh", "plan", PRICE="1.20", SLICE="v5e:4x4", ZONE="us-west4-a")
        assert said.startswith(re.sub(r"\n +", "\n", plan))
