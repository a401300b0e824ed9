"""What an update does with the routers of a model with experts: the load-balancing loss, metrics,
and the replay of the sampler's choices.

The load-balancing loss (arXiv:2101.03961, equation 4, as transformers computes it) is

    E sum_e f_e P_e
    f_e = choices of expert e / N
    P_e = sum of the router's probabilities of e / N

over the N pairs of a token and a sparse layer of the whole batch. A prompt's tokens count once for
each response to it, as in a batch of whole sequences. f sums to k, so the loss of balanced experts
is k. Its gradient goes through P alone, and f is that of all microbatches and devices: it is
counted before the gradient, in a pass without one.

Replay (arXiv:2510.11370): each token meets the experts that the sampler chose for it, with weights
from the trainer's own logits. Without it, where rounding makes sampler and trainer choose other
experts, a token's log-probability jumps.
"""

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from isojax.core.config import RLConfig
from isojax.core.errors import InputError
from isojax.distributed.sharding import positions_are_split
from isojax.models.routing import RouterPass, RoutingSums, split_choices, sum_routing, zero_sums
from isojax.models.transformer import Decoder
from isojax.rl.metric import Metric, Metrics, mean

ROUTING = "routing"  # the key of RoutingSums among the sums of metrics


def check_experts(rl: RLConfig, decoder: Decoder, mesh: Mesh) -> None:
    """Raise InputError where `cell.rl` has settings of experts that the model or mesh cannot do."""
    settings = {"expert_balance": rl.expert_balance > 0, "replay_experts": rl.replay_experts}
    used = [f"cell.rl.{name}" for name, is_set in settings.items() if is_set]
    if used and decoder.router is None:
        raise InputError(
            where=" and ".join(used),
            found=f"the policy of family {decoder.config.family} has no experts",
            expected="a model with some, such as of family qwen3_moe, or neither setting",
        )
    if used and positions_are_split(mesh):
        raise InputError(
            where=f"{' and '.join(used)} on a mesh with sequence={mesh.shape['sequence']}",
            found="devices that share a prompt's positions do not collect its experts",
            expected="a mesh without sequence",
        )


def records_experts(rl: RLConfig, decoder: Decoder, mesh: Mesh) -> bool:
    """Whether the sampler records which experts each token meets."""
    is_read = rl.replay_experts or rl.measure_expert_agreement
    return is_read and decoder.router is not None and not positions_are_split(mesh)


@dataclass(frozen=True)
class Routers:
    """What an update reads of a policy's routers, and whether it replays the sampler's choices."""

    decoder: Decoder
    replays: bool

    def zero_sums(self) -> RoutingSums:
        assert self.decoder.router is not None
        return zero_sums(self.decoder.router.experts)

    def read(
        self, weights: Float[Array, "b t"], experts: Int[Array, "b t l k"] | None
    ) -> RouterPass:
        """`weights`: how often each token counts; `experts`: that the sampler chose for it."""
        assert experts is not None or not self.replays, "a replay needs the sampler's choices"
        sampled = None if experts is None else split_choices(self.decoder.stacks, experts)
        return RouterPass(partial(sum_routing, weights), sampled, self.replays)


def pad_experts(
    experts: Int[Array, "m T l k"] | None, columns: int
) -> Int[Array, "m columns l k"] | None:
    """The experts of the first `columns` tokens; padding tokens, after the last, have any."""
    if experts is None:
        return None
    padding = max(columns - experts.shape[1], 0)
    return jnp.pad(experts[:, :columns], ((0, 0), (0, padding), (0, 0), (0, 0)))


def join_rows(of_prompts: Array, of_responses: Array) -> Array:
    """[g P ...] and [m t ...] as one row [1 r ...], r = g P + m t, in which prompts and responses
    go through the layers together."""
    prompt_tokens = of_prompts.reshape(-1, *of_prompts.shape[2:])
    response_tokens = of_responses.reshape(-1, *of_responses.shape[2:])
    return jnp.concatenate([prompt_tokens, response_tokens])[None]


def weigh_response_tokens(mask: Bool[Array, "m T"], columns: int) -> Float[Array, "m columns"]:
    """1 for each response token that a layer reads: all before the last one that counts, which
    predicts none."""
    lengths = jnp.where(mask, jnp.arange(1, mask.shape[-1] + 1)[None], 0).max(-1)
    return (jnp.arange(columns)[None] < lengths[:, None] - 1).astype(jnp.float32)


def weigh_prompt_tokens(
    lengths: Int[Array, " g"], responses: Int[Array, " g"], P: int
) -> Float[Array, "g P"]:
    """For each token of a prompt how many responses continue it."""
    is_token = jnp.arange(P)[None] < lengths[:, None]
    return jnp.where(is_token, responses[:, None], 0).astype(jnp.float32)


def expert_loads(sums: RoutingSums, coefficient: Float[Array, ""]) -> Float[Array, " E"]:
    """coefficient E f_e / N (see the module's equation), a factor for each expert.

    In the loss the sum of a microbatch's probabilities of expert e is multiplied by it. sums: those
    of the whole batch.
    """
    E = len(sums.choices)
    N = jnp.maximum(sums.tokens, 1.0)
    return coefficient * E * sums.choices / N**2


def routing_metrics(sums: RoutingSums, knows_sampler: bool) -> Metrics:
    """The metrics of a whole batch. knows_sampler: whether the sampler's choices have been
    recorded."""
    E = len(sums.choices)
    N = jnp.maximum(sums.tokens, 1.0)  # pairs of a token and a sparse layer
    largest_share = sums.choices.max() / jnp.maximum(sums.choices.sum(), 1.0)
    metrics = {
        "router_entropy": Metric(sums.entropy, N, "mean"),
        "expert_share_max": mean(largest_share),
        "expert_balance": mean(E * (sums.choices * sums.probabilities).sum() / N**2),
    }
    if knows_sampler:
        metrics["expert_agreement"] = Metric(sums.agreeing, N, "mean")
    return metrics
