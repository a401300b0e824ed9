"""Optimised HLO, read as text: which collectives there are, inside how many loops, and between
which devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tests.device import CONFIG


class Collective(NamedTuple):
    depth: int  # loops around it
    kind: str
    result: str  # type, without layout
    groups: list[set[int]]  # the devices that wait for each other
    line: str


def loops(hlo: str) -> Iterator[tuple[int, str]]:
    """Every instruction of a module with the number of while loops around it."""
    bodies: dict[str, list[str]] = {}
    name = entry = ""
    for line in hlo.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
            name = head[2]
            bodies[name] = []
            entry = name if head[1] else entry
        elif name:
            bodies[name].append(line)
    deepest: dict[str, int] = {}
    todo = [(entry, 0)]
    while todo:
        name, depth = todo.pop()
        if deepest.get(name, -1) >= depth:
            continue
        deepest[name] = depth
        for line in bodies[name]:
            for word, called in re.findall(
                r"(body|condition|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)",
                line,
            ):
                todo.append((called, depth + (word in ("body", "condition"))))
    for name, depth in deepest.items():
        for line in bodies[name]:
            yield depth, line


def collectives(hlo: str, devices: int = 8) -> list[Collective]:
    """Every collective of a module."""
    kinds = (
        "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast"
        "|ragged-all-to-all"
    )
    result = []
    for depth, line in loops(hlo):
        if m := re.search(rf"= (.*?) ({kinds})(-start)?\(", line):
            result.append(
                Collective(
                    depth, m[2], re.sub(r"\{[\d,]*\}", "", m[1]), groups(m[2], line, devices), line
                )
            )
    return result


def groups(kind: str, line: str, devices: int) -> list[set[int]]:
    """The devices that a collective makes wait for each other: its replica groups; a permutation is
    one meeting of all, on CPU at least.
    """
    if kind == "collective-permute" or "replica_groups={}" in line:
        return [set(range(devices))]
    if m := re.search(r"replica_groups=\{(\{[\d,{}]*\})\}", line):
        return [_numbers(part) for part in re.findall(r"\{([\d,]+)\}", m[1])]
    if m := re.search(
        r"replica_groups=(\[\d+,\d+\])<=(\[[\d,]+\](?:T\([\d,]+\))?)", line
    ):  # [groups,size]<=[dimensions]T(order)
        return [set(row) for row in _iota(m[2], devices).reshape(_numbers(m[1], list)).tolist()]
    m = re.search(
        r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((.*?)\))? \{(.*?)\}", line
    )  # mesh['a'=2,'b'=4] {'b':(1)2}
    assert m, line
    names = re.findall(r"'(\w+)'", m[1])
    sizes = [int(i) for i in re.findall(r"=(\d+)", m[1])]
    order = _iota(m[2] or f"[{devices}]", devices).reshape(sizes)
    remaining: list[int] = []
    for name, part in re.findall(r"'(\w+)'(:\S*)?", m[3]):
        assert not part, f"this parser does not know parts of axes: {line}"
        remaining.append(names.index(name))
    rest = [i for i in range(len(names)) if i not in remaining]
    return [
        set(row)
        for row in order.transpose(rest + remaining)
        .reshape(-1, int(np.prod([sizes[i] for i in remaining], dtype=int)))
        .tolist()
    ]


def _numbers(text: str, kind: type = set) -> Any:
    return kind(int(i) for i in re.findall(r"\d+", text))


def _iota(text: str, devices: int) -> np.ndarray:
    """`[2,2,2]T(1,0,2)`: 0, 1, ... in these dimensions, transposed."""
    shape, _, order = text.partition("T")
    coefficients = np.arange(devices).reshape(_numbers(shape, list))
    return (coefficients.transpose(_numbers(order, list)) if order else coefficients).reshape(-1)


def check_separate(hlo: str, positions: int, rows: int, at_most: int) -> None:
    """Keys [rows K H positions] and values [rows K positions H], below the layers where these are
    stacked, lie with `rows` rows and half of the heads on a device; no array has more of either."""
    K, H = CONFIG.kv_heads, CONFIG.head_dim
    for last in (f"{H},{positions}", f"{positions},{H}"):
        result = {
            (int(r), int(k))
            for r, k in re.findall(rf"f32\[(?:{CONFIG.layers},)?(\d+),(\d+),{last}\]", hlo)
        }
        assert (rows, K // 2) in result, (last, result)
        assert all(r <= at_most and k == K // 2 for r, k in result), (last, result)
