"""Rotary positions (arXiv:2104.09864)."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from isojax.core.config import RopeScaling

CosSin = tuple[Float[Array, "*b half"], Float[Array, "*b half"]]  # cosines and sines, by position


def rope_frequencies(head_dim: int, base: float, scaling: RopeScaling | None) -> Float[np.ndarray, " half"]:
    """Radians per position of each pair of head dimensions: base^(-2i / head_dim), rounded to float32 at each step as
    transformers does, with which published models were trained.

    With `scaling`, as in Llama 3.1, a wavelength beyond original / low_freq_factor grows by `factor`, one below
    original / high_freq_factor stays, and between them the frequency is linear in original / wavelength."""
    f32 = np.float32
    exponents = np.arange(0, head_dim, 2, dtype=f32) / f32(head_dim)
    powers = (np.float64(f32(base)) ** exponents).astype(f32)  # a power in float32 is off by a unit here and there
    unscaled = f32(1) / powers
    if scaling is None:
        return unscaled

    low, high, factor = (f32(x) for x in (scaling.low_freq_factor, scaling.high_freq_factor, scaling.factor))
    wavelengths = f32(2 * np.pi) / unscaled
    rotations = f32(scaling.original_max_position_embeddings) / wavelengths  # within the original context
    unscaled_weight = np.clip((rotations - low) / (high - low), f32(0), f32(1))
    return (1 - unscaled_weight) * unscaled / factor + unscaled_weight * unscaled


def apply_rope(x: Float[Array, "b t heads H"], cos_sin: CosSin) -> Float[Array, "b t heads H"]:
    """x rotated by the angles of its positions, the halves of a head against each other."""
    half = x.shape[-1] // 2
    cos, sin = (y[:, :, None].astype(x.dtype) for y in cos_sin)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
