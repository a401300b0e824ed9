"""SGLang's own route, `/generate`, which takes and gives tokens."""

from typing import Any, ClassVar

from isojax.rl.servers.dialect import Ask, Call, Completion, Dialect, LogpKind, UpdateRequests


class SGLang(Dialect):
    """Seeds are not sent: it follows them in its deterministic mode alone."""

    name: ClassVar[str] = "sglang"
    max_n: ClassVar[int] = 16
    gives_tokens: ClassVar[bool] = True
    logp_kind: ClassVar[LogpKind] = LogpKind.BEFORE_TOP_P
    token_fix: ClassVar[str] = "start SGLang without --skip-tokenizer-init, from 0.4.7 on"
    logp_fix: ClassVar[str] = "leave out SGLANG_RETURN_ORIGINAL_LOGPROB where SGLang is started"
    update_requests: ClassVar[UpdateRequests] = {
        "/update_weights_from_disk": {"model_path": "{path}", "weight_version": "{version}"}
    }

    def write(self, model: str, ask: Ask) -> Call:
        """The request to /generate: tokens as the prompt, cut by top-p alone; no `model`."""
        sampling = {
            "n": ask.n,
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            # What a model's generation_config.json may have set otherwise.
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "max_new_tokens": ask.max_tokens,
            "stop_token_ids": list(ask.stop_tokens),
            "stop": list(ask.stop_strings),
        }
        body: dict[str, Any] = {"input_ids": list(ask.prompt), "sampling_params": sampling}
        if ask.with_logps:
            body |= {"return_logprob": True, "top_logprobs_num": ask.alternatives}
        return Call("/generate", body)

    def read(self, answer: Any) -> list[Completion]:
        answers = answer if isinstance(answer, list) else [answer]  # of n = 1 no list
        return [self._read_one(one) for one in answers]

    def _read_one(self, answer: Any) -> Completion:
        """One response: a dict with text and meta_info, and with output_ids in newer versions."""
        details = answer["meta_info"]
        tokens = answer.get("output_ids")

        # Of each token, [log-prob, token, its text].
        sampled = details.get("output_token_logprobs")
        logps: list[float] | None = None
        if sampled is not None:
            logps = [logp for logp, _, _ in sampled]
            if tokens is None:
                tokens = [token for _, token, _ in sampled]
        tops = details.get("output_top_logprobs") or [[]]
        first_tops = tops[0] or []

        return Completion(
            text=answer["text"],
            stopped=details["finish_reason"]["type"] == "stop",
            tokens=tokens,
            logps=logps,
            prompt_tokens=details.get("prompt_tokens"),
            first_alternatives={int(token): logp for logp, token, _ in first_tops},
            version=details.get("weight_version"),
        )
