"""Programs compiled ahead: from their arguments' shapes and shardings, before there is anything to run them on."""

from typing import Any

import jax


class Program:
    """A jitted function. `compile` prepares it for arguments of given shapes; without that, its first call does."""

    def __init__(self, jitted: Any):
        self.jitted = jitted
        self._compiled: Any = None
        self._output_shapes: Any = None

    def compile(self, *arguments: Any) -> Any:
        """Compiles for arguments like these, arrays or ShapeDtypeStructs with shardings. Returns the outputs as
        ShapeDtypeStructs with shardings, for which a program that reads them can be compiled."""
        if self._compiled is None:
            lowered = self.jitted.lower(*arguments)
            self._compiled = lowered.compile()
            self._output_shapes = shapes_with_shardings(lowered.out_info, self._compiled.output_shardings)
        return self._output_shapes

    def __call__(self, *arguments: Any) -> Any:
        function = self.jitted if self._compiled is None else self._compiled
        return function(*arguments)


def shape_on(sharding: Any, shape: tuple[int, ...] = (), dtype: Any = "int32") -> Any:
    """The ShapeDtypeStruct of an array with this sharding."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def shapes_like(arrays: Any, sharding: Any = None) -> Any:
    """The ShapeDtypeStruct of each array of a tree, on `sharding`, or else where the array is."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding if sharding is None else sharding), arrays
    )


def shapes_with_shardings(shapes: Any, shardings: Any) -> Any:
    """A tree of shapes with the shardings of a tree of the same structure."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
