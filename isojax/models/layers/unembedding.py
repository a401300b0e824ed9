"""From hidden states to logits."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from isojax.models.fsdp import all_gather_weight
from isojax.models.spec import Spec

VOCAB, WIDTH = "vocab", "embed"  # the logical axes of its matrix


class Unembedding(NamedTuple):
    """The matrix that makes logits of hidden states, or a block of its tokens: a head's [D V], or
    the table of an embedding that is tied to it, [V D]."""

    matrix: Array
    vocab_axis: int

    def logits(self, hidden: Float[Array, "*b D"]) -> Float[Array, "*b V"]:
        """In float32, whatever products are computed in."""
        equation = "...d,vd->...v" if self.vocab_axis == 0 else "...d,dv->...v"
        return jnp.einsum(equation, hidden, self.matrix, preferred_element_type=jnp.float32)


def gather_unembedding(w: Array, spec: Spec) -> Unembedding:
    """Of the parameter that `spec` describes, or of the part of it that fsdp made."""
    width_axis = spec.axes.index(WIDTH)
    whole = all_gather_weight(w, width_axis, spec.shape[width_axis])
    return Unembedding(whole, vocab_axis=spec.axes.index(VOCAB))
