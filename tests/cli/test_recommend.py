"""`isojax recommend` on a fit written by hand: what is printed, what --json holds, whose config is
written, and what is kept.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from isojax.cli import app
from isojax.core.config import load_config
from isojax.launch.planner import plan_cells
from isojax.scaling.result import Law, NStarFit
from tests.cli.conftest import Isojax, Outcome, error_of, write_sweep, write_timed_sweep
from tests.scaling.documents import document


@pytest.fixture
def recommend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """Run the command on fit.json in an empty folder: (exit code, standard output, standard
    error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    Path("fit.json").write_text(document().model_dump_json())

    def run(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["isojax", "recommend", "fit.json", *words])
        with pytest.raises(SystemExit) as e:
            app.main()
        assert isinstance(e.value.code, int)
        out, err = capsys.readouterr()
        return e.value.code, out, err

    return run


def test_what_is_printed(recommend: Callable[..., Outcome]) -> None:
    code, out, err = recommend("--budget", "1e5")
    assert code == 0 and err == ""
    for part in (
        "for 100,000 rollouts: B_p = 16, n = 16, M = 390",
        "90% interval of that 0.6",
        "one new run will measure",
        "regret 0.00",
    ):
        assert part in out
    for part in (
        "Risk: the spread between seeds, 0.010, is assumed.",
        "During the run: at C = 24,832 expect 0.578",
    ):
        assert part in out
    for part in ("16 *", "P(n is best)", "█" * 20, "16x16 has the highest predicted reward"):
        assert part in out
    assert "n makes no difference here" not in out


def test_no_effect_comes_first(recommend: Callable[..., Outcome]) -> None:
    equal = {(16, n): (0.6, 1.0, 2e3) for n in (4, 8)}
    law = NStarFit(law=Law("constant", 0.0, 0.0, None, 2.0), no_effect=True)
    Path("fit.json").write_text(document(equal, n_star=law).model_dump_json())
    assert recommend("--budget", "1e5")[1].startswith(
        "n makes no difference here: any of n = 4, 8 will do"
    )


def test_no_effect_where_the_best_B_p_was_run_at_one_n(recommend: Callable[..., Outcome]) -> None:
    law = NStarFit(law=Law("constant", 0.0, 0.0, None, 2.0), no_effect=True)
    shapes = {(16, 4): (0.5, 1.0, 2e3), (16, 8): (0.5, 1.0, 2e3), (64, 4): (0.6, 1.0, 2e3)}
    Path("fit.json").write_text(document(shapes, n_star=law).model_dump_json())
    out = recommend("--budget", "1e5")[1]
    assert out.startswith("n makes no difference here at one and the same B_p\n")


def test_json_holds_the_whole_answer(recommend: Callable[..., Outcome]) -> None:
    code, out, _ = recommend("--budget", "1e5", "--epsilon", "0.1", "--json")
    answer = json.loads(out)
    assert code == 0 and answer["equal_n"] == [4, 16] and answer["epsilon"] == 0.1
    assert answer["interval"][0] < answer["expected_reward"] < answer["interval"][1]
    assert answer["prediction_interval"][0] < answer["interval"][0]
    assert sum(answer["n_probability"].values()) == pytest.approx(1)
    assert answer["regret"] >= 0 and len(answer["regret_interval"]) == 2
    assert (
        [risk["code"] for risk in answer["risks"]] == ["run_sd_assumed"]
        and answer["next_run"] is None
        and answer["false_stop"] == 0.1
    )
    assert [
        (mark["M"], mark["stop_below"] < mark["expected_reward"])
        for mark in answer["halting_marks"]
    ] == [
        (97, True),
        (195, True),
    ]
    assert (answer["no_effect"], answer["extrapolated"], answer["times_measured"]) == (
        False,
        False,
        1.0,
    )


def test_far_budgets_need_a_word(recommend: Callable[..., Outcome]) -> None:
    code, out, err = recommend("--budget", "1e6")
    assert (
        code == 2
        and out == ""
        and err.startswith("error: C = 1e+06 is 10 times the largest measured C")
        and err.count("\n") == 1
    )
    code, out, _ = recommend("--budget", "1e6", "--extrapolate")
    assert code == 0 and "extrapolated: C = " in out and "(beyond the measured range)" in out


def test_a_config_for_another_trainer_is_written_once(recommend: Callable[..., Outcome]) -> None:
    code, out, _ = recommend("--budget", "1e5", "--write", "best.yaml", "--for", "trl")
    assert code == 0 and "run it with: trl grpo --config best.yaml" in out
    assert yaml.safe_load(Path("best.yaml").read_text())["num_generations"] == 16
    before = Path("best.yaml").read_bytes()
    code, _, err = recommend("--budget", "1e5", "--write", "best.yaml", "--for", "verl")
    assert (
        code == 2
        and "best.yaml: exists already and is kept" in err
        and Path("best.yaml").read_bytes() == before
    )
    code, out, _ = recommend("--budget", "1e5", "--write", "sub/verl.yaml", "--for", "verl")
    assert code == 0 and "--config-dir=sub --config-name=verl " in out


def test_a_command_quotes_paths_with_spaces(recommend: Callable[..., Outcome]) -> None:
    out = recommend("--budget", "1e5", "--write", "my run/best one.yaml", "--for", "trl")[1]
    assert (
        "wrote my run/best one.yaml; run it with: trl grpo --config 'my run/best one.yaml'" in out
    )
    # Hydra would not find it
    refused = error_of(recommend("--budget", "1e5", "--write", "verl.yml", "--for", "verl"))
    assert "verl finds a config by its name; expected one that ends in .yaml" in refused
    out = recommend("--budget", "1e5", "--write", "my run/of verl.yaml", "--for", "verl")[1]
    assert "--config-dir='my run' --config-name='of verl' " in out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--write", "best.yaml"), "no config.yaml in the folder of the fit"),
        (
            ("--write", "best.yaml", "--for", "nemo"),
            "expected one of isojax, maxtext, nemo_rl, openrlhf, trl, tunix, verl",
        ),
        (("--for", "trl"), "expected --write FILE with it"),
        (("--epsilon", "2"), "epsilon: given 2.0; expected"),
        (
            ("--price", "2", "--write", "best.yaml", "--for", "trl"),
            "--price: the records of fit.json have no times of B_p = 16, n = 16",
        ),
        (("--price", "2", "--json"), "by which a price could be known"),
    ],
)
def test_refusals_write_nothing(
    recommend: Callable[..., Outcome], words: tuple[str, ...], part: str
) -> None:
    code, out, err = recommend("--budget", "1e5", *words)
    assert code == 2 and out == "" and err.startswith("error: ") and part in err
    assert [p.name for p in Path().iterdir()] == ["fit.json"]


def test_where_no_measured_cell_agrees_no_regret_is_claimed(
    recommend: Callable[..., Outcome],
) -> None:
    code, out, _ = recommend("--budget", "1e5", "--fix", "B_p=32")
    assert code == 0 and "regret unknown: no measured cell agrees" in out
    answer = json.loads(recommend("--budget", "1e5", "--fix", "B_p=32", "--json")[1])
    assert answer["regret"] is answer["regret_interval"] is answer["n_probability"] is None


@pytest.mark.parametrize(
    "words",
    ["--budget 1e308", "--budget 1e5 --B-max 1000000000000000000000", "--budget 1e5 --fix M=1e30"],
)
def test_numbers_that_nobody_means(recommend: Callable[..., Outcome], words: str) -> None:
    code, out, err = recommend(*words.split(), "--extrapolate")
    assert (
        code == 2
        and out == ""
        and err.startswith("error: ")
        and re.search("(to|at most) 1e[+]15", err)
    )
    assert len(err) < 200


def test_a_run_past_its_peak_should_stop_early_and_a_loss_is_called_one(
    recommend: Callable[..., Outcome],
) -> None:
    fit = document()
    curves = tuple(dataclasses.replace(curve, C_peak=4e4) for curve in fit.curves)
    Path("fit.json").write_text(
        fit.model_copy(update={"curves": curves, "base_reward": 0.9}).model_dump_json()
    )
    out = recommend("--budget", "1e5")[1]
    assert "stop early: reward of 16x16 falls beyond C = 40,000 (M = 156)" in out
    assert "that is less than the base policy's 0.900" in out


def test_no_stable_B_p_says_how_to_choose_one(recommend: Callable[..., Outcome]) -> None:
    Path("fit.json").write_text(document(unstable=(16, 64)).model_dump_json())
    code, _, err = recommend("--budget", "1e5")
    assert code == 2 and "as --fix B_p=64" in err
    assert recommend("--budget", "1e5", "--fix", "B_p=64")[0] == 0


def test_a_fit_that_is_not_whole_or_of_another_schema(recommend: Callable[..., Outcome]) -> None:
    content = document().model_dump(mode="json")
    without_runs = {name: value for name, value in content.items() if name != "runs"}
    for changed, location in (
        (content | {"schema_version": 3}, "schema_version: "),
        (without_runs, "runs: Field required"),
    ):
        Path("fit.json").write_text(json.dumps(changed))
        code, _, err = recommend("--budget", "1e5")
        assert (
            code == 2
            and f"fit.json: no fit of schema version 1 ({location}" in err
            and "`isojax fit RUN`" in err
        )


def test_recommend_spends_the_budget_and_fits_where_there_is_no_fit(
    isojax: Isojax, tmp_path: Path
) -> None:
    folder = write_sweep(tmp_path / "runs" / "known")
    code, out, err = isojax("recommend", str(folder), "--budget", "1.9e5", "--json")
    assert code == 0 and err == ""
    answer = json.loads(out)
    assert answer["budget"] == 190_000 and answer["B_p"] == 16
    assert (
        answer["M"] == 190_000 // (16 * answer["n"])
        and answer["C"] == answer["B"] * answer["M"] <= 190_000
    )
    assert answer["reasons"] and answer["measured_cells"] and answer["extrapolated"] is False
    assert (
        json.loads(
            isojax("recommend", str(folder / "fit.json"), "--budget", "190_000", "--json")[1]
        )
        == answer
    )
    small = json.loads(
        isojax("recommend", str(folder), "--budget", "1.9e5", "--B-max", "64", "--json")[1]
    )
    assert small["B"] <= 64
    fixed = json.loads(
        isojax("recommend", str(folder), "--budget", "1.9e5", "--fix", "M=100", "--json")[1]
    )
    assert fixed["M"] == 100
    assert "times the largest measured C" in error_of(
        isojax("recommend", str(folder), "--budget", "1e6")
    )
    code, out, _ = isojax("recommend", str(folder), "--budget", "1e6", "--extrapolate")
    assert code == 0 and "for 1,000,000 rollouts" in out and "beyond the measured range" in out


def test_recommend_writes_a_config_for_train_and_keeps_what_is_there(
    isojax: Isojax, known: Path, tmp_path: Path
) -> None:
    words = [
        "recommend",
        str(known),
        "--budget",
        "3e5",
        "--B-max",
        "128",
        "--write",
        "best.yaml",
        "--json",
    ]
    code, out, _ = isojax(*words)
    answer = json.loads(out)
    assert code == 0
    best, sweep = load_config("best.yaml"), load_config(str(known / "config.yaml"))
    assert [(cell.B_p, cell.n) for cell in plan_cells(best.sweep)] == [(answer["B_p"], answer["n"])]
    assert (
        best.sweep.budget == answer["C"]
        and best.sweep.decode_slots is None
        and best.name != sweep.name
    )
    assert best.cell.model_copy(update={"eval": sweep.cell.eval}) == sweep.cell
    # the run ends at its budget
    assert best.cell.eval.evaluation_targets(best.sweep.budget)[-1] == answer["C"]
    assert 1 <= best.cell.eval.start / sweep.cell.eval.start < sweep.cell.eval.ratio
    before = Path("best.yaml").read_bytes()
    assert "best.yaml: exists already" in error_of(isojax(*words))
    assert Path("best.yaml").read_bytes() == before


def test_the_schedule_is_written_as_a_config(isojax: Isojax, tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "runs" / "known")
    words = ("recommend", str(folder), "--budget", "1e5")
    code, out, err = isojax(*words, "--write", "best.yaml", "--growing")
    assert code == 0 and "With a growing n: sweep.schedules={growing: '16x" in out, out + err
    config, answer = load_config("best.yaml"), json.loads(isojax(*words, "--json")[1])
    assert config.name.endswith("-growing") and config.sweep.n == config.sweep.B_p == ()
    assert config.sweep.schedules == {"growing": answer["growing"]["schedule"]}
    (cell,) = plan_cells(config.sweep)
    assert (
        cell.name == "growing-s0" and len(cell.stages) >= 2 and config.sweep.budget == answer["C"]
    )
    assert "expected --write FILE with it" in error_of(isojax(*words, "--growing"))
    assert "expected isojax, trl or verl" in error_of(
        isojax(*words, "--growing", "--write", "a", "--for", "tunix")
    )

    code, out, _ = isojax(*words, "--write", "series.yaml", "--growing", "--for", "trl")
    written = sorted(Path().glob("series-*.yaml"))
    assert code == 0 and len(written) == len(cell.stages) and not Path("series.yaml").exists()
    assert (
        "wrote series-1.yaml; run it with: trl grpo --config series-1.yaml --model_name_or_path"
        in out
    )
    assert (
        "wrote series-2.yaml; run it then with: trl grpo --config series-2.yaml --dataset_name"
        in out
    )
    before = written[1].read_bytes()
    written[0].unlink()
    series = isojax(*words, "--write", "series.yaml", "--growing", "--for", "trl")
    assert "series-2.yaml: exists already" in error_of(series) and not written[0].exists()
    assert written[1].read_bytes() == before


def test_recommend_refuses_a_file_that_is_no_fit(isojax: Isojax) -> None:
    for text in ("{", "[]", '{"a": 1}'):
        Path("fit.json").write_text(text)
        assert "fit.json" in error_of(isojax("recommend", "fit.json", "--budget", "1e6"))


def test_a_budget_in_time_or_money(isojax: Isojax) -> None:
    recommend = partial(isojax, "recommend", str(write_timed_sweep(Path("sweep"))))
    code, out, _ = recommend("--budget", "100s")
    assert code == 0 and "for 100s: B_p = 16, n = 16, M = 390" in out
    assert "takes 99.8 s on 2 devices, by the measured times of these runs" in out
    code, out, _ = recommend("--budget", "2usd", "--price", "36")  # 200 s of devices
    assert (
        code == 0
        and "M = 390" in out
        and "by the measured times of these runs, 2.00 at 36 for a device hour" in out
    )
    code, out, _ = recommend("--budget", "1e5", "--price", "36", "--json")
    answer = json.loads(out)
    assert answer["budget"] == 100_000 and answer["cost"] == pytest.approx(2 * 99.84 / 3600 * 36)
    assert answer["hours"] == pytest.approx(99.84 / 3600) and answer[
        "device_hours"
    ] == pytest.approx(2 * 99.84 / 3600)


def test_a_budget_in_time_on_other_devices(isojax: Isojax) -> None:
    """A rollout takes 2 ms of one device: 100 s of 8 devices are 400,000 rollouts, M =
    floor(400,000 / 256)."""
    recommend = partial(isojax, "recommend", str(write_timed_sweep(Path("sweep"))))
    code, out, _ = recommend("--budget", "100s")
    assert code == 0 and out.startswith(
        "time: on 2 devices, as the records say of these runs (for another number: --d"
    )
    code, out, _ = recommend("--budget", "100s", "--devices", "8")
    assert (
        code == 0
        and "for 100s: B_p = 16, n = 16, M = 1562" in out
        and "takes 100 s on 8 devices" in out
    )
    assert out.startswith(
        "time: on 8 devices, assumed to take as many device hours as these runs on 2 devices"
    )
    _, out, _ = recommend("--budget", "100s", "--devices", "1")
    assert "M = 195" in out and out.startswith("time: on 1 device, assumed")
    _, out, _ = recommend("--budget", "100s", "--devices", "2")
    assert "M = 390" in out and out.startswith("time: on 2 devices, as these runs")
    # the same device hours, in less time
    _, out, _ = recommend("--budget", "2usd", "--price", "36", "--devices", "8")
    assert "M = 390" in out and "takes 25 s on 8 devices" in out
    _, out, _ = recommend("--budget", "1e5", "--devices", "8", "--json")
    answer = json.loads(out)
    assert answer["devices"] == 8 and answer["hours"] == pytest.approx(99.84 / 4 / 3600)
    assert answer["device_hours"] == pytest.approx(2 * 99.84 / 3600)
    for timing in Path("sweep").glob("cells/*/timing.jsonl"):
        timing.unlink()
    assert "the records of sweep have no times" in error_of(
        recommend("--budget", "1e5", "--devices", "8")
    )


def test_a_day_by_seconds_since_the_start(isojax: Isojax) -> None:
    """60 s of start-up, then 164 s for each update of 32 x 8 rollouts, on 8 devices: (86,400 - 60)
    / 164 = 526.5."""
    lines = ["n,step,acc,seconds"]
    for n in (4, 8):
        for step in range(0, 301, 25):
            C = 32 * n * step
            accuracy = 0.1 + 0.05 * (n == 8) + 0.4 * C / (C + 20_000)
            lines.append(f"{n},{step},{accuracy:.5f},{60 + 20.5 * n * step}")
    Path("log.csv").write_text("\n".join(lines) + "\n")
    maps = "reward=acc,B_p=32,devices=8"
    by_step = isojax(
        "records", "import", "log.csv", "--map", f"{maps},step_seconds=seconds", "--out", "wrong"
    )
    assert "rises at every step" in error_of(by_step)
    code, _, err = isojax(
        "records", "import", "log.csv", "--map", f"{maps},elapsed_seconds=seconds", "--out", "run"
    )
    assert code == 0, err
    code, out, _ = isojax("recommend", "run", "--budget", "24h", "--json")
    answer = json.loads(out)
    assert code == 0 and (answer["B_p"], answer["n"], answer["M"]) == (32, 8, 526)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--budget", "5usd"),
            (
                "--budget: given 5usd, which is money; expected the price of a device hour "
                "with it, as --price 2.5"
            ),
        ),
        (("--budget", "5usd", "--price", "0"), "--price: given 0; expected a price of more than 0"),
        (("--budget", "5parsec"), "--budget: given '5parsec'; expected"),
        (("--budget", "1.6M"), "--budget: given '1.6M'; expected a whole number"),  # no minutes
        (("--budget", "0h"), "--budget: given '0h'; expected a time such as 200h"),
        (("--budget", "1h30m"), "such as 250000 or 1e6, or a time in one unit, such as 90m."),
    ],
)
def test_budgets_that_are_none(
    recommend: Callable[..., Outcome], words: tuple[str, ...], said: str
) -> None:
    assert said in error_of(recommend(*words))


def test_a_log_of_dynamic_sampling_has_the_updates_that_it_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """verl's DAPO with batches of 8 problems, of which 4 are trained on: 20 steps of one and 20 of
    two batches are 20 updates of 64 and 20 of 128 rollouts, of B = 32 each; C = 3,840 is M = 40,
    not 120."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {
            "step": M,
            "data": {
                "val-core/x/acc/mean@4": 0.1 + 0.6 * M / (M + 10),
                "train/num_gen_batches": 1 + (M > 20),
            },
        }
        for M in range(1, 41)
    ]
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["isojax", *words])
        with pytest.raises(SystemExit) as e:
            app.main()
        assert e.value.code == 0
        return capsys.readouterr().out

    run(
        "records",
        "import",
        "log.jsonl",
        "--from",
        "verl",
        "--map",
        "B_p=4,n=8,sampled_B_p=8",
        "--out",
        "runs/logs",
    )
    answer = json.loads(run("recommend", "runs/logs", "--budget", "3840", "--json"))
    assert (answer["M"], answer["C"], answer["batches"]) == (40, 3840, 3.0)
    # 1,280 rollouts are the first 20 updates; beyond the data an update takes 128 rollouts, as in
    # the last half of C.
    assert json.loads(run("recommend", "runs/logs", "--budget", "1280", "--json"))["M"] == 20
    assert json.loads(run("recommend", "runs/logs", "--budget", "5120", "--json"))["M"] == 50
    run("recommend", "runs/logs", "--budget", "3840", "--write", "next.yaml", "--for", "verl")
    written = yaml.safe_load(Path("next.yaml").read_text())
    assert (
        written["trainer"]["total_training_steps"] == 40
        and written["algorithm"]["filter_groups"]["enable"]
    )
    seen = json.loads(run("watch", "runs/logs", "--updates", "50", "--json"))
    assert seen["C_end"] == 5120


EXPORTER = "from isojax.report.exporters import exporter\n\n\n@exporter(how_to_run={!r})\n"


@pytest.mark.parametrize(
    ("how_to_run", "function", "problem"),
    [
        ("go {file}", "def render(best, config): return None", "returned NoneType"),
        ("go {file}", "def render(best, config): return {'n': 1}", "returned dict"),
        ("go {file}", "def render(best, config): return '\\n'", "returned a blank text"),
        ("go {file}", "def render(best): return 'n: 1'", "takes 1 positional argument"),
        ("go {nosuch}", "def render(best, config): return 'n: 1'", "how_to_run = 'go {nosuch}'"),
        ("go {", "def render(best, config): return 'n: 1'", "how_to_run = 'go {'"),
    ],
)
def test_a_faulty_exporter_is_named_and_writes_nothing(
    recommend: Callable[..., Outcome], how_to_run: str, function: str, problem: str
) -> None:
    Path("mine.py").write_text(f"{EXPORTER.format(how_to_run)}{function}\n")
    err = error_of(recommend("--budget", "1e5", "--write", "best.yaml", "--for", "mine"))
    assert "mine.py:4: " in err and problem in err
    assert not Path("best.yaml").exists()


def test_an_exporter_with_the_name_of_isojaxs_own_is_not_ignored(
    recommend: Callable[..., Outcome],
) -> None:
    Path("trl.py").write_text(f"{EXPORTER.format('go')}def render(best, config): return 'n: 1'\n")
    err = error_of(recommend("--budget", "1e5", "--write", "best.yaml", "--for", "trl"))
    assert "trl.py" in err and "my_trl.py" in err
