"""Thousands of spoilt inputs, given to the command line: arguments, configs, ledgers, logs of every
importer, models, GGUF files, problems, checkpoints, adapters, tables, gzip, Parquet, pipes and
links; and to the Python API of a notebook (fuzz_inputs.py). None may end with a traceback or a
signal, with an exit code other than 0 and 2, take more than a gigabyte or 20 s, or be refused after
something was written: in the folder it works in, HOME, the cache's folder or TMPDIR.

    python benchmarks/fuzz.py                     3,000 attempts, whose seed is the commit's hash
    python benchmarks/fuzz.py --replay 1234       one of them again: its words, files and output

Every command is a fork of a process that has imported everything, which says the same as a process
of its own and saves seconds of imports. Seconds are of processor time, of its children too: what
else the machine does changes nothing. On two cores 3,000 attempts take a quarter of an hour. The
exit code is 1 where an attempt failed."""

import argparse
import hashlib
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what it spoils is made by tests/
os.environ.update(
    JAX_PLATFORMS="cpu", COLUMNS="200", NO_COLOR="1", TRANSFORMERS_NO_ADVISORY_WARNINGS="1"
)
os.environ["GLIBC_TUNABLES"] = ""  # a fork does not restart itself (core/machine.py)

from fuzz_corpus import make_corpus
from fuzz_inputs import KINDS, KINDS_OF_TRAINED_RUNS, cli_commands, words_by_command
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

MAX_BYTES = 2**30
MAX_SECONDS = 20.0  # of processor time
# after which a command that waits, or that a busy machine starves, is killed
MAX_WALL_SECONDS = 120.0
HARD_BYTES = 4 * 2**30  # what a command may write to before the kernel refuses it
# What a worker imports before its forks, besides the commands, which `cli_commands` imports.
MODULES = (
    "isojax.cli.app",
    "isojax.launch.local.local_runner",
    "isojax.launch.local.model_folders",
    "isojax.launch.lr_search",
    "isojax.models.smollm2",
    "isojax.report.catalogue",
    "isojax.report.notebook",
    "isojax.train.loop",
    "matplotlib.pyplot",
    "pandas",
    "pyarrow.parquet",
    "tensorboardX",
    "transformers",
    "wandb",
)
# The folders outside its own that a command may write to. They are a worker's, as libraries read
# these variables when they are imported, and are empty before each attempt. What a command that
# ends well leaves in the cache stays unjudged: compiled programs, and models of a hub. What is
# refused has begun no work, so it writes there neither. A fit of a sweep's ledgers is kept where it
# was missing or older than they are, and only then does it show that what was asked of it cannot be
# had, such as a schedule that gains at this budget: that is the one file which may change.
FIT_FILE = "fit.json"
OUTSIDE = {"HOME": "home", "XDG_CACHE_HOME": "cache", "TMPDIR": "tmp"}


class Result(NamedTuple):
    """What a command did."""

    attempt: int
    kind: str
    words: list[str]
    code: int
    seconds: float  # of processor time
    mebibytes: float
    failure: str  # empty where all is as it should be


def contents(folder: Path) -> dict[str, str]:
    """What is below a folder -> a hash of its bytes, or of where it links to."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            data = os.fsencode(os.readlink(path))
        elif path.is_file():
            data = path.read_bytes()
        else:
            data = b"/"  # a folder, or a pipe
        hashes[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return hashes


def run_command(words: list[str], folder: Path, output: Path) -> int:
    """In the fork: the command in the folder, what it says in a file; its exit code."""
    os.setpgid(0, 0)
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_DATA, (HARD_BYTES, HARD_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for stream, path in enumerate(("/dev/null", output, output)):  # standard input, output, error
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), stream)

    sys.argv = ["isojax", *words]
    try:
        if words[0] == "python":
            return run_python(words[1])
        sys.modules["isojax.cli.app"].main()
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 1
    except BaseException:
        traceback.print_exc()
    return 1


def run_python(code: str) -> int:
    """Lines of a notebook: 2 after the error that its documentation names."""
    import isojax
    from isojax.core.errors import InputError

    try:
        exec(code, {"isojax": isojax, "nan": math.nan, "inf": math.inf})
    except InputError as e:
        print(f"error: {e}"[:5000])
        return 2
    return 0


def judge(
    code: int, timed_out: bool, seconds: float, size: float, text: str, changed: list[str]
) -> str:
    """What is wrong; empty where nothing is. `changed`: the paths that are not as they were."""
    last_line = (text.strip().splitlines() or [""])[-1][:200]
    if timed_out:
        return f"took over {MAX_WALL_SECONDS:g} s of wall clock"
    if "Traceback (most recent call last)" in text:
        places = [line.strip() for line in text.splitlines() if line.startswith('  File "')]
        return f"traceback: {last_line} ({places[-1] if places else '?'})"
    if code not in (0, 2):
        return f"exit code {code}: {last_line}"
    if seconds > MAX_SECONDS:
        return f"{seconds:.0f} s of processor time"
    if size > MAX_BYTES:
        return f"{size / 2**20:.0f} MiB"
    if code == 2 and not text.strip():
        return "a refusal without a message"

    allowed = {"work", "cache"} if code == 0 else set()
    written = []
    for path in changed:
        place, _, _ = path.partition("/")
        if place not in allowed and Path(path).name != FIT_FILE:
            written.append(path)
    if not written:
        return ""
    return f"{'a refusal that' if code else 'it'} wrote {', '.join(written[:3])}"


class Ended(NamedTuple):
    """How a command's process ended."""

    code: int
    timed_out: bool
    seconds: float  # of processor time
    size: int  # bytes of memory at its peak


def run_in_fork(words: list[str], folder: Path, output: Path) -> Ended:
    start = time.monotonic()
    pid = os.fork()
    if not pid:
        os._exit(run_command(words, folder, output))

    timed_out = False
    while True:
        ended_pid, status, usage = os.wait4(pid, os.WNOHANG)
        if ended_pid:
            break
        if time.monotonic() - start > MAX_WALL_SECONDS:
            timed_out = True
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.01)
    return Ended(
        code=os.waitstatus_to_exitcode(status),
        timed_out=timed_out,
        seconds=usage.ru_utime + usage.ru_stime,
        size=1024 * usage.ru_maxrss,
    )


def attempt(number: int, kinds: Sequence[str], seed: str, corpus: Path) -> Result:
    """One attempt, in a folder of its own."""
    rng = random.Random(f"{seed} {number}")
    kind = kinds[number % len(kinds)]
    with tempfile.TemporaryDirectory(dir=Path(os.environ["TMPDIR"]).parent) as temp:
        folder = Path(temp) / "work"
        folder.mkdir()
        words = KINDS[kind](rng, corpus, folder)

        # Where it may write: its own folder, and the empty ones of the worker.
        places = {"work": folder}
        for variable, name in OUTSIDE.items():
            places[name] = Path(os.environ[variable])
            shutil.rmtree(places[name], ignore_errors=True)
            places[name].mkdir()
        before = {name: contents(path) for name, path in places.items()}

        output = Path(temp) / "output"
        ended = run_in_fork(words, folder, output)

        text = output.read_text(errors="replace") if output.exists() else ""
        changed = []
        for name, path in places.items():
            different = sorted(before[name].items() ^ contents(path).items())
            changed += [f"{name}/{file}" for file, _ in different]
        failure = judge(ended.code, ended.timed_out, ended.seconds, ended.size, text, changed)
    return Result(number, kind, words, ended.code, ended.seconds, ended.size / 2**20, failure)


def work(numbers: range, kinds: Sequence[str], seed: str, corpus: Path) -> None:
    """A worker: imports everything, and prints the result of each attempt as a line."""
    for module in MODULES:
        __import__(module)
    forgotten = cli_commands() ^ set(words_by_command("", random.Random(0)))
    assert not forgotten, f"commands without attempts, or attempts without a command: {forgotten}"
    for number in numbers:
        print(json.dumps(attempt(number, kinds, seed, corpus)), flush=True)


def in_folder(folder: str) -> dict[str, str]:
    """The environment of a worker."""
    paths = {variable: Path(folder, name) for variable, name in OUTSIDE.items()}
    for path in paths.values():
        path.mkdir()
    return {variable: str(path) for variable, path in paths.items()}


def run_attempts(
    numbers: range, kinds: Sequence[str], workers: int, seed: str, corpus: Path
) -> list[Result]:
    """The results of all attempts in their order, a progress bar meanwhile."""
    results: list[Result] = []

    def follow(share: range) -> None:
        words = ["--seed", seed, "--corpus", corpus, "--kinds", ",".join(kinds)]
        words += ["--share", share.start, share.stop, share.step]
        call = [sys.executable, __file__, *map(str, words)]
        with tempfile.TemporaryDirectory() as outside:
            environment = {**os.environ, **in_folder(outside)}
            with subprocess.Popen(
                call, stdout=subprocess.PIPE, env=environment, text=True
            ) as worker:
                for line in worker.stdout or ():
                    result = Result(*json.loads(line))
                    results.append(result)
                    progress.advance(task)
                    if result.failure:
                        message = f"attempt {result.attempt}: {result.failure}"
                        progress.console.print(message, markup=False)
        if worker.returncode:
            raise SystemExit(f"a worker ended with exit code {worker.returncode}")

    with Progress(console=Console(stderr=True)) as progress, ThreadPoolExecutor(workers) as pool:
        task = progress.add_task("fuzzing", total=len(numbers))
        list(pool.map(follow, [numbers[i::workers] for i in range(workers)]))
    return sorted(results)


def replay(number: int, kinds: Sequence[str], seed: str, corpus: Path) -> None:
    """Make an attempt's folder, which stays, run the command in a process of its own and show what
    it says."""
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{number}-"))
    words = KINDS[kinds[number % len(kinds)]](random.Random(f"{seed} {number}"), corpus, folder)
    print(json.dumps({"folder": str(folder), "words": words}), flush=True)
    command = "import sys; sys.argv[0] = 'isojax'; from isojax.cli.app import main; main()"
    if words[0] == "python":
        command = f"import isojax; from math import inf, nan; {words[1]}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    call = [sys.executable, "-c", command, *words]
    sys.exit(subprocess.run(call, cwd=folder, env=environment, check=False).returncode)


def print_results(console: Console, results: list[Result], seed: str) -> None:
    """A line for each kind of input, then each failure."""
    table = Table(title=f"{len(results):,} attempts, seed {seed[:12]}", title_justify="left")
    for column in ("input", "attempts", "refused", "accepted", "failures", "most s", "most MiB"):
        table.add_column(column, justify="left" if column == "input" else "right")
    by_kind: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_kind[result.kind].append(result)
    for kind, group in by_kind.items():
        table.add_row(
            kind,
            str(len(group)),
            str(sum(result.code == 2 for result in group)),
            str(sum(result.code == 0 for result in group)),
            str(sum(bool(result.failure) for result in group)),
            f"{max(result.seconds for result in group):.1f}",
            f"{max(result.mebibytes for result in group):.0f}",
        )
    console.print(table)

    for result in results:
        if result.failure:
            words = " ".join(word[:80] for word in result.words)
            message = f"attempt {result.attempt} ({result.kind}): {result.failure}\n  {words!r}"
            console.print(message, markup=False)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attempts", type=int, default=3000, help="of all kinds together")
    parser.add_argument("--first", type=int, default=0, help="the number of the first attempt")
    parser.add_argument("--seed", help="any text; the commit's hash where it is not given")
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="of inputs; all where they are not given"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument(
        "--corpus", type=Path, help="a folder for the unspoilt files, made where it is missing"
    )
    parser.add_argument(
        "--replay", type=int, metavar="ATTEMPT", help="repeat one attempt and show what it says"
    )
    # of a worker: its attempts as a range
    parser.add_argument("--share", type=int, nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    kinds = arguments.kinds.split(",")
    seed = arguments.seed
    if not seed:
        repository = Path(__file__).resolve().parents[1]
        head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=repository, text=True)
        seed = head.strip()

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temp:
        corpus = (arguments.corpus or Path(temp) / "corpus").absolute()
        if not corpus.exists():
            make_corpus(corpus, with_trained_runs=not KINDS_OF_TRAINED_RUNS.isdisjoint(kinds))
        if arguments.replay is not None:
            replay(arguments.replay, kinds, seed, corpus)
        if arguments.share is not None:
            work(range(*arguments.share), kinds, seed, corpus)
            return
        numbers = range(arguments.first, arguments.first + arguments.attempts)
        results = run_attempts(numbers, kinds, arguments.workers, seed, corpus)
    print_results(Console(), results, seed)
    failures = sum(bool(result.failure) for result in results)
    line = {
        "seed": seed,
        "attempts": len(results),
        "failures": failures,
        "seconds": round(time.monotonic() - start),
    }
    print(json.dumps(line))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
