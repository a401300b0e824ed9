"""What command lines that once failed did at an earlier commit, and what they do now: one table.

    python benchmarks/then_and_now.py                    60d3278 and the files of this folder
    python benchmarks/then_and_now.py --commit HEAD~50

The old code is a worktree in a temporary folder; both run in this Python's environment, each line
in a folder of its own (then_and_now_claims.py), with at most 2 GB of data and 20 s of processor
time. The table says the last line that a command printed, its exit code where that is not 0, and
what it took where that is much. Claims that need a cluster, several processes or a run of minutes
are not tried; CLAIMS names them last."""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# models for the claims are made by tests/
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from then_and_now_claims import CLAIMS, NOT_TRIED, Claim, make_files

ROOT = Path(__file__).resolve().parents[1]
MAX_KIB, MAX_SECONDS, MAX_WALL_SECONDS = 2 * 2**20, 20, 200
MUCH_SECONDS, MUCH_MIB = 12, 700  # of which a start of isojax takes a third
OLD_MAIN = "from isojax.cli import main; main()"
MAIN = "from isojax.cli.app import main; main()"
LIMITED = ["bash", "-c", f'ulimit -d {MAX_KIB} -t {MAX_SECONDS} -c 0; exec "$@"', "bash"]
ANSI = re.compile(r"\x1b\[[\d;]*[A-Za-z]")


def run(source: Path, claim: Claim, words: tuple[str, ...], files: Path) -> str:
    """The outcome of one command line with one version of the code."""
    main = MAIN if (source / "isojax" / "cli").is_dir() else OLD_MAIN
    call = [*LIMITED, sys.executable, "-c", f"import sys; sys.argv[0] = 'isojax'; {main}", *words]
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "JAX_PLATFORMS": "cpu",
        "COLUMNS": "100",
    }
    environment |= claim.environment
    with tempfile.TemporaryDirectory() as temp:
        folder, output = Path(temp) / "work", Path(temp) / "output"
        shutil.copytree(files, folder)
        claim.prepare(folder)
        with output.open("wb") as out:
            process = subprocess.Popen(
                call, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
            start, timed_out = time.monotonic(), False
            while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
                if timed_out := time.monotonic() - start > MAX_WALL_SECONDS:
                    process.kill()
                time.sleep(0.05)
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        text = output.read_bytes().decode(errors="replace")
    if timed_out:
        return f"waits for ever (ended after {MAX_WALL_SECONDS} s)"
    usage = ended[2]
    return describe(
        process.returncode,
        text,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss / 1024,
        claim.look,
    )


def describe(
    code: int, text: str, seconds: float, mebibytes: float, look: Callable[[str], str] | None
) -> str:
    """An outcome in a cell of the table."""
    if seconds > 0.9 * MAX_SECONDS and -code in (signal.SIGKILL, signal.SIGXCPU):
        return f"no end in {MAX_SECONDS} s of processor time"
    taken = f" ({seconds:.0f} s)" * (seconds > MUCH_SECONDS) + f" ({mebibytes:,.0f} MiB)" * (
        mebibytes > MUCH_MIB
    )
    if code < 0:
        return f"killed by signal {-code}{taken}"
    lines = [line.strip(" │╭╰─╮╯") for line in ANSI.sub("", text).splitlines()]
    lines = [line for line in lines if line] or ["(nothing)"]
    kind = (
        "traceback, "
        if "Traceback (most recent call last)" in text
        else f"exit code {code}, "
        if code
        else ""
    )
    last = look(text) if look else lines[-1]
    return f"{kind}{last[:160]!r}{taken}"


def markdown_row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commit", default="60d3278", help="the old code (default %(default)s)")
    parser.add_argument("--only", help="claims whose words hold this")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temp:
        old, files = Path(temp) / "old", Path(temp) / "files"
        worktree = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*worktree, "add", "-q", "--detach", str(old), arguments.commit], check=True)
        try:
            make_files(files)
            print(markdown_row("item", "claim", "command", f"at {arguments.commit}", "now"))
            print(markdown_row(*["---"] * 5))
            for claim in CLAIMS:
                if arguments.only and arguments.only not in f"{claim.text} {claim.now}":
                    continue
                then = run(old, claim, claim.then, files)
                now = run(ROOT, claim, claim.now, files)
                shown = " ".join(
                    word if len(word) < 50 else f"{word[:40]}..." for word in claim.now
                )
                print(markdown_row(claim.item, claim.text, f"`{shown!r}`", then, now), flush=True)
        finally:
            subprocess.run([*worktree, "remove", "--force", str(old)], check=True)
    for item, text in NOT_TRIED:
        print(markdown_row(item, text, "not tried here", "", ""))


if __name__ == "__main__":
    main()
