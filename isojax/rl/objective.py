"""The policy's objective, which rl/gradient.py differentiates: a recipe's loss and regularisers.

    sum over responses [ policy * sum_t loss_t + kl_coefficient * kl * sum_t kl_t
                         - entropy_coefficient * entropy * sum_t H_t ]

The weights `policy`, `kl` and `entropy` hold the whole aggregation, denominators and filters
included."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from isojax.core.config import RLConfig, SamplingConfig
from isojax.core.config.rl import CriticConfig
from isojax.core.plugins import NoTraits, Plugin
from isojax.core.shapes import row_padding
from isojax.distributed.sharding import token_parts
from isojax.models.fsdp import resolve_anchors
from isojax.models.routing import RouterPass, RoutingSums, add_layers
from isojax.models.transformer import Decoder, Params, PrefixCache
from isojax.rl.advantages import RewardedBatch, zero_variance
from isojax.rl.aggregations import CountedResponses
from isojax.rl.algorithm import Algorithm, loss_metrics, resolve_algorithm
from isojax.rl.experts import (
    ROUTING,
    Routers,
    join_rows,
    pad_experts,
    weigh_prompt_tokens,
    weigh_response_tokens,
)
from isojax.rl.logprobs import HiddenStates, TokenStats, nucleus_token_stats, token_stats
from isojax.rl.losses import Clip
from isojax.rl.metric import Reduction
from isojax.sampling.batch import ProblemArrays

# Of tokens, in the order of `Objective.metric_reductions`; and RoutingSums by the key ROUTING,
# where routers are read.
MetricSums = dict[str, Any]


class Coefficients(NamedTuple):
    """The coefficients of a recipe, each a traced float32 scalar, so that another value compiles
    nothing. They have the names of settings of `cell.rl`; critic_*, gamma and gae_lambda are of
    `cell.rl.critic`."""

    clip: ArrayLike
    clip_high: ArrayLike
    kl: ArrayLike
    entropy: ArrayLike
    tis_cap: ArrayLike
    tis_low: ArrayLike | None  # None: no lower bound
    learning_rate: ArrayLike
    weight_decay: ArrayLike
    max_grad_norm: ArrayLike
    critic_learning_rate: ArrayLike
    critic_clip: ArrayLike
    gamma: ArrayLike
    gae_lambda: ArrayLike
    expert_balance: ArrayLike | None = None  # None: no such loss


def make_coefficients(config: RLConfig) -> Coefficients:
    """The coefficients of `cell.rl`, as float32 numbers on the host.

    Those of the critic are a default critic's where the recipe has none: nothing reads them then.
    """
    algorithm = resolve_algorithm(config)
    critic_config = config.critic or CriticConfig()
    return Coefficients(
        clip=np.float32(algorithm.clip),
        clip_high=np.float32(algorithm.clip_high),
        kl=np.float32(config.kl),
        entropy=np.float32(config.entropy),
        tis_cap=np.float32(config.tis_cap),
        tis_low=None if config.tis_low is None else np.float32(config.tis_low),
        learning_rate=np.float32(config.learning_rate),
        weight_decay=np.float32(config.weight_decay),
        max_grad_norm=np.float32(config.max_grad_norm),
        critic_learning_rate=np.float32(critic_config.learning_rate),
        critic_clip=np.float32(critic_config.clip),
        gamma=np.float32(critic_config.gamma),
        gae_lambda=np.float32(critic_config.gae_lambda),
        expert_balance=np.float32(config.expert_balance) if config.expert_balance > 0 else None,
    )


class LossWeights(NamedTuple):
    """What each response brings to the loss: its advantages, and its weight in each term, which is
    0 where it has no part in it."""

    advantages: Array  # f32[S rows], one for the whole response, or f32[S rows T], one for a token
    policy: Array  # f32[S rows], like the following
    kl: Array
    entropy: Array


def response_weights(
    aggregation: Plugin[..., Array, NoTraits],
    batch: RewardedBatch,
    counted: Bool[Array, "*r"],
    T: int,
) -> Float[Array, "*r"]:
    """The weight of each response's sum over its tokens; 0 where it is not `counted`.

    aggregation: a plug-in of rl/aggregations, which makes it of CountedResponses. counted: the
    responses that a term of the loss counts. T: the most tokens of a response.
    """
    responses = CountedResponses(
        lengths=batch.lengths,
        tokens=jnp.where(counted, batch.lengths, 0).astype(jnp.float32),
        groups=batch.groups,
        counted=counted,
        num_counted=jnp.maximum(counted.sum(), 1).astype(jnp.float32),
        num_groups=batch.num_groups,
        response_length=T,
    )
    return jnp.where(counted, aggregation(responses), 0.0)


def make_loss_weights(
    rl: RLConfig, advantages: Array, batch: RewardedBatch, train_mask: Bool[Array, "*r"], T: int
) -> LossWeights:
    """The weights of responses in each term of the loss; 0 of those outside `train_mask`.

    advantages: f32[S rows], or f32[S rows T] by token. A term that `cell.rl.zero_variance_filter`
    names leaves out groups whose rewards are all equal. T: the most tokens of a response.
    """
    aggregation = resolve_algorithm(rl).aggregation
    has_advantage = train_mask & ~zero_variance(batch)

    def term_weights(term: str) -> Array:
        """Of a term of the loss: "policy", "kl" or "entropy"."""
        counted = has_advantage if term in rl.zero_variance_filter else train_mask
        return response_weights(aggregation, batch, counted, T)

    return LossWeights(
        advantages, term_weights("policy"), term_weights("kl"), term_weights("entropy")
    )


class UpdateInputs(NamedTuple):
    """What a whole update reads and does not change."""

    params: Params  # those that are trained
    base_params: Params  # the base policy's, where something reads them: the KL, or adapters
    problems: ProblemArrays
    coefficients: Coefficients
    expert_loads: Array | None = None  # f32[E], rl/experts.py; None where the loss has no such term


class Microbatch(NamedTuple):
    """m responses to at most g prompts, which are a block of the shard's problems."""

    tokens: Array  # i32[m T]
    mask: Array  # bool[m T], the tokens that count
    objective_inputs: Any  # what the objective reads of each response, [m ...] or [m T] arrays
    group: Array  # i32[m], the row of each response's problem in the batch
    prefix_entry: Array  # i32[m], the same problem, counted within the block: 0 .. g-1
    experts: Array | None = None  # [m T l k], that the sampler chose, where it recorded them


class PromptTokens(NamedTuple):
    """Prompts i32[g P] of these lengths, which go through the layers together with the responses to
    them."""

    prompts: Array
    lengths: Array
    experts: Array | None = None  # [g P l k], that the sampler chose


Prefix = PrefixCache | PromptTokens


def read_routers(
    routers: Routers, prompts: PromptTokens | None, microbatch: Microbatch, columns: int
) -> RouterPass:
    """What a pass through the layers is to read of the experts' routers, for the tokens in it.

    These are the first `columns` tokens of m responses, [m columns]; or, where their prompts
    [g P] go through with them, both in one row [1, g P + m columns], the prompts' first.
    """
    weights = weigh_response_tokens(microbatch.mask, columns)
    experts = pad_experts(microbatch.experts, columns)
    if prompts is None:
        return routers.read(weights, experts)

    # A prompt's tokens count once for each response to it.
    is_counted = microbatch.mask.any(-1).astype(jnp.int32)
    zeros = jnp.zeros(len(prompts.lengths), jnp.int32)
    responses = zeros.at[microbatch.prefix_entry].add(is_counted)  # to each prompt
    of_prompts = weigh_prompt_tokens(prompts.lengths, responses, prompts.prompts.shape[1])

    # The sampler records both or neither.
    if experts is not None and prompts.experts is not None:
        experts = join_rows(prompts.experts, experts)
    return routers.read(join_rows(of_prompts, weights), experts)


def balance_term(routing: RoutingSums, inputs: UpdateInputs) -> Float[Array, ""]:
    """What tokens with these sums bring to the load-balancing loss; 0 without such a loss."""
    if inputs.expert_loads is None:
        return jnp.float32(0)
    return (inputs.expert_loads * routing.probabilities).sum()


class Objective(Protocol):
    """What rl/gradient.py differentiates: a sum over the responses of a microbatch."""

    @property
    def decoder(self) -> Decoder: ...

    @property
    def metric_reductions(self) -> dict[str, Reduction]:
        """Of each metric of tokens. A `mean` is divided by the batch's tokens in the end; a `total`
        is not."""
        ...

    @property
    def needs_base(self) -> bool:
        """Whether `inputs.base_params` is read."""
        ...

    @property
    def routers(self) -> Routers | None:
        """What is read of the routers of a model with experts, whose sums are among the metrics by
        the key ROUTING; None where nothing is."""
        ...

    def __call__(
        self,
        params: Params,
        prefix: Prefix,
        base_prefix: Prefix | None,
        inputs: UpdateInputs,
        microbatch: Microbatch,
    ) -> tuple[Array, MetricSums]:
        """The sum, to be differentiated in params, and in the prefix where prompts have gone
        through the layers; and of each metric the sum over tokens, or the maximum."""
        ...


def hidden_states(
    decoder: Decoder,
    params: Params,
    prefix: Prefix,
    problems: ProblemArrays,
    microbatch: Microbatch,
    routers: Routers | None = None,
) -> HiddenStates:
    """Hidden states before each response token: its prompt's last, then the response's own.

    prefix: the block's prompts, as tokens that go through the layers here, or as keys and values
    (and anchors of them) of prompts that have. problems: the batch's. routers: what is read of the
    experts' routers, for the tokens that go through the layers here; None reads nothing. Of the
    result, `response_hidden` may be padded: t >= T - 1.
    """
    # The last token of a response predicts none. Padding makes whole tiles for a TPU's kernels, and
    # equal parts for devices that share tokens.
    m, T = microbatch.tokens.shape
    parts = token_parts(jax.sharding.get_abstract_mesh())
    padding = row_padding(decoder.options.forward_attention, m, T - 1, parts)
    tokens = jnp.pad(microbatch.tokens[:, :-1], ((0, 0), (0, padding)))
    columns = tokens.shape[1]
    prefix_entry = microbatch.prefix_entry

    def router_pass(prompts: PromptTokens | None) -> RouterPass | None:
        """prompts: those that go through with the responses; None where none do."""
        if routers is None:
            return None
        return read_routers(routers, prompts, microbatch, columns)

    # Prompts go through the layers together with the responses to them.
    if isinstance(prefix, PromptTokens):
        prompt_hidden, response_hidden, routed = decoder.joint_forward_with_routers(
            params, prefix.prompts, prefix.lengths, tokens, prefix_entry, router_pass(prefix)
        )
        routing = None if routers is None else add_layers(routed)
        return HiddenStates(params, prompt_hidden, prefix_entry, response_hidden, routing)

    # Or they have done so, and responses read their keys and values. Anchors (models/fsdp.py) are
    # where the gradient of what all microbatches share is added up.
    prompt_hidden = resolve_anchors(prefix.last_hidden)
    if columns == 0:  # responses of one token, which the prompt alone predicts
        response_hidden = jnp.zeros((len(tokens), 0, prompt_hidden.shape[-1]), prompt_hidden.dtype)
        routing = None if routers is None else routers.zero_sums()
        return HiddenStates(params, prompt_hidden, prefix_entry, response_hidden, routing)

    prompt_lengths = problems.lengths[microbatch.group]
    response_hidden, routed = decoder.forward_with_routers(
        params, tokens, prompt_lengths, prefix.kv, prefix_entry, router_pass(None)
    )
    routing = None if routers is None else add_layers(routed)
    return HiddenStates(params, prompt_hidden, prefix_entry, response_hidden, routing)


def sum_over_tokens(
    reductions: dict[str, Reduction], metrics: MetricSums, mask: Bool[Array, "m T"]
) -> MetricSums:
    """The sums (or maxima) of per-token metrics f32[m T] over the tokens in the mask.

    reductions: "mean", "total" or "max" of each metric. Maxima are of values of 0 and above: tokens
    outside the mask count as 0.
    """
    # A mean is a sum here: only the whole batch knows how many tokens to divide by.
    reduce = {"mean": jnp.sum, "total": jnp.sum, "max": jnp.max}
    return {name: reduce[reductions[name]](jnp.where(mask, x, 0.0)) for name, x in metrics.items()}


class PolicyInputs(NamedTuple):
    """What the policy's objective reads of each response."""

    sampler_logps: Array  # f32[m T]
    nucleus_mass: Array  # of each token, f32[m T], or [m 1]
    loss_weights: LossWeights


@dataclass(frozen=True)
class PolicyObjective:
    """The loss of a recipe over a microbatch of m responses. vocab_split: whether devices share the
    vocabulary."""

    decoder: Decoder
    rl: RLConfig
    sampling: SamplingConfig
    vocab_split: bool

    @property
    def algorithm(self) -> Algorithm:
        return resolve_algorithm(self.rl)

    @property
    def needs_base(self) -> bool:
        return self.rl.kl > 0 or self.rl.measure_kl

    @property
    def routers(self) -> Routers | None:
        if self.decoder.router is None:
            return None
        return Routers(self.decoder, self.rl.replay_experts)

    @property
    def metric_reductions(self) -> dict[str, Reduction]:
        """The metrics. Weights in the loss hold its denominators, so that it is a total; the others
        are means."""
        names = ["entropy", "sampler_logp_gap", *loss_metrics(self.algorithm.loss, self.rl.loss)]
        names += ["kl"] if self.needs_base else []
        names += ["tis_weight", "tis_capped"] if self.rl.tis != "none" else []
        names += ["tis_below"] if self.rl.tis_low is not None else []
        return {"loss": "total", "sampler_logp_gap_max": "max", **dict.fromkeys(names, "mean")}

    def token_stats(
        self, policy_hidden: HiddenStates, base_hidden: HiddenStates | None, microbatch: Microbatch
    ) -> tuple[TokenStats, Array | None]:
        """Return (the policy's statistics of tokens, the base policy's log-probabilities).

        f32[m T] each, of the responses' tokens; the latter are None where `base_hidden` is.
        """
        tokens = microbatch.tokens
        temperature = self.sampling.temperature
        use_entropy = self.rl.entropy > 0
        if self.sampling.top_p < 1:
            # Of the nucleus that the sampler drew from, whose probability mass it has recorded.
            nucleus_mass = microbatch.objective_inputs.nucleus_mass
            return nucleus_token_stats(
                self.decoder,
                policy_hidden,
                base_hidden,
                tokens,
                nucleus_mass,
                temperature,
                use_entropy,
            )

        stats = token_stats(
            self.decoder, policy_hidden, tokens, temperature, use_entropy, self.vocab_split
        )
        if base_hidden is None:
            return stats, None
        base_stats = token_stats(
            self.decoder,
            base_hidden,
            tokens,
            temperature,
            use_entropy=False,
            vocab_split=self.vocab_split,
        )
        return stats, base_stats.logps

    def __call__(
        self,
        params: Params,
        prefix: Prefix,
        base_prefix: Prefix | None,
        inputs: UpdateInputs,
        microbatch: Microbatch,
    ) -> tuple[Array, MetricSums]:
        """Return (the sum over the responses of their weighted terms f32[], the metrics).

        params: with anchors at the trained weights where it is differentiated. microbatch: with
        PolicyInputs. Metrics are sums by the names of `metric_reductions`, and by ROUTING.
        """
        sampled: PolicyInputs = microbatch.objective_inputs
        weights = sampled.loss_weights
        coefficients = inputs.coefficients
        mask = microbatch.mask

        # Forward: the policy, and the base policy where the KL is measured.
        policy_hidden = hidden_states(
            self.decoder, params, prefix, inputs.problems, microbatch, self.routers
        )
        base_hidden = None
        if base_prefix is not None:
            base_hidden = hidden_states(
                self.decoder, inputs.base_params, base_prefix, inputs.problems, microbatch
            )
        policy_stats, base_logps = self.token_stats(policy_hidden, base_hidden, microbatch)

        # The policy term of each token, then the regularisers.
        token_loss, metrics = self.policy_loss(policy_stats.logps, microbatch, coefficients)
        token_loss = weights.policy[:, None] * token_loss
        if self.rl.entropy > 0:
            bonus = coefficients.entropy * weights.entropy[:, None] * policy_stats.entropy
            token_loss = token_loss - bonus
        if base_logps is not None:
            metrics["kl"] = self.algorithm.kl_estimator(policy_stats.logps, base_logps)
        if self.rl.kl > 0:
            token_loss = token_loss + coefficients.kl * weights.kl[:, None] * metrics["kl"]
        loss = jnp.where(mask, token_loss, 0.0).sum()

        # How far sampler and trainer are apart: of what they compute, rounding alone.
        logp_difference = lax.stop_gradient(policy_stats.logps) - sampled.sampler_logps
        sampler_logp_gap = jnp.abs(jnp.where(mask, logp_difference, 0.0))
        metrics |= {
            "entropy": policy_stats.entropy,
            "sampler_logp_gap": sampler_logp_gap,
            "sampler_logp_gap_max": sampler_logp_gap,
            "loss": token_loss,
        }
        sums = sum_over_tokens(self.metric_reductions, metrics, mask)

        if policy_hidden.routing is None:
            return loss, sums
        loss = loss + balance_term(policy_hidden.routing, inputs)
        return loss, sums | {ROUTING: lax.stop_gradient(policy_hidden.routing)}

    def policy_loss(
        self, logps: Float[Array, "m T"], microbatch: Microbatch, coefficients: Coefficients
    ) -> tuple[Float[Array, "m T"], MetricSums]:
        """The policy term of each token, before its weight, with its metrics f32[m T] each.

        logps: of the policy that is trained. microbatch: with PolicyInputs.

        With truncated importance sampling (TIS) the ratio is taken against the trainer's own
        log-probabilities, which are the current ones, as there is one update per batch. The
        probability by the trainer over that by the sampler is a weight without gradient, of a token
        or of the response.
        """
        sampled: PolicyInputs = microbatch.objective_inputs
        mask = microbatch.mask
        # [m] of responses or [m T] of tokens: as [m 1] or [m T] they belong to each token.
        advantages = sampled.loss_weights.advantages.reshape(len(mask), -1)
        advantages = jnp.broadcast_to(advantages, mask.shape)
        clip = Clip(coefficients.clip, coefficients.clip_high)
        loss = self.algorithm.loss
        if self.rl.tis == "none":
            return loss(logps, sampled.sampler_logps, advantages, mask, clip)

        trainer_logps = lax.stop_gradient(logps)
        token_loss, metrics = loss(logps, trainer_logps, advantages, mask, clip)

        # How much likelier the trainer finds a token, or the response, than the sampler did.
        log_ratio = jnp.where(mask, trainer_logps - sampled.sampler_logps, 0.0)
        if self.rl.tis == "sequence":
            log_ratio = jnp.broadcast_to(log_ratio.sum(-1, keepdims=True), mask.shape)
        importance_ratio = jnp.exp(log_ratio)

        # Above the cap the weight is the cap (truncate), or 0 (mask); below the lower bound, 0.
        is_capped = importance_ratio > coefficients.tis_cap
        weight_above_cap = coefficients.tis_cap if self.rl.tis_mode == "truncate" else 0.0
        tis_weight = jnp.where(is_capped, weight_above_cap, importance_ratio)
        if coefficients.tis_low is not None:
            is_below = importance_ratio < coefficients.tis_low
            tis_weight = jnp.where(is_below, 0.0, tis_weight)
            metrics |= {"tis_below": is_below.astype(jnp.float32)}

        metrics |= {"tis_weight": tis_weight, "tis_capped": is_capped.astype(jnp.float32)}
        return tis_weight * token_loss, metrics
