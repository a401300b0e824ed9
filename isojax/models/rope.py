"""Rotary positions (arXiv:2104.09864), and their stretching for long contexts as Llama 3.1 has it.

Frequencies are numbers, not traced values: worked out once in NumPy, rounded to float32 at the places where transformers rounds, so
that far positions, where an angle is a position times a frequency, turn as the checkpoint's authors had them turn.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from isojax.config import RopeScaling


def frequencies(head_dim: int, base: float, scaling: RopeScaling | None) -> Float[np.ndarray, " half"]:
    """Radians a position, one a pair of head dimensions: f32[head_dim / 2].

    Without `scaling`, base^(-2i / head_dim). With it, a wavelength beyond original / low_freq_factor grows by `factor`, one below
    original / high_freq_factor stays, and between them the frequency goes linearly in original / wavelength from the one to the other.
    """
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain = np.float32(1) / (np.float64(base) ** exponent.astype(np.float64)).astype(np.float32)
    if scaling is None:
        return plain
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings * plain.astype(np.float64) / (2 * np.pi)  # in the original context
    kept = np.clip((turns - low) / (high - low), 0, 1).astype(np.float32)
    return (1 - kept) * plain / np.float32(scaling.factor) + kept * plain


def rope(x: Float[Array, "b t heads H"], positions: Int[Array, "b t"], turns: Float[np.ndarray, " half"]) -> Float[Array, "b t heads H"]:
    """x turned by `positions` * `turns`, halves rotated against each other; angles, cosines and sines in float32."""
    half = x.shape[-1] // 2
    angle = positions[..., None, None].astype(jnp.float32) * turns.reshape(1, 1, 1, -1)
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
