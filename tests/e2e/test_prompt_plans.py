"""What is doubtful of a model's text is said by every command that plans, before anything is
sampled; and a chat whose template asks for the date has one for its whole sweep."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from isojax.core.config import load_config
from tests.compiler import QUICK, flags
from tests.e2e.command_line import Isojax, Nursery, snapshot
from tests.e2e.tiny_lm import CHAT_CONFIG, make_model
from tests.tasks.tokenizer_folders import CHAT

FLAGS = flags(QUICK, devices=1)
DATED = "{{ strftime_now('%d %b %Y') }}\n" + CHAT
# beside 64 of the prompt; the model has 512 positions
LONG = ("cell.sampling.response_length=1000",)
EXCESS = (
    "warning: cell.sampling.prompt_length = 64 and response_length = 1,000 are 1,064 tokens in "
    "all, and the model"
)


def prepare(place: Isojax, chat: str = CHAT) -> Isojax:
    """A folder with a model, a chat over problems of a file, and chat.yaml."""
    config_file = make_model(place.folder / "lm") / "tokenizer_config.json"
    config_file.write_text(
        json.dumps(json.loads(config_file.read_text()) | {"chat_template": chat})
    )
    (place.folder / "lm" / "chat_template.jinja").unlink(missing_ok=True)
    rows = [{"question": f"{i} + {i % 7} =", "answer": str(i + i % 7)} for i in range(60)]
    (place.folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place.folder / "chat.yaml").write_text(yaml.safe_dump(CHAT_CONFIG))
    return place


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("launch", "chat.yaml", "--dry-run"),
        ("lr-search", "chat.yaml", "--dry-run"),
        ("spend", "chat.yaml", "--budget", "96", "--dry-run"),
        ("difficulty", "chat.yaml", "--dry-run"),
    ],
    ids=lambda command: command[0],
)
def test_every_plan_says_that_lengths_exceed_the_context(
    tmp_path: Path, nursery: Nursery, command: tuple[str, ...]
) -> None:
    place = prepare(Isojax(tmp_path / "work", nursery))
    before = snapshot(place.folder)
    done = place.quick_ok(*command, *LONG, XLA_FLAGS=FLAGS)
    assert done.stderr.count(EXCESS) == 1 and "512 positions" in done.stderr
    assert "Traceback" not in done.stderr and snapshot(place.folder).keys() == before.keys()


@pytest.mark.slow
def test_a_sweep_has_one_date_whatever_the_day(tmp_path: Path, nursery: Nursery) -> None:
    """Begun on another day than today, as its config says; resumed, and searched on, without
    one."""
    place = prepare(Isojax(tmp_path / "work", nursery), DATED)
    day = "cell.prompt.date=2024-07-26"
    few, more = "sweep.budget=16", "sweep.budget=32"
    place.swept("launch", "chat.yaml", "name=whole", more, day, XLA_FLAGS=FLAGS)
    place.swept("train", "chat.yaml", few, day, XLA_FLAGS=FLAGS)
    resumed = place.swept("launch", "chat.yaml", more, "--resume", XLA_FLAGS=FLAGS)
    assert "cell.prompt.date=2024-07-26 for every prompt" in resumed.stderr
    assert place.ledgers("text") == place.ledgers("whole")
    samples = (place.run("text") / "cells" / "4x2-s0" / "samples.txt").read_text()
    assert "26 Jul 2024" in samples and f"{datetime.now():%d %b %Y}" not in samples

    place.swept(
        "train",
        "chat.yaml",
        "name=new",
        "run.base_from=runs/text",
        "sweep.budget=8",
        XLA_FLAGS=FLAGS,
    )
    assert load_config(str(place.run("new") / "config.yaml")).cell.prompt.date == "2024-07-26"
    place.swept("train", "chat.yaml", "name=today", "sweep.budget=8", XLA_FLAGS=FLAGS)
    today = load_config(str(place.run("today") / "config.yaml")).cell.prompt.date
    assert today is not None and abs((datetime.now() - datetime.fromisoformat(today)).days) <= 1
    assert (
        today != "2024-07-26"
        and (place.run("today") / "base" / "prompt_date.txt").read_text() == f"{today}\n"
    )
