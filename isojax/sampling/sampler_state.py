"""The state of a shard's sampler: slots, the queue of work items, caches, and the rollouts that have finished."""

from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int, UInt32

from isojax.models.decode import KVCache


class Slots(NamedTuple):
    """One shard's slots. A slot whose response has no token yet draws the first one from its prompt."""

    row: Int[Array, " R"]  # the rollout's row in the shard's share of the batch; -1 where the slot is free
    position: Int[Array, " R"]  # of `token` in its sequence
    token: Int[Array, " R"]  # the last token
    t: Int[Array, " R"]  # tokens in the response
    stop_state: Int[Array, " R"]  # of the stop strings' automaton
    stopped: Bool[Array, " R"]  # whether a stop condition has been met
    key: UInt32[Array, "R 2"]  # the data of the rollout's key
    tokens: Int[Array, "R T"]
    logps: Float[Array, "R T"]
    nucleus_mass: Float[Array, "R _"]
    thinking_ended: Bool[Array, " R"] | None  # see interruption.py; None where no response is interrupted

    def outputs(self) -> tuple[Array, ...]:
        """What a finished slot writes to the shard's buffers, in the order of `SamplerState.outputs`."""
        outputs = self.tokens, self.logps, self.nucleus_mass, self.stopped, self.t
        return outputs if self.thinking_ended is None else (*outputs, self.thinking_ended)


class WorkQueue(NamedTuple):
    """What a shard has yet to sample. Problems are counted within its share of the batch."""

    next_item: Int[Array, ""]  # the first work item that no prefix group has taken
    num_prefilled: Int[Array, ""]  # problems whose prompts have been in the prefix table
    problem: Int[Array, " Z"]  # of each prefix group
    next_rollout: Int[Array, " Z"]  # rollouts next .. end-1 of each prefix group's item wait for a slot
    end_rollout: Int[Array, " Z"]


class SamplerState(NamedTuple):
    outputs: tuple[Array, ...]  # [rows ...]: finished rollouts, in the order of `Slots.outputs`
    slots: Slots
    cache: KVCache
    prefix_table: Any  # keys and values of G prompts
    table_last_hidden: Float[Array, "G D"]  # hidden states of their last tokens, from which first tokens are drawn
    group_last_hidden: Float[Array, "Z D"]  # and of each prefix group's prompt
    queue: WorkQueue
