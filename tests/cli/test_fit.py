"""`isojax fit`: what is written is what is printed, and a ledger that is torn or broken is
named."""

from __future__ import annotations

import json
from pathlib import Path

from isojax.runs.ledger import RECORDS_FILE
from tests.cli.conftest import Isojax, error_of, write_sweep


def test_fit_writes_what_it_prints_and_json_is_all_of_standard_output(
    isojax: Isojax, tmp_path: Path
) -> None:
    folder = write_sweep(tmp_path / "runs" / "known")
    code, out, err = isojax("fit", str(folder), "--json", "--replicates", "100")
    assert code == 0 and err == ""
    document = json.loads(out)
    assert {"curves", "joint", "by_B_p", "flags"} <= set(document)
    assert {"frontier", "crossovers", "n_star"} <= set(document["joint"])
    assert {"B_p", "n", "R0", "A", "exponent", "C_mid"} <= set(document["curves"][0])
    assert document["compute"] == "rollouts" and document["metric"] == "avg@4"
    assert json.loads((folder / "fit.json").read_text()) == document
    leaders = [point["n"] for point in document["joint"]["frontier"]]
    assert leaders == sorted(leaders) and len(set(leaders)) >= 3  # the world's n* rises
    first = (folder / "fit.json").read_bytes()
    code, out, _ = isojax("fit", str(folder), "--replicates", "100")
    assert code == 0 and "frontier" in out and "n*(C)" in out
    assert (folder / "fit.json").read_bytes() == first


def test_fit_of_cells_writes_nothing(isojax: Isojax, known: Path) -> None:
    cells = sorted((known / "cells").iterdir())
    before = sorted(known.rglob("*"))
    assert isojax("fit", *map(str, cells), "--json")[0] == 0
    assert sorted(known.rglob("*")) == before


def test_fit_refuses_an_unknown_metric_and_warns_of_a_torn_line(
    isojax: Isojax, tmp_path: Path
) -> None:
    folder = write_sweep(tmp_path / "runs" / "known")
    assert "avg@9" in error_of(isojax("fit", str(folder), "--metric", "avg@9"))
    assert not (folder / "fit.json").exists()
    path = folder / "cells" / "16x4-s0" / RECORDS_FILE
    path.write_bytes(path.read_bytes()[:-9])
    code, out, err = isojax("fit", str(folder), "--json")
    assert code == 0 and json.loads(out)
    assert err.startswith("warning: ") and "16x4-s0" in err and "torn" in err
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"{broken\n", *lines[2:]]))
    before = (folder / "fit.json").read_bytes()
    assert "line 2: broken" in error_of(isojax("fit", str(folder)))
    assert (folder / "fit.json").read_bytes() == before


def test_a_fit_made_again_answers_the_same_question(isojax: Isojax, tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "runs" / "known")
    assert (
        isojax("fit", str(folder), "--run-sd", "0.03", "--replicates", "7", "--seed", "5")[0] == 0
    )
    path = folder / "cells" / "16x4-s0" / RECORDS_FILE
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    code, _, err = isojax("recommend", str(folder), "--budget", "1e5")
    made = json.loads((folder / "fit.json").read_text())["intervals"]
    assert code == 0 and "is made again" in err
    assert (made["run_sd"], made["run_sd_source"], made["replicates"], made["seed"]) == (
        0.03,
        "as stated",
        7,
        5,
    )


def test_a_fit_of_fewer_replicates_keeps_the_better_one(isojax: Isojax, tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "runs" / "known")
    assert isojax("fit", str(folder), "--replicates", "40")[0] == 0
    better = (folder / "fit.json").read_bytes()
    code, _, err = isojax("fit", str(folder), "--replicates", "20")
    assert code == 0 and "fit.json has more replicates and is kept; this fit is " in err
    assert (folder / "fit.json").read_bytes() == better
    assert (
        json.loads((folder / "fit-20-replicates.json").read_text())["intervals"]["replicates"] == 20
    )
    assert isojax("fit", str(folder), "--replicates", "60")[0] == 0
    assert json.loads((folder / "fit.json").read_text())["intervals"]["replicates"] == 60
