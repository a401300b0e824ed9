"""`isojax settings`: defaults and meanings as text, and the page of the repository that has them
all."""

from __future__ import annotations

import json

from isojax.core.config import Config
from isojax.core.config.describe import describe_settings
from isojax.core.config.load import load_config
from isojax.core.yaml_files import config_keys
from tests.cli.conftest import Isojax


def test_every_setting_has_a_default_and_a_meaning() -> None:
    by_name = {setting.name: setting for setting in describe_settings()}
    names = {key for key, is_section in config_keys(Config).items() if not is_section}

    assert names <= by_name.keys()
    assert all(setting.meaning for setting in by_name.values())
    assert (by_name["cell.data.validation"].default, by_name["sweep.B_p"].default) == (
        "300",
        "[16]",
    )
    assert "cell.model.lora.rank" in by_name  # of a section that is null by default


def test_a_default_can_be_typed_as_it_is_shown() -> None:
    names = config_keys(Config)  # without those of sections that are null
    typed = [
        f"{setting.name}={setting.default}"
        for setting in describe_settings()
        if setting.name in names
    ]

    assert load_config("quickstart", typed).cell.rl == Config().cell.rl


def test_in_a_terminal(isojax: Isojax) -> None:
    code, out, _ = isojax("settings", "validation", "rl.kl")
    lines = out.splitlines()

    assert code == 0
    assert lines[:2] == ["cell.data.validation = 300", "    how many problems are held out"]
    assert "cell.rl.kl = 0.0" in lines and "cell.rl.loss" not in out

    code, out, _ = isojax("settings", "rl.kl", "--json")
    assert [one["name"] for one in json.loads(out)["settings"]] == [
        "cell.rl.kl",
        "cell.rl.kl_estimator",
    ]

    code, _, err = isojax("settings", "valdation")
    assert code == 2 and "Did you mean 'validation'?" in err
