"""Prompts of an instruction-tuned Gemma 3: a tokenizer of its kind, and a chat template as it comes
with those models. <bos> is there once, a system message is a part of the user's turn, and
<end_of_turn> ends a response."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from isojax.core.config import CellConfig, ModelConfig, PromptConfig, SamplingConfig, VerifierConfig
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import InMemorySource
from isojax.tasks.task import TextTask
from isojax.tasks.turns import find_reply
from tests.tasks.tokenizer_folders import TEXT

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
NAMES = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
PAD, EOS, BOS, UNK, START, END = range(6)
PRINTABLE = [chr(code) for code in range(33, 127)]
# Roles take turns; the assistant is called model; what the system says goes in front of the user's
# first message.
TEMPLATE = """\
{{ bos_token }}
{%- set said = messages[0].content + '\n\n' if messages[0].role == 'system' else '' -%}
{%- for message in (messages[1:] if messages[0].role == 'system' else messages) -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('roles must alternate') }}
{%- endif -%}
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' }}
{{- (said if loop.first else '') + message.content | trim + '<end_of_turn>\n' }}
{%- endfor -%}
{{ '<start_of_turn>model\n' if add_generation_prompt else '' }}"""
SUM = Problem(7, "12 + 7 =", "19")


def make_folder(folder: Path, **generation: Any) -> Path:
    """A BPE of sentencepiece's kind: spaces are written as `SPACE`, and <bos> is before every
    text."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", SPACE)
    made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=NAMES, initial_alphabet=PRINTABLE, show_progress=False
    )
    made.train_from_iterator(TEXT, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS)]
    )
    special = {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    }
    PreTrainedTokenizerFast(
        tokenizer_object=made, chat_template=TEMPLATE, **special
    ).save_pretrained(folder)

    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "eos_token_id": EOS,
    }
    (folder / "config.json").write_text(
        json.dumps(config | {"text_config": {"vocab_size": made.get_vocab_size()}})
    )
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.fixture
def make_task(tmp_path: Path) -> Iterator[Any]:
    tasks: list[TextTask] = []

    def make(
        task: str = "addition", generation: dict[str, Any] | None = None, **prompt: Any
    ) -> TextTask:
        folder = make_folder(tmp_path / str(len(tasks)), **(generation or {}))
        vocab = json.loads((folder / "config.json").read_text())["text_config"]["vocab_size"]
        cell = CellConfig(
            task=task,
            model=ModelConfig(path=str(folder), vocab=vocab),
            prompt=PromptConfig.model_validate({"format": "chat"} | prompt),
            verifier=VerifierConfig(use="integer"),
            sampling=SamplingConfig(response_length=200),
        )
        tasks.append(
            TextTask(InMemorySource([SUM]), cell, num_workers=1, reply_check=find_reply(task))
        )
        return tasks[-1]

    yield make
    for task in tasks:
        task.close()


def prompt_of(task: TextTask, problem: Problem = SUM) -> str:
    """As the model reads it: the text of its ids."""
    (text,) = task.prompt_texts([problem])
    assert text.count("<bos>") == 1
    return text


def test_the_files_of_an_instruction_tuned_model_are_complete(make_task: Any) -> None:
    task = make_task(generation={"eos_token_id": [EOS, END]})
    assert task.stops.tokens == (EOS, END)
    assert task.warnings == []
    assert (
        prompt_of(task) == "<bos><start_of_turn>user\n12 + 7 =<end_of_turn>\n<start_of_turn>model\n"
    )


def test_the_end_of_a_turn_ends_a_response_where_the_files_name_eos_alone(make_task: Any) -> None:
    task = make_task()
    assert task.stops.tokens == (EOS, END)
    (warning,) = task.warnings
    assert (
        "ends an assistant's turn with <end_of_turn>" in warning
        and "name <eos> as the end" in warning
    )


def test_what_the_system_says_is_a_part_of_the_users_turn(make_task: Any) -> None:
    task = make_task(system="Be brief.")
    turn = "<start_of_turn>user\nBe brief.\n\n12 + 7 =<end_of_turn>\n"
    assert prompt_of(task) == f"<bos>{turn}<start_of_turn>model\n"


def test_a_conversation(make_task: Any) -> None:
    messages = ("user", "3 + 4 ="), ("assistant", "7"), ("user", "12 + 7 =")
    problem = Problem(
        1, "12 + 7 =", "19", messages=tuple({"role": r, "content": text} for r, text in messages)
    )
    turns = [f"<start_of_turn>{role}\n{text}<end_of_turn>\n" for role, text in messages]
    expected = f"<bos>{''.join(turns)}<start_of_turn>model\n".replace("assistant", "model")
    assert prompt_of(make_task(), problem) == expected


def test_a_reply_is_a_users_turn(make_task: Any) -> None:
    """<end_of_turn> is the policy's own; what follows it is context, without a second <bos>."""
    task = make_task("calculator")
    ids = task.tokenizer("12 + 7<end_of_turn>", add_special_tokens=False)["input_ids"]
    (context,), failures = task.reply_tokens([SUM], [np.array(ids, np.int32)])
    assert ids[-1] == END and not failures
    text = task.tokenizer.decode(context.tolist())
    assert text == "\n<start_of_turn>user\n19\n<end_of_turn>\n<start_of_turn>model\n"


def test_a_raw_prompt_begins_with_bos_too(make_task: Any) -> None:
    assert prompt_of(make_task(format="raw")) == "<bos>12 + 7 ="


def test_a_bos_that_the_template_repeats_is_left_out(make_task: Any) -> None:
    task = make_task(template="<bos>{prompt}")
    assert (
        prompt_of(task) == "<bos><start_of_turn>user\n12 + 7 =<end_of_turn>\n<start_of_turn>model\n"
    )
    assert any("begins with <bos>" in warning for warning in task.warnings)
