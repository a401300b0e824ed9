"""The slots of a shard's sampler and the queue of rollouts that wait for one: their state, the
prefill of prompts, and what free prefix groups and slots sample next.

Context is what the sampler writes into a response itself: an interruption's phrase, and a task's
reply to a turn. A slot's row of tokens holds it as ~token, which is negative, from before the slot
reaches its positions. There the slot takes what is written instead of a draw. `Rollouts.mask`
leaves context out of the loss.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from isojax.core import program_scopes
from isojax.core.shapes import SamplerShapes
from isojax.models.decode import Decoding, KVCache
from isojax.models.transformer import Params
from isojax.sampling.batch import SamplingBatch
from isojax.sampling.logits import rollout_keys
from isojax.tasks.protocol import Interruption


class Slots(NamedTuple):
    """One shard's R slots, each of which decodes one rollout at a time, of at most T tokens.

    A slot whose response has no token yet (t = 0) draws the first one from its prompt.
    """

    # the rollout's row in the shard's share of the batch; -1 where the slot is free
    row: Int[Array, " R"]
    # of `token`, counted from the prompt's first token; with t = 0 the prompt's length, which is
    # where the first token of the response will be
    position: Int[Array, " R"]
    token: Int[Array, " R"]  # the last token of the response; 0 with t = 0
    t: Int[Array, " R"]  # tokens in the response, 0 .. T
    stop_state: Int[Array, " R"]  # of the stop strings' automaton
    stopped: Bool[Array, " R"]  # whether a stop condition has been met
    key: UInt32[Array, "R 2"]  # the data of the rollout's key
    tokens: Int[Array, "R T"]  # ~token where it is context, written ahead of `t`
    logps: Float[Array, "R T"]
    nucleus_mass: Float[Array, "R _"]  # [R T] with top_p < 1, else [R 1], all ones

    def outputs(self) -> tuple[Array, ...]:
        """What a finished slot writes to the shard's buffers, in the order of
        `SamplerState.outputs`."""
        return self.tokens, self.logps, self.nucleus_mass, self.stopped, self.t

    def write_outputs(self, buffers: tuple[Array, ...], row: Int[Array, " R"]) -> tuple[Array, ...]:
        """The buffers [rows ...] with what each slot writes at its row.

        buffers: in the order of `outputs`, and behind them those of recorded experts, if any, which
        have been written token by token and stay. row: one past the buffers' end writes nothing.
        """
        outputs = self.outputs()
        recorded = buffers[len(outputs) :]
        # Not strict: `buffers` may be longer, by those of experts.
        written = tuple(
            b.at[row].set(x, mode="drop") for b, x in zip(buffers, outputs, strict=False)
        )
        return written + recorded

    def token_ahead(self) -> Int[Array, " R"]:
        """What each slot's row holds at the position of its next token: ~token of context that was
        written ahead, which is negative; 0 where there is none."""
        is_next = jnp.arange(self.tokens.shape[-1])[None] == self.t[:, None]
        return jnp.where(is_next, self.tokens, 0).sum(-1)

    def write_ahead(
        self, context: Int[Array, "#R K"], count: Int[Array, " R"]
    ) -> tuple["Slots", Bool[Array, " R"]]:
        """Write the first `count` tokens of `context` ahead of each slot: (slots, overflow).

        context: token ids, one row for each slot or one row for all. count: 0 .. K; 0 writes
        nothing. overflow: which slots have no room for the context and for a token drawn after
        it. There nothing is written: context is never cut.
        """
        T, K = self.tokens.shape[-1], context.shape[-1]
        overflow = (count > 0) & (self.t + count >= T)

        offset = jnp.arange(T)[None] - self.t[:, None]  # of each position, from the next token's
        written = (offset >= 0) & (offset < count[:, None]) & ~overflow[:, None]
        context = jnp.broadcast_to(context, (len(count), K))
        ahead = jnp.take_along_axis(context, jnp.clip(offset, 0, K - 1), 1)
        return self._replace(tokens=jnp.where(written, ~ahead, self.tokens)), overflow

    def interrupted(self, interruption: Interruption) -> Bool[Array, " R"]:
        """Whether each response is to be interrupted now, to end its thinking.

        That is a response of `after` tokens, none of which is `unless_token`, which ends thinking.
        The caller writes a phrase behind it, and it continues after that (forced length
        interruption, ScaleRL, arXiv:2510.13786).
        """
        due = self.t == interruption.after
        if interruption.unless_token is None:
            return due
        return due & ~(self.tokens[:, : interruption.after] == interruption.unless_token).any(-1)


class WorkQueue(NamedTuple):
    """What a shard has yet to sample. Problems are counted within its share of the batch.

    Z prefix groups of W slots each share one prompt's keys and values; a work item is the rollouts
    of one problem that such a group takes at once (`work_items`). Items are taken in order.
    """

    next_item: Int[Array, ""]  # the first work item that no prefix group has taken
    # problems 0 .. num_prefilled - 1 have had their prompts in the prefix table; a multiple of g
    num_prefilled: Int[Array, ""]
    problem: Int[Array, " Z"]  # of each prefix group
    # rollouts next .. end-1 of each prefix group's item wait for a slot
    next_rollout: Int[Array, " Z"]
    end_rollout: Int[Array, " Z"]


class SamplerState(NamedTuple):
    """What one shard's sampler carries from chunk to chunk."""

    # [rows ...]: finished rollouts, in the order of `Slots.outputs`; and the experts of prompts
    # [rows P l k] and of responses [rows T l k], where they are recorded
    outputs: tuple[Array, ...]
    slots: Slots
    cache: KVCache
    # Keys and values of G prompts: a ring, in which problem q's are entry q % G. Arrays that the
    # table has for G prompts have the same order.
    prefix_table: Any
    # hidden states of their last tokens, from which first tokens are drawn
    table_last_hidden: Float[Array, "G D"]
    group_last_hidden: Float[Array, "Z D"]  # and of each prefix group's prompt
    queue: WorkQueue
    table_experts: Any = None  # [G P l k], of the table's prompts, where experts are recorded
    group_experts: Any = None  # [Z P l k], and of each prefix group's prompt


class WorkItems(NamedTuple):
    """How the rollouts of a batch are divided, of which a shard samples items first .. end-1.

    Problem q of the shard's share has the items q * per_problem .. (q + 1) * per_problem - 1.
    """

    size: Int[Array, ""]  # rollouts of an item; a problem's last one may have fewer
    per_problem: Int[Array, ""]  # items of a problem
    first: Int[Array, ""]
    end: Int[Array, ""]


def work_items(shapes: SamplerShapes, batch: SamplingBatch) -> WorkItems:
    """How a shard's share of the batch, or a ring's part that may begin, is divided into items.

    An item is one rollout with W = 1 slots in a prefix group; with W > 1 it is as many rollouts of
    one problem as `size` says. Sizes depend on the batch's B_p and n, and are traced.
    """
    share = batch.share
    n = batch.n
    W = shapes.slots_per_prefix

    # With W > 1, an item is as many rollouts of a problem as give each prefix group one item: the
    # prompt is copied into a group once for each, and so few items mean few copies.
    size = jnp.int32(1)
    if W > 1:
        prefix_groups = shapes.slots // W
        rollout_count = share.rollout_count if batch.ring_rows is None else batch.ring_rows
        per_group = (rollout_count + prefix_groups - 1) // prefix_groups
        size = jnp.minimum(n, jnp.maximum(W, per_group))
    per_problem = (n + size - 1) // size

    # Items are counted from the share's first problem, whose first rollouts another shard may own.
    last_rollout = batch.skipped_rollouts + share.rollout_count - 1
    end = (last_rollout // n) * per_problem + (last_rollout % n) // size + 1
    return WorkItems(
        size=size,
        per_problem=per_problem,
        first=batch.skipped_rollouts // size,
        end=jnp.where(share.rollout_count > 0, end, 0),
    )


class PrefillCarry(NamedTuple):
    """What the loop over blocks of prompts carries: these of `SamplerState`."""

    prefix_table: Any
    table_last_hidden: Array
    table_experts: Any
    num_prefilled: Array


def prefill(
    decoding: Decoding,
    shapes: SamplerShapes,
    stacked_params: Params,
    batch: SamplingBatch,
    state: SamplerState,
) -> SamplerState:
    """Prefill the prompts that prefix groups may take next, as far as the table has room.

    Prompts come in blocks of g. state: before; returned with a new table, its arrays alike, and
    `queue.num_prefilled`. stacked_params: `SamplerWeights.prefill`. G is a multiple of g
    (`SamplerShapes.prefix_entries`), and each block begins at a multiple of g.
    """
    g, G = shapes.prefill_batch, shapes.prefix_entries
    queue = state.queue
    items_per_problem = work_items(shapes, batch).per_problem
    next_problem = queue.next_item // items_per_problem  # the first whose prompt is still needed
    # The next `admit` gives out at most one item to each prefix group. Of how many problems they
    # are at most: + 2, because the first and the last may have only a part of their items among
    # them.
    prefill_end = next_problem + decoding.prefix_groups // items_per_problem + 2

    def needs_prefill(carry: PrefillCarry) -> Array:
        num_prefilled = carry.num_prefilled
        # The table is a ring: a block takes the place of the g prompts that came G before it.
        has_room = num_prefilled + g - G <= next_problem
        return (num_prefilled < batch.share.group_count) & has_room & (num_prefilled < prefill_end)

    def prefill_block(carry: PrefillCarry) -> PrefillCarry:
        """Put the next g prompts into the table; captures the batch, the parameters and g, G.

        The last block may go past the share's last problem. There `problems` has rows all the
        same, of other shards' problems or of g rows of padding (`problem_rows`), and no group
        takes their entries.
        """
        # prompts i32[g P], lengths i32[g]
        row = batch.problem_row(carry.num_prefilled + jnp.arange(g))
        prompts, lengths = batch.problems.prompts[row], batch.problems.lengths[row]
        # The table's entry of the block's first prompt. As g divides both numbers, the block never
        # passes the table's end, where a dynamic slice would be moved back without a word.
        entry = carry.num_prefilled % G

        table_experts = carry.table_experts
        if table_experts is None:
            entries, block_last_hidden = decoding.prefill(stacked_params, prompts, lengths)
        else:
            entries, block_last_hidden, experts = decoding.prefill_with_experts(
                stacked_params, prompts, lengths
            )
            assert experts is not None, "a table of experts is of a model that has some"
            table_experts = lax.dynamic_update_slice_in_dim(table_experts, experts, entry, 0)

        return PrefillCarry(
            prefix_table=decoding.store_entries(carry.prefix_table, entries, entry),
            table_last_hidden=lax.dynamic_update_slice_in_dim(
                carry.table_last_hidden, block_last_hidden, entry, 0
            ),
            table_experts=table_experts,
            num_prefilled=carry.num_prefilled + g,
        )

    begin = PrefillCarry(
        state.prefix_table, state.table_last_hidden, state.table_experts, queue.num_prefilled
    )
    with jax.named_scope(program_scopes.PREFILL_BLOCKS):
        end = lax.while_loop(needs_prefill, prefill_block, begin)
    return state._replace(
        prefix_table=end.prefix_table,
        table_last_hidden=end.table_last_hidden,
        table_experts=end.table_experts,
        queue=queue._replace(num_prefilled=end.num_prefilled),
    )


def admit(
    decoding: Decoding, shapes: SamplerShapes, batch: SamplingBatch, state: SamplerState
) -> SamplerState:
    """Free prefix groups take work items, and free slots the rollouts of their group's item.

    Slots z W .. (z+1) W - 1 are of prefix group z. Returns the state with new slots, cache,
    `group_*` arrays and queue.
    """
    slots = state.slots
    queue = state.queue
    items = work_items(shapes, batch)
    n = batch.n
    W, prefix_groups = shapes.slots_per_prefix, decoding.prefix_groups

    # Each prefix group that is idle takes the next item, if its prompt is in the table: the i-th
    # idle group the i-th item. An item that is not assigned has all later ones unassigned too.
    free_slots = (slots.row < 0).reshape(prefix_groups, W)
    is_idle = free_slots.all(1) & (queue.next_rollout >= queue.end_rollout)
    item = queue.next_item + jnp.cumsum(is_idle) - 1
    problem = item // items.per_problem
    assigned = is_idle & (item < items.end) & (problem < queue.num_prefilled)

    # The item's rollouts, counted within the share: those that another shard owns are left out,
    # of the share's first problem (below 0) and of its last (from rollout_count on).
    first_rollout = problem * n - batch.skipped_rollouts
    start = first_rollout + (item % items.per_problem) * items.size
    end = jnp.minimum(jnp.minimum(start + items.size, first_rollout + n), batch.share.rollout_count)
    problem = jnp.where(assigned, problem, queue.problem)
    next_rollout = jnp.where(assigned, jnp.maximum(start, 0), queue.next_rollout)
    end_rollout = jnp.where(assigned, end, queue.end_rollout)

    # Its prompt's keys and values go from the table into the group's cache.
    entry = jnp.where(assigned, problem % shapes.prefix_entries, 0)
    cache = decoding.admit(state.cache, state.prefix_table, entry, assigned)
    group_last_hidden = jnp.where(
        assigned[:, None], state.table_last_hidden[entry], state.group_last_hidden
    )

    # A group's free slots take its next rollouts, in their order: row [Z W].
    row = next_rollout[:, None] + jnp.cumsum(free_slots, 1) - 1
    admitted = free_slots & (row < end_rollout[:, None])
    queue = WorkQueue(
        next_item=queue.next_item + assigned.sum(dtype=jnp.int32),
        num_prefilled=queue.num_prefilled,
        problem=problem,
        next_rollout=next_rollout + admitted.sum(1, dtype=jnp.int32),
        end_rollout=end_rollout,
    )
    slots = _fill_slots(batch, slots, admitted.reshape(-1), row.reshape(-1), jnp.repeat(problem, W))

    if state.table_experts is not None:
        is_assigned = assigned[:, None, None, None]
        group_experts = jnp.where(is_assigned, state.table_experts[entry], state.group_experts)
        state = state._replace(group_experts=group_experts)
        state = _record_prompts(batch, state, slots, admitted.reshape(-1))
    return state._replace(
        slots=slots, cache=cache, group_last_hidden=group_last_hidden, queue=queue
    )


def _fill_slots(
    batch: SamplingBatch, slots: Slots, admitted: Bool[Array, " R"], row: Array, problem: Array
) -> Slots:
    """The slots, with rollout `row` of `problem` at its beginning in each that is `admitted`.

    row, problem: i32[R], counted within the shard's share; of other slots any number.
    """
    problem_row = jnp.where(admitted, batch.problem_row(problem), 0)
    rollout_id = jnp.where(admitted, (batch.share.first_rollout + row) % batch.n, 0)

    # One key of the batch; or one of each problem, where batches of several updates are in a ring.
    key = batch.key if batch.key.ndim == 0 else batch.key[problem_row]
    keys = rollout_keys(key, batch.problems.ids[problem_row], rollout_id)
    new_slots = jax.tree.map(jnp.zeros_like, slots)._replace(
        row=row,
        position=batch.problems.lengths[problem_row],
        key=jax.random.key_data(keys),
        nucleus_mass=jnp.ones_like(slots.nucleus_mass),
    )

    def fill(old: Array, new: Array) -> Array:
        is_filled = admitted.reshape(-1, *(1,) * (old.ndim - 1))  # [R 1 ...]
        return jnp.where(is_filled, new, old)

    return jax.tree.map(fill, slots, new_slots)


def _record_prompts(
    batch: SamplingBatch, state: SamplerState, slots: Slots, admitted: Bool[Array, " R"]
) -> SamplerState:
    """Record the experts of a slot's prompt in the buffers of its rollout, when it is admitted.

    The last two of `state.outputs` are those buffers: of prompts [rows P l k], of responses
    [rows T l k]. slots: with the new rows; state: with `group_experts` of the new prompts.
    """
    *others, prompt_experts, experts = state.outputs
    W = len(admitted) // len(state.group_experts)
    # Of the other slots nothing is written: their row is out of range.
    row = jnp.where(admitted, batch.buffer_row(slots.row), len(prompt_experts))
    of_slots = jnp.repeat(state.group_experts, W, axis=0)
    return state._replace(
        outputs=(*others, prompt_experts.at[row].set(of_slots, mode="drop"), experts)
    )
