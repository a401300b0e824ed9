"""The files in launch/ are what their systems accept, a mistake in one is found, and the commands
in them are isojax's.
"""

from __future__ import annotations

import re
import shutil
from contextlib import chdir
from math import prod
from pathlib import Path

import jsonschema
import pytest
import yaml

from isojax.cli.options import read_config
from isojax.distributed.mesh_spec import parse_mesh
from isojax.launch.packing.pack_file import write_pack
from isojax.launch.packing.pack_plan import plan_pack
from isojax.launch.tpu_hosts import num_hosts
from tests.launch.templates import (
    GKE_ACCELERATOR,
    GKE_TPUS,
    LAUNCH,
    ROOT,
    check_command,
    check_dockerfile,
    check_kubernetes,
    check_ray_cluster,
    check_shell,
    commands,
)

CHECKS = {
    "Dockerfile": check_dockerfile,
    "tpu_pod.sh": check_shell,
    "slurm.sh": check_shell,
    "gke_kuberay.yaml": check_kubernetes,
    "ray_cluster.yaml": check_ray_cluster,
}
MISTAKES = {
    "an unquoted variable": (
        "tpu_pod.sh",
        '"run.process_group.tpu=$SLICE"',
        "run.process_group.tpu=$SLICE",
        "SC2086",
    ),
    "a variable that is not there": ("slurm.sh", "$SLURM_JOB_NODELIST", "$nodelist", "SC2154"),
    "a quote that is not closed": ("slurm.sh", 'one "$@" ;;', 'one "$@ ;;', "SC1073|SC1009|SC1078"),
    "a key of Ray's": ("ray_cluster.yaml", "file_mounts:", "file_mount:", "file_mount"),
    "a key of a node type": ("ray_cluster.yaml", "min_workers: 2", "minworkers: 2", "minworkers"),
    "a type of Ray's": (
        "ray_cluster.yaml",
        "max_workers: 8\n\nprovider",
        "max_workers: eight\n\nprovider",
        "eight",
    ),
    "a head that is not there": (
        "ray_cluster.yaml",
        "head_node_type: head",
        "head_node_type: heads",
        "head_node_type",
    ),
    "more workers than allowed": (
        "ray_cluster.yaml",
        "min_workers: 2",
        "min_workers: 9",
        "max_workers",
    ),
    "a key of a TPU": ("ray_cluster.yaml", "runtimeVersion", "runtime_version", "runtime_version"),
    "a slice that is none": ("ray_cluster.yaml", "topology: 2x4", "topology: 3x4", "3x4"),
    "another slice's chips": ("ray_cluster.yaml", '"TPU": 8', '"TPU": 4', "2x4"),
    "a key of KubeRay's": ("gke_kuberay.yaml", "numOfHosts: 4", "numHosts: 4", "numHosts"),
    "a number that must be text": (
        "gke_kuberay.yaml",
        'num-cpus: "0"',
        "num-cpus: 0",
        "not of type 'string'",
    ),
    "a group without a name": (
        "gke_kuberay.yaml",
        "- groupName: tpu-v5e\n        replicas",
        "- replicas",
        "groupName",
    ),
    "a key of a pod": ("gke_kuberay.yaml", "nodeSelector:", "nodeSelectors:", "nodeSelectors"),
    "a key of a container": ("gke_kuberay.yaml", "containerPort: 6379", "port: 6379", "port"),
    "a key of a claim": ("gke_kuberay.yaml", "storageClassName", "storageClass", "storageClass"),
    "a volume that is not there": (
        "gke_kuberay.yaml",
        "- name: sweep\n              configMap",
        "- name: sweeps\n              configMap",
        "sweep",
    ),
    "another Ray in the cluster": (
        "gke_kuberay.yaml",
        'rayVersion: "2',
        'rayVersion: "1',
        "rayVersion 1",
    ),
    "another Ray in the image": (
        "Dockerfile",
        "FROM rayproject/ray:2",
        "FROM rayproject/ray:1",
        "not an image of Ray",
    ),
    "another Ray on the machines": (
        "ray_cluster.yaml",
        "ray[default]==2",
        "ray[default]==1",
        "not the version of Ray",
    ),
    "a wheel that nobody builds": (
        "Dockerfile",
        "dist/isojax-0",
        "dist/isojax-1",
        "where `make dist` builds",
    ),
    "a wheel of another folder": (
        "ray_cluster.yaml",
        ": dist/isojax",
        ": isojax",
        "where `make dist` builds",
    ),
    "hosts that are too few": (
        "gke_kuberay.yaml",
        "numOfHosts: 4",
        "numOfHosts: 2",
        "no slice of 4x4",
    ),
}


def test_every_template_is_checked() -> None:
    assert {path.name for path in LAUNCH.iterdir()} == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_its_system_accepts_it(name: str) -> None:
    CHECKS[name]((LAUNCH / name).read_text())


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str) -> None:
    name, right, wrong, says = MISTAKES[mistake]
    text = (LAUNCH / name).read_text()
    assert right in text
    with pytest.raises((ValueError, jsonschema.ValidationError), match=says):
        CHECKS[name](text.replace(right, wrong))


@pytest.mark.parametrize(
    "path", [*LAUNCH.glob("*.yaml"), ROOT / "docs/clusters.md"], ids=lambda p: p.name
)  # of shells: as they are run
def test_its_commands_are_isojaxs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ROOT / "configs/quickstart.yaml", tmp_path / "my.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = path.read_text().replace("/etc/isojax/", "").replace("/runs/sweep.pack", "sweep.pack")
    if path.name == "gke_kuberay.yaml":
        Path("sweep.yaml").write_text(next(yaml.safe_load_all(text))["data"]["sweep.yaml"])
    for name in ("my", "sweep"):
        with chdir("."):
            write_pack(plan_pack(read_config(["my.yaml"], None, None)), Path(f"{name}.pack.tgz"))
    result = commands(text)
    assert result
    for words in result:
        check_command(words)


@pytest.mark.parametrize("wrong", ["--mesch fsdp=4", "run.groups.tpu=v5e:4x4", "yours.yaml"])
def test_a_wrong_command_is_found(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ROOT / "configs/quickstart.yaml", tmp_path / "my.yaml")
    monkeypatch.chdir(tmp_path)
    (words,) = commands(f"  isojax launch my.yaml {wrong}   # what it does")
    # typer keeps its usage errors to itself
    with pytest.raises(Exception, match=re.split("[ =]", wrong)[0]):
        check_command(words)


@pytest.mark.parametrize("kind", ["v5e", "v6e"])
@pytest.mark.parametrize("topology", ["4x4", "4x8"])
def test_gkes_sweep_for_either_generation_is_one_of_its_groups(
    kind: str, topology: str, tmp_path: Path
) -> None:
    """Edited in the lines that are marked, for slices of v5e or v6e, of 16 chips or of 32."""
    chips = prod(map(int, topology.split("x")))
    replacements = {
        "v5e:4x4": f"{kind}:{topology}",
        "fsdp=16": f"fsdp={chips}",
        "gke-tpu-topology: 4x4": f"gke-tpu-topology: {topology}",
        "numOfHosts: 4": f"numOfHosts: {num_hosts(f'{kind}:{topology}')}",
    }
    lines = (LAUNCH / "gke_kuberay.yaml").read_text().splitlines()
    for old, new in replacements.items():
        lines = [line.replace(old, new) if "# edit" in line else line for line in lines]
    text = "\n".join(lines)
    check_kubernetes(text)

    sweep, _, _, job = yaml.safe_load_all(text)
    (tmp_path / "sweep.yaml").write_text(sweep["data"]["sweep.yaml"])
    config = check_command(["isojax", "launch", "quickstart", str(tmp_path / "sweep.yaml")])
    assert config is not None and config.run.process_group.tpu == f"{kind}:{topology}"
    assert parse_mesh(config.run.mesh, chips).devices == chips

    groups = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (group,) = (group for group in groups if group["groupName"] == f"tpu-{kind}")
    pod = group["template"]["spec"]
    assert GKE_TPUS[pod["nodeSelector"][GKE_ACCELERATOR]] == kind
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == topology
    # which runs of several slices read, too
    (variable,) = pod["containers"][0]["env"]
    assert variable["name"] == "JAX_COMPILATION_CACHE_DIR"
    assert variable["value"].startswith(config.run.dir)


@pytest.mark.parametrize("name", CHECKS)
def test_it_begins_with_what_it_is_how_it_starts_and_how_it_ends(name: str) -> None:
    head = re.match(r"(?:#.*\n)+", (LAUNCH / name).read_text())
    assert head
    assert re.search(rf"#   .*launch/{re.escape(name)}", head[0])  # the command that starts it
    assert re.search(r"#   .*(scancel|delete| down)", head[0])


@pytest.mark.parametrize("name", CHECKS)
def test_what_is_to_be_filled_in_is_marked(name: str) -> None:
    """Values in capitals, such as PROJECT, stand only in lines that say `edit`; nobody's account
    anywhere."""
    text = (LAUNCH / name).read_text()
    assert not re.search(r"OWNER|github\.com/(?!google)", text)
    if name.endswith(".yaml"):
        values = [
            line for line in text.splitlines() if not line.startswith("#") and "# edit" not in line
        ]
        assert not [
            line for line in values if re.search(r"\b(PROJECT|REGION|ZONE|IMAGE|NAME)\b", line)
        ]
