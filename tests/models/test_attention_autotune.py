"""The choice of an attention: by what was measured, never of what is wrong, and never in
silence."""

from __future__ import annotations

import itertools
import logging
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from isojax.core.config import CellConfig, SweepConfig
from isojax.distributed import device_probe
from isojax.launch.local import setup
from isojax.models import attention_autotune, attention_calls
from isojax.models.attention import self_attention
from isojax.models.attention_calls import DecodeAttentionShape, SelfAttentionShape
from isojax.models.cache_attention import decode_attention, position_axes
from isojax.models.kernel_checks import attention_cases
from isojax.models.kernel_checks.kernel_errors import KernelError
from tests.device import mesh
from tests.refusals import refused

SELF = SelfAttentionShape(
    rows=3, positions=4, prefix_length=2, heads=4, kv_heads=2, head_dim=8, dtype="float32"
)
DECODE = DecodeAttentionShape(
    rows=3, positions=8, heads=4, kv_heads=2, head_dim=8, dtype="float32", cache_dtype="float32"
)


def autotune(shape: Any, requested: str | None = None) -> str:
    return attention_autotune.autotune(
        [shape], attention_autotune.Request("attention", requested), mesh()
    )


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives this backend a kernel, `pallas`, which is here the plain form times `factor`, and takes
    `seconds` where the plain form takes 2e-6.
    """

    def give(factor: float, seconds: float = 1e-6, error: Exception | None = None) -> None:
        def by(true: Any) -> Any:
            def attention(implementation: str, *arguments: Any) -> Any:
                if implementation == "pallas" and error:
                    raise error
                result = true("plain", *arguments)
                return (
                    jax.tree.map(lambda x: x * factor, result)
                    if implementation == "pallas"
                    else result
                )

            return attention

        for shape in (SELF, DECODE):
            monkeypatch.setitem(shape.platform_kernels, "cpu", "pallas")
        monkeypatch.setattr(
            attention_cases, "position_axes", lambda name, H: position_axes("plain", H)
        )
        monkeypatch.setattr(attention_cases, "live_blocks", lambda *_: ())
        monkeypatch.setattr(attention_cases, "self_attention", by(self_attention))
        monkeypatch.setattr(attention_cases, "decode_attention", by(decode_attention))
        monkeypatch.setattr(
            attention_autotune,
            "attention_seconds",
            lambda shape, name: seconds if name == "pallas" else 2e-6,
        )
        attention_autotune._fastest.cache_clear()

    yield give
    attention_autotune._fastest.cache_clear()


@pytest.mark.parametrize("shape", [SELF, DECODE])
def test_the_faster_is_taken_and_both_times_are_logged(
    shape: Any, kernel: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kernel(1 + 1e-5)
    with caplog.at_level(logging.INFO):
        assert autotune(shape) == autotune(shape) == "pallas"
    records = [record for record in caplog.records if record.name == attention_autotune.__name__]
    (record,) = records  # the second time it is remembered
    assert "plain 2 us, pallas 1 us" in record.getMessage()

    caplog.clear()
    kernel(1.0, seconds=3e-6)
    assert autotune(shape) == "plain"
    assert "pallas is left out" in caplog.text and "is slower" in caplog.text


@pytest.mark.parametrize("shape", [SELF, DECODE])
@pytest.mark.parametrize("factor", [1.001, float("nan")])
def test_a_wrong_kernel_is_left_out_aloud(
    shape: Any, factor: float, kernel: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kernel(factor)
    assert autotune(shape) == "plain"
    assert caplog.records[0].levelno == logging.WARNING
    assert "pallas is left out: " in caplog.text and "which is NOT within 0.0001" in caplog.text
    # where it is set, or a run began with it
    with refused("attention=pallas", found="from float32", fix="Set it to null", recorded=False):
        autotune(shape, "pallas")


def test_what_does_not_compile_is_left_out_aloud(
    kernel: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kernel(1.0, error=NotImplementedError("no such tile\nand more"))
    assert autotune(DECODE) == "plain"
    assert "NotImplementedError: no such tile" in caplog.text and "and more" not in caplog.text


@pytest.mark.parametrize("shape", [SELF, SelfAttentionShape(2, 4, 0, 4, 2, 8, "float32"), DECODE])
def test_what_is_timed_is_a_number_of_calls(shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by 1/16 second at each look: 16 calls in the two of them that are more
    than a tenth."""
    monkeypatch.setattr(device_probe.time, "perf_counter", itertools.count(0, 1 / 16).__next__)
    assert attention_calls.attention_seconds(shape, "plain") == 1 / 8 / 16


def test_an_int8_cache_is_timed_as_one() -> None:
    shape = DecodeAttentionShape(3, 8, 4, 2, 8, "float32", "int8")
    _, _, _, cache, positions = shape.random_inputs(3, "plain")
    assert [x.dtype.name for x in cache] == ["int8", "int8", "float32", "float32"]
    assert positions.tolist() == [0, 2, 5]


def test_a_cpu_has_one_form_and_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_autotune, "_fastest", None)
    assert autotune(SELF) == autotune(DECODE, "plain") == "plain"


@pytest.mark.parametrize(
    "wanted",
    [
        "flash",
        "cudnn",
    ],
)
def test_what_this_backend_lacks_is_refused(wanted: str) -> None:
    with refused():
        autotune(SELF, wanted)


@pytest.mark.parametrize(
    "shape",
    [
        SELF,
        DECODE,
        DecodeAttentionShape(3, 8, 4, 2, 8, "bfloat16", "int8"),
        DecodeAttentionShape(3, 8, 4, 2, 80, "bfloat16", "bfloat16"),
        SelfAttentionShape(3, 4, 0, 4, 2, 12, "bfloat16"),
    ],
)
def test_a_gpus_kernel_is_refused_where_it_cannot_serve(
    shape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = shape.platform_kernels["gpu"]
    monkeypatch.setitem(shape.platform_kernels, "cpu", kernel)
    with refused(where="attention"):
        autotune(shape, kernel)


@pytest.mark.parametrize("wrong", ["GroupedCase", "ExpertsCase", "neither"])
def test_kernels_for_experts_are_checked_on_a_tpu(
    wrong: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The sampler's goes with its attention, which can be plain; the update's cannot be left out.

    Of a TPU that is not here, whose kernels are as this test says."""

    def error(case: Any, implementation: str) -> KernelError:
        assert implementation == "pallas"
        return KernelError("rows", 1.0 if type(case).__name__ == wrong else 1e-5, 1e-4)

    monkeypatch.setattr(attention_autotune, "kernel_error", error)
    cell = CellConfig().with_settings(
        model={"family": "qwen3_moe", "vocab": 64, "options": {"experts": 4, "top_k": 2}}
    )
    chips: Any = SimpleNamespace(devices=np.array([SimpleNamespace(platform="tpu")]))

    def sampler_attention(sweep: SweepConfig) -> str:
        return attention_autotune._without_wrong_experts(cell, sweep, chips, "pallas", "Do this.")

    set_by_hand = SweepConfig(decode_attention="pallas")
    if wrong == "GroupedCase":
        with refused("cell.model", found="the update's products of experts", recorded=False):
            sampler_attention(SweepConfig())
    elif wrong == "ExpertsCase":
        assert sampler_attention(SweepConfig()) == "plain"
        assert "left out of the sampler: the sampler's products of experts" in caplog.text
        with refused("sweep.decode_attention=pallas", fix="Do this.", recorded=False):
            sampler_attention(set_by_hand)
    else:
        assert sampler_attention(SweepConfig()) == sampler_attention(set_by_hand) == "pallas"


@pytest.mark.parametrize(("is_new_run", "fix"), [(True, "null or plain"), (False, "began with it")])
def test_a_run_goes_on_with_its_kernel_or_not_at_all(
    is_new_run: bool, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's config has the kernels that it began with, which decide its bits."""
    errors = [1e-5]  # the last one counts
    monkeypatch.setattr(
        attention_autotune, "kernel_error", lambda *_: KernelError("out", errors[-1], 1e-4)
    )
    for shape in (SELF, DECODE):
        monkeypatch.setitem(shape.platform_kernels, "cpu", "pallas")
    saved = SweepConfig(decode_attention="pallas", forward_attention="pallas")
    budget: Any = SimpleNamespace(fits=lambda sweep: True)
    arguments = (CellConfig(), saved, budget, mesh(), is_new_run)
    assert setup._with_fastest_attention(*arguments) == saved
    errors.append(0.5)
    with refused("sweep.forward_attention=pallas", fix=fix, recorded=False):
        setup._with_fastest_attention(*arguments)
