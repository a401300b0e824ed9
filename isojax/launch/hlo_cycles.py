"""How many cycles XLA expects a compiled TPU program to take, read from its optimized HLO.

libtpu writes `estimated_cycles` to most operations. A loop whose number of iterations is a constant
counts that often; where it depends on values, only one iteration can be priced, and whoever asks
says how many there are. The compiler prices no kernels (custom calls): `kernel_cycles` of
`read_loops` does.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}

COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{$")
OPERATION = re.compile(
    r"\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<result>.*?) (?P<opcode>[a-z][\w\-]*)\("
)
ARRAY = re.compile(r"(?P<type>\w+)\[(?P<shape>[\d,]*)\]")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
TRACED_NAME = re.compile(r'op_name="([^"]*)"')
LOOP_PARTS = re.compile(r"condition=%?(?P<condition>[\w.\-]+), body=%?(?P<body>[\w.\-]+)")
OPERAND_SHAPES = re.compile(r"operand_layout_constraints=\{(.*?\})\}")
KERNEL_CALL = 'custom_call_target="tpu_custom_call"'


@dataclass(frozen=True)
class HloArray:
    """An array as HLO names it, such as bf16[16,4,128]."""

    type: str
    shape: tuple[int, ...]

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.type]

    @property
    def num_bytes(self) -> int:
        return self.item_bytes * math.prod(self.shape)


@dataclass(frozen=True)
class Operation:
    """An operation of a program, with the cycles that it is expected to take."""

    name: str
    opcode: str
    results: tuple[HloArray, ...]
    cycles: float
    text: str  # its line

    @property
    def traced_name(self) -> str:
        """What it was traced as, such as "jit(update)/while/body/dot_general"; "" if unknown."""
        match = TRACED_NAME.search(self.text)
        return match[1] if match else ""

    @property
    def is_kernel(self) -> bool:
        """Whether it calls a Pallas kernel, which the compiler does not price."""
        return KERNEL_CALL in self.text

    @property
    def operands(self) -> list[HloArray]:
        """The arrays that a custom call reads; of other operations HLO has no shapes."""
        match = OPERAND_SHAPES.search(self.text)
        return read_arrays(match[1]) if match else []

    @property
    def largest_result_bytes(self) -> int:
        return max((x.num_bytes for x in self.results), default=0)


@dataclass
class Loop:
    """A computation and the loops in it: the program itself, or the body of a loop."""

    traced_name: str = ""
    operations: list[Operation] = field(default_factory=list)
    loops: list["Loop"] = field(default_factory=list)
    trips: int | None = 1  # iterations, where its condition has a constant; None: by values

    @property
    def own_cycles(self) -> float:
        """Of one iteration, without the loops within."""
        return sum(operation.cycles for operation in self.operations)

    @property
    def cycles(self) -> float:
        """Of one iteration, with the loops within; one whose number depends on values runs once."""
        return self.cycles_without(())

    def cycles_without(self, scopes: tuple[str, ...]) -> float:
        """As `cycles`, without loops that were traced in these scopes (core/program_scopes.py)."""
        total = self.own_cycles
        for loop in self.loops:
            if not loop.in_scope(scopes):
                trips = 1 if loop.trips is None else loop.trips
                total += trips * loop.cycles_without(scopes)
        return total

    def in_scope(self, scopes: tuple[str, ...]) -> bool:
        """Whether it is the loop that was traced in one of these scopes, and not one within it."""
        path = self.traced_name.split("/")
        return len(path) > 1 and path[-2] in scopes

    def find(self, scope: str) -> list["Loop"]:
        """The loops of this scope, in this one or further within."""
        return [loop for loop in self.walk() if loop.in_scope((scope,))]

    def walk(self) -> Iterator["Loop"]:
        """This loop, and all within."""
        yield self
        for loop in self.loops:
            yield from loop.walk()


def read_loops(hlo: str, kernel_cycles: Callable[[Operation], float] = lambda _: 0.0) -> Loop:
    """The entry computation of optimized HLO, with its loops.

    kernel_cycles: prices a call of a Pallas kernel (`Operation.is_kernel`), which has no cycles.
    """
    computations: dict[str, list[str]] = {}
    name = entry = ""
    for line in hlo.splitlines():
        head = COMPUTATION.match(line)
        if head:
            name = head["name"]
            computations[name] = []
            if head["entry"]:
                entry = name
        elif name:
            computations[name].append(line)

    def read_computation(computation: str, loop: Loop) -> Loop:
        """Add the operations and loops of a computation to `loop`, and return it."""
        for line in computations[computation]:
            operation = read_operation(line, kernel_cycles)
            if operation is None:
                continue
            loop.operations.append(operation)
            parts = LOOP_PARTS.search(line)
            if operation.opcode == "while" and parts:
                trips = count_trips(computations.get(parts["condition"], []))
                inner = Loop(operation.traced_name, trips=trips)
                loop.loops.append(read_computation(parts["body"], inner))
        return loop

    return read_computation(entry, Loop())


def read_operation(line: str, kernel_cycles: Callable[[Operation], float]) -> Operation | None:
    """The operation of a line of HLO; None where it has none."""
    match = OPERATION.match(line)
    if match is None:
        return None
    cycles = CYCLES.search(line)
    operation = Operation(
        name=match["name"],
        opcode=match["opcode"],
        results=tuple(read_arrays(match["result"])),
        cycles=float(cycles[1]) if cycles else 0.0,
        text=line.strip(),
    )
    if operation.is_kernel:
        return replace(operation, cycles=kernel_cycles(operation))
    return operation


def read_arrays(text: str) -> list[HloArray]:
    """The arrays that a text names, such as "(f32[16,128]{1,0}, s8[4])"."""
    return [
        HloArray(match["type"], tuple(int(size) for size in match["shape"].split(",") if size))
        for match in ARRAY.finditer(text)
        if match["type"] in ITEM_BYTES
    ]


def count_trips(condition: list[str]) -> int | None:
    """How often a loop with this condition runs; None where that depends on values."""
    text = "\n".join(condition)
    limits = re.findall(r"constant\((\d+)\)", text)
    return int(limits[0]) if len(limits) == 1 and "direction=LT" in text else None
