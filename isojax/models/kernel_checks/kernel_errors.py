"""How far a kernel's outputs are from those in float32, and how far they may be."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# A kernel may be so many times as far from float32 as array code in the same precision, and this
# much further.
TOLERATED_RATIO = 2.0
TOLERATED_ERROR = 1e-4

SEED = 0  # of the inputs
CPU_OPTIONS = {"xla_backend_optimization_level": 0}
PLAIN = "plain"  # the implementation that is array code


class KernelCase(Protocol):
    """One computation on random inputs, by a kernel or by array code.

    Hashable: it decides which program is compiled. The inputs are rounded to the precision in
    which a run computes, whatever computes with them.
    """

    @property
    def is_float32(self) -> bool:
        """Whether a run computes it in float32."""
        ...

    def outputs(self, implementation: str, in_float32: bool, key: Array) -> Mapping[str, Array]:
        """The outputs by name, vectors along their last axis; it is traced.

        implementation: such as "plain", "pallas" or "interpret". in_float32: whether the inputs
        are cast to float32, once they are rounded. key: of jax.random, for the inputs.
        """
        ...


@dataclass(frozen=True)
class KernelError:
    """How far a kernel is from float32, in the output that is furthest for its tolerance."""

    output: str  # its name in the case
    error: float
    tolerance: float

    @property
    def is_right(self) -> bool:
        return self.error <= self.tolerance  # an error that is not a number is not

    def __str__(self) -> str:
        verb = "is" if self.is_right else "is NOT"
        return (
            f"{self.error:.2g} from float32 in {self.output}, which {verb} within"
            f" {self.tolerance:.2g}"
        )


@dataclass(frozen=True)
class Reference:
    """What a case gives in float32, and how far a kernel may be from it, by output."""

    exact: Mapping[str, Array]
    tolerances: Mapping[str, float]


def make_reference(case: KernelCase) -> Reference:
    """Compute a case in float32, and in the run's precision by array code."""
    with jax.default_matmul_precision("highest"):
        exact = _compute(case, PLAIN, in_float32=True)
    if case.is_float32 and jax.default_backend() == "cpu":
        return Reference(exact, dict.fromkeys(exact, TOLERATED_ERROR))  # it is `exact` again

    plain = _compute(case, PLAIN, in_float32=False)
    plain_errors = largest_errors(plain, exact)
    tolerances = {
        name: TOLERATED_RATIO * float(error) + TOLERATED_ERROR
        for name, error in plain_errors.items()
    }
    return Reference(exact, tolerances)


def kernel_error(
    case: KernelCase, implementation: str, reference: Reference | None = None
) -> KernelError:
    """Compare a kernel with float32 on a case.

    reference: of the same case; None: it is made. An error of the compiler or of the device is
    raised as it is.
    """
    reference = reference or make_reference(case)
    outputs = _compute(case, implementation, in_float32=False)
    errors = [
        KernelError(name, float(error), reference.tolerances[name])
        for name, error in largest_errors(outputs, reference.exact).items()
    ]
    # One that is not a number comes first.
    return max(errors, key=lambda e: math.inf if math.isnan(e.error) else e.error / e.tolerance)


def _compute(case: KernelCase, implementation: str, in_float32: bool) -> Mapping[str, Array]:
    """A case's outputs, on inputs that are always the same."""
    # On a CPU, where most of the time goes into compiling, with few optimisations.
    options = CPU_OPTIONS if jax.default_backend() == "cpu" else None
    outputs = jax.jit(partial(case.outputs, implementation, in_float32), compiler_options=options)
    return outputs(jax.random.key(SEED))


@jax.jit
def largest_errors(
    actual: Mapping[str, Array], exact: Mapping[str, Array]
) -> dict[str, Float[Array, ""]]:
    """`largest_error` of each output."""
    return {name: largest_error(actual[name], exact[name]) for name in exact}


def largest_error(actual: Float[Array, "*b H"], exact: Float[Array, "*b H"]) -> Float[Array, ""]:
    """The largest distance (L2) of a vector from the exact one, relative to the exact one's size.

    A vector that is smaller than the root mean square of all sizes, such as a gradient that is 0,
    counts as being of that size. NaN where an output is not finite.
    """
    actual, exact = actual.astype(jnp.float32), exact.astype(jnp.float32)
    sizes = jnp.linalg.norm(exact, axis=-1)
    usual_size = jnp.sqrt(jnp.mean(sizes**2))
    smallest = jnp.finfo(jnp.float32).tiny  # all outputs may be 0
    distances = jnp.linalg.norm(actual - exact, axis=-1)
    return jnp.max(distances / jnp.maximum(jnp.maximum(sizes, usual_size), smallest))
