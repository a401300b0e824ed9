"""A server that the user runs, with the settings of `run.server` (rl/servers/)."""

from isojax.core.errors import InputError
from isojax.rl.engines import EngineSetup, RolloutEngine, rollout_engine
from isojax.rl.servers.server_engine import ServerEngine


@rollout_engine
def server_engine(setup: EngineSetup) -> RolloutEngine:
    policy_server = setup.policy_server
    if policy_server is None:
        expected = "the URL of a server of language models, such as http://localhost:8000"
        raise InputError(
            where="run.rollouts = server",
            found="run.server.url is not set",
            expected=expected,
        )
    return ServerEngine(setup, policy_server.server, needs_logps=True, policy_server=policy_server)
