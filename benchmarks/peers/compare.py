"""isojax and its peers side by side: the same weights, prompts, lengths and cores. `make
bench-peers` makes their environments first.

    python benchmarks/peers/compare.py MODEL [--only rollouts-4x8,step-4x8] [--peers isojax,tunix]
    [--cores 1] [--rounds 2]

MODEL: SmolLM2-135M as `isojax model import smollm2` writes it. Every measurement is a process of
its own, one at a time, in turns (A B C A B C); inside it a warm-up, then the timed repeats. One
JSON line for each measurement, and a table at the end: medians, and how many times faster isojax
is, by the wall and by the processor's time: on one core the latter tells the same where the machine
is idle, and still tells it where it is not. Each round opens with the machine's limits
(benchmarks/limits.py), whose floor rollouts are a share of. --commands writes the prompts' files
and prints the commands that would run.
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from isojax.core import machine

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / ".venv-peers"
ERRORS_SHOWN = 2000  # characters


class Peer(NamedTuple):
    """A script, whose environment it runs in (empty: this Python), and a setting of it."""

    environment: str
    script: str
    variant: str = ""

    @property
    def name(self) -> str:
        """As tables show it."""
        return " ".join(filter(None, (self.environment or "isojax", self.variant)))

    @property
    def python(self) -> Path:
        """The interpreter."""
        return (
            ENVIRONMENTS / self.environment / "bin" / "python"
            if self.environment
            else Path(sys.executable)
        )


class Claim(NamedTuple):
    """B_p prompts of `prompt` tokens, n rollouts each of exactly `new` tokens, by each of `peers`;
    `repeats` are timed in each process.
    """

    name: str
    B_p: int
    n: int
    prompt: int
    new: int
    peers: tuple[Peer, ...]
    repeats: int


ROLLOUTS = (
    Peer("", "rollouts_isojax.py"),
    Peer("transformers", "rollouts_transformers.py", "float32"),
    Peer("transformers", "rollouts_transformers.py", "bfloat16"),
    Peer("tunix", "rollouts_tunix.py"),
)
STEPS = (Peer("", "step_isojax.py"), Peer("tunix", "step_tunix.py"), Peer("trl", "step_trl.py"))
CLAIMS = (
    Claim("rollouts-4x8", 4, 8, 64, 128, ROLLOUTS, 3),
    Claim("rollouts-2x32", 2, 32, 64, 128, ROLLOUTS, 3),
    Claim("step-4x8", 4, 8, 64, 128, STEPS, 2),
    Claim("few-shot", 4, 16, 45, 5, STEPS, 3),
)


def make_prompts(
    tokenizer: Tokenizer, count: int, length: int
) -> tuple[list[list[int]], list[str]]:
    """`count` prompts of exactly `length` tokens, as ids and as texts that mean them: words drawn
    at random, the same on every machine.
    """
    vocabulary = tokenizer.get_vocab()
    words = sorted(i for piece, i in vocabulary.items() if re.fullmatch("Ġ[a-z]{4,9}", piece))

    draw = random.Random(0)
    ids, texts = [], []
    for _ in range(count):
        prompt = [draw.choice(words) for _ in range(length)]
        text = tokenizer.decode(prompt)
        assert tokenizer.encode(text, add_special_tokens=False).ids == prompt, text
        ids.append(prompt)
        texts.append(text)
    return ids, texts


def write_prompts(model: Path, claim: Claim, folder: Path) -> Path:
    """The file of prompts that every child of a claim reads."""
    path = folder / f"{claim.B_p}x{claim.prompt}.json"
    ids, texts = make_prompts(
        Tokenizer.from_file(str(model / "tokenizer.json")), claim.B_p, claim.prompt
    )
    path.write_text(json.dumps({"ids": ids, "texts": texts}))
    return path


def command(model: Path, claim: Claim, peer: Peer, prompts: Path, repeats: int) -> list[str]:
    """What runs a peer's child."""
    words = [peer.python, HERE / peer.script, model, "--prompts", prompts]
    words += ["--n", claim.n, "--new", claim.new, "--repeats", repeats]
    if peer.variant:
        words += ["--variant", peer.variant]
    return [str(word) for word in words]


def limits_command(model: Path, claim: Claim) -> list[str]:
    """What measures the machine's limits and the floor of a claim's rollouts."""
    words = [sys.executable, HERE.parent / "limits.py", model, "--rows", claim.B_p * claim.n]
    words += ["--prompt", claim.prompt, "--new", claim.new]
    return [str(word) for word in words]


def run(words: list[str]) -> Iterator[dict[str, Any]]:
    """The JSON lines of a child on this process's cores; RuntimeError with the end of what it said
    where it failed."""
    if not Path(words[0]).exists():
        raise RuntimeError(
            f"{words[0]}: no such Python; `make bench-peers` makes the peers' environments"
        )

    threads = str(len(os.sched_getaffinity(0)))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if words[0] == sys.executable and machine.huge_pages_available():
        # as isojax's own commands do
        environment.setdefault(machine.TUNABLES_VARIABLE, machine.TUNABLES_VALUE)
    child = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    for line in child.stdout.splitlines():
        if line.startswith('{"'):  # libraries print too
            yield json.loads(line)
    if child.returncode:
        raise RuntimeError(
            f"{' '.join(words)}\nended with {child.returncode}:\n{child.stderr[-ERRORS_SHOWN:]}"
        )


def medians(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every (claim, peer), in order of appearance: median seconds, processor's seconds and
    tokens per second, largest memory, how many were measured; and how many times faster isojax did
    the same claim, by the wall (`faster`) and by the processor (`cpu_faster`)."""
    measured: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        measured.setdefault((line["claim"], line["peer"]), []).append(line)
    rows = []
    for (claim, peer), of_one in measured.items():
        row = {
            "claim": claim,
            "peer": peer,
            "measured": len(of_one),
            "seconds": statistics.median(line["seconds"] for line in of_one),
            "cpu_seconds": statistics.median(line["cpu_seconds"] for line in of_one),
            "tokens": of_one[0]["tokens"],
            "peak_gib": max(line["peak_gib"] for line in of_one),
        }
        rows.append(row)

    isojax_rows = {row["claim"]: row for row in rows if row["peer"] == "isojax"}
    for row in rows:
        of_isojax = isojax_rows.get(row["claim"])
        if of_isojax is not None:
            row["faster"] = row["seconds"] / of_isojax["seconds"]
            row["cpu_faster"] = row["cpu_seconds"] / of_isojax["cpu_seconds"]
    return rows


def show(rows: list[dict[str, Any]], floors: dict[str, list[float]], clock: str) -> None:
    """The table; `floors`: by claim, measured rollout tokens per second on `clock`, which a
    rollout's share is read on too.
    """
    heads = (
        "claim",
        "peer",
        "measured",
        "seconds",
        "CPU s",
        "tokens/s",
        "peak GiB",
        "isojax faster",
        "by CPU",
        "share of floor",
    )
    table = Table(*heads)
    for row in rows:
        share = ""
        if row["claim"] in floors:
            floor = statistics.median(floors[row["claim"]])
            share = f"{row['tokens'] / row[clock] / floor:.0%}"
        ratios = ["", ""]
        if row["peer"] != "isojax" and "faster" in row:
            ratios = [f"{row['faster']:.2f} x", f"{row['cpu_faster']:.2f} x"]
        table.add_row(
            row["claim"],
            row["peer"],
            str(row["measured"]),
            f"{row['seconds']:.2f}",
            f"{row['cpu_seconds']:.2f}",
            f"{row['tokens'] / row['seconds']:.0f}",
            f"{row['peak_gib']:.2f}",
            *ratios,
            share,
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def model_folder(given: str) -> Path:
    """MODEL, as argparse's type."""
    if not (Path(given) / "tokenizer.json").is_file():
        raise argparse.ArgumentTypeError(
            f"{given}: has no tokenizer.json; expected a folder that "
            "`isojax model import smollm2` wrote"
        )
    return Path(given)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=model_folder, help="SmolLM2-135M's folder")
    parser.add_argument("--only", default="", help=f"of {','.join(claim.name for claim in CLAIMS)}")
    parser.add_argument("--peers", default="", help="of isojax,transformers,tunix,trl")
    parser.add_argument(
        "--cores",
        type=int,
        choices=(1, 2),
        default=1,
        help="the last of those that this process may use",
    )
    parser.add_argument("--rounds", type=int, default=2, help="processes of each peer")
    parser.add_argument(
        "--repeats", type=int, help="timed repeats in a process; the claim's own number otherwise"
    )
    parser.add_argument(
        "--folder", type=Path, default=ENVIRONMENTS, help="for the files of prompts"
    )
    parser.add_argument("--commands", action="store_true", help="run nothing; print the commands")
    args = parser.parse_args()

    names_of_claims = {claim.name for claim in CLAIMS}
    names_of_peers = {"isojax", "transformers", "tunix", "trl"}
    for text, known in ((args.only, names_of_claims), (args.peers, names_of_peers)):
        unknown = set(filter(None, text.split(","))) - known
        if unknown:
            parser.error(
                f"{', '.join(sorted(unknown))}: expected some of {', '.join(sorted(known))}, "
                "with commas between"
            )
    return args


def main() -> None:
    """Measure each claim in turns, then show the table."""
    args = parse()
    claims = [claim for claim in CLAIMS if not args.only or claim.name in args.only.split(",")]
    cores = sorted(os.sched_getaffinity(0))[-args.cores :]
    os.sched_setaffinity(0, cores)
    args.folder.mkdir(exist_ok=True)

    lines: list[dict[str, Any]] = []
    floors: dict[str, list[float]] = {}
    failed = False
    for claim in claims:
        prompts = write_prompts(args.model, claim, args.folder)
        repeats = args.repeats or claim.repeats
        children = {}
        for peer in claim.peers:
            if not args.peers or (peer.environment or "isojax") in args.peers.split(","):
                children[peer.name] = command(args.model, claim, peer, prompts, repeats)
        if args.commands:
            print("\n".join(" ".join(words) for words in children.values()))
            continue

        # Each round opens with the machine's limits, whose lines have no peer.
        for round in range(args.rounds):
            about = {"claim": claim.name, "cores": len(cores), "round": round}
            try:
                for line in run(limits_command(args.model, claim)):
                    print(json.dumps({**about, **line}), flush=True)
                    if claim.peers is ROLLOUTS:
                        floor = line["floor_tokens_per_second"]
                        floors.setdefault(claim.name, []).append(floor)
            except RuntimeError as e:
                print(e, file=sys.stderr, flush=True)
                failed = True
            for name, words in children.items():
                try:
                    for line in run(words):
                        lines.append({**about, "peer": name, **line})
                        print(json.dumps(lines[-1]), flush=True)
                except RuntimeError as e:
                    print(e, file=sys.stderr, flush=True)
                    failed = True
    if lines:
        show(medians(lines), floors, "cpu_seconds" if len(cores) == 1 else "seconds")
    sys.exit(failed)


if __name__ == "__main__":
    main()
