"""Rotary positions (arXiv:2104.09864)."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from isojax.core.config import RopeScaling
from isojax.core.errors import InputError

CosSin = tuple[Float[Array, "*b half"], Float[Array, "*b half"]]  # cosines and sines, by position


@dataclass(frozen=True)
class Rope:
    """A table of rotations, which layers may share: a policy has one, or one for each kind of
    layer."""

    head_dim: int  # numbers of a head that are rotated, its first: all, or a part as in GLM-4
    base: float  # theta
    scaling: RopeScaling | None = None
    linear_factor: float = 1.0  # which stretches all positions alike
    # whether neighbouring numbers are rotated against each other, and not two halves
    neighbours: bool = False

    def __post_init__(self) -> None:
        if self.head_dim % 2:
            raise InputError(
                found=(
                    f"rotary positions turn pairs of numbers, and {self.head_dim} of a head "
                    "were to be turned"
                ),
                expected="an even count",
            )

    def frequencies(self) -> Float[np.ndarray, " half"]:
        """Radians per position of each pair of head dimensions."""
        frequencies = rope_frequencies(self.head_dim, self.base, self.scaling)
        if self.linear_factor == 1:
            return frequencies
        return frequencies / np.float32(self.linear_factor)

    def cos_sin(self, positions: Int[Array, "*b"]) -> CosSin:
        """Cosines and sines of positions, each f32[*b H/2]; the same for all heads."""
        frequencies = self.frequencies().reshape((1,) * positions.ndim + (-1,))
        angle = positions[..., None].astype(jnp.float32) * frequencies
        return jnp.cos(angle), jnp.sin(angle)

    def rotate(
        self, x: Float[Array, "b t heads H"], cos_sin: CosSin
    ) -> Float[Array, "b t heads H"]:
        """Rotate the first `head_dim` numbers of each head of x; the others stay.

        `cos_sin`: those of x's positions, from `cos_sin`: [b t head_dim/2] each."""
        # [b t 1 head_dim/2], the same for all heads, in x's precision
        cos, sin = (y[:, :, None].astype(x.dtype) for y in cos_sin)
        rotated = x[..., : self.head_dim]
        rest = x[..., self.head_dim :]

        if self.neighbours:
            a, b = rotated[..., ::2], rotated[..., 1::2]
            pairs = jnp.stack([a * cos - b * sin, b * cos + a * sin], -1)
            parts = [pairs.reshape(rotated.shape)]
        else:
            half = self.head_dim // 2
            a, b = rotated[..., :half], rotated[..., half:]
            parts = [a * cos - b * sin, b * cos + a * sin]

        return jnp.concatenate([*parts, rest] if rest.size else parts, -1)


def rope_frequencies(
    head_dim: int, base: float, scaling: RopeScaling | None
) -> Float[np.ndarray, " half"]:
    """Return base^(-2i / head_dim), radians per position of each pair, f32[head_dim/2].

    Rounded to float32 at each step as transformers does, with which published models were trained.
    `base`: theta, such as 10000.0.

    With `scaling`, as in Llama 3.1, a wavelength beyond original / low_freq_factor grows by
    `factor`, one below original / high_freq_factor stays, and between them the frequency is linear
    in original / wavelength; original is its `original_max_position_embeddings`. Its
    high_freq_factor must be above low_freq_factor."""
    f32 = np.float32
    exponents = np.arange(0, head_dim, 2, dtype=f32) / f32(head_dim)
    # in float64: a power in float32 is off by a unit here and there
    powers = (np.float64(f32(base)) ** exponents).astype(f32)
    unscaled = f32(1) / powers
    if scaling is None:
        return unscaled

    low = f32(scaling.low_freq_factor)
    high = f32(scaling.high_freq_factor)
    factor = f32(scaling.factor)
    wavelengths = f32(2 * np.pi) / unscaled
    # turns of each pair within the original context
    rotations = f32(scaling.original_max_position_embeddings) / wavelengths
    unscaled_weight = np.clip((rotations - low) / (high - low), f32(0), f32(1))
    return (1 - unscaled_weight) * unscaled / factor + unscaled_weight * unscaled
