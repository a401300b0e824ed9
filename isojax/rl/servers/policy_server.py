"""A server that is given the policy as it is trained: its weights are written, announced, and
looked for in answers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from isojax.core.config.sweep import ServerConfig
from isojax.core.errors import InputError, ServerFailed
from isojax.models.transformer import Decoder, Params
from isojax.rl.servers.dialect import LogpKind
from isojax.rl.servers.http_json import ServerOptions
from isojax.rl.servers.language_server import LanguageServer
from isojax.rl.servers.published_weights import PublishedWeights
from isojax.rl.servers.weight_check import NUM_CONTEXTS, WeightCheck


class PolicyServer:
    """For the engines of one run, those of training and of evaluations; one policy at a time.

    `requests` are UpdateRequests: {path: body}, in the order in which they are sent.
    """

    def __init__(
        self, config: ServerConfig, url: str, decoder: Decoder, mesh: Mesh, run_name: str
    ) -> None:
        """Connect to the server, and choose the folder for its weights.

        url: such as "http://localhost:8000". run_name: names the run's folder in
        `run.server.weights`. Raises InputError where the server cannot be given weights, and
        ServerFailed where it does not answer.
        """
        self.url = url
        self.server = LanguageServer(make_options(config, url))
        served = self.server.served
        # `run.server.update`, or what is known of servers of this project; {} where nothing is.
        self.requests = config.update or served.dialect.update_requests
        if not self.requests:
            problem = "has no request that makes it load other weights, as far as isojax knows"
            raise InputError(
                where=f"{self.server.name} {problem}",
                found="it can label problems (isojax difficulty --server), but not sample for runs",
                fix="Set run.server.update where it has one, or take vLLM or SGLang.",
            )
        if config.weights is None:
            raise InputError(
                where="run.server.weights",
                found="not set",
                expected=(
                    "a folder that isojax writes and the server reads, by the same path, such as "
                    "/dev/shm/weights"
                ),
            )
        model_folder = decoder.config.path
        if model_folder is None:
            raise InputError(
                found="a server samples with a language model",
                expected="cell.model.path, its folder",
            )

        folder = Path(config.weights) / run_name
        self.weights = PublishedWeights(folder, decoder, Path(model_folder), config.dtype)

        # By log-probs isojax sees whether the server has the weights; without them it cannot.
        self.check: WeightCheck | None = None
        if served.dialect.logp_kind is not LogpKind.NONE:
            # Whether any of the requests, wherever in its body, tells the server the version.
            announces_version = "{version}" in json.dumps(dict(self.requests))
            self.check = WeightCheck(self.server, decoder, mesh, announces_version)
        self.update = 0  # of the policy that was published last
        self._published: Sequence[Any] = ()  # its arrays

    @property
    def description(self) -> dict[str, str]:
        """What is recorded of it: its URL is not, which another day may be another one. SGLang
        serves new weights by the name of their folder."""
        served = self.server.served
        if served.model.startswith(str(self.weights.folder)):
            return {"server": served.project}
        return {"server": served.project, "model": served.model}

    def publish(self, params: Params, update: int) -> None:
        """Give the server the policy after `update` updates, and return when it has it.

        Nothing is sent where these very arrays were published last. Raises ServerFailed where
        weights cannot be written or announced, or the server does not take them.
        """
        # Arrays do not change, so that the same ones are the same policy.
        arrays = jax.tree.leaves(params)
        has_as_many = len(arrays) == len(self._published)
        if has_as_many and all(a is b for a, b in zip(arrays, self._published, strict=True)):
            return

        path = self.weights.write(params, update)
        for request_path, body in self.requests.items():
            self._announce(_fill_in(request_path, path, update), _fill_in(body, path, update))
        self._published, self.update = arrays, update
        self.weights.remove_all_but(path)
        self.look_for_weights(params)

    @property
    def has_begun_check(self) -> bool:
        """Whether the server can be asked for its weights; true of one that gives no log-probs."""
        return self.check is None or self.check.probe is not None

    def begin_check(self, params: Params, sequences: Sequence[Sequence[int]]) -> None:
        """Make the check of the server's weights from its first rollouts, and check them once.

        sequences: tokens of each rollout's prompt and of a part of its response. params: the policy
        that they were sampled with. The server must give log-probs.
        """
        assert self.check is not None
        # Spread over all rollouts: neighbours are of one problem.
        stride = max(1, len(sequences) // NUM_CONTEXTS)
        self.check.begin(params, self.update, sequences[::stride])

    def look_for_weights(self, params: Params) -> None:
        """ServerFailed where the server does not have the policy that was published last."""
        if self.check is not None and self.check.probe is not None:
            self.check.check(params, self.update)

    def staleness_of(self, version: str | None) -> int:
        """The updates since the weights that a response was sampled with, where the server tells
        their version."""
        if version is None or not version.isdecimal():
            return 0
        is_announced = self.check is not None and self.check.announces_version
        return self.update - int(version) if is_announced else 0

    def _announce(self, path: str, body: Mapping[str, Any]) -> None:
        """POST a filled-in request of `requests`; ServerFailed where the server refuses it."""
        try:
            answer = self.server.client.post(path, dict(body))
        except InputError as e:
            fix = self.server.served.dialect.update_fix or "set run.server.update"
            raise ServerFailed(f"new weights cannot be announced: {e} To mend it, {fix}.") from e
        if isinstance(answer, dict) and answer.get("success") is False:  # SGLang's
            raise ServerFailed(
                f"{self.server.name} does not load the weights in {self.weights.folder}: "
                f"{answer.get('message')}. Does it read this folder?"
            )


def make_options(config: ServerConfig, url: str) -> ServerOptions:
    return ServerOptions(
        url,
        timeout=config.timeout,
        in_flight=config.requests,
        timeout_setting="run.server.timeout",
        in_flight_setting="run.server.requests",
        to_go_on="go on by --resume",
    )


def _fill_in(value: Any, path: Path, update: int) -> Any:
    """The value with {path} and {version} replaced in all its texts; keys of mappings stay."""
    if isinstance(value, str):
        return value.replace("{path}", str(path)).replace("{version}", str(update))
    if isinstance(value, Mapping):
        return {name: _fill_in(one, path, update) for name, one in value.items()}
    if isinstance(value, list):
        return [_fill_in(one, path, update) for one in value]
    return value
