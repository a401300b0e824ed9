"""`make record-flags`: write command_flags.yaml again, from the --help of every verb that launch/
and docs/ call.

Nothing but --help and --version is ever run. What a tool that is not installed here had before
stays.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from tests.launch.command_flags import RECORD, TOOLS, calls, recorded

ROOT = Path(__file__).parents[2]
SOURCES = [
    *sorted((ROOT / "launch").iterdir()),
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
VERSIONS = {"gcloud": ["version"], "kubectl": ["version", "--client"]}
GCLOUD_COMMAND = ("gcloud", "compute", "tpus", "tpu-vm", "list")  # any that takes what all take
HEAD = "# Written by `make record-flags` from the tools' own --help: see command_flags.py.\n"
# A flag at the beginning of its line: its short name, its name, and what follows the name.
HELP_LINE = re.compile(
    r"^ +(?:(-\w), *)?(--[a-z][\w-]*)(\[=|=(?:true|false):|=| \[?[A-Z]{3}|)", re.M
)


def tool_path(tool: str) -> str | None:
    """Where the tool is: on the PATH, or among the scripts of this environment."""
    return shutil.which(
        tool, path=os.pathsep.join((os.environ["PATH"], sysconfig.get_path("scripts")))
    )


def ask(tool: str, *words: str) -> str:
    """What the tool says, without colours."""
    command = [str(tool_path(tool)), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)


def gcloud_flags(synopsis: str) -> tuple[list[str], list[str]]:
    """(flags, those of them in no brackets) of a synopsis such as `create (TPU : --zone=ZONE)
    --version=VERSION`."""
    flags = re.findall(r"(--[a-z][\w-]*)(=?)", synopsis)
    outside = synopsis
    while outside != (shorter := re.sub(r"[(\[][^()\[\]]*[)\]]", "", outside)):
        outside = shorter
    return sorted({name + value for name, value in flags}), re.findall(r"--[a-z][\w-]*", outside)


def help_flags(text: str) -> list[str]:
    """The flags of a --help that gives each a line."""
    flags: set[str] = set()
    for short, name, rest in HELP_LINE.findall(text):
        takes = "?" if rest in ("[=", "=true:", "=false:") else "=" if rest else ""
        flags |= {name + takes, *([short + takes] if short else [])}
    return sorted(flags)


def read_command(call: list[str]) -> tuple[str, dict[str, list[str]]]:
    """(verb, its flags) of a call, whose words after the verb are left out."""
    if call[0] == "gcloud":
        words = takewhile(lambda word: re.fullmatch(r"[a-z][a-z-]*", word), call)
        synopsis = re.findall(r"^SYNOPSIS\n(.*?)^[A-Z]", ask(*words, "--help"), re.S | re.M)[0]
        verb = re.findall(r"gcloud(?: [a-z][a-z-]*)+", " ".join(synopsis.split()))[0]
        flags, required = gcloud_flags(synopsis)
        return verb, {"required": required, "flags": flags}
    verb_length = {"kubectl": 2, "ray": 3 if "job" in call[:2] else 2}.get(call[0], 1)
    return " ".join(call[:verb_length]), {
        "required": [],
        "flags": help_flags(ask(*call[:verb_length], "--help")),
    }


def main() -> None:
    """Print what is recorded, and from which versions."""
    found = [call for path in SOURCES for call in calls(path.read_text())]
    present = [tool for tool in TOOLS if tool_path(tool)]
    record: dict[str, Any] = (
        recorded() if RECORD.exists() else {"versions": {}, "global_flags": {}, "commands": {}}
    )
    commands = {
        verb: flags for verb, flags in record["commands"].items() if verb.split()[0] not in present
    }
    commands |= dict(read_command(call) for call in found if call[0] in present)
    for tool in present:
        record["versions"][tool] = ask(tool, *VERSIONS.get(tool, ["--version"])).splitlines()[0]
    if "gcloud" in present:
        wide = re.findall(
            r"^GCLOUD WIDE FLAGS\n(.*?)^$", ask(*GCLOUD_COMMAND, "--help"), re.S | re.M
        )[0]
        record["global_flags"]["gcloud"] = [f"{name}?" for name in re.findall(r"--[a-z-]+", wide)]
    if "kubectl" in present:
        record["global_flags"]["kubectl"] = help_flags(ask("kubectl", "options"))
    record["commands"] = commands
    RECORD.write_text(HEAD + yaml.safe_dump(record, width=120, default_flow_style=None))
    print(f"{len(commands)} commands in {RECORD.relative_to(ROOT)}")
    for tool in TOOLS:
        note = "" if tool in present else " (not installed here: as it was)"
        print(f"  {tool}: {record['versions'].get(tool, 'never recorded')}{note}")


if __name__ == "__main__":
    main()
