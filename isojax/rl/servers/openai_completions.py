"""OpenAI's completions API as vLLM extends it: prompts as tokens, `return_token_ids`, and
`stop_token_ids`."""

from typing import Any, ClassVar

from isojax.rl.servers.dialect import Ask, Call, Completion, Dialect, LogpKind, UpdateRequests

ID_PREFIX = "token_id:"  # of a token among log-probs, with `return_tokens_as_token_ids`


class OpenAICompletions(Dialect):
    """vLLM from 0.10.2 on, and servers that follow it."""

    name: ClassVar[str] = "vllm"
    max_n: ClassVar[int] = 16
    gives_tokens: ClassVar[bool] = True
    logp_kind: ClassVar[LogpKind] = LogpKind.SAMPLED
    token_fix: ClassVar[str] = "vLLM gives them from 0.10.2 on (`return_token_ids`)"
    logp_fix: ClassVar[str] = "start vLLM with --logprobs-mode processed_logprobs"
    # What was computed of prompts with other weights is forgotten by the second one.
    update_requests: ClassVar[UpdateRequests] = {
        "/collective_rpc": {"method": "reload_weights", "kwargs": {"weights_path": "{path}"}},
        "/reset_prefix_cache": {},
    }
    update_fix: ClassVar[str] = "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment"

    def write(self, model: str, ask: Ask) -> Call:
        """The request to /v1/completions: tokens as the prompt, no cuts but top-p."""
        body: dict[str, Any] = {
            "model": model,
            "prompt": list(ask.prompt),
            "n": ask.n,
            "seed": ask.seed,
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            # What a model's generation_config.json may have set otherwise.
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            # The server's own end tokens do not count: isojax's are all given.
            "ignore_eos": True,
            "stop_token_ids": list(ask.stop_tokens),
            "stop": list(ask.stop_strings),
            "return_token_ids": True,
        }
        if ask.with_logps:
            body |= {"logprobs": max(1, ask.alternatives), "return_tokens_as_token_ids": True}
        return Call("/v1/completions", body)

    def read(self, answer: Any) -> list[Completion]:
        usage = answer.get("usage") or {}
        prompt_tokens = usage.get("prompt_tokens")
        choices = sorted(answer["choices"], key=_index)
        return [self._read_choice(choice, prompt_tokens) for choice in choices]

    def _read_choice(self, choice: Any, prompt_tokens: int | None) -> Completion:
        """The response in one entry of an answer's `choices`.

        choice: a dict with text and finish_reason, and with token_ids and logprobs where they are
        given. prompt_tokens: as the server counts them; None where it does not say.
        """
        logprobs = choice.get("logprobs") or {}

        # Servers that give no token ids may name the tokens among the log-probs by them.
        tokens = choice.get("token_ids")
        names = logprobs.get("tokens") or []
        if tokens is None and names and all(name.startswith(ID_PREFIX) for name in names):
            tokens = [int(name.removeprefix(ID_PREFIX)) for name in names]

        tops = logprobs.get("top_logprobs") or [{}]
        first_tops = tops[0] or {}
        return Completion(
            text=choice["text"],
            stopped=choice["finish_reason"] == "stop",
            tokens=tokens,
            logps=logprobs.get("token_logprobs"),
            prompt_tokens=prompt_tokens,
            first_alternatives={_token_or_name(name): logp for name, logp in first_tops.items()},
        )


def _token_or_name(name: str) -> int | str:
    return int(name.removeprefix(ID_PREFIX)) if name.startswith(ID_PREFIX) else name


def _index(choice: Any) -> int:
    return choice.get("index", 0)
