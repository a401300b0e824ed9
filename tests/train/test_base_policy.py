"""The base policy: its loss by hand, and what `prepare` makes, keeps and gives back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from isojax.core.config import (
    CellConfig,
    Config,
    DataConfig,
    ModelConfig,
    SamplingConfig,
    save_config,
)
from isojax.core.config.model import BasePolicyConfig
from isojax.core.nouns import Problem
from isojax.core.shapes import SamplerShapes
from isojax.models.transformer import Decoder, Params
from isojax.tasks.device import solvers
from isojax.tasks.protocol import EncodedProblems, TokenizedProblems
from isojax.tasks.task import tokenize
from isojax.train import demonstrations
from isojax.train.base_policy import (
    BasePolicy,
    load_base_policy,
    prepare_base_policy,
    text_fingerprint,
)
from isojax.train.demonstrations import sft_loss
from isojax.train.evaluate import Evaluator
from tests.device import CONFIG, DECODER, EOS, log_softmax, logits, mesh, policy
from tests.refusals import refused

pytestmark = pytest.mark.seconds(10)

CELL = CellConfig(
    model=CONFIG,
    base=BasePolicyConfig(steps=50, batch=32),
    data=DataConfig(candidates=60, attempts=6, difficulty=(0.0, 1.0), validation=10),
)
TASK = solvers.build()


def test_imitation_loss_against_numpy() -> None:
    """Negative log-likelihood of the answers' tokens up to and with the end token, a mean over all
    of them."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(4, 24, (5, 6)).astype(np.int32)
    answers = rng.integers(4, 24, (5, 4)).astype(np.int32)
    ends = [1, 3, 0, 2, 1]
    answers[np.arange(5), ends] = EOS
    log_p = log_softmax(np, logits(np, policy(), np.concatenate([prompts, answers], 1)))
    losses = [
        -log_p[i, 6 + t - 1, answers[i, t]] for i, end in enumerate(ends) for t in range(end + 1)
    ]
    batch = EncodedProblems(prompts, np.full(5, 6), answers, np.arange(5))
    got = jax.jit(lambda p: sft_loss(DECODER, p, batch, EOS))(policy())
    assert len(losses) == 12
    assert float(got) == pytest.approx(np.mean(losses), rel=1e-5)


def test_an_answer_follows_its_prompt_where_prompts_vary_in_length() -> None:
    """Each answer's log-likelihoods are those of its prompt and answer alone, whatever pads the
    prompt."""
    rng = np.random.default_rng(1)
    prompts = rng.integers(4, 24, (5, 6)).astype(np.int32)
    answers = rng.integers(4, 24, (5, 4)).astype(np.int32)
    ends, lengths = [1, 3, 0, 2, 1], np.array([3, 6, 4, 1, 5], np.int32)
    answers[np.arange(5), ends] = EOS
    losses = []
    for prompt, answer, end, length in zip(prompts, answers, ends, lengths, strict=True):
        log_p = log_softmax(
            np, logits(np, policy(), np.concatenate([prompt[:length], answer])[None])
        )
        losses += [-log_p[0, length + t - 1, answer[t]] for t in range(end + 1)]
    batch = EncodedProblems(prompts, lengths, answers, np.arange(5))
    got = jax.jit(lambda p: sft_loss(DECODER, p, batch, EOS, padded=True))(policy())
    assert float(got) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("short", [False, True])
def test_a_task_whose_prompts_vary_in_length_is_imitated_without_padding(
    short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Task(solvers.SolversTask):
        def demonstrations(self, count: int, *others: Any) -> EncodedProblems:
            batch = super().demonstrations(count, *others)
            return batch._replace(
                prompt_lengths=batch.prompt_lengths - short * (np.arange(count) % 2 == 0)
            )

    def loss(*arguments: Any) -> None:
        raise LookupError(arguments[-1])

    monkeypatch.setattr(demonstrations, "sft_loss", loss)
    with pytest.raises(LookupError) as seen:
        demonstrations.train_base_policy(CELL, DECODER, Task(), lambda *_: None)
    assert seen.value.args == (short,)


def test_room_for_longer_prompts_does_not_come_between_a_prompt_and_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sampler writes an answer right after its prompt, and so is it imitated."""

    def loss(decoder: Decoder, params: Params, batch: EncodedProblems, *_: Any) -> None:
        raise LookupError(batch.prompts.shape[1])

    monkeypatch.setattr(demonstrations, "sft_loss", loss)
    cell = CELL.model_copy(update={"sampling": SamplingConfig(prompt_length=9)})
    with pytest.raises(LookupError) as seen:
        demonstrations.train_base_policy(cell, DECODER, TASK, lambda *_: None)
    assert seen.value.args == (6,)


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(
        Decoder(CONFIG, TASK.vocab),
        TASK,
        mesh(),
        10,
        4,
        SamplerShapes([(4, 4)], 1, 12, 8, 6, 4),
        CellConfig(),
    )


@pytest.fixture(scope="module")
def made(
    evaluator: Evaluator, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, BasePolicy, list[str]]:
    folder, output = tmp_path_factory.mktemp("run") / "base", []
    return folder, run(folder, evaluator, output), output


def run(
    folder: Path, evaluator: Evaluator, said: list[str], source: Path | None = None
) -> BasePolicy:
    programs: Any = SimpleNamespace(
        cell_config=CELL,
        decoder=DECODER,
        task=TASK,
        labeller=evaluator,
        initial_params=lambda base_params: base_params,
        mesh=mesh(),
        tokenize=lambda problems: tokenize(TASK, CELL.sampling, problems),
    )
    return prepare_base_policy(folder, programs, lambda text, _: said.append(text), source)


def params(base: BasePolicy) -> Params:
    return jax.device_get(base.load_params(DECODER, mesh()))


def same(one: BasePolicy, two: BasePolicy) -> bool:
    a, b = (flatten_dict(params(x)) for x in (one, two))
    return (
        a.keys() == b.keys()
        and all(np.array_equal(a[k], b[k]) for k in a)
        and one.training == two.training
        and one.validation == two.validation
    )


def test_what_is_made_is_kept_and_read_again(
    made: tuple[Path, BasePolicy, list[str]], evaluator: Evaluator
) -> None:
    folder, base, output = made
    assert (
        output[0].startswith("base policy: step 50 of 50, loss ")
        and output[1] == "labelled 0 of 60 problems by avg@8"
    )
    again: list[str] = []
    assert same(run(folder, evaluator, again), base) and not again
    assert sorted(p.name for p in folder.iterdir()) == [
        "about.json",
        "labels.jsonl",
        "params.safetensors",
        "problems.jsonl",
        "start.json",
    ]


def test_a_run_takes_over_the_base_policy_and_labels_of_its_settings(
    made: tuple[Path, BasePolicy, list[str]],
    evaluator: Evaluator,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is trained or labelled again, whatever the recipe; damaged or of other settings,
    nothing is copied."""
    source, base, _ = made
    save_config(
        Config(name="a", cell=CELL.with_settings(rl={"learning_rate": 1e-5})),
        source.parent / "config.yaml",
    )
    output: list[str] = []
    assert same(run(tmp_path / "base", evaluator, output, source), base) and not output
    more = shutil.copytree(source.parent, tmp_path / "more") / "base"  # labelled by other rollouts
    save_config(
        Config(name="a", cell=CELL.with_settings(eval={"samples": 8})), more.parent / "config.yaml"
    )
    assert same(run(tmp_path / "labelled", evaluator, output, more), base)
    assert output[0].startswith("labelled 0 of 60 problems")
    output.clear()
    damaged = shutil.copytree(source.parent, tmp_path / "damaged") / "base"
    (damaged / "params.safetensors").write_bytes(b"\0" * 100)
    others = shutil.copytree(source.parent, tmp_path / "others") / "base"
    save_config(
        Config(name="a", cell=CELL.with_settings(base={"seed": 9})), others.parent / "config.yaml"
    )
    reasons = ("params.safetensors is damaged", "other settings of cell.*", "no such file or name")
    for folder, reason in zip(
        (damaged, others, tmp_path / "nothing" / "base"), reasons, strict=True
    ):
        assert same(run(tmp_path / reason / "base", evaluator, output, folder), base) and output
        warning = " ".join(capsys.readouterr().err.split())
        assert reason in warning and "This run makes a base policy and labels of its own" in warning
        output.clear()


def test_another_tokenizer_than_at_first_is_refused(
    made: tuple[Path, BasePolicy, list[str]], tmp_path: Path
) -> None:
    """Its files decide what a response is."""
    folder = shutil.copytree(made[0], tmp_path / "base")
    load_base_policy(folder, CELL, "", "")
    with refused():
        load_base_policy(folder, CELL, "", "another")
    model = tmp_path / "model"
    model.mkdir()
    for name, text in (
        ("config.json", "{}"),
        ("tokenizer.json", "{}"),
        ("generation_config.json", "{}"),
    ):
        (model / name).write_text(text)
    first = text_fingerprint(ModelConfig(path=str(model)))
    (model / "config.json").write_text('{"vocab_size": 3}')  # that is the checkpoint's fingerprint
    assert text_fingerprint(ModelConfig(path=str(model))) == first
    (model / "generation_config.json").write_text('{"eos_token_id": 1}')
    assert text_fingerprint(ModelConfig(path=str(model))) != first


def test_every_candidate_is_labelled_and_on_one_side(
    made: tuple[Path, BasePolicy, list[str]],
) -> None:
    _, base, _ = made
    candidates = {p.id: p for p in TASK.problems(60, np.random.default_rng([0, 0]))}
    both = base.training + base.validation
    assert (
        len(base.validation) == 10 and {p.id for p in both} == candidates.keys() and len(both) == 60
    )
    for p in both:
        # 6 attempts are two evaluations of 4
        assert p.attempts == 8 and 0 <= p.solved <= 8
        assert Problem(p.id, p.prompt, p.answer) == candidates[p.id]


def test_labels_are_no_draws_of_the_first_evaluation(
    made: tuple[Path, BasePolicy, list[str]], evaluator: Evaluator
) -> None:
    """A problem chosen for how rarely it was solved would else be found, at C = 0, to be solved
    just as rarely."""
    _, base, _ = made
    both = base.training + base.validation
    selected = TokenizedProblems(both, TASK.encode(both, 6, 4))
    result = evaluator.evaluate(
        base.load_params(DECODER, mesh()), selected, seed=CELL.data.seed, evaluation=0, repeats=2
    )
    labels = [p.solved for p in both]
    assert sum(labels) > 0 and result.reward_sums.tolist() != labels


def test_fifty_steps_teach_something(made: tuple[Path, BasePolicy, list[str]]) -> None:
    _, base, output = made
    demonstrations = TASK.demonstrations(64, np.random.default_rng(7), 6, 4)
    before = jax.device_get(jax.jit(DECODER.init)(jax.random.key(0)))
    loss = jax.jit(lambda p: sft_loss(DECODER, p, demonstrations, TASK.eos))
    assert float(loss(params(base))) < 1.9 < np.log(24) < float(loss(before)) + 0.5
    assert float(output[0].rsplit(" ", 1)[1]) == pytest.approx(float(loss(params(base))), abs=0.3)


@pytest.mark.parametrize("cores", [1, 3])
def test_made_again_it_is_the_same(
    made: tuple[Path, BasePolicy, list[str]],
    evaluator: Evaluator,
    tmp_path: Path,
    cores: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By however many threads, which are done with their pieces of a batch in any order."""
    monkeypatch.setattr("isojax.train.demonstrations.cores", lambda: cores)
    assert same(run(tmp_path / "base", evaluator, []), made[1])


def test_torn_files_are_made_again_and_damaged_ones_refused(
    made: tuple[Path, BasePolicy, list[str]], evaluator: Evaluator, tmp_path: Path
) -> None:
    folder, base, _ = made
    for name in ("params.safetensors", "about.json", "problems.jsonl"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "problems.jsonl").write_text('{"id": 1, "prompt"\n')
    with refused():
        run(tmp_path, evaluator, [])
    # killed before the problems were written: the parameters alone do not count
    (tmp_path / "problems.jsonl").unlink()
    output: list[str] = []
    assert same(run(tmp_path, evaluator, output), base) and output


def flip(data: bytes) -> bytes:
    """One bit in the middle, of a letter or a number."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def lose_a_line(data: bytes) -> bytes:
    return data.partition(b"\n")[2]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("params.safetensors", flip),
        ("problems.jsonl", flip),
        ("problems.jsonl", lose_a_line),
        ("about.json", flip),
    ],
)
def test_a_flipped_bit_or_a_lost_line_is_refused_with_the_name_of_its_file(
    made: tuple[Path, BasePolicy, list[str]],
    evaluator: Evaluator,
    tmp_path: Path,
    name: str,
    change: Callable[[bytes], bytes],
) -> None:
    for path in made[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    run(tmp_path, evaluator, [])
    (tmp_path / name).write_bytes(change((tmp_path / name).read_bytes()))
    with refused():
        run(tmp_path, evaluator, [])
