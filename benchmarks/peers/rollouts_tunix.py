"""Tunix's vanilla sampler: every prompt n times (as its GRPO gives them), a fixed number of new
tokens, temperature 1, top-p 1, float32.

The cache is as long as prompt and response together, and no end token stops a row. Run alone
(prompts: `compare.py --commands`):

    .venv-peers/tunix/bin/python benchmarks/peers/rollouts_tunix.py MODEL --prompts FILE --n 8 --new
    128
"""

import child


def main() -> None:
    args = child.arguments(__doc__)
    import tunix_setup
    from tunix.generate.sampler import CacheConfig, Sampler

    prompts = child.read_prompts(args.prompts)
    length = len(prompts.ids[0])
    model, config, _ = tunix_setup.load(args.model)
    words = tunix_setup.Words(args.model)
    assert [words.encode(text) for text in prompts.texts] == prompts.ids
    sampler = Sampler(
        model,
        words,
        CacheConfig(length + args.new, config.num_layers, config.num_kv_heads, config.head_dim),
    )
    repeated = [text for text in prompts.texts for _ in range(args.n)]

    def rollouts() -> int:
        result = sampler(
            repeated,
            args.new,
            max_prompt_length=length,
            eos_tokens=[-1],
            temperature=1.0,
            top_p=1.0,
        )
        assert all(len(tokens) == args.new for tokens in result.tokens), [
            len(tokens) for tokens in result.tokens
        ]
        return len(repeated) * args.new

    child.measure(rollouts, args.repeats)


if __name__ == "__main__":
    main()
