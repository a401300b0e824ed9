"""Meshes, and arrays on them by the one table from logical axes to mesh axes (mesh_spec.py).
Programs are compiled ahead from the shapes and shardings of their arguments, before there is
anything to run them on.

Legend of dimension letters, used in every annotation:

    S  shards of the rollouts (data * fsdp)     B  rollouts            D  width (embed)
    R  slots of the sampler, a shard            P  prompt positions    N  query heads
    m  rows of a microbatch, a shard            T  response positions  K  key/value heads
    g  prompts prefilled at once, a shard       C  cache positions     H  head dimension
    G  entries of the prefix table, a shard     L  layers              F  width of the MLP
    Q  problems                                 V  vocabulary

Axes are Auto (XLA propagates them); the sampler and the gradient run in a shard_map that is manual
over `data` and `fsdp`. In it a prompt's layers run in a further one, manual over `sequence`
(models/transformer.py).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import shard_map
from jax.sharding import (
    AbstractDevice,
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
)

from isojax.core.errors import InputError
from isojax.core.policy_sizes import SizedAxes
from isojax.distributed.mesh_spec import (
    AXES,
    LOGICAL_AXIS_RULES,
    ROLLOUT_AXES,
    WEIGHT_AXES,
    MeshShape,
    axes_that_split,
    count_parts,
)
from isojax.distributed.multiprocess import is_multiprocess

PARAM_AXIS = "fsdp"  # the one of them that splits parameters too
# the axis that splits the positions of prompts, and of their keys and values
PROMPT_AXIS = "sequence"

INNER_AXES = ("heads", "kv_heads", "mlp", "fused")  # of what layers compute from hidden states
# the two ways to split hidden states [b t D], by logical axes: by rows b, or by positions t
TOKEN_AXES = (("token", None, None), (None, "token", None))


def make_mesh(shape: MeshShape, devices: Sequence[Any]) -> Mesh:
    """A mesh of Auto axes over the first `shape.devices` of these devices."""
    grid = np.asarray(devices[: shape.devices]).reshape(*shape.sizes.values())
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def partition_spec(
    logical: Sequence[str | None], shape: Sequence[int], mesh: Mesh | AbstractMesh
) -> PartitionSpec:
    """How a mesh splits one array, by the table LOGICAL_AXIS_RULES (mesh_spec.py).

    Each of its axes is split by the mesh axes that the table has for it and that divide it, but not
    by those that split an earlier axis.

    logical: the name of each axis in the table, such as ("embed", "heads", "head_dim"); None: the
        axis stays whole.
    shape: the array's, with as many axes.

    InputError for a name that the table lacks: a model of the user's may have one.
    """
    spec: list[str | tuple[str, ...] | None] = []
    used: set[str] = set()
    for name, size in zip(logical, shape, strict=True):
        if name is not None and name not in LOGICAL_AXIS_RULES:
            known = ", ".join(LOGICAL_AXIS_RULES)
            raise InputError(
                found=f"a parameter of the model has an axis {name!r}",
                expected=f"one of {known}",
            )

        axes = () if name is None else axes_that_split(name, size, mesh.shape, used)
        if name == "shard" and axes:
            # Both axes, even if one has a single device: shard_maps write it so, and JAX compares
            # specs as they are written.
            axes = ROLLOUT_AXES

        # For the same reason a single axis is not written as a tuple.
        if len(axes) > 1:
            spec.append(axes)
        else:
            spec.append(axes[0] if axes else None)
        used.update(axes)
    return PartitionSpec(*spec)


def mesh_axes_of(spec: PartitionSpec) -> tuple[str, ...]:
    """The axes of a mesh by which a spec splits an array, in its order: ("fsdp", "tensor")."""
    entries = [(entry,) if isinstance(entry, str) else entry or () for entry in spec]
    return tuple(axis for entry in entries for axis in entry)


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of an array that is whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def manual_spec(spec: PartitionSpec) -> PartitionSpec:
    """A spec without the mesh axes that are not data or fsdp, as `map_over_shards` takes it.

    P(("fsdp", "tensor"), None) becomes P(("fsdp",), None): a shard_map may name only the axes that
    it is manual over, and XLA keeps the array split over the others.
    """
    manual_entries = []
    for entry in spec:
        mesh_axes = mesh_axes_of(PartitionSpec(entry))
        manual_entries.append(tuple(a for a in mesh_axes if a in ROLLOUT_AXES) or None)
    return PartitionSpec(*manual_entries)


def partition_specs(shapes: Any, logical_axes: Any, mesh: Mesh) -> Any:
    """`partition_spec` of each parameter: a tree of specs.

    shapes: a tree of ShapeDtypeStructs. logical_axes: the same tree, with the names of the axes of
    each parameter in place of its shape.
    """
    return jax.tree.map(
        lambda shape, names: partition_spec(names, shape.shape, mesh), shapes, logical_axes
    )


def param_shardings(shapes: Any, logical_axes: Any, mesh: Mesh) -> Any:
    """The NamedSharding of each parameter, by `partition_specs`."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), partition_specs(shapes, logical_axes, mesh)
    )


def manual_specs(shapes: Any, logical_axes: Any, mesh: Mesh) -> Any:
    """The spec of each parameter with which `map_over_shards` takes it: that part of its sharding
    which is over fsdp (`manual_spec`). Arguments as of `partition_specs`."""
    return jax.tree.map(manual_spec, partition_specs(shapes, logical_axes, mesh))


def map_over_shards(
    function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """`function` in a shard_map that is manual over data and fsdp, the axes that split rollouts.

    in_specs, out_specs: trees of PartitionSpecs of its arguments and of what it returns; they may
    name only these two axes. It sees arrays of which they are split away; over the other axes of
    the mesh XLA splits what happens in it.
    """
    return shard_map(
        function,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=set(ROLLOUT_AXES),
        check_vma=False,
    )


def replicate_over_rollout_axes(sharding: NamedSharding) -> NamedSharding:
    """The same sharding, without the axes that split rollouts."""
    entries = [None if manual_spec(PartitionSpec(entry))[0] else entry for entry in sharding.spec]
    return NamedSharding(sharding.mesh, PartitionSpec(*entries))


def copyable_sharding(shape: Any, source: NamedSharding, target: NamedSharding) -> NamedSharding:
    """A sharding on the source's mesh from which `copy_to_mesh` makes an array like `target`.

    It is `source` itself if each process holds what its devices are to hold; else with the parts
    over the rollout axes gathered; else whole on every device: the first of these from which no
    process needs data of another.

    shape: an array or ShapeDtypeStruct. target: on another mesh, of some of the same processes.
    """

    # Captures `shape`.
    def parts(sharding: NamedSharding) -> set[tuple[int, str]]:
        """Which processes hold which parts, each by its index as text."""
        indices = sharding.devices_indices_map(shape.shape)
        return {(device.process_index, str(index)) for device, index in indices.items()}

    if not is_multiprocess() or parts(target) <= parts(source):
        return source
    gathered = replicate_over_rollout_axes(source)
    if parts(target) <= parts(gathered):
        return gathered
    return NamedSharding(source.mesh, PartitionSpec())


def copy_to_mesh(arrays: Any, shardings: Any) -> Any:
    """Arrays of one mesh on another.

    shardings: on the other mesh, for each array of the tree. With several processes none asks
    another one: each copies from its devices to its devices. So the arrays must have the sharding
    that `copyable_sharding` names.
    """
    if is_multiprocess():
        return jax.tree.map(_copy_in_process, arrays, shardings)
    return jax.device_put(arrays, shardings)


def _copy_in_process(x: jax.Array, target: NamedSharding) -> jax.Array:
    """x as `target` shards it, made of what this process holds of x.

    `copyable_sharding` has seen to it that this process holds each part as it is wanted, or else
    the whole array.
    """
    # Parts by their index in the array, as text: slices cannot be keys.
    held = {str(shard.index): shard.data for shard in x.addressable_shards}
    parts = []
    for device, index in target.addressable_devices_indices_map(x.shape).items():
        part = held.get(str(index))
        if part is None:
            part = x.addressable_data(0)[index]
        parts.append(jax.device_put(part, device))
    return jax.make_array_from_single_device_arrays(x.shape, target, parts)


def array_on(sharding: NamedSharding, x: np.ndarray) -> jax.Array:
    """An array on a mesh, made of a host array.

    Every process calls it with x of the whole shape; what x holds has to be right only in the parts
    that are on this process's devices.
    """
    return jax.make_array_from_callback(x.shape, sharding, x.__getitem__)


def traced_platform() -> str:
    """The platform of the mesh that a program is traced for, "cpu", "gpu" or "tpu"; without a mesh,
    that of this process."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


@contextmanager
def traced_for(platform: str) -> Iterator[None]:
    """Within this context, programs are traced as for one device of this platform ("cpu", "gpu" or
    "tpu"), which need not be here."""
    device = AbstractDevice(device_kind=platform, num_cores=None, platform=platform)
    axis_types = (AxisType.Auto,) * len(AXES)
    mesh = AbstractMesh((1,) * len(AXES), AXES, axis_types=axis_types, abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        yield


def shard_count(mesh: Mesh) -> int:
    """S, the number of parts into which a mesh splits rollouts."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def padded_positions(positions: int, mesh: Mesh | AbstractMesh) -> int:
    """The positions of a prompt, rounded up to a multiple of the devices that split them; as they
    are on a mesh that splits none, and on an empty one."""
    num_parts = mesh.shape.get(PROMPT_AXIS, 1)
    return -(-positions // num_parts) * num_parts


def positions_are_split(mesh: Mesh | AbstractMesh) -> bool:
    """Whether devices of the mesh share the positions of a prompt."""
    return mesh.shape.get(PROMPT_AXIS, 1) > 1


def weights_are_split(mesh: Mesh | AbstractMesh) -> bool:
    """Whether devices of the mesh share the weights of a layer."""
    return count_parts((PARAM_AXIS, *WEIGHT_AXES), mesh.shape) > 1


def vocabulary_is_split(mesh: Mesh | AbstractMesh) -> bool:
    """Whether devices with the same rollouts share a vocabulary that they divide."""
    return count_parts(LOGICAL_AXIS_RULES["vocab"], mesh.shape) > 1


def with_logical_constraint(x: jax.Array, logical: Sequence[str | None]) -> jax.Array:
    """x, split by the table where the mesh that is set splits positions; elsewhere x as it is.

    logical: as of `partition_spec`, a name for each axis of x.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not positions_are_split(mesh):
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(logical, x.shape, mesh))


def keep_heads_whole(x: jax.Array, is_whole: bool, kv_heads: int) -> jax.Array:
    """Queries, keys or values [b t heads H]; if `is_whole`, each device has all heads of its share
    of the `kv_heads` that are split: of all, where none are.

    XLA would otherwise split some heads in the middle, and exchange their halves for rotary
    positions by a permutation. On CPUs all devices wait for each other in one, and samplers' shards
    leave their loops at times of their own: the first to leave would be waited for forever."""
    if not is_whole:
        return x
    free = PartitionSpec.UNCONSTRAINED
    (heads,) = partition_spec(("kv_heads",), (kv_heads,), jax.sharding.get_abstract_mesh())
    return jax.lax.with_sharding_constraint(x, PartitionSpec(free, free, heads, None))


def keep_undivided_whole(y: jax.Array, outputs: SizedAxes) -> jax.Array:
    """Products of a matrix, split over devices no further than the table splits the matrix.

    y: [*b, *outputs]. outputs: the names and sizes of the matrix's output axes, such as
    (("kv_heads", 1), ("head_dim", 64)). Only the first may be split. If it is one of INNER_AXES and
    its size does not allow a part for each of the devices that share a layer, y is constrained: it
    is split over as many as divide it, and whole over the others. A single key head is whole on
    all of them, and so are fused matrices, whose axis is called "fused" and is never split. In any
    other case y is returned as it is.

    XLA would otherwise split a head in its middle, or fused matrices where none of them ends, and
    devices exchange the parts by permutations, for which devices may wait forever
    (`keep_heads_whole`)."""
    name, size = outputs[0]
    mesh_shape = jax.sharding.get_abstract_mesh().shape
    axes = axes_that_split(name, size, mesh_shape)
    if name not in INNER_AXES or count_parts(axes, mesh_shape) == devices_of_a_layer():
        return y
    return constrain_last_axes(y, PartitionSpec(axes or None, *[None] * (len(outputs) - 1)))


def constrain_last_axes(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    """x, whose last axes are split by a spec, and the others as XLA likes. The spec has an entry
    for each of the last axes, at most `x.ndim`."""
    free = (PartitionSpec.UNCONSTRAINED,) * (x.ndim - len(spec))
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*free, *spec))


def take_rows(rows: jax.Array, index: jax.Array, logical: Sequence[str | None]) -> jax.Array:
    """rows[index], in a way that XLA can compile however the mesh splits the rows.

    rows: [g *d]; logical: the name of each of its axes, or None; that of the first is None, so that
    every device has all g. index: i32[...]. Where the rows are split over some but not all of the
    axes that share a layer's weights, as `kv_heads` may be over `tensor` and not over `expert`,
    each device takes from its part in a shard_map.

    XLA splits the index too, where what comes out meets hidden states whose tokens are split
    (`split_tokens`), over the axes that the rows have left. libtpu's partitioner fails an assertion
    on a gather that is split both ways ("num_replica_groups() * num_devices_per_group() == ...",
    jax 0.11). Of a part it sees one of the two."""
    mesh = jax.sharding.get_abstract_mesh()
    spec = partition_spec(logical, rows.shape, mesh)
    axes = mesh_axes_of(spec)
    if count_parts(axes, mesh.shape) in (1, devices_of_a_layer()):
        return rows[index]

    # part: [g *d], with the split axes of d divided.
    def of_device(part: jax.Array, index: jax.Array) -> jax.Array:
        return part[index]

    take = shard_map(
        of_device,
        in_specs=(spec, PartitionSpec()),
        out_specs=spec,
        axis_names=set(axes),
        check_vma=False,
    )
    return take(rows, index)


def devices_of_a_layer() -> int:
    """How many devices share the weights of a layer in the mesh that is set: so many where they
    divide the weights' axes, else fewer."""
    return count_parts(WEIGHT_AXES, jax.sharding.get_abstract_mesh().shape)


def sum_over_experts(
    function: Callable[..., jax.Array],
    weights: Sequence[jax.Array],
    axes: Sequence[Sequence[str]],
    *inputs: jax.Array,
    is_kernel: bool = False,
) -> jax.Array:
    """function(first_expert, weights, *inputs), summed over the devices that split `weights`.

    A mesh splits them by whole experts, or splits each expert's matrices; then each device calls
    `function` with its part. Without a split it is called once, with first_expert = 0.

    function: returns its part of a sum over experts. `first_expert` (int or i32[]) is the number of
        the first expert of its weights.
    weights, axes: arrays, and the logical axes of each, such as ("expert", "embed", "mlp"). The
        first one's split is that of the experts' sum; "embed" is whole here.
    inputs: every device has all of them, such as hidden states [t D] and experts i32[t k].
    is_kernel: XLA cannot split the function over any axis, and does not have to: the shard_map is
        manual over every axis that is not manual already.
    """
    mesh = jax.sharding.get_abstract_mesh()
    specs = []
    for names, w in zip(axes, weights, strict=True):
        # fsdp, which splits `embed`, is gathered already.
        not_embed = [None if name == "embed" else name for name in names]
        specs.append(partition_spec(not_embed, w.shape, mesh))

    split_axes = mesh_axes_of(specs[0])
    auto_axes = {
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Auto
    }
    manual_axes = auto_axes if is_kernel else set(split_axes)
    if not manual_axes:
        return function(0, weights, *inputs)

    expert_axis = list(axes[0]).index("expert")
    split_by_experts = mesh_axes_of(PartitionSpec(specs[0][expert_axis]))

    # weights: this device's parts. number: of its part among those of whole experts, 0 where each
    # expert's matrices are split. Captures `function`, `expert_axis` and `split_axes`.
    def of_device(
        number: int | jax.Array, weights: Sequence[jax.Array], *inputs: jax.Array
    ) -> jax.Array:
        first_expert = number * weights[0].shape[expert_axis]
        part = function(first_expert, weights, *inputs)
        # In float32, because XLA:CPU cannot compile the sum of bfloat16 over devices. Of a kernel
        # whose weights are whole there are no axes, and the sum is the part itself.
        return jax.lax.psum(part.astype("float32"), split_axes).astype(part.dtype)

    in_specs = (specs, *[PartitionSpec()] * len(inputs))
    mapped = map_over_parts(of_device, split_by_experts, in_specs, PartitionSpec(), manual_axes)
    return mapped(list(weights), *inputs)


def map_over_parts(
    function: Callable[..., Any],
    split_axes: Sequence[str],
    in_specs: Any,
    out_specs: Any,
    manual_axes: Collection[str],
) -> Callable[..., Any]:
    """`function(number, *inputs)` in a shard_map over `manual_axes`, to be called with the inputs.

    number: i32[], which part along `split_axes` a device has, in the order of the mesh; 0 without
        any.
    split_axes: of `manual_axes`, such as ("tensor", "expert").
    in_specs: a PartitionSpec, or a tree of them, for each of `inputs`; out_specs: of what is
        returned.

    It uses the mesh that is set when it is called.

    The number comes in as an array that the axes split. `axis_index` would also make the axes
    manual that are automatic here; where the mesh has one of them in front of `split_axes`, as
    `sequence`, XLA of jax 0.11 aborts the process."""
    mapped_over = partial(
        shard_map, out_specs=out_specs, axis_names=set(manual_axes), check_vma=False
    )
    if not split_axes:
        return mapped_over(partial(function, 0), in_specs=in_specs)

    def of_device(numbers: jax.Array, *inputs: Any) -> Any:
        return function(numbers[0], *inputs)

    mapped = mapped_over(of_device, in_specs=(PartitionSpec(tuple(split_axes)), *in_specs))
    numbers = jnp.arange(count_parts(split_axes, jax.sharding.get_abstract_mesh().shape))
    return partial(mapped, numbers)


def token_parts(mesh: Mesh | AbstractMesh) -> int:
    """How many devices share the tokens of hidden states, if they divide these (`split_tokens`)."""
    return count_parts(LOGICAL_AXIS_RULES["token"], mesh.shape)


def split_tokens(x: jax.Array, is_split: bool) -> jax.Array:
    """Hidden states [b t D], split by tokens over the devices that share a layer's weights.

    is_split: whether the result is split. True: each of these devices has all tokens in x, and a
        part of them in the result. False: each has a part in x, and all in the result.

    With tensor=4 and x [8 t D], each of the four devices has 2 rows of what is split. The gradient
    goes the opposite way, by the rule of `_reshard`. That constrains x in a program that
    differentiates it, and in others returns x as it is. So does this where the devices divide
    neither b nor t.
    """
    mesh = jax.sharding.get_abstract_mesh()
    specs = [partition_spec(axes, x.shape, mesh) for axes in TOKEN_AXES]
    # By rows b or by positions t: what makes more parts; of equal ones the first, by rows.
    part = max(specs, key=lambda spec: count_parts(mesh_axes_of(spec), mesh.shape))
    if not any(part):  # neither b nor t can be divided
        return x

    whole = PartitionSpec()
    return _reshard(x, whole, part) if is_split else _reshard(x, part, whole)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _reshard(x: jax.Array, before: PartitionSpec, after: PartitionSpec) -> jax.Array:
    """x, and in a program that differentiates it, with the sharding `after` in place of `before`;
    its gradient gets `before` in place of `after`."""
    return x  # where nothing waits for a gradient


def _reshard_forward(
    x: jax.Array, before: PartitionSpec, after: PartitionSpec
) -> tuple[jax.Array, None]:
    # XLA chooses the sharding of what is not constrained, and would split or gather more than x.
    x = jax.lax.with_sharding_constraint(x, before)
    return jax.lax.with_sharding_constraint(x, after), None


_reshard.defvjp(
    _reshard_forward, lambda before, after, _, d: _reshard_forward(d, after, before)[:1]
)


def compiler_options(mesh: Mesh) -> dict[str, str] | None:
    """XLA's options for a program with the gradient in it; None: the defaults.

    On a TPU, where fsdp splits the model, one of XLA's passes fails an assertion ("user->opcode()
    == HloOpcode::kAdd") for some shapes, and is left out.
    """
    needs_workaround = mesh.devices.flat[0].platform == "tpu" and mesh.shape["fsdp"] > 1
    if not needs_workaround:
        return None
    return {"xla_disable_hlo_passes": "while-loop-all-reduce-code-motion"}


class Program:
    """A jitted function. `compile` prepares it for arguments of given shapes; without that, its
    first call does."""

    def __init__(self, jitted: Any):
        self.jitted = jitted
        self._compiled: Any = None
        self._output_shapes: Any = None

    def compile(self, *arguments: Any) -> Any:
        """Compiles for arguments like these, arrays or ShapeDtypeStructs with shardings. Returns
        the outputs as ShapeDtypeStructs with shardings, for which a program that reads them can be
        compiled."""
        if self._compiled is None:
            lowered = self.jitted.lower(*arguments)
            self._compiled = lowered.compile()
            self._output_shapes = shapes_with_shardings(
                lowered.out_info, self._compiled.output_shardings
            )
        return self._output_shapes

    def __call__(self, *arguments: Any) -> Any:
        function = self.jitted if self._compiled is None else self._compiled
        return function(*arguments)


def shape_on(sharding: Any, shape: tuple[int, ...] = (), dtype: Any = "int32") -> Any:
    """The ShapeDtypeStruct of an array with this sharding; by default of a scalar i32[]."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def shapes_with_shardings(shapes: Any, shardings: Any) -> Any:
    """A tree of ShapeDtypeStructs with shardings.

    shapes: a tree of arrays or ShapeDtypeStructs. shardings: one for all of them, or a tree of the
    same structure.
    """
    if isinstance(shardings, Sharding):
        return jax.tree.map(lambda x: shape_on(shardings, x.shape, x.dtype), shapes)
    return jax.tree.map(lambda x, s: shape_on(s, x.shape, x.dtype), shapes, shardings)
