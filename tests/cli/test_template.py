"""`isojax template` writes the files of launch/, and overwrites nothing."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cli.conftest import Isojax
from tests.launch.templates import LAUNCH


def test_it_lists_what_there_is(isojax: Isojax) -> None:
    code, out, err = isojax("template")
    assert (code, err) == (0, "")
    names = [line.split()[0] for line in out.splitlines()]
    assert names == sorted(path.name for path in LAUNCH.iterdir())
    assert "tpu_pod.sh        Creates a Cloud TPU slice by gcloud" in out


def test_each_is_written_where_the_docs_call_it(isojax: Isojax) -> None:
    for template in LAUNCH.iterdir():
        path = Path("launch", template.name)
        assert isojax("template", template.name) == (0, f"{path}\n", "")
        assert path.read_bytes() == template.read_bytes()
        assert os.access(path, os.X_OK) == (path.suffix == ".sh") == os.access(template, os.X_OK)


def test_a_file_that_is_there_is_kept(isojax: Isojax) -> None:
    Path("launch").mkdir()
    Path("launch/slurm.sh").write_text("mine")
    code, out, err = isojax("template", "slurm.sh")
    assert (code, out) == (2, "") and "error: launch/slurm.sh: exists already and is kept" in err
    assert Path("launch/slurm.sh").read_text() == "mine"


def test_what_cannot_be_written_is_refused(isojax: Isojax) -> None:
    for name in ("tpu.sh", "../launch/slurm.sh", ""):
        code, _, err = isojax("template", name)
        assert (
            code == 2 and f"error: given the template {name!r}; expected one of Dockerfile, " in err
        )
    Path("launch").touch()
    code, _, err = isojax("template", "slurm.sh")
    assert code == 2 and "error: launch/slurm.sh: cannot be written" in err
