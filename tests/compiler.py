"""How much of the compiler's work the tests ask for: programs of tiny shapes run for milliseconds
and compile for seconds.

With these settings XLA's own passes stay as they are, sharding and collectives among them. What is
left out is LLVM's optimisation and, where jaxlib still has the older ones, the newer emitters of
fusions, which take most of the time. Rounding differs in the last bits. jaxlib 0.11 has the newer
emitters alone, and without some optimisation they round one computation in two ways. A program's
machine code is made in one piece: in many it takes a tenth more of the processor's time, and
pytest's workers keep the cores at work by themselves. `XLA_FLAGS=--xla_backend_optimization_level=3
make test` compiles as users do; some tests do so always.
"""

from __future__ import annotations

from importlib.metadata import version
from types import SimpleNamespace

_EMITTERS = "xla_cpu_use_fusion_emitters"
_HAS_BOTH = tuple(int(part) for part in version("jaxlib").split(".")[:2]) < (0, 11)

_ONE_PIECE = {"xla_cpu_parallel_codegen_split_count": 1}

QUICK: dict[str, int | bool] = _ONE_PIECE | (
    {"xla_backend_optimization_level": 0, _EMITTERS: False}
    if _HAS_BOTH
    else {"xla_backend_optimization_level": 1}
)
# Of two programs that hold the same computation, the newer emitters alone round alike: for tests
# that compare such programs bit by bit.
SAME_BITS = QUICK | {_EMITTERS: True} if _HAS_BOTH else QUICK
AS_USERS_DO: dict[str, int | bool] = {
    "xla_backend_optimization_level": 3,
    **({_EMITTERS: True} if _HAS_BOTH else {}),
}


def flags(options: dict[str, int | bool], devices: int = 8) -> str:
    """The value of XLA_FLAGS for a process of `devices` simulated devices."""
    words = [
        f"--xla_force_host_platform_device_count={devices}",
        *(f"--{name}={str(value).lower()}" for name, value in options.items()),
    ]
    return " ".join(words)


def keep_programs_of_each_process() -> None:
    """Of the processes of a run, jax lets the first alone write to the cache of programs. On CPUs
    the names of programs there differ between processes, so the others never found theirs."""
    from jax._src import compiler

    compiler.distributed = SimpleNamespace(global_state=SimpleNamespace(process_id=0, client=None))
