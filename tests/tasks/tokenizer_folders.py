"""Small tokenizers in folders as a hub gives them, made on the spot."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceTrainer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXT = [
    "the cat sat on the mat\n\n",
    "a dog ran to the cat\n",
    "12 + 7 = 19\n",
    "Question: what is 3 + 4?\nAnswer: 7\n",
] * 20
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"]  # ids 0 to 3
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if "
    "add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is false "
    "%}<think>no</think>{% endif %}{% endif %}"
)


def byte_level(
    folder: Path,
    *,
    chat: str | None = CHAT,
    bos: bool = False,
    vocab: int = 340,
    padding: int = 0,
    **generation: Any,
) -> Path:
    """A byte-level BPE of about `vocab` tokens, `<think>` among them, and a model whose embedding
    has `padding` rows more.

    `bos`: put <|endoftext|> before every text. `generation`: what generation_config.json says.
    """
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXT, trainer)
    made.add_tokens(["<think>"])
    if bos:
        made.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
    made.enable_truncation(4)  # as some hubs' files have it; nobody's prompt is to be cut by it
    names = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[2], "pad_token": SPECIAL[3]}
    PreTrainedTokenizerFast(tokenizer_object=made, chat_template=chat, **names).save_pretrained(
        folder
    )
    return _model(folder, made.get_vocab_size() + padding, **generation)


def sentencepiece(folder: Path, *, kind: str = "bpe", config: dict[str, Any] | None = None) -> Path:
    """A folder with a tokenizer.model of sentencepiece alone, and `config` as its
    tokenizer_config.json where given."""
    folder.mkdir(parents=True, exist_ok=True)
    out = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(line.strip() for line in TEXT),
        model_writer=out,
        vocab_size=330,
        model_type=kind,
        byte_fallback=True,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(out.getvalue())
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return _model(folder, 330)


def _model(folder: Path, vocab: int, **generation: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": vocab}))
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder
