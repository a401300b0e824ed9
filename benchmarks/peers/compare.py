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
    words = sorted(
        i for piece, i in tokenizer.get_vocab().items() if re.fullmatch("Ġ[a-z]{4,9}", piece)
    )
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
    coefficients = {"--n": claim.n, "--new": claim.new, "--repeats": repeats}
    flags = [str(x) for pair in coefficients.items() for x in pair]
    variant = ["--variant", peer.variant] if peer.variant else []
    return [
        str(peer.python),
        str(HERE / peer.script),
        str(model),
        "--prompts",
        str(prompts),
        *flags,
        *variant,
    ]


def limits_command(model: Path, claim: Claim) -> list[str]:
    """What measures the machine's limits and the floor of a claim's rollouts."""
    coefficients = {"--rows": claim.B_p * claim.n, "--prompt": claim.prompt, "--new": claim.new}
    return [
        sys.executable,
        str(HERE.parent / "limits.py"),
        str(model),
        *(str(x) for pair in coefficients.items() for x in pair),
    ]


def run(words: list[str]) -> Iterator[dict[str, Any]]:
    """The JSON lines of a child on this process's cores; RuntimeError with the end of what it said
    where it failed."""
    if not Path(words[0]).exists():
        raise RuntimeError(
            f"{words[0]}: no such Python; `make bench-peers` makes the peers' environments"
        )
    threads = str(len(os.sched_getaffinity(0)))
    environment = os.environ | {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
    }
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
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
    result: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        result.setdefault((line["claim"], line["peer"]), []).append(line)
    rows = []
    for (claim, peer), of_one in result.items():
        row: dict[str, Any] = {"claim": claim, "peer": peer, "measured": len(of_one)}
        row |= {
            key: statistics.median(line[key] for line in of_one)
            for key in ("seconds", "cpu_seconds")
        }
        rows.append(
            row
            | {"tokens": of_one[0]["tokens"], "peak_gib": max(line["peak_gib"] for line in of_one)}
        )
    ours = {row["claim"]: row for row in rows if row["peer"] == "isojax"}
    for row in rows:
        if row["claim"] in ours:
            row["faster"], row["cpu_faster"] = (
                row[key] / ours[row["claim"]][key] for key in ("seconds", "cpu_seconds")
            )
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
        floor = floors.get(row["claim"])
        share = f"{row['tokens'] / row[clock] / statistics.median(floor):.0%}" if floor else ""
        ratios = [
            f"{row[key]:.2f} x" if row["peer"] != "isojax" and key in row else ""
            for key in ("faster", "cpu_faster")
        ]
        coefficients = [
            f"{row['seconds']:.2f}",
            f"{row['cpu_seconds']:.2f}",
            f"{row['tokens'] / row['seconds']:.0f}",
            f"{row['peak_gib']:.2f}",
        ]
        table.add_row(
            row["claim"], row["peer"], str(row["measured"]), *coefficients, *ratios, share
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
    parser.add_argument("model", type=model_folder)
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
    for inputs, known in (
        (args.only, {c.name for c in CLAIMS}),
        (args.peers, {"isojax", "transformers", "tunix", "trl"}),
    ):
        if unknown := set(filter(None, inputs.split(","))) - known:
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
        peers = [
            peer
            for peer in claim.peers
            if not args.peers or (peer.environment or "isojax") in args.peers.split(",")
        ]
        children = {
            peer.name: command(args.model, claim, peer, prompts, args.repeats or claim.repeats)
            for peer in peers
        }
        if args.commands:
            print("\n".join(" ".join(words) for words in children.values()))
            continue
        for round in range(args.rounds):
            for name, words in {"": limits_command(args.model, claim), **children}.items():
                about = {"claim": claim.name, "cores": len(cores), "round": round}
                try:
                    for line in run(words):
                        print(
                            json.dumps(about | ({"peer": name} if name else {}) | line), flush=True
                        )
                        if name:
                            lines.append(about | {"peer": name} | line)
                        elif claim.peers is ROLLOUTS:
                            floors.setdefault(claim.name, []).append(
                                line["floor_tokens_per_second"]
                            )
                except RuntimeError as e:
                    print(e, file=sys.stderr, flush=True)
                    failed = True
    if lines:
        show(medians(lines), floors, "cpu_seconds" if len(cores) == 1 else "seconds")
    sys.exit(failed)


if __name__ == "__main__":
    main()
