"""The calls of gcloud, kubectl, Ray and SLURM in a text, and their check against the flags that
those tools have.

command_flags.yaml holds the flags, as record_flags.py read them in the tools' own --help. "--spot"
stands alone, "--zone=" takes a value, "--format?" may or may not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

RECORD = Path(__file__).with_suffix(".yaml")
TOOLS = ("gcloud", "kubectl", "ray", "srun", "sbatch", "scancel")
COMMAND = (
    "gcloud (?:(?:alpha|beta) "
    ")?(?:artifacts|auth|compute|config|container|filestore|quotas|services)(?: "
    "[a-z][a-z-]*)+|kubectl [a-z]+|ray (?:attach|down|exec|job "
    "submit|rsync-up|start|status|stop|up)|srun|sbatch|scancel"
)
WORD = r"""(?:"[^"\n]*"|'[^'\n]*'|\$\{[^}\n]*\}|[^\s"'`;|&()<>#])+"""
CALL = re.compile(rf"(?<![\w./-])({COMMAND})((?: {WORD})+)?(?![\w./:,-])")
ARRAY = re.compile(r"(\w+)\+?=\((.*)\)$", re.M)


def calls(text: str) -> list[list[str]]:
    """The words of each call, also in comments and strings, up to two spaces.

    A shell's array stands for all that is ever put in it.
    """
    text = re.sub(r"\\\n[# ]*", "", text)
    arrays: dict[str, list[str]] = {}
    for name, words in ARRAY.findall(text):
        arrays.setdefault(name, []).extend(_words(words))
    result = [[*command.split(), *_words(words)] for command, words in CALL.findall(text)]
    result += [["sbatch", *words.split()] for words in re.findall(r"^#SBATCH (.*)$", text, re.M)]
    result += [call[call.index("ray") :] for call in result if call[0] == "srun" and "ray" in call]
    return [
        [word for part in call for word in arrays.get(part.strip('"')[2:-4], [part])]
        for call in result
    ]


def _words(text: str) -> list[str]:
    return [re.sub(r"""^(["'])(.*)\1$""", r"\2", word) for word in re.findall(WORD, text)]


def recorded() -> dict[str, Any]:
    return yaml.safe_load(RECORD.read_text())


def check_call(call: Sequence[str], record: dict[str, Any]) -> None:
    """ValueError where the tool would not know the call's verb or a flag of it, or miss a flag or a
    flag's value."""
    verbs = (" ".join(call[:length]) for length in range(len(call), 0, -1))
    verb = next((verb for verb in verbs if verb in record["commands"]), None)
    if verb is None:
        raise ValueError(
            f"{' '.join(call)}: not in {RECORD.name}: a wrong verb, or a new one (make "
            "record-flags)"
        )
    flags = record["commands"][verb]["flags"] + record["global_flags"].get(call[0], [])
    values = {flag.rstrip("=?"): flag[len(flag.rstrip("=?")) :] for flag in flags}
    given = _flags(call[len(verb.split()) :], stops_at_program=call[0] in ("srun", "sbatch"))
    for name, value in given:
        if name not in values:
            raise ValueError(f"{' '.join(call)}: {verb} has no {name}")
        if value is None and values[name] == "=":
            raise ValueError(f"{' '.join(call)}: {name} of {verb} takes a value")
        if value and value.startswith("=") and not values[name]:
            raise ValueError(f"{' '.join(call)}: {name} of {verb} takes no value")
    if missing := set(record["commands"][verb]["required"]) - {name for name, _ in given}:
        raise ValueError(f"{' '.join(call)}: {verb} needs {', '.join(missing)}")


def _flags(words: Sequence[str], stops_at_program: bool) -> list[tuple[str, str | None]]:
    """(flag, its value or the word after it) of the words before `--`, or before the program that
    they start."""
    result: list[tuple[str, str | None]] = []
    for word, following in zip_longest(words, words[1:]):
        if word == "--" or (stops_at_program and not word.startswith("-")):
            break
        value = following if following and not following.startswith("-") else None
        if match := re.fullmatch(r"(--[\w-]+)(=.*)?", word, re.S):
            result.append((match[1], match[2] or value))
        elif re.fullmatch(r"-[a-z]+", word):
            result += [(f"-{letter}", value) for letter in word[1:]]
    return result
