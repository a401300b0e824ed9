"""What a text task says before anything is sampled: the end of a chat's turn is among the stops,
BOS is written once, markup is where it belongs, and P + T fit the model's positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isojax.core.config import CellConfig, ModelConfig, PromptConfig, SamplingConfig, VerifierConfig
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import InMemorySource
from isojax.tasks.prompt_checks import check_template_files
from isojax.tasks.task import TextTask
from tests.tasks.tokenizer_folders import CHAT, byte_level, sentencepiece

SUMS = [Problem(7, "12 + 7 =", "19"), Problem(3, "3 + 4 =", "7")]
BOS = "<|endoftext|>"
GENERATION = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PLAIN_GENERATION = "{% if add_generation_prompt %}assistant:{% endif %}"
THINKING = CHAT.replace("assistant\n", "assistant\n<think>\n")
# A turn by its end: the token of other models' chats is text to this tokenizer
OTHER_END = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|eot_id|>{% endfor %}"
    + GENERATION
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}" + PLAIN_GENERATION
ROLE_TOKENS = "{% for m in messages %}<|im_start|>{{ m.content }}\n{% endfor %}" + GENERATION


def task(folder: Path, sampling: dict[str, int] | None = None, **prompt: Any) -> TextTask:
    cell = CellConfig(
        model=ModelConfig(path=str(folder)),
        prompt=PromptConfig(**prompt),
        verifier=VerifierConfig(use="exact"),
        sampling=SamplingConfig(**(sampling or {})),
    )
    return TextTask(InMemorySource(SUMS), cell, num_workers=1)


def base_model(folder: Path, chat: str = CHAT, bos: bool = False) -> Path:
    """A folder whose files name <|endoftext|> (0) as the end, and not <|im_end|> (2), as a base
    model's."""
    byte_level(folder, chat=chat, bos=bos, eos_token_id=0)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": BOS}))
    return folder


def text_of(made: TextTask, response: str) -> str:
    ids = made.tokenizer(response, add_special_tokens=False, truncation=False)["input_ids"]
    return made.decode(np.array(ids, np.int32))


def test_the_token_that_ends_a_chats_turn_ends_a_response(tmp_path: Path) -> None:
    made = task(base_model(tmp_path), format="chat")
    assert made.stops.tokens == (0, 2) and made.stops.transitions is None
    (warning,) = made.warnings
    assert (
        "ends an assistant's turn with <|im_end|>" in warning
        and f"name {BOS} as the end" in warning
    )
    assert "generation_config.json" in warning and str(tmp_path) in warning
    assert text_of(made, "19<|im_end|>\n<|im_start|>user\nand 3 + 4?") == "19"


@pytest.mark.parametrize(
    ("chat", "opening"), [(THINKING, "<think>"), (CHAT, ""), (PLAIN, ""), (OTHER_END, "")]
)
def test_what_a_template_writes_of_the_policys_turn(
    tmp_path: Path, chat: str, opening: str
) -> None:
    assert task(base_model(tmp_path, chat=chat), format="chat").opening == opening


@pytest.mark.parametrize(
    "stop", [("<|im_end|>",), ("<|im_end|>", "cat"), ("\n",), ("<|im_start|>",)]
)
def test_a_stop_of_the_config_that_ends_the_turn_is_enough(
    tmp_path: Path, stop: tuple[str, ...]
) -> None:
    """A line break and the next message's first token come behind <|im_end|>, which is then no end
    of its own."""
    made = task(base_model(tmp_path), format="chat", stop=stop)
    assert made.warnings == []
    assert made.stops.tokens == {"<|im_end|>": (0, 2), "\n": (0,), "<|im_start|>": (0, 1)}[stop[0]]


def test_other_formats_and_files_that_name_the_end_change_nothing(tmp_path: Path) -> None:
    raw = task(base_model(tmp_path / "base"))
    assert raw.stops.tokens == (0,) and raw.warnings == []
    chat = task(byte_level(tmp_path / "chat"), format="chat")
    assert chat.stops.tokens == (2,) and chat.warnings == []


def test_an_end_that_is_no_token_here_is_a_stop_string(tmp_path: Path) -> None:
    made = task(base_model(tmp_path, OTHER_END), format="chat")
    assert made.stops.tokens == (0,) and made.stops.transitions is not None
    assert text_of(made, "19<|eot_id|><|im_start|>user\nmore") == "19"
    (warning,) = made.warnings
    assert "ends an assistant's turn with <|eot_id|>" in warning


def test_the_next_turns_first_token_ends_a_turn_without_an_end(tmp_path: Path) -> None:
    made = task(base_model(tmp_path, ROLE_TOKENS), format="chat")
    assert made.stops.tokens == (0, 1)
    assert text_of(made, "19\n<|im_start|>12 + 7") == "19\n"


def test_a_turn_that_ends_in_plain_text_is_a_warning_with_the_remedy(tmp_path: Path) -> None:
    made = task(base_model(tmp_path, PLAIN), format="chat")
    assert made.stops.tokens == (0,) and made.stops.transitions is None
    (warning,) = made.warnings
    assert "cell.prompt.stop=['user:']" in warning and "invent the next message" in warning
    assert task(tmp_path, format="chat", stop=("user:",)).warnings == []


@pytest.mark.parametrize(
    "chat",
    [
        "{{ messages[0].content }}" + GENERATION,  # earlier messages of the assistant are left out
        (
            "{% if messages | length > 1 %}{{ raise_exception('one message') }}{% endif %}{{ "
            "messages[0].content }}"
        ),
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}" + GENERATION,
        # of one message: what follows it may be the assistant's header
        "{{ messages[-1].content }}<|im_start|>",
    ],
)
def test_a_template_without_turns_is_used_as_before(tmp_path: Path, chat: str) -> None:
    made = task(base_model(tmp_path, chat), format="chat")
    assert made.stops.tokens == (0,) and made.warnings == []
    assert "12 + 7 =" in made.prompt_texts(SUMS)[0]


def test_the_end_of_a_users_turn_where_a_template_has_no_other(tmp_path: Path) -> None:
    made = task(
        base_model(tmp_path, "{{ messages[-1].content }}<|im_end|>\n" + GENERATION), format="chat"
    )
    assert made.stops.tokens == (0, 2)
    assert "ends a user's turn with <|im_end|>" in made.warnings[0]


def test_an_end_named_by_the_template_alone_suffices(tmp_path: Path) -> None:
    """No file names an end: a raw prompt would need cell.prompt.stop."""
    folder = byte_level(tmp_path)
    path = folder / "tokenizer_config.json"
    path.write_text(
        json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "eos_token"})
    )
    made = task(folder, format="chat")
    assert made.stops.tokens == (2,) and "name none as the end" in made.warnings[0]


def test_a_template_that_ignores_the_generation_prompt(tmp_path: Path) -> None:
    made = task(byte_level(tmp_path, chat=CHAT.partition("{% if add")[0]), format="chat")
    (warning,) = made.warnings
    assert (
        "without the header of the assistant's message" in warning
        and "add_generation_prompt" in warning
    )


@pytest.mark.parametrize(
    ("adds_bos", "template", "expected"),
    [
        (True, "{prompt}", BOS + "12 + 7 ="),
        (True, BOS + "{prompt}", BOS + "12 + 7 ="),
        (True, BOS + BOS + "{prompt}", BOS + "12 + 7 ="),
        (False, BOS + "{prompt}", BOS + "12 + 7 ="),
        (False, "{prompt}", "12 + 7 ="),
        # documents in between
        (True, "12 + 1 = 13" + BOS + "{prompt}", BOS + "12 + 1 = 13" + BOS + "12 + 7 ="),
    ],
)
def test_a_raw_prompt_has_one_bos(
    tmp_path: Path, adds_bos: bool, template: str, expected: str
) -> None:
    made = task(byte_level(tmp_path, bos=adds_bos), template=template)
    assert made.prompt_texts(SUMS)[0] == expected
    assert made.prompt_lengths(SUMS[:1]) == made.encode(SUMS[:1], 64).prompt_lengths.tolist()


def test_a_raw_prompt_of_sentencepiece_has_one_bos(tmp_path: Path) -> None:
    plain, written = (
        task(sentencepiece(tmp_path), template=template) for template in ("{prompt}", "<s>{prompt}")
    )
    assert written.encode(SUMS[:1], 40).prompts[0, :2].tolist() != [1, 1]
    assert (
        written.encode(SUMS[:1], 40).prompts[0, 0] == plain.encode(SUMS[:1], 40).prompts[0, 0] == 1
    )


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template_writes_it", [True, False])
def test_a_chat_has_the_bos_of_its_template(
    tmp_path: Path, adds_bos: bool, template_writes_it: bool
) -> None:
    chat = "{{ bos_token }}" * template_writes_it + CHAT
    first = BOS * template_writes_it + "<|im_start|>user\n"
    byte_level(tmp_path, chat=chat, bos=adds_bos)
    made = task(tmp_path, format="chat")
    assert made.prompt_texts(SUMS)[0].startswith(first + "12 + 7 =") and made.warnings == []
    twice = task(tmp_path, format="chat", template=BOS + "{prompt}", system=BOS + "Add.")
    assert twice.prompt_texts(SUMS)[0] == (
        BOS * template_writes_it
        + (
            "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n12 + 7 =<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
    )
    assert len(twice.warnings) == 2 and all("left out" in warning for warning in twice.warnings)


def test_markup_in_a_chats_message_is_a_warning(tmp_path: Path) -> None:
    """A chat written by hand within a chat."""
    template = "<|im_start|>user\n{prompt}<|im_end|>\n"
    (warning,) = task(byte_level(tmp_path), format="chat", template=template).warnings
    assert (
        "cell.prompt.template holds <|im_start|>, <|im_end|>" in warning and "format=raw" in warning
    )


@pytest.mark.parametrize(
    ("template", "stop", "warns"),
    [
        ("<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n", (), True),
        ("<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n", ("<|im_end|>",), False),
        ("{prompt}<|im_start|>", (), False),  # a header
        ("3 + 4 = 7<|im_end|>{prompt}", (), False),
    ],
)
def test_a_chat_by_hand_whose_end_is_none(
    tmp_path: Path, template: str, stop: tuple[str, ...], warns: bool
) -> None:
    made = task(base_model(tmp_path), template=template, stop=stop)
    assert [("cell.prompt.stop=['<|im_end|>']" in warning) for warning in made.warnings] == [
        True
    ] * warns
    assert made.stops.tokens == ((0, 2) if stop else (0,))


@pytest.mark.parametrize(
    ("config", "lengths", "said"),
    [
        (
            {"max_position_embeddings": 128},
            (96, 4096),
            ("4,192 tokens", "128 positions", "response_length=32"),
        ),
        (
            {"max_position_embeddings": 128},
            (96, 33),
            ("129 tokens", "128 positions", "response_length=32"),
        ),
        ({"max_position_embeddings": 128}, (96, 32), ()),
        (
            {"max_position_embeddings": 128},
            (128, 8),
            ("136 tokens", "prompt_length well below 128"),
        ),
        ({"n_positions": 64}, (60, 8), ("68 tokens", "64 positions")),
        ({"text_config": {"max_position_embeddings": 64}}, (60, 8), ("68 tokens", "64 positions")),
        # Llama 3's stretched context: the number is the stretched one
        (
            {
                "max_position_embeddings": 512,
                "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
            },
            (400, 112),
            (),
        ),
        ({}, (96, 4096), ()),
        ({"max_position_embeddings": None}, (96, 4096), ()),
    ],
)
def test_prompt_and_response_against_the_models_positions(
    tmp_path: Path, config: dict[str, Any], lengths: tuple[int, int], said: tuple[str, ...]
) -> None:
    folder = byte_level(tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    P, T = lengths
    made = task(folder, {"prompt_length": P, "response_length": T})
    assert len(made.warnings) == bool(said)
    assert all(words in made.warnings[0] for words in said)


def test_two_chat_templates_that_differ_are_named_with_the_one_that_is_used(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("A\n")
    config_file = tmp_path / "tokenizer_config.json"
    config_file.write_text('{"chat_template": "B"}')
    of_file = check_template_files(tmp_path, "A")
    of_config = check_template_files(tmp_path, "B")
    assert of_file and "chat_template.jinja and tokenizer_config.json differ" in of_file
    assert of_file.split(";")[1].startswith(" prompts are written by that of chat_template.jinja")
    assert of_config and "written by that of tokenizer_config.json" in of_config

    for same in (
        '{"chat_template": "A"}',
        "{}",
        '{"chat_template": [{"name": "default", "template": "B"}]}',
    ):
        config_file.write_text(same)
        assert check_template_files(tmp_path, "A") is None
