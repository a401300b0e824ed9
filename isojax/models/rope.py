"""Rotary positions (arXiv:2104.09864), and their stretching for long contexts as Llama 3.1 has it.

Frequencies are numbers, not traced values: worked out in float64 and rounded to float32 once. (transformers rounds at each step: its
frequencies are within a unit or two in the last place of these.)
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
    plain = float(base) ** (-np.arange(0, head_dim, 2) / head_dim)
    if scaling is None:
        return plain.astype(np.float32)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    in_original = scaling.original_max_position_embeddings * plain / (2 * np.pi)  # whole turns within the original context
    kept = np.clip((in_original - low) / (high - low), 0, 1)
    return (plain * (kept + (1 - kept) / scaling.factor)).astype(np.float32)


def rope(x: Float[Array, "b t heads H"], positions: Int[Array, "b t"], turns: Float[np.ndarray, " half"]) -> Float[Array, "b t heads H"]:
    """x turned by `positions` * `turns`, halves rotated against each other; angles, cosines and sines in float32."""
    half = x.shape[-1] // 2
    angle = positions[..., None, None].astype(jnp.float32) * turns.reshape(1, 1, 1, -1)
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
