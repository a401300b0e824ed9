"""Rates that `isojax accelerator` has measured: written for a kind of chip, read by its plans, and
left out aloud where the file is not what it should be."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isojax.launch import measured_rates
from isojax.launch.local import cell_devices
from isojax.launch.measured_rates import ChipMeasurement, rates_file, write_measurement
from isojax.launch.time_estimate import CHIPS, DeviceRates
from tests.refusals import refused

V5E = "TPU v5 lite"
MEASUREMENT = ChipMeasurement(
    format="isojax chip rates 1",
    kind=V5E,
    measured_on="2026-11-30",
    decode_flops=5e13,
    update_flops=1.5e14,
    bandwidth=7e11,
    efficiency=0.5,
    shape="Qwen2.5-0.5B",
    versions={"jax": "0.11.2"},
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ISOJAX_CHIPS", str(tmp_path / "chips"))
    return tmp_path / "chips"


def test_a_plan_reads_what_was_measured_on_its_kind_of_chip(folder: Path) -> None:
    assert measured_rates.measured_rates(V5E) is None
    assert write_measurement(MEASUREMENT) == folder / "TPU-v5-lite.json"
    rates = measured_rates.measured_rates(V5E)
    assert rates is not None
    assert (rates.decode_flops, rates.update_flops, rates.bandwidth) == (5e13, 1.5e14, 7e11)
    assert rates.efficiency == 0.5 and "measured on 2026-11-30" in str(rates)
    assert rates.link_bandwidth == CHIPS[V5E][1].link_bandwidth
    assert measured_rates.measured_rates("TPU v6 lite") is None  # of another kind nothing is known


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ISOJAX_CHIPS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert rates_file("NVIDIA H200") == tmp_path / "isojax/chips/NVIDIA-H200.json"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rates_file("x/../y").parent == tmp_path / ".config/isojax/chips"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"format": "something else"}',
        json.dumps({**MEASUREMENT.model_dump(), "bandwidth": 0.0}),
        json.dumps({**MEASUREMENT.model_dump(), "bandwidth": float("inf")}),
        json.dumps({**MEASUREMENT.model_dump(), "efficiency": "0.5"}),
        json.dumps({**MEASUREMENT.model_dump(), "measured_on": "2026-13-30"}),
        json.dumps({**MEASUREMENT.model_dump(), "kind": "TPU v6 lite"}),
    ],
    ids=["cut", "list", "foreign", "zero", "infinite", "text", "day", "kind"],
)
def test_a_file_that_cannot_be_used_is_left_out_aloud(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rates_file(V5E)
    path.parent.mkdir()
    path.write_text(text)
    with refused(where=str(path)):
        measured_rates.read_measurement(V5E)
    assert measured_rates.measured_rates(V5E) is None
    assert f"warning: measured rates are left out: {path}" in capsys.readouterr().err


def test_a_plan_for_the_devices_here_probes_only_what_was_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The forecast of a sweep takes its rates from the file of its devices' kind."""
    used: list[Any] = []
    monkeypatch.setattr(cell_devices, "program_times", lambda s, rates: used.append(rates))
    monkeypatch.setattr(cell_devices, "forecast_sweep_times", lambda *_, **__: None)
    monkeypatch.setattr(cell_devices, "_probe_rates", lambda s, devices: DeviceRates(1.0, 1.0, 1.0))
    devices: Any = SimpleNamespace(
        devices=[SimpleNamespace(device_kind=V5E)], concurrent_cells=1, devices_per_cell=1
    )
    config: Any = SimpleNamespace(sweep=SimpleNamespace(budget=100), cell=None)
    budget: Any = SimpleNamespace(sizes=lambda sweep: None)
    cell_devices.forecast_sweep(config, [], budget, devices, has_labels=True)
    write_measurement(MEASUREMENT)
    cell_devices.forecast_sweep(config, [], budget, devices, has_labels=True)
    assert used == [DeviceRates(1.0, 1.0, 1.0), MEASUREMENT.rates()]
