"""transformers' `generate` (torch): B_p prompts, n samples each, a fixed number of new tokens,
temperature 1, no top-k or top-p.

--variant float32 | bfloat16: the dtype of weights and computation. No end token stops a row. Run
alone (prompts: `compare.py --commands`):

    .venv-peers/transformers/bin/python benchmarks/peers/rollouts_transformers.py MODEL --prompts
    FILE --n 8 --new 128 --variant float32
"""

import child


def main() -> None:
    args = child.arguments(__doc__)
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    torch.set_num_threads(child.threads())
    prompts = torch.tensor(child.read_prompts(args.prompts).ids)
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=getattr(torch, args.variant or "float32")
    ).eval()
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=args.new,
        num_return_sequences=args.n,
        eos_token_id=None,
        pad_token_id=0,
    )

    @torch.inference_mode()
    def generate() -> int:
        out = model.generate(prompts, attention_mask=torch.ones_like(prompts))
        assert out.shape == (args.n * len(prompts), prompts.shape[1] + args.new), out.shape
        return args.n * len(prompts) * args.new

    child.measure(generate, args.repeats)


if __name__ == "__main__":
    main()
