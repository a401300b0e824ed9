"""Rotary positions (arXiv:2104.09864), and their stretching for long contexts as Llama 3.1 has it.

Frequencies are numbers, not traced values, rounded to float32 at each step as transformers does: a published model was trained with
its roundings, and at position 700 a unit in the last place is seen in the logits.
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
    f32 = np.float32
    plain = f32(1) / f32(base) ** (np.arange(0, head_dim, 2, dtype=f32) / f32(head_dim))
    if scaling is None:
        return plain
    low, high, factor = (f32(x) for x in (scaling.low_freq_factor, scaling.high_freq_factor, scaling.factor))
    in_original = f32(scaling.original_max_position_embeddings) / (f32(2 * np.pi) / plain)  # whole turns within the original context
    kept = np.clip((in_original - low) / (high - low), f32(0), f32(1))
    return (1 - kept) * plain / factor + kept * plain


def rope(x: Float[Array, "b t heads H"], positions: Int[Array, "b t"], turns: Float[np.ndarray, " half"]) -> Float[Array, "b t heads H"]:
    """x turned by `positions` * `turns`, halves rotated against each other; angles, cosines and sines in float32."""
    half = x.shape[-1] // 2
    angle = positions[..., None, None].astype(jnp.float32) * turns.reshape(1, 1, 1, -1)
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
