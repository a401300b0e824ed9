"""Rotary positions (arXiv:2104.09864), and their stretching for long contexts as Llama 3.1 has it.

Frequencies are numbers, not traced values, rounded to float32 at each step as transformers does: a published model was trained with
its roundings, and at position 700 a unit in the last place is seen in the logits.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from isojax.config import RopeScaling

Turns = tuple[Float[Array, "*b half"], Float[Array, "*b half"]]  # cosines and sines, by position


def frequencies(head_dim: int, base: float, scaling: RopeScaling | None) -> Float[np.ndarray, " half"]:
    """Radians a position, one a pair of head dimensions: f32[head_dim / 2].

    Without `scaling`, base^(-2i / head_dim). With it, a wavelength beyond original / low_freq_factor grows by `factor`, one below
    original / high_freq_factor stays, and between them the frequency goes linearly in original / wavelength from the one to the other.
    """
    f32 = np.float32
    parts = np.arange(0, head_dim, 2, dtype=f32) / f32(head_dim)
    powers = (np.float64(f32(base)) ** parts).astype(f32)  # in float32 numpy's own power is a unit off here and there
    plain = f32(1) / powers
    if scaling is None:
        return plain
    low, high, factor = (f32(x) for x in (scaling.low_freq_factor, scaling.high_freq_factor, scaling.factor))
    in_original = f32(scaling.original_max_position_embeddings) / (f32(2 * np.pi) / plain)  # whole turns within the original context
    kept = np.clip((in_original - low) / (high - low), f32(0), f32(1))
    return (1 - kept) * plain / factor + kept * plain


def turned(positions: Int[Array, "*b"], turns: Float[np.ndarray, " half"]) -> Turns:
    """Cosines and sines of `positions` * `turns`, in float32. Once for all layers: a compiler would work them out anew for each head."""
    angle = positions[..., None].astype(jnp.float32) * turns.reshape((1,) * positions.ndim + (-1,))
    return jnp.cos(angle), jnp.sin(angle)


def rope(x: Float[Array, "b t heads H"], turns: Turns) -> Float[Array, "b t heads H"]:
    """x turned by the angles of its positions, halves rotated against each other."""
    half = x.shape[-1] // 2
    cos, sin = (y[:, :, None].astype(x.dtype) for y in turns)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
