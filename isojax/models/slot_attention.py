"""Attention of one query per slot over cached keys and values, where slots may share the keys and values of a prompt.

R slots are Z prefix groups of W = R / Z slots. Keys have positions last, [Z K H c], so that a score is a product along
rows of the cache.
"""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from isojax.models.attention import MASKED_SCORE
from isojax.models.cpu import small_head_products

KVSegment = tuple[Array, Array, Array]  # keys [Z K H c], values [Z K c H], mask bool[R c]


def fold_slots(x: Float[Array, "R K G c"], prefix_groups: int) -> Float[Array, "Z K WG c"]:
    """The W slots of each prefix group in one matrix, so that one product takes them to the group's prefix."""
    R, K, G, c = x.shape
    if prefix_groups == R:
        return x
    return x.reshape(prefix_groups, R // prefix_groups, K, G, c).swapaxes(1, 2).reshape(prefix_groups, K, -1, c)


def unfold_slots(x: Float[Array, "Z K WG c"], slots: int) -> Float[Array, "R K G c"]:
    """The inverse of `fold_slots`."""
    Z, K, _, c = x.shape
    return x if slots == Z else x.reshape(Z, K, slots // Z, -1, c).swapaxes(1, 2).reshape(slots, K, -1, c)


def attend_slots(q: Float[Array, "R N H"], kv_segments: list[KVSegment]) -> Float[Array, "R N H"]:
    """Softmax attention over all segments together, in float32; a segment may be of slots (Z = R) or of prefix
    groups."""
    R, N, H = q.shape
    K = kv_segments[0][0].shape[1]
    q = q.reshape(R, K, N // K, H) * H**-0.5
    scores = [_masked_scores(q, keys, mask) for keys, _, mask in kv_segments]
    max_score = functools.reduce(jnp.maximum, [unfold_slots(s.max(-1, keepdims=True), R) for s in scores])
    weighted_sums, normalizers = [], []
    for s, (_, values, _) in zip(scores, kv_segments, strict=True):
        w = jnp.exp(s - fold_slots(max_score, len(values)))
        normalizers.append(unfold_slots(w.sum(-1, keepdims=True), R))
        weighted = jnp.einsum("zkgc,zkch->zkgh", w.astype(values.dtype), values, preferred_element_type=jnp.float32)
        weighted_sums.append(unfold_slots(weighted, R))
    out = functools.reduce(jnp.add, weighted_sums) / functools.reduce(jnp.add, normalizers)
    return out.astype(q.dtype).reshape(R, N, H)


def _masked_scores(
    q: Float[Array, "R K G H"], keys: Float[Array, "Z K H c"], mask: Bool[Array, "R c"]
) -> Float[Array, "Z K WG c"]:
    R, _, G, _ = q.shape
    scores = small_head_products(fold_slots(q, len(keys)), keys)
    mask = jnp.broadcast_to(mask[:, None, None], (R, 1, G, mask.shape[-1]))
    return jnp.where(fold_slots(mask, len(keys)), scores, MASKED_SCORE)
