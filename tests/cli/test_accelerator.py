"""`isojax accelerator`: its exit codes, its files, and a batch compared with the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isojax.core.config import load_config
from isojax.launch.accelerator_report import AcceleratorReport, KernelLine, MachineLine
from isojax.launch.local import accelerator_check
from isojax.launch.local.accelerator_shapes import COMMON_SETTINGS
from isojax.launch.measured_rates import measured_rates
from isojax.models.attention_calls import AttentionShape
from tests.cli.conftest import Isojax

V5E = "TPU v5 lite"
MACHINE = MachineLine("2026-11-30", V5E, 8, 15.75, {"jax": "0.11.2"})
RIGHT = KernelLine("splash", "a window of 100", 3e-3, 8e-3, "mixed values")
WRONG = KernelLine("flash_decode", "slots that are refilled", 1.6, 4e-3, "keys in the cache")
TINY = (
    "cell.model.layers=1",
    "cell.model.width=32",
    "cell.model.head_dim=16",
    "cell.model.heads=2",
    "cell.model.kv_heads=1",
    "cell.model.mlp=64",
    "cell.model.vocab=64",
    "cell.sampling.prompt_length=4",
    "cell.sampling.response_length=4",
    "sweep.decode_slots=8",
)


@pytest.mark.parametrize(
    ("line", "is_right"),
    [
        (RIGHT, True),
        (WRONG, False),
        (KernelLine("splash", "x", float("nan"), 1.0), False),
        (KernelLine("splash", "x", failure="XlaRuntimeError: no such tile"), False),
        (KernelLine("plain", "the run's shape", microseconds=12.0), True),
    ],
)
def test_a_kernel_is_wrong_beyond_its_tolerance_or_without_a_number(
    line: KernelLine, is_right: bool
) -> None:
    assert line.is_right == is_right
    assert str(line).startswith("right" if is_right else "WRONG")


@pytest.mark.parametrize(("kernels", "code"), [([RIGHT], 0), ([RIGHT, WRONG], 1)])
def test_a_wrong_kernel_is_an_exit_code_and_in_both_files(
    kernels: list[KernelLine], code: int, isojax: Isojax, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = AcceleratorReport(MACHINE, kernels)
    monkeypatch.setattr(accelerator_check, "check_accelerator", lambda config, overrides: report)
    exit_code, out, err = isojax("accelerator", "--out", "here")
    assert exit_code == code and ("flash_decode" in err) == (code == 1)
    text = Path("here/accelerator.txt").read_text()
    assert text in out and text.startswith("isojax accelerator, 2026-11-30: 8 x TPU v5 lite")
    assert text.count("WRONG") == code
    document = json.loads(Path("here/accelerator.json").read_text())
    assert [kernel["error"] for kernel in document["kernels"]] == [x.error for x in kernels]


def test_what_cannot_be_used_is_refused_before_any_work(isojax: Isojax) -> None:
    code, _, err = isojax("accelerator", "nothing")
    assert code == 2 and "'nothing'" in err and not Path("runs").exists()


@pytest.mark.slow
def test_each_kernel_is_compared_at_the_shapes_of_the_sweep_and_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compared with array code here; where one does not even compile, the others are still checked.
    A CPU has no kernel of its own."""
    settings = [*COMMON_SETTINGS, *TINY, "sweep.B_p=[4]", "sweep.n=[2]"]
    sweep = accelerator_check.MeasuredSweep(load_config(["quickstart"], settings))
    assert not list(accelerator_check.check_sweep_kernels(sweep))

    def names(shape: AttentionShape, platform: str) -> tuple[str, ...]:
        return ("plain", "cudnn")

    monkeypatch.setattr(accelerator_check, "implementations", names)
    monkeypatch.setattr(accelerator_check, "unsupported_reason", lambda shape, name: "")
    plain, cudnn, *of_sampler = accelerator_check.check_sweep_kernels(sweep)
    assert plain.is_right and plain.microseconds is not None and plain.microseconds > 0
    assert not cudnn.is_right and cudnn.microseconds is None and cudnn.note
    assert [line.kernel for line in of_sampler] == ["plain", "cudnn"]


@pytest.mark.slow
@pytest.mark.seconds(30)
def test_a_batch_is_measured_and_its_rates_are_kept_for_plans(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a tiny model on this CPU, which is then said to be a v5e: a CPU's rates are not kept."""
    monkeypatch.setattr(accelerator_check, "kernels_to_check", lambda platform: [])
    monkeypatch.setenv("ISOJAX_CHIPS", str(tmp_path))
    report = accelerator_check.check_accelerator(None, TINY)
    assert report.machine.kind == "cpu" and report.rates_file is None
    assert not list(tmp_path.iterdir())
    assert [program.name for program in report.programs] == ["sampling", "update"]
    assert all(min(x.measured, x.planned) > 0 for x in report.programs)
    assert report.tokens == 4 * 8 * 4 and report.sampler_logp_gap < 1e-5
    assert report.compiled_gib > 0 and report.planned_gib > 0
    assert not report.kernels  # none of a CPU's own

    monkeypatch.setattr(accelerator_check, "describe_machine", lambda: MACHINE)
    monkeypatch.setattr(accelerator_check.MeasuredSweep, "keeps_rates", True)
    kept = accelerator_check.check_accelerator(None, TINY)
    assert kept.rates_file == tmp_path / "TPU-v5-lite.json" and kept.rates is not None
    rates = measured_rates(V5E)
    assert rates is not None and rates.origin == "measured on 2026-11-30"
    assert (rates.bandwidth, rates.efficiency) == (kept.rates.bandwidth, kept.rates.efficiency)
