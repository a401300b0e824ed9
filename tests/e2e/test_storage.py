"""A sweep at a URL (file://, which processes share as they do a bucket): the same ledgers, also
where the machine is lost in mid-run.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from isojax.runs import storage
from isojax.runs.storage import RemoteFolder
from tests.e2e.test_resume import HALF_DONE, LINES

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

CELLS = "cells/*/records.jsonl"


def ledgers(folder: Path) -> dict[str, bytes]:
    return {p.parent.name: p.read_bytes() for p in sorted(folder.glob(CELLS))}


def test_a_killed_sweep_goes_on_on_another_machine(isojax: Any, whole: Any) -> None:
    """Killed with half a cell recorded, its scratch folder lost. All is read at the URL: nothing of
    the sweep stays on the machine.
    """
    bucket, cache = isojax.folder.parent / "bucket", isojax.folder.parent / "cache"
    url, sweep = f"file://{bucket}", bucket / "tiny"
    words = ("isojax.launch", "tiny.yaml", f"run.dir={url}", "--resume", "run.checkpoint_seconds=0")
    process = isojax.fork(*words, XDG_CACHE_HOME=str(cache))
    last = time.monotonic() + 200
    ledger = sweep / "cells" / HALF_DONE / "records.jsonl"
    states = sweep / "cells" / HALF_DONE / "checkpoint"
    try:
        while not (
            ledger.exists()
            and ledger.read_bytes().count(b"\n") >= LINES
            and list(states.glob("*.whole"))
        ):
            assert process.poll() is None and time.monotonic() < last, process.communicate()
            time.sleep(0.002)
    finally:
        process.kill()
        process.communicate()
    half = ledger.read_bytes()
    assert half.count(b"\n") < 13, "the cell was finished before the kill"
    assert list(cache.rglob("records.jsonl"))
    shutil.rmtree(cache)

    cache = isojax.folder.parent / "another"
    done = isojax.swept(*words, fit=True, XDG_CACHE_HOME=str(cache))
    assert "run 8x2-s0: done before" in done.stderr and done.stderr.count("done before") == 1
    assert (
        f"report: {url}/tiny/report.html" in done.stdout
        and str(cache) not in done.stdout + done.stderr
    )
    assert ledgers(sweep) == whole.ledgers() and ledgers(sweep)[HALF_DONE].startswith(half)
    assert (sweep / "fit.json").read_bytes() == (whole.run() / "fit.json").read_bytes()
    for pattern in ("cells/*/samples.txt", "cells/*/health.json", "base/*"):
        for path in whole.run().glob(pattern):
            assert (sweep / path.relative_to(whole.run())).read_bytes() == path.read_bytes(), path
    assert (
        url in (sweep / "config.yaml").read_text()
        and not list(cache.rglob("records.jsonl"))
        and not (sweep / ".lock").exists()
    )
    assert not (isojax.folder / "runs").exists() and not (isojax.folder / "file:").exists()

    (sweep / "fit.json").unlink()
    report = json.loads(
        isojax.quick_ok("recommend", f"{url}/tiny", "--budget", "2000", "--json").stdout
    )
    assert (
        report["B_p"] == 8
        and (sweep / "fit.json").read_bytes() == (whole.run() / "fit.json").read_bytes()
    )
    isojax.quick_ok("compare", f"{url}/tiny", f"{url}/tiny/fit.json", "--labels", "a,b", "--json")
    shutil.rmtree(
        sweep / "cells" / HALF_DONE / "checkpoint"
    )  # which somebody does to save space: the cell has been recorded
    done = isojax.swept(
        "isojax.launch", f"{url}/tiny/config.yaml", "--resume", XDG_CACHE_HOME=str(cache)
    )
    assert done.stderr.count("done before") == 4


def test_what_is_refused(isojax: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(storage, "RENEW_SECONDS", 0.5)
    url = f"file://{isojax.folder}/bucket"
    with storage.Lease(RemoteFolder(f"{url}/tiny")):
        done = isojax.quick("isojax.launch", "tiny.yaml", f"run.dir={url}")
    assert (
        done.returncode == 2
        and f"being written by process {os.getpid()}" in done.stderr.splitlines()[-1]
    )
    (isojax.folder / "file").write_text("in the way")
    location = f"file://{isojax.folder}/file/runs"
    isojax.refused(
        "isojax.launch",
        "tiny.yaml",
        f"run.dir={location}",
        saying=[f"{location}/tiny", "give another run.dir"],
    )
    isojax.refused(
        "isojax.launch",
        "tiny.yaml",
        "run.dir=nothing://b",
        saying=["nothing://b/tiny", "Protocol not known"],
    )
    isojax.refused("lr-search", "tiny.yaml", "run.dir=memory://b", saying=["expected a folder"])
    isojax.refused("fit", f"file://{isojax.folder}/nothing", saying=["file://"])
