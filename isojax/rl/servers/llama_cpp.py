"""The server of llama.cpp (`llama-server`), by its own route `/completion`, which takes and gives
tokens."""

import math
from typing import Any, ClassVar

from isojax.rl.servers.dialect import Ask, Call, Completion, Dialect, LogpKind


class LlamaCpp(Dialect):
    """Its end tokens are those of its GGUF file; no others can be given."""

    name: ClassVar[str] = "llama.cpp"
    max_n: ClassVar[int] = 1  # prompts are cached, so that n requests cost no more
    gives_tokens: ClassVar[bool] = True
    logp_kind: ClassVar[LogpKind] = LogpKind.SAMPLED
    token_fix: ClassVar[str] = "llama-server gives them since December 2024 (`return_tokens`)"
    logp_fix: ClassVar[str] = "take a newer llama-server"

    def write(self, model: str, ask: Ask) -> Call:
        """The request to /completion: tokens as the prompt; `model` and `ask.n` are not sent."""
        body: dict[str, Any] = {
            "prompt": list(ask.prompt),
            "seed": ask.seed,
            "n_predict": ask.max_tokens,
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            # By default it takes the nucleus before temperature, after other cuts.
            "samplers": ["temperature", "top_p"],
            "stop": list(ask.stop_strings),
            "return_tokens": True,
        }
        if ask.with_logps:
            # n_probs = 0 would ask for no log-probs at all.
            body |= {"n_probs": max(1, ask.alternatives), "post_sampling_probs": True}
        return Call("/completion", body)

    def read(self, answer: Any) -> list[Completion]:
        """The one response of an answer, a dict with content, stop_type and tokens."""
        sampled = answer.get("completion_probabilities")  # of each token, where they were asked
        logps: list[float] | None = None
        if sampled is not None:
            logps = [_log(token["prob"]) for token in sampled]
        first_tops = sampled[0].get("top_probs", []) if sampled else []

        completion = Completion(
            text=answer["content"],
            stopped=answer["stop_type"] in ("eos", "word"),  # or else "limit": its length
            tokens=answer.get("tokens") or None,
            logps=logps,
            prompt_tokens=answer.get("tokens_evaluated"),
            first_alternatives={int(top["id"]): _log(top["prob"]) for top in first_tops},
        )
        return [completion]


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf
