"""The day in chat prompts: one for a sweep, from wherever it begins, and none where no template
asks for it."""

from __future__ import annotations

import json
from datetime import date, datetime
from pathlib import Path

import pytest
import yaml

from isojax.core.config import Config, PromptConfig, config_hash, load_config, save_config
from isojax.launch.prompt_date import (
    DATE_FILE,
    asks_for_date,
    describe_date,
    store_date,
    with_new_date,
)
from isojax.launch.resume import BASE_FOLDER, config_for_folder
from isojax.tasks.tokenizer import load_tokenizer, render_chats
from isojax.train.base_policy import compute_label_key
from tests.refusals import refused
from tests.tasks.rendering import render_in_this_process
from tests.tasks.tokenizer_folders import CHAT, byte_level

DATED = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y %H:%M') }}\n{% endif %}" + CHAT


def config(
    folder: Path, chat: str | None = DATED, format: str = "chat", day: str | None = None
) -> Config:
    """A chat whose template asks for the time, unless `chat` is another."""
    byte_level(folder / "lm", chat=chat)
    cell = {"model": {"path": str(folder / "lm")}, "prompt": {"format": format, "date": day}}
    settings = {"name": "chat", "cell": cell, "run": {"dir": str(folder / "runs")}}
    (folder / "chat.yaml").write_text(yaml.safe_dump(settings))
    return load_config(str(folder / "chat.yaml"))


def day_of(made: Config) -> str | None:
    return made.cell.prompt.date


def test_a_template_is_told_the_moment_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hours and minutes, and whatever the clock says; `date` is that of Llama 3.2's."""
    render_in_this_process(monkeypatch)
    tokenizer = load_tokenizer(byte_level(tmp_path, chat=DATED))
    chats = [[{"role": "user", "content": "1 + 1 ="}]]
    (text,) = render_chats(tokenizer, chats, {}, datetime(2024, 2, 29, 14, 5))
    assert text.startswith("29 Feb 2024 14:05\n<|im_start|>user")
    (midnight,) = render_chats(tokenizer, chats, {}, datetime.fromisoformat("2024-07-26"))
    assert midnight.startswith("26 Jul 2024 00:00\n")


def test_a_sweep_is_planned_with_todays_day(tmp_path: Path) -> None:
    before = f"{datetime.now():%Y-%m-%d}"
    planned = day_of(config_for_folder(config(tmp_path), tmp_path / "runs" / "chat", resume=False))
    assert planned in (before, f"{datetime.now():%Y-%m-%d}")
    assert describe_date(config(tmp_path, day="2024-07-26").cell).endswith(  # type: ignore[union-attr]
        "cell.prompt.date=2024-07-26 for every prompt, whatever the day"
    )


@pytest.mark.parametrize(
    ("chat", "format"),
    [(CHAT, "chat"), (DATED, "raw"), (CHAT.replace("role", "role + date_string"), "chat")],
)
def test_without_a_clock_in_the_prompt_nothing_changes(
    tmp_path: Path, chat: str, format: str
) -> None:
    given = config(tmp_path, chat, format)
    planned = config_for_folder(given, tmp_path / "runs" / "chat", resume=False)
    assert planned == given and day_of(planned) is None and describe_date(planned.cell) is None
    assert config_hash(planned.cell) == config_hash(given.cell)


def test_a_template_in_a_file_of_its_own(tmp_path: Path) -> None:
    given = config(tmp_path, CHAT)
    assert not asks_for_date(given.cell)
    (tmp_path / "lm" / "chat_template.jinja").write_text(DATED)
    assert asks_for_date(given.cell)


def test_a_resumed_sweep_has_the_day_it_began_with(tmp_path: Path) -> None:
    given, folder = config(tmp_path), tmp_path / "runs" / "chat"
    (folder / "cells").mkdir(parents=True)
    save_config(
        given.with_settings(cell={"prompt": {"date": "2024-07-26"}}), folder / "config.yaml"
    )
    assert day_of(config_for_folder(given, folder, resume=True)) == "2024-07-26"
    with refused(where="cell.prompt.date"):
        config_for_folder(config(tmp_path, day="2024-07-27"), folder, resume=True)


def test_a_sweep_begun_before_days_were_recorded_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its config, and so its hash, stay as they are."""
    given, folder = config(tmp_path), tmp_path / "runs" / "chat"
    (folder / "cells").mkdir(parents=True)
    old = given.model_dump(mode="json")
    del old["cell"]["prompt"]["date"]
    (folder / "config.yaml").write_text(yaml.safe_dump(old))
    resumed = config_for_folder(given, folder, resume=True)
    assert config_hash(resumed.cell) == config_hash(given.cell) and day_of(resumed) is None
    assert "recorded no day" in capsys.readouterr().err


def test_a_day_survives_a_kill_before_there_is_a_config(tmp_path: Path) -> None:
    given, folder = config(tmp_path, day="2024-07-26"), tmp_path / "runs" / "chat"
    store_date(given.cell, folder / BASE_FOLDER)
    assert day_of(config_for_folder(config(tmp_path), folder, resume=False)) == "2024-07-26"
    (folder / BASE_FOLDER / DATE_FILE).write_text("yesterday\n")
    with refused(where="prompt_date.txt"):
        config_for_folder(config(tmp_path), folder, resume=False)


def test_no_day_is_stored_where_no_template_asks(tmp_path: Path) -> None:
    store_date(config(tmp_path, CHAT, day="2024-07-26").cell, tmp_path / "base")
    assert not (tmp_path / "base").exists()


def test_the_day_of_a_base_policy_and_of_labels_that_are_taken_over(tmp_path: Path) -> None:
    given, other = config(tmp_path), tmp_path / "runs" / "other"
    other.mkdir(parents=True)
    save_config(given.with_settings(cell={"prompt": {"date": "2024-07-26"}}), other / "config.yaml")
    taken = given.with_settings(run={"base_from": str(other)})
    assert day_of(with_new_date(taken, tmp_path / "base")) == "2024-07-26"

    splits = tmp_path / "splits"
    splits.mkdir()
    (splits / "metadata.json").write_text(
        json.dumps({"settings": {"cell.prompt.date": "2024-07-27"}})
    )
    labelled = given.with_settings(cell={"task": f"tfds:{splits}#all"})
    assert day_of(with_new_date(labelled, tmp_path / "base")) == "2024-07-27"


def test_labels_are_of_a_day_and_without_one_keep_their_key(tmp_path: Path) -> None:
    """The key of a config without a day, as labels were made before there were days."""
    given = config(tmp_path)
    keys = [
        compute_label_key(given.with_settings(cell={"prompt": {"date": day}}).cell, "", [])
        for day in DAYS
    ]
    assert len(set(keys)) == len(DAYS)


DAYS = (None, "2024-07-26", "2024-07-27")


@pytest.mark.parametrize("written", ["2024-07-26", "2024-07-26T14:05"])
def test_a_day_as_text_or_as_yaml_reads_it(written: str) -> None:
    assert PromptConfig(date=written).date == written
    assert PromptConfig.model_validate({"date": date(2024, 7, 26)}).date == "2024-07-26"


@pytest.mark.parametrize("written", ["tomorrow", "26 Jul 2024", "2024-02-30", 2024])
def test_what_is_no_day_is_refused(tmp_path: Path, written: str | int) -> None:
    (tmp_path / "my.yaml").write_text(f"cell: {{prompt: {{date: {written}}}}}\n")
    with refused(where="my.yaml: cell.prompt.date"):
        load_config(str(tmp_path / "my.yaml"))
