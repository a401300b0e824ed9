"""Every picture, table and notebook of README and docs that comes from runs, made again by today's
code:

    python benchmarks/docs_figures.py             some four minutes of one core

These are README's frontier, docs/bandit.png, the tables of docs/reproduction.md and
docs/quickstart.md, and the outputs of docs/notebooks. They come from the runs in
isojax/runs/study.parquet, which `make reproduce` trains. A picture's metadata (`Commit`) and a
notebook's (`isojax`) name the commit that drew it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from reproduce import ROOT, git_commit, updated_pages

import isojax
from isojax.core.atomic_files import write_text

DOCS = ROOT / "docs"
README_B_P = 32  # whose cells README's picture shows


def main() -> None:
    """Draw and execute all."""
    commit = git_commit()
    runs = [run for run in isojax.load_study()["small_easy"] if run.cell.B_p == README_B_P]
    figure = isojax.fit(runs).plot("frontier")
    figure.savefig(DOCS / "frontier.png", metadata={"Commit": commit})

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "bandit")
        subprocess.run(
            [sys.executable, ROOT / "benchmarks" / "bandit.py", "--out", out], check=True
        )
        (DOCS / "bandit.png").write_bytes((out / "bandit.png").read_bytes())

    # first_tpu.ipynb trains, on whatever machine its reader has: it is committed without outputs.
    for name in ("chart", "study"):
        path = DOCS / "notebooks" / f"{name}.ipynb"
        print(f"notebook {path.name}", file=sys.stderr, flush=True)
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(
            notebook, record_timing=False, resources={"metadata": {"path": path.parent}}
        ).execute()
        notebook.metadata["isojax"] = {"commit": commit}
        nbformat.write(notebook, path)

    for path, page in updated_pages().items():
        write_text(path, page)


if __name__ == "__main__":
    main()
