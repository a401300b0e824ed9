"""Every call of gcloud, kubectl, Ray and SLURM in launch/ and docs/ has a verb and flags that these
tools have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launch.command_flags import calls, check_call, recorded
from tests.launch.record_flags import SOURCES, gcloud_flags, help_flags
from tests.launch.templates import LAUNCH

RECORD = recorded()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_call_has_a_verb_and_flags_of_its_tool(path: Path) -> None:
    for call in calls(path.read_text()):
        check_call(call, RECORD)


@pytest.mark.parametrize(
    ("template", "right", "wrong", "says"),
    [
        (
            "tpu_pod.sh",
            '"--version=$VERSION"',
            '"--runtime-version=$VERSION"',
            "create has no --runtime-version",
        ),
        (
            "tpu_pod.sh",
            '"--runtime-version=$VERSION"',
            '"--version=$VERSION"',
            "create has no --version",
        ),
        ("tpu_pod.sh", '"--version=$VERSION" ', "", "create needs --version"),
        ("tpu_pod.sh", "options+=(--spot)", "options+=(--spots)", "create has no --spots"),
        ("tpu_pod.sh", "options+=(--spot)", "options+=(--spot=1)", "--spot of .* takes no value"),
        ("tpu_pod.sh", '--worker="$1" ', "--worker ", "--worker of .* ssh takes a value"),
        ("tpu_pod.sh", "tpu-vm scp", "tpu-vm copy", "a wrong verb"),
        ("tpu_pod.sh", "ray start --address", "ray start --addres", "start has no --addres"),
        (
            "slurm.sh",
            "#SBATCH --gpus-per-node=8",
            "#SBATCH --gpus-a-node=8",
            "sbatch has no --gpus-a-node",
        ),
        ("slurm.sh", "--nodelist=", "--node-list=", "srun has no --node-list"),
        (
            "slurm.sh",
            "each=(--ntasks-per-node",
            "each=(--tasks-a-node",
            "srun has no --tasks-a-node",
        ),
        (
            "slurm.sh",
            "ray start --head --block",
            "ray start --heads --block",
            "ray start has no --heads",
        ),
        (
            "gke_kuberay.yaml",
            "--enable-autoscaling",
            "--autoscaling",
            "node-pools create has no --autoscaling",
        ),
        ("gke_kuberay.yaml", "exec -it POD", "exec -iz POD", "kubectl exec has no -z"),
        ("ray_cluster.yaml", "ray exec --tmux", "ray exec -q", "ray exec has no -q"),
    ],
)
def test_a_wrong_call_is_found(template: str, right: str, wrong: str, says: str) -> None:
    text = (LAUNCH / template).read_text()
    assert right in text
    with pytest.raises(ValueError, match=says):
        for call in calls(text.replace(right, wrong)):
            check_call(call, RECORD)


def test_every_tool_was_recorded_by_its_own_help() -> None:
    assert set(RECORD["versions"]) == {
        call[0] for path in SOURCES for call in calls(path.read_text())
    }
    assert all(re.search(r"\d+\.\d+", version) for version in RECORD["versions"].values())


def test_flags_are_read_from_each_kind_of_help() -> None:
    synopsis = (
        "x create (TPU : --zone=ZONE) --version=VERSION [--spot] [--labels=[KEY=VALUE,...]] (--a=A "
        "| --b=B --c)"
    )
    assert gcloud_flags(synopsis) == (
        ["--a=", "--b=", "--c", "--labels=", "--spot", "--version=", "--zone="],
        ["--version"],
    )
    kubectl = "    -f, --filename=[]:\n\tFiles.\n    --all=false:\n\tAll --of=them.\n"
    assert help_flags(kubectl) == ["--all?", "--filename=", "-f="]
    ray = (
        "  -y, --yes                Do not ask.\n  --address TEXT           Where.\n  --port "
        "INTEGER\n"
    )
    assert help_flags(ray) == ["--address=", "--port=", "--yes", "-y"]
    slurm = (
        "  -N, --nodes=N    number\n      --exclusive[=user]   alone\n      --requeue    again\n"
    )
    assert help_flags(slurm) == ["--exclusive?", "--nodes=", "--requeue", "-N="]
