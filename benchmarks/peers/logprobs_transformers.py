"""transformers (torch): the log-probabilities of given responses in one full forward pass, float64
and float32.

    .venv-peers/transformers/bin/python benchmarks/peers/logprobs_transformers.py MODEL ROLLOUTS.npz

ROLLOUTS.npz, written by rl/logprobs.py, has prompts [B_p, P], tokens [B_p n, T] and temperature;
float64 and float32 [B_p n, T] are added.
"""

import sys


def main() -> None:
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    model, path = sys.argv[1:]
    inputs = dict(np.load(path))
    prompts, responses = (
        torch.tensor(inputs[name].astype(np.int64)) for name in ("prompts", "tokens")
    )
    n, P = len(responses) // len(prompts), prompts.shape[1]
    for name in ("float64", "float32"):
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, name)).eval()
        result = []
        with torch.inference_mode():
            for prompt, group in zip(prompts, responses.split(n), strict=True):
                logits = policy(torch.cat([prompt.expand(n, -1), group], dim=1)).logits[
                    :, P - 1 : -1
                ]
                logps = torch.log_softmax(logits / inputs["temperature"].item(), dim=-1)
                result.append(logps.gather(-1, group[..., None])[..., 0])
        inputs[name] = torch.cat(result).numpy()
    np.savez(path, **inputs)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print(__doc__)
        sys.exit(0 if "--help" in sys.argv else 2)
    main()
