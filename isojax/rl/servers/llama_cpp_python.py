"""The server of the package llama-cpp-python: OpenAI's completions API, in text alone.

Tried with 0.3.36, whose prompts must be text, whose answers have no tokens, and whose log-probs are
before temperature: good for labels and evaluations. `n` is not followed, and defaults cut the
distribution (top_k 40, min_p 0.05, repeat_penalty 1.1)."""

from typing import Any, ClassVar

from isojax.rl.servers.dialect import Ask, Call, Completion, Dialect, LogpKind


class LlamaCppPython(Dialect):
    """Its end tokens are those of its GGUF file; no others can be given."""

    name: ClassVar[str] = "llama-cpp-python"
    max_n: ClassVar[int] = 1
    gives_tokens: ClassVar[bool] = False
    logp_kind: ClassVar[LogpKind] = LogpKind.NONE
    cuts_before_temperature: ClassVar[bool] = True

    def write(self, model: str, ask: Ask) -> Call:
        """The request to /v1/completions: a text as the prompt; `ask.n`, 1, is not sent."""
        body: dict[str, Any] = {
            "model": model,
            "prompt": ask.prompt_text,
            "seed": ask.seed,
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            # By default these three would cut the distribution, or change it.
            "top_k": 0,
            "min_p": 0.0,
            "repeat_penalty": 1.0,
            "stop": list(ask.stop_strings),
        }
        return Call("/v1/completions", body)

    def read(self, answer: Any) -> list[Completion]:
        (choice,) = answer["choices"]
        stopped = choice["finish_reason"] == "stop"
        prompt_tokens = answer["usage"]["prompt_tokens"]
        return [Completion(choice["text"], stopped, prompt_tokens=prompt_tokens)]
