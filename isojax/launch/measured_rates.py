"""The rates of kinds of chips that `isojax accelerator` has measured: a file for each kind, which
plans read from then on.

They are in $ISOJAX_CHIPS, else in isojax/chips below $XDG_CONFIG_HOME or ~/.config. A file may be
copied to another machine, to plan there for chips that it has not.
"""

import json
import math
import os
import re
from datetime import date
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError
from isojax.core.table_files import read_json_object
from isojax.core.terminal import warn
from isojax.launch.time_estimate import CHIPS, DeviceRates

FOLDER_VARIABLE = "ISOJAX_CHIPS"
FORMAT: Literal["isojax chip rates 1"] = "isojax chip rates 1"
NO_LINKS = math.inf  # one chip has none, and of other kinds nothing is published here


class ChipMeasurement(BaseModel):
    """The file's contents: what one chip reached, and with which programs.

    `efficiency`: the time that `time_estimate` computes from the three rates for a batch's sampling
    and update, as a share of the measured time.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    format: Literal["isojax chip rates 1"]
    kind: str = Field(min_length=1)  # as jax names it, such as "TPU v5 lite"
    measured_on: str  # such as 2026-11-30
    decode_flops: float = Field(gt=0)  # operations/s of products with few rows
    update_flops: float = Field(gt=0)  # operations/s of products with many rows
    bandwidth: float = Field(gt=0)  # bytes/s of memory
    efficiency: float = Field(gt=0)
    shape: str  # of the model and batch that were measured
    versions: dict[str, str]

    @field_validator("measured_on")
    @classmethod
    def _check_day(cls, day: str) -> str:
        date.fromisoformat(day)  # its ValueError says what is wrong
        return day

    def rates(self) -> DeviceRates:
        """The rates for an estimate; that of links, which one chip does not show, as published."""
        published = CHIPS.get(self.kind)
        return DeviceRates(
            decode_flops=self.decode_flops,
            update_flops=self.update_flops,
            bandwidth=self.bandwidth,
            link_bandwidth=published[1].link_bandwidth if published else NO_LINKS,
            efficiency=self.efficiency,
            origin=f"measured on {self.measured_on}",
        )


def rates_folder() -> Path:
    """The folder of the files, which need not be there."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        return Path(folder)
    config_home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config_home) if config_home else Path.home() / ".config") / "isojax" / "chips"


def rates_file(kind: str) -> Path:
    """The file of a kind of chip, such as TPU-v5-lite.json."""
    return rates_folder() / f"{re.sub(r'[^A-Za-z0-9.]+', '-', kind)}.json"


def write_measurement(measurement: ChipMeasurement) -> Path:
    """Write the file of the measurement's kind of chip in place of an older one; returns its path.

    Errors as of `write_text`.
    """
    path = rates_file(measurement.kind)
    write_text(path, json.dumps(measurement.model_dump(), indent=1) + "\n")
    return path


def read_measurement(kind: str) -> ChipMeasurement | None:
    """What was measured on this kind of chip; None without a file.

    InputError where the file is damaged, or is no file of this kind of chip.
    """
    path = rates_file(kind)
    if not path.exists():
        return None

    fix = f"Measure again by isojax accelerator, or remove {path}."
    try:
        measurement = ChipMeasurement.model_validate(read_json_object(path))
    except ValidationError as e:
        first = e.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise InputError(where=path, found=f"{key}: {first['msg']}", fix=fix) from e
    except InputError as e:  # it is no JSON
        raise e.with_fix(fix) from e

    if measurement.kind != kind:
        raise InputError(
            where=path, found=f"has the rates of a {measurement.kind}, not a {kind}", fix=fix
        )
    return measurement


def measured_rates(kind: str) -> DeviceRates | None:
    """The rates measured on this kind of chip; None without a file that can be used.

    A file that cannot be used is named in a warning.
    """
    try:
        measurement = read_measurement(kind)
    except InputError as e:
        warn(f"measured rates are left out: {e}")
        return None
    return measurement.rates() if measurement else None
