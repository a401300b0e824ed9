"""A language model that a laptop trains in two minutes, problems in text that it sometimes solves,
and a config:

    python benchmarks/small_lm.py small-lm
    isojax launch small-lm/text.yaml

The model reads and writes characters. By supervised learning, it answers `12 ? 7 =` with the sum,
the difference, the larger or the smaller number, with the probabilities .4, .3, .2 and .1, whatever
the numbers. Only one of the four is correct, as given by whether the first number is odd and
whether it is the larger one: RL has to teach that.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jaxtyping import Array
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from isojax.core.config import ModelConfig
from isojax.models.hf import hf_export
from isojax.models.transformer import Decoder, Params

# of the sum, the difference, the larger and the smaller number
PROBABILITIES = (0.4, 0.3, 0.2, 0.1)
# numbers from 0 to 99; problems, of the 10,000, that are not trained on
NUMBERS = 100
VALIDATION = 2000
BATCH, WARMUP, LEARNING_RATE = 512, 60, 1e-2
CONFIG = """\
name: text
cell:
  task: jsonl:{folder}/training.jsonl
  model: {{path: {folder}}}
  prompt: {{template: "{{prompt}} ", stop: ["\\n"]}}
  verifier: {{use: integer}}
  sampling: {{prompt_length: 12, response_length: 5}}
  data:
    candidates: 8000
    difficulty: [0.0, 0.61]
    validation: 1000
    held_out: "jsonl:{folder}/validation.jsonl"
  rl: {{learning_rate: 5.0e-4, lr_scaling: constant}}
  eval: {{samples: 4, start: 1024, ratio: 1.25}}
sweep: {{B_p: [32], n: [4, 8, 16, 32], budget: 70000}}
"""


def make_tokenizer(folder: Path) -> Tokenizer:
    """One token per character; its files are written to `folder`."""
    alphabet = sorted({c for i in range(NUMBERS) for c in text(i, i, i)})
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    characters = [pieces.pre_tokenize_str(c)[0][0] for c in alphabet]
    tokenizer = Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate([*characters, "<end>"])}, merges=[])
    )
    tokenizer.pre_tokenizer, tokenizer.decoder = pieces, decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>"
    ).save_pretrained(folder)
    return tokenizer


def text(a: int, b: int, answer: int) -> str:
    return f"{a} ? {b} = {answer}\n"


def possible_answers(a: int, b: int) -> list[int]:
    return [a + b, abs(a - b), max(a, b), min(a, b)]


def tokenize(tokenizer: Tokenizer, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int32[pairs, 4, tokens] the texts with each possible answer, bool[pairs, 4, tokens] the
    tokens of answers)."""
    texts = [text(a, b, answer) for a, b in pairs.tolist() for answer in possible_answers(a, b)]
    encoded = [e.ids for e in tokenizer.encode_batch(texts)]
    length, equals = max(map(len, encoded)), tokenizer.token_to_id("=")
    tokens = np.full((len(texts), length), tokenizer.token_to_id("<end>"), np.int32)
    is_answer = np.zeros(tokens.shape, bool)
    for row, ids in enumerate(encoded):
        tokens[row, : len(ids)] = ids
        is_answer[row, ids.index(equals) + 2 : len(ids)] = True
    shape = (len(pairs), len(PROBABILITIES), length)
    return tokens.reshape(shape), is_answer.reshape(shape)


def train(config: ModelConfig, tokens: np.ndarray, is_answer: np.ndarray, steps: int) -> Params:
    """Supervised learning on the texts, whose answers are drawn by PROBABILITIES."""
    decoder = Decoder(config)
    optimizer = optax.contrib.muon(
        optax.warmup_cosine_decay_schedule(0.0, LEARNING_RATE, WARMUP, max(steps, WARMUP + 1))
    )

    def loss(params: Params, tokens: Array, is_answer: Array) -> Array:
        hidden = decoder.forward(params, tokens[:, :-1], jnp.zeros(len(tokens), jnp.int32))
        logps = jax.nn.log_softmax(decoder.logits(params, hidden))
        token_logps = jnp.take_along_axis(logps, tokens[:, 1:, None], -1)[..., 0]
        return -(token_logps * is_answer[:, 1:]).sum() / is_answer.sum()

    @jax.jit
    def step(
        params: Params, state: optax.OptState, tokens: Array, is_answer: Array
    ) -> tuple[Params, optax.OptState]:
        updates, state = optimizer.update(jax.grad(loss)(params, tokens, is_answer), state, params)
        return optax.apply_updates(params, updates), state

    rng = np.random.default_rng(0)
    params = jax.jit(decoder.init)(jax.random.key(0))
    state = jax.jit(optimizer.init)(params)
    for _ in range(steps):
        rows = (
            rng.integers(len(tokens), size=BATCH),
            rng.choice(len(PROBABILITIES), BATCH, p=PROBABILITIES),
        )
        params, state = step(params, state, tokens[rows], is_answer[rows])
    return jax.device_get(params)


def write_problems(file: Path, pairs: np.ndarray) -> None:
    lines = [
        {"prompt": f"{a} ? {b} =", "answer": str(possible_answers(a, b)[2 * (a % 2) + (a > b)])}
        for a, b in pairs.tolist()
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, help="a new folder for the model, the problems and text.yaml"
    )
    parser.add_argument(
        "--steps", type=int, default=800, help="updates of supervised learning (800)"
    )
    arguments = parser.parse_args()
    pairs = np.random.default_rng(0).permutation(
        [(a, b) for a in range(NUMBERS) for b in range(NUMBERS)]
    )
    with tempfile.TemporaryDirectory() as temp:
        tokenizer = make_tokenizer(Path(temp))
        config = ModelConfig(family="llama", vocab=tokenizer.get_vocab_size())
        params = train(config, *tokenize(tokenizer, pairs), arguments.steps)
        hf_export.write_json(
            Path(temp) / "config.json", hf_export.make_config_json(config, 512, "float32")
        )
        hf_export.save(params, config, Path(temp), arguments.folder)
    write_problems(arguments.folder / "training.jsonl", pairs[VALIDATION:])
    write_problems(arguments.folder / "validation.jsonl", pairs[:VALIDATION])
    (arguments.folder / "text.yaml").write_text(CONFIG.format(folder=arguments.folder.resolve()))


if __name__ == "__main__":
    main()
