"""How fuzz.py spoils things: values that are not what was expected, and files with changed nodes,
cells or bytes."""

import copy
import json
import math
import os
import random
import struct
from pathlib import Path
from typing import Any

import yaml

# Written into a document after it has become text, as no value of Python becomes it.
LITERALS = {
    "@deep": "[" * 3000 + "]" * 3000,
    "@maps": '{"a":' * 3000 + "1" + "}" * 3000,
    "@digits": "9" * 5000,
}
VALUES: list[Any] = [
    None, True, -1, 0, 1, 7, 2**31, 2**63, -(2**63), 10**15, 10**30,
    0.5, -0.0, 1e-320, 1e308, -1e308, math.nan, math.inf,
    "", " ", "nan", "1e999", "\0", "a\0b", "\x1b[2J", "x" * 300, "x" * 100_000,
    "../../x", "a/../..", "\ud800", "日本", "${oc.env:HOME}", "${cell.task}", "%s%n",
    [], {}, [[]], [1, 2], [None], {"a": {"b": 1}},
    2**20, 10**6 + 1, 10**7, 123_456_789, 5 * 10**8, 10**9,
    "1" * 100_000 + "x", "9" * 400 + "k", " " * 100_000 + "x",
    "learning_rat" * 9_000, "${name}" * 10_000, *LITERALS,
]  # fmt: skip


def spoil_text(text: str, rng: random.Random) -> str:
    """A JSON document with one to three of its nodes changed, moved, repeated or removed."""
    document = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        containers = [node for node in _containers(document) if node]
        if not containers:
            break
        node = rng.choice(containers)
        key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        match rng.choice(("value", "value", "value", "remove", "key", "wrap", "repeat")):
            case "value":
                node[key] = copy.deepcopy(rng.choice(VALUES))
            case "remove":
                del node[key]
            case "key" if isinstance(node, dict):
                node[rng.choice(("", "\0", "x" * 300, "a.b", "kind", "n"))] = node[key]
            case "wrap":
                node[key] = [node[key]]
            case "repeat" if isinstance(node, list):
                node.extend([node[key]] * rng.choice((1, 1000)))

    text = json.dumps(document)
    for name, literal in LITERALS.items():
        text = text.replace(f'"{name}"', literal)
    return text


def _containers(node: Any) -> list[Any]:
    """Each dict and list in a document, from the outside in."""
    if not isinstance(node, dict | list):
        return []
    containers = [node]
    for child in node.values() if isinstance(node, dict) else node:
        containers += _containers(child)
    return containers


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut off, removed, repeated, or put in."""
    start = rng.randrange(len(data)) if data else 0
    end = min(len(data), start + rng.choice((1, 4, 64, 4096)))

    match rng.choice(("flip", "flip", "flip", "cut", "remove", "repeat", "insert", "long")):
        case "flip":
            flipped = bytearray(data)
            for _ in range(rng.choice((1, 1, 2, 8))):
                if data:
                    flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case "cut":
            return data[:start]
        case "remove":
            return data[:start] + data[end:]
        case "repeat":
            return data[:end] + data[start:]
        case "insert":
            put_in = rng.choice((b"\0" * 16, b"\xff\xfe", b"\xed\xa0\x80", b"\n\n", b"[" * 999))
            return data[:start] + put_in + data[start:]
    return data[:start] + b"x" * rng.choice((10_000, 20_000_000)) + data[start:]


def spoil_file(path: Path, rng: random.Random) -> None:
    """The file, spoilt by its structure where it has one that is known, else, and now and then, by
    its bytes."""
    data = path.read_bytes()
    if rng.random() < 0.35 or not data:
        path.write_bytes(spoil_bytes(data, rng))

    elif path.suffix == ".json":
        path.write_text(spoil_text(data.decode(), rng))
    elif path.suffix == ".jsonl":
        lines = data.decode().splitlines()
        row = rng.randrange(len(lines))
        lines[row] = spoil_text(lines[row], rng)
        path.write_text("\n".join(lines) + "\n")
    elif path.suffix == ".yaml":
        path.write_text(spoil_text(json.dumps(yaml.safe_load(data)), rng))
    elif path.suffix == ".safetensors":
        size = struct.unpack("<Q", data[:8])[0]
        header = spoil_text(data[8 : 8 + size].decode(), rng).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
    elif path.suffix == ".csv":
        rows = [line.split(",") for line in data.decode().splitlines()]
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = str(rng.choice(VALUES)).encode(errors="replace").decode()
        path.write_text("\n".join(",".join(row) for row in rows) + "\n")
    else:
        path.write_bytes(spoil_bytes(data, rng))


def word(rng: random.Random) -> str:
    """A value as somebody might type it; a word of a command line holds no NUL."""
    typed = ("99999999999999999999", "1,2", "a=b", "--", "-1", "[1,2]", "{a: 1}", "!!int x")
    value = rng.choice([*VALUES, *typed])
    text = LITERALS.get(value, value) if isinstance(value, str) else json.dumps(value)
    return str(text).replace("\0", "\udcff").replace("\ud800", "\udcfe")


def make_odd(path: Path, rng: random.Random) -> None:
    """Something else of a file's, or a folder's, name: a pipe that nobody writes to, a link to
    itself, to nothing or to the folder above, an empty folder, a device without an end, or a file
    that may not be read."""
    if path.is_file():
        path.unlink()
    else:
        path.rename(path.with_name("moved"))

    pipes = ("pipe", "pipe", "pipe", "link to a pipe")  # the likeliest to hang a command
    others = ("itself", "nothing", "above", "folder", "device", "closed")
    match rng.choice((*pipes, *others)):
        case "pipe":
            os.mkfifo(path)
        case "link to a pipe":
            os.mkfifo(path.with_name("a.pipe"))
            path.symlink_to("a.pipe")
        case "itself":
            path.symlink_to(path.name)
        case "nothing":
            path.symlink_to("nothing")
        case "above":
            path.symlink_to("..")
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "closed":
            path.write_bytes(b"{}\n")
            path.chmod(0)
