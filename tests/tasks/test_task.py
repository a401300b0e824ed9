"""Tasks in text: how prompts are written, what ends and judges a response, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isojax.core.config import (
    CellConfig,
    InterruptConfig,
    ModelConfig,
    PromptConfig,
    SamplingConfig,
    VerifierConfig,
)
from isojax.core.nouns import Problem
from isojax.tasks import prompts as prompts_module
from isojax.tasks.problem_sources import InMemorySource
from isojax.tasks.protocol import Grades
from isojax.tasks.task import TextTask, build_task
from tests.refusals import refused
from tests.tasks.tokenizer_folders import byte_level, sentencepiece

SUMS = [Problem(7, "12 + 7 =", "19"), Problem(3, "3 + 4 =", "7"), Problem(5, "1 + 1 =", "2")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_level(tmp_path_factory.mktemp("model"), padding=3, eos_token_id=[0, 2])


def task(folder: Path, problems: Sequence[Problem] = SUMS, **prompt: Any) -> TextTask:
    model, verifier = ModelConfig(path=str(folder)), VerifierConfig(use="exact")
    cell = CellConfig(model=model, prompt=PromptConfig(**prompt), verifier=verifier)
    return TextTask(InMemorySource(problems), cell, num_workers=1)


def prompts(
    made: TextTask, problems: Sequence[Problem] = SUMS, prompt_length: int = 200
) -> list[str]:
    """The prompts that `encode` writes, special tokens and all, with the padding checked."""
    tokens, lengths, answers, ids = made.encode(problems, prompt_length)
    assert tokens.dtype == lengths.dtype == answers.dtype == ids.dtype == np.int32
    assert tokens.shape == (len(problems), prompt_length) and answers.shape == (len(problems), 0)
    assert ids.tolist() == [p.id for p in problems]
    for row, length in zip(tokens, lengths, strict=True):
        assert (row[length:] == made.pad).all() and row[length - 1] != made.pad
    return [
        str(made.tokenizer.decode(row[:length]))
        for row, length in zip(tokens, lengths, strict=True)
    ]


def ids(made: TextTask, text: str) -> np.ndarray:
    return np.array(
        made.tokenizer(text, add_special_tokens=False, truncation=False)["input_ids"], np.int32
    )


def grade(made: TextTask, problems: Sequence[Problem], responses: Sequence[str]) -> Grades:
    return made.grade_tokens(problems, [ids(made, response) for response in responses])


def ends(made: TextTask, tokens: np.ndarray) -> int:
    """How many of the tokens a sampler keeps."""
    state, table = 0, made.stops.transitions
    for i, token in enumerate(tokens):
        state = 0 if table is None else table[state, token]
        if token in made.stops.tokens or (table is not None and state == len(table)):
            return i + 1
    return len(tokens)


def test_a_raw_prompt_is_the_template_filled_in(folder: Path) -> None:
    made = task(folder, template="3 + 1 = 4\n{prompt}")
    assert prompts(made) == ["3 + 1 = 4\n12 + 7 =", "3 + 1 = 4\n3 + 4 =", "3 + 1 = 4\n1 + 1 ="]
    assert (made.vocab, made.stops.tokens, made.stops.transitions, made.pad) == (
        len(made.tokenizer) + 3,
        (0, 2),
        None,
        3,
    )
    assert made.on_device is False


def test_the_tokenizers_own_first_token_is_kept(tmp_path: Path) -> None:
    assert prompts(task(byte_level(tmp_path, bos=True)))[1] == "<|endoftext|>3 + 4 ="
    llama = task(sentencepiece(tmp_path / "llama"))
    assert llama.encode(SUMS[:1], 20).prompts[0, 0] == 1 and llama.pad == 2
    assert llama.decode(ids(llama, "the cat")) == " the cat"


def test_an_added_token_beyond_the_embedding_is_read_until_a_prompt_holds_it(
    tmp_path: Path,
) -> None:
    """`<think>` is the last token, and the embedding has no row for it, as with the [PAD] that
    trainers add."""
    made = task(byte_level(tmp_path, padding=-1))
    assert made.vocab == len(made.tokenizer) - 1 and made.stops.tokens == (2,) and made.pad == 3
    assert prompts(made)[0] == "12 + 7 ="
    assert made.decode(ids(made, "the cat")) == "the cat"

    held = Problem(0, "say <think> twice", "1")
    for method in (made.prompt_lengths, made.prompt_texts):
        with refused():
            method([held])


def test_a_padding_token_beyond_the_embedding_pads_with_another(tmp_path: Path) -> None:
    folder = byte_level(tmp_path, padding=-1)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": "<think>"}))
    made = task(folder)
    assert made.tokenizer.pad_token_id == made.vocab and made.pad in made.stops.tokens
    assert made.encode(SUMS, 40).prompts.max() < made.vocab

    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, made.vocab]}))
    with refused():
        task(folder)


def test_a_chat_prompt_is_the_template_of_the_tokenizer(folder: Path) -> None:
    made = task(folder, format="chat", system="Be brief.", template="{prompt}?")
    chat = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n3 + 4 =?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert prompts(made)[1] == chat
    assert (
        prompts(task(folder, format="chat"))[1]
        == "<|im_start|>user\n3 + 4 =<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompts(task(folder, format="chat", thinking=True))[1].endswith("assistant\n")
    assert prompts(task(folder, format="chat", thinking=False))[1].endswith(
        "assistant\n<think>no</think>"
    )


def test_a_template_is_filled_in_once_for_the_problems_that_each_evaluation_shows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time is a process. Of other problems, those that were not shown before are rendered."""
    made, calls, render = task(folder, format="chat"), [], prompts_module.render_chats
    monkeypatch.setattr(
        prompts_module,
        "render_chats",
        lambda *words: (calls.append(len(words[1])), render(*words))[1],
    )
    first = made.prompt_texts(SUMS[:2])
    assert made.prompt_texts(list(SUMS[:2])) == first and calls == [2]
    assert made.prompt_texts(SUMS[1:]) == [
        first[1],
        first[1].replace("3 + 4", "1 + 1"),
    ] and calls == [2, 1]


def test_a_sources_own_conversation(folder: Path) -> None:
    turns = [("system", "Add."), ("user", "1 + 1 ="), ("assistant", "2"), ("user", "3 + 4 =")]
    talk = Problem(
        1,
        "3 + 4 =",
        "7",
        messages=tuple({"role": role, "content": content} for role, content in turns),
    )
    (result,) = prompts(task(folder, format="chat", template="{prompt} ?"), [talk])
    every = [*turns[:-1], ("user", "3 + 4 = ?")]
    assert (
        result
        == "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in every)
        + "<|im_start|>assistant\n"
    )
    with refused():
        prompts(task(folder, format="chat", system="Subtract."), [talk])
    with refused(where="problem 1"):
        prompts(task(folder), [talk])
    single = Problem(2, "3 + 4 =", "7", messages=talk.messages[3:])
    assert prompts(task(folder), [single]) == ["3 + 4 ="]


def test_long_prompts_are_never_cut(folder: Path) -> None:
    long = Problem(9, "the cat sat on the mat " * 30, "no")
    made = task(folder)
    assert prompts(made, [long], 400) == [long.prompt]
    length = int(made.encode([long], 400).prompt_lengths[0])
    lengths = made.prompt_lengths([*SUMS, long, SUMS[0]])
    assert lengths[-2] == length and max(*lengths[:-2], lengths[-1]) < length
    with refused(where="the prompt of problem 9"):
        made.encode([*SUMS, long], length - 1)
    assert made.prompt_lengths([]) == [] and made.encode([], 5).prompts.shape == (0, 5)


@pytest.mark.parametrize("format", ["raw", "chat"])
def test_a_prompt_of_a_million_characters_is_refused_before_it_is_written(
    folder: Path, format: str
) -> None:
    """One of 16 GB, which a template makes of a million."""
    made = task(folder, format=format, template="{prompt}" * 16000)
    with refused():
        made.prompt_lengths([Problem(4, "x" * 10**6, "1")])
    with refused():
        task(folder, format=format).prompt_lengths([Problem(4, "x" * (8 * 10**6), "1")])


def test_a_prompt_of_nothing_is_refused(folder: Path) -> None:
    with refused(where="the prompt of problem 4"):
        task(folder).encode([Problem(4, "", "1")], 5)


@pytest.mark.parametrize(
    ("response", "kept", "text"),
    [
        (" 19\n3 + 4", " 19\n", " 19"),
        (" 19\n\n", " 19\n\n", " 19"),  # one token holds both line breaks
        (" 19 Question: what", " 19 Question:", " 19 "),
        (" 19 Question", " 19 Question", " 19 Question"),
        (" 19<|im_end|>\n3", " 19<|im_end|>", " 19"),
        (" 19<|im_start|>3", " 19<|im_start|>3", " 193"),
        # a special token stands between
        ("Ques<|im_start|>tion:\nx", "Ques<|im_start|>tion:\n", "Question:"),
        ("\n", "\n", ""),
        ("<think>3</think>19", "<think>3</think>19", "<think>3</think>19"),
    ],
)
def test_what_ends_a_response_is_cut_off(folder: Path, response: str, kept: str, text: str) -> None:
    made = task(folder, stop=("\n", "Question:"))
    every = ids(made, response)
    specific = every[: ends(made, every)]
    assert made.tokenizer.decode(specific) == kept
    assert made.decode(specific) == text


def test_two_line_breaks_are_one_token_here(folder: Path) -> None:
    assert len(ids(task(folder), "\n\n")) == 1  # or a case above shows nothing


def test_a_response_that_ends_within_a_character(folder: Path) -> None:
    made = task(folder)
    assert made.decode(ids(made, "1€")[:-1]) == "1\N{REPLACEMENT CHARACTER}"
    assert made.decode(np.zeros(0, np.int32)) == ""


def test_grades_of_the_verifier(folder: Path) -> None:
    made = task(folder)
    made.start_verifier()
    grades = grade(made, [SUMS[0], SUMS[0], SUMS[2], SUMS[1]], ["19", "18", " 2\n", ""])
    assert (
        grades.rewards.tolist() == [1, 0, 1, 0]
        and grades.parsed.tolist() == [True, True, True, False]
        and grades.failures == {}
    )
    made.close()
    made.close()
    # its processes come back when they are needed
    assert grade(made, SUMS[:1], ["19"]).rewards.tolist() == [1]
    made.close()


def test_a_users_verifier_gets_the_prompt_and_its_failures_are_shown(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "def fn(prompts, completions, **columns):\n"
        "    assert 'x' not in completions[0]\n"
        "    chat = '<|im_start|>user\\nAdd: 3 + 4 =<|im_end|>\\n<|im_start|>assistant\\n'\n"
        "    return [float(p == chat) for p in prompts]\n"
    )
    use = f"function:{tmp_path / 'mine.py'}:fn"
    cell = CellConfig(
        model=ModelConfig(path=str(folder)),
        prompt=PromptConfig(template="Add: {prompt}", format="chat"),
        verifier=VerifierConfig(use=use),
    )
    made = TextTask(InMemorySource(SUMS), cell, num_workers=1)
    grades = grade(made, [SUMS[1], SUMS[0], SUMS[1]], ["a", "b", "x"])
    assert grades.rewards.tolist() == [1, 0, 0] and grades.failures == {"error": 1}
    (example,) = made.start_verifier().failure_examples.items()
    assert example[0] == "error" and "problem 3" in example[1]
    made.close()


def test_threads_share_a_task(folder: Path) -> None:
    made = task(folder)
    with ThreadPoolExecutor(8) as pool:
        result = list(pool.map(lambda _: made.encode(SUMS, 20).prompts.tolist(), range(50)))
    assert all(prompt == result[0] for prompt in result)


def test_build_task_makes_a_text_task_of_a_source(folder: Path) -> None:
    cell = CellConfig(
        task="addition",
        model=ModelConfig(path=str(folder)),
        verifier=VerifierConfig(use="exact"),
        sampling=SamplingConfig(prompt_length=48, response_length=4),
    )
    made: TextTask = build_task(cell, num_workers=1)  # type: ignore[assignment]
    assert isinstance(made, TextTask)
    problem = made.problems(1, np.random.default_rng(0))[0]
    a, b = problem.prompt.rstrip("=").split("+")
    assert int(a) + int(b) == int(problem.answer)
    with refused(where="sources plug-in 'no_such_task'"):
        build_task(CellConfig(task="no_such_task"))


@pytest.mark.parametrize(
    "prompt",
    [
        {"template": "Add:"},
        {"system": "Be brief."},
        {"thinking": False},
        {"stop": ("\n", "")},
    ],
)
def test_prompt_formats_that_cannot_be(folder: Path, prompt: dict[str, Any]) -> None:
    with refused():
        task(folder, **prompt)


def test_a_chat_without_a_template_is_refused(tmp_path: Path) -> None:
    with refused():
        task(byte_level(tmp_path, chat=None), format="chat")


def test_a_chat_template_that_knows_no_system_message(tmp_path: Path) -> None:
    made = task(
        byte_level(tmp_path, chat="{{ raise_exception('no system here') }}"),
        format="chat",
        system="Be brief.",
    )
    with refused():
        made.encode(SUMS, 20)


@pytest.mark.parametrize(
    "broken",
    [
        "m.content + 1",
        "'%(x)s' % {}",
        "raise_exception('no')",
    ],
)
def test_a_chat_template_that_breaks_shows_the_conversation_it_broke_on(
    tmp_path: Path, broken: str
) -> None:
    chat = (
        "{% for m in messages %}{{ m.content }}{% if '3 + 4' in m.content %}{{ "
        + broken
        + " }}{% endif %}{% endfor %}"
    )
    made = task(byte_level(tmp_path, chat=chat), format="chat", system="Be brief.")
    assert made.encode(SUMS[:1], 40).prompt_lengths[0] > 0
    with refused() as caught:
        made.encode(SUMS, 40)
    assert "12 + 7" not in str(caught.value)


def test_models_that_cannot_be(tmp_path: Path) -> None:
    with refused(where="cell.model.path"):
        TextTask(InMemorySource(SUMS), CellConfig())
    folder = byte_level(tmp_path, eos_token_id=5000)
    with refused():
        task(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    with refused(where="config.json"):
        task(folder)
    with refused():
        TextTask(InMemorySource(SUMS), CellConfig(model=ModelConfig(path=str(folder), vocab=100)))


def test_a_tokenizer_that_fails_at_a_text_is_an_error_like_others(tmp_path: Path) -> None:
    """One whose unknown token is none of its tokens loads, and raises at the first text that needs
    it."""
    folder = byte_level(tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"] = {"type": "WordLevel", "vocab": {"a": 4}, "unk_token": "<missing>"}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with refused():
        task(folder).encode(SUMS, 20)


def test_a_response_must_end_somehow(tmp_path: Path) -> None:
    folder = byte_level(tmp_path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with refused():
        task(folder)
    assert task(folder, stop=("\n",)).stops.tokens == ()


def test_a_stop_string_that_is_a_special_token_ends_a_response(tmp_path: Path) -> None:
    """It adds no text, so no table of strings finds it."""
    folder = byte_level(tmp_path, eos_token_id=0)
    assert task(folder).stops.tokens == (0, 2)
    made = task(folder, stop=("<|im_start|>", "cat"))
    assert made.stops.tokens == (0, 1, 2)
    assert (
        ends(made, np.array([*ids(made, "a dog"), 1, *ids(made, " ran")]))
        == len(ids(made, "a dog")) + 1
    )


@pytest.mark.parametrize("eos", [-1, True, [-1, 0]])
def test_an_end_token_is_an_id(tmp_path: Path, eos: Any) -> None:
    assert task(byte_level(tmp_path, eos_token_id=eos)).stops.tokens == (
        (0, 2) if isinstance(eos, list) else (2,)
    )


def test_several_chat_templates_without_a_default_are_refused(tmp_path: Path) -> None:
    folder = byte_level(tmp_path, chat=None)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": name, "template": "{{ messages }}"} for name in ("rag", "tool_use")
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with refused():
        task(folder, format="chat")


def test_a_tokenizer_that_cannot_write_a_digit(tmp_path: Path) -> None:
    folder = byte_level(tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    vocab = {
        token: i
        for i, token in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>", "a"))
    }
    content["model"] |= {"vocab": vocab, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert task(folder).stops.tokens == (2,)


def test_a_tokenizer_that_ends_every_text_is_refused(tmp_path: Path) -> None:
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "add_eos_token": True,
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    folder = sentencepiece(tmp_path, config=config)
    with refused():
        task(folder)


def interrupted(
    folder: Path, length: int = 60, stop: tuple[str, ...] = (), **interrupt: Any
) -> TextTask:
    sampling = SamplingConfig(response_length=length, interrupt=InterruptConfig(**interrupt))
    model, verifier = ModelConfig(path=str(folder)), VerifierConfig(use="exact")
    cell = CellConfig(
        model=model, prompt=PromptConfig(stop=stop), verifier=verifier, sampling=sampling
    )
    return TextTask(InMemorySource(SUMS), cell, num_workers=1)


def test_what_interrupts_a_response_is_tokenised_once(tmp_path: Path) -> None:
    """Without the tokens that the tokenizer puts before every text; the default text is
    ScaleRL's."""
    folder = byte_level(tmp_path, bos=True)
    made = interrupted(folder, after=7, text="the cat sat<think>", unless="<think>")
    result = made.stops.interruption
    assert result is not None and (result.after, result.unless_token) == (
        7,
        made.tokenizer.convert_tokens_to_ids("<think>"),
    )
    assert (
        made.tokenizer.decode(result.tokens) == "the cat sat<think>"
        and result.tokens[-1] == result.unless_token
    )
    assert made.decode(np.array(result.tokens)) == "the cat sat<think>"
    always = interrupted(folder, 200, after=7, unless="").stops.interruption
    assert always is not None and always.unless_token is None
    assert str(made.tokenizer.decode(always.tokens)).startswith("Okay, time is up.")
    assert task(folder).stops.interruption is None


@pytest.mark.parametrize(
    "given",
    [
        {"after": 7, "text": "the cat", "unless": "</think>"},
        {"after": 55, "text": "the cat sat on a mat", "unless": ""},
        {"after": 7, "text": "12 + 7\nso", "unless": "", "stop": ("\n",)},
        {"after": 7, "text": "done<|im_end|>", "unless": ""},
    ],
)
def test_what_cannot_interrupt_a_response(folder: Path, given: dict[str, Any]) -> None:
    with refused(where="cell.sampling.interrupt"):
        interrupted(folder, **given)


def test_a_task_without_text_cannot_be_interrupted() -> None:
    cell = CellConfig(
        task="solvers",
        sampling=SamplingConfig(response_length=100, interrupt=InterruptConfig(after=2)),
    )
    with refused(where="cell.sampling.interrupt"):
        build_task(cell)


def test_a_task_without_text_has_no_verifier_of_ones_own() -> None:
    cell = CellConfig(task="solvers", verifier=VerifierConfig(use="function:rewards.py:reward"))
    with refused(where="cell.verifier.use"):
        build_task(cell)


PREFILLED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
REWARDS = """\
import re
def whole(completions, prompts, **columns):
    assert sorted(columns) == ["answer"]
    texts = [p + c for p, c in zip(prompts, completions)]
    return [float(bool(re.search(r"assistant\\n<think>\\n[^<]*</think>", text))) for text in texts]
def own_text(completions, problem_text):
    return [float(text in ("12 + 7 =", "3 + 4 =")) for text in problem_text]
def compute_score(data_source, solution_str, ground_truth, extra_info=None, prompt_str=""):
    opened = prompt_str.endswith("<|im_start|>assistant\\n<think>\\n")
    return float(opened and "</think>" in solution_str)
def as_verl(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0
"""


@pytest.mark.parametrize(
    ("use", "rewards"),
    [
        ("function:{}:whole", [1, 0]),
        ("function:{}:own_text", [1, 1]),
        ("verl:{}", [1, 0]),
        ("verl:{}:as_verl", [1, 1]),
    ],
)
def test_a_reward_sees_what_the_chat_template_has_begun_for_the_policy(
    tmp_path: Path, use: str, rewards: list[float]
) -> None:
    folder, file = byte_level(tmp_path / "lm", chat=PREFILLED), tmp_path / "rewards.py"
    file.write_text(REWARDS)
    cell = CellConfig(
        model=ModelConfig(path=str(folder)),
        prompt=PromptConfig(format="chat", template="Add: {prompt}"),
        verifier=VerifierConfig(use=use.format(file)),
    )
    made = TextTask(InMemorySource(SUMS), cell, num_workers=1)
    grades = grade(made, SUMS[:2], ["12 and 7.\n</think>\n19", "7"])
    assert grades.rewards.tolist() == rewards and grades.failures == {}
    made.close()


def test_thoughts_that_the_chat_template_has_begun_are_no_answer(tmp_path: Path) -> None:
    """For the reward, and for a person who reads what the response says."""
    cell = CellConfig(
        model=ModelConfig(path=str(byte_level(tmp_path, chat=PREFILLED))),
        prompt=PromptConfig(format="chat"),
        verifier=VerifierConfig(use="math"),
    )
    made = TextTask(InMemorySource(SUMS), cell, num_workers=1)
    responses = [
        "#### 19",
        "#### 19\n</think>\n#### 18",
        "18?\n</think>\n#### 19",
        f"</think>\n{'so ' * 1000}\n#### 19",
    ]
    grades = grade(made, SUMS[:1] * 4, responses)
    assert grades.rewards.tolist() == [0, 0, 1, 1] and grades.parsed.tolist() == [
        False,
        True,
        True,
        True,
    ]
    found = [made.answer_found(SUMS[0], ids(made, response)) for response in responses]
    assert found == ["", "18", "19", "19"]
    made.close()


def test_a_reward_of_a_raw_prompt_sees_the_template_filled_in(tmp_path: Path) -> None:
    """Without the BOS that the tokenizer adds: it is no text of the user's."""
    (tmp_path / "rewards.py").write_text(
        "def f(prompts, completions): return [p == 'Add: 3 + 4 =' for p in prompts]\n"
    )
    cell = CellConfig(
        model=ModelConfig(path=str(byte_level(tmp_path / "lm", bos=True))),
        prompt=PromptConfig(template="Add: {prompt}"),
        verifier=VerifierConfig(use=f"function:{tmp_path / 'rewards.py'}:f"),
    )
    made = TextTask(InMemorySource(SUMS), cell, num_workers=1)
    assert grade(made, SUMS[:2], ["19", "7"]).rewards.tolist() == [0, 1]
    made.close()


def test_grading_renders_no_prompt_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, calls, render = task(folder, format="chat"), [], prompts_module.render_chats
    monkeypatch.setattr(
        prompts_module,
        "render_chats",
        lambda *words: (calls.append(len(words[1])), render(*words))[1],
    )
    made.encode(SUMS, 40)
    grade(made, [SUMS[0]] * 5 + [SUMS[1]] * 5, ["19"] * 10)
    assert calls == [3]
    made.close()
