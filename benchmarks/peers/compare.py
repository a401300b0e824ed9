"""isojax and its peers side by side: the same weights, prompts, lengths and cores. `make bench-peers` makes their environments first.

    python benchmarks/peers/compare.py MODEL [--only rollouts-4x8,step-4x8] [--peers isojax,tunix] [--cores 1] [--rounds 2]

MODEL: SmolLM2-135M as `isojax model import smollm2` writes it. Every measurement is a process of its own, one at a time, in turns
(A B C A B C); inside it a warm-up, then the timed repeats. One JSON line a measurement, and a table at the end: medians, and how many
times faster isojax is. The first lines are the machine's limits (benchmarks/limits.py), measured anew each round. --commands writes the
prompts' files and prints the commands that would run.
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
        return ENVIRONMENTS / self.environment / "bin" / "python" if self.environment else Path(sys.executable)


class Claim(NamedTuple):
    """B_p prompts of `prompt` tokens, n rollouts each of exactly `new` tokens, by each of `peers`; `repeats` are timed in each process."""

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


def make_prompts(tokenizer: Tokenizer, count: int, length: int) -> tuple[list[list[int]], list[str]]:
    """`count` prompts of exactly `length` tokens, as ids and as texts that mean them: words drawn at random, the same on every machine."""
    words = sorted(i for piece, i in tokenizer.get_vocab().items() if re.fullmatch("Ġ[a-z]{4,9}", piece))
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
    ids, texts = make_prompts(Tokenizer.from_file(str(model / "tokenizer.json")), claim.B_p, claim.prompt)
    path.write_text(json.dumps({"ids": ids, "texts": texts}))
    return path


def command(model: Path, claim: Claim, peer: Peer, prompts: Path, repeats: int) -> list[str]:
    """What runs a peer's child."""
    numbers = {"--n": claim.n, "--new": claim.new, "--repeats": repeats}
    flags = [word for flag, value in numbers.items() for word in (flag, str(value))]
    variant = ["--variant", peer.variant] if peer.variant else []
    return [str(peer.python), str(HERE / peer.script), str(model), "--prompts", str(prompts), *flags, *variant]


def run(words: list[str], cores: list[int]) -> Iterator[dict[str, Any]]:
    """The JSON lines of a child that may use these cores; RuntimeError with the end of what it said where it failed."""
    threads = str(len(cores))
    environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    child = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores)
    )
    out, errors = child.communicate()
    for line in out.splitlines():
        if line.startswith('{"'):  # libraries print too
            yield json.loads(line)
    if child.returncode:
        raise RuntimeError(f"{' '.join(words)}\nended with {child.returncode}:\n{errors[-ERRORS_SHOWN:]}")


def medians(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every (claim, peer), in order of appearance: median seconds and tokens a second, largest memory, how many were measured, and
    `times`, its seconds over isojax's in the same claim (how many times faster isojax is)."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        found.setdefault((line["claim"], line["peer"]), []).append(line)
    rows = []
    for (claim, peer), of_one in found.items():
        row: dict[str, Any] = {"claim": claim, "peer": peer, "measured": len(of_one)}
        row |= {key: statistics.median(line[key] for line in of_one) for key in ("seconds", "tokens_a_second")}
        rows.append(row | {"peak_gb": max(line["peak_gb"] for line in of_one)})
    ours = {row["claim"]: row["seconds"] for row in rows if row["peer"] == "isojax"}
    return [row | {"times": row["seconds"] / ours[row["claim"]] if row["claim"] in ours else None} for row in rows]


def show(rows: list[dict[str, Any]], floors: dict[int, list[float]]) -> None:
    """The table; `floors` are measured rollout tokens a second by number of rollouts."""
    table = Table("claim", "peer", "measured", "seconds", "tokens/s", "peak GB", "isojax is faster", "share of the floor")
    rollouts = {claim.name: claim.B_p * claim.n for claim in CLAIMS if claim.peers is ROLLOUTS}
    for row in rows:
        floor = floors.get(rollouts.get(row["claim"], 0))
        share = f"{row['tokens_a_second'] / statistics.median(floor):.0%}" if floor else ""
        times = f"{row['times']:.2f} x" if row["times"] and row["peer"] != "isojax" else ""
        numbers = f"{row['seconds']:.2f}", f"{row['tokens_a_second']:.0f}", f"{row['peak_gb']:.2f}"
        table.add_row(row["claim"], row["peer"], str(row["measured"]), *numbers, times, share)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--only", default="", help=f"of {','.join(claim.name for claim in CLAIMS)}")
    parser.add_argument("--peers", default="", help="of isojax,transformers,tunix,trl")
    parser.add_argument("--cores", type=int, choices=(1, 2), default=1, help="the last of those that this process may use")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each peer")
    parser.add_argument("--repeats", type=int, help="timed repeats in a process; the claim's own number otherwise")
    parser.add_argument("--folder", type=Path, default=ENVIRONMENTS, help="for the files of prompts")
    parser.add_argument("--commands", action="store_true", help="run nothing; print the commands")
    args = parser.parse_args()
    for given, known in ((args.only, {c.name for c in CLAIMS}), (args.peers, {"isojax", "transformers", "tunix", "trl"})):
        if unknown := set(filter(None, given.split(","))) - known:
            parser.error(f"{', '.join(sorted(unknown))}: expected some of {', '.join(sorted(known))}, with commas between")
    return args


def main() -> None:
    """Measure each claim in turns, then show the table."""
    args = parse()
    claims = [claim for claim in CLAIMS if not args.only or claim.name in args.only.split(",")]
    cores = sorted(os.sched_getaffinity(0))[-args.cores :]
    lines: list[dict[str, Any]] = []
    floors: dict[int, list[float]] = {}
    failed = False
    args.folder.mkdir(exist_ok=True)
    for claim in claims:
        prompts = write_prompts(args.model, claim, args.folder)
        limits = [sys.executable, str(HERE.parent / "limits.py"), str(args.model), "--rows", str(claim.B_p * claim.n)]
        limits += ["--prompt", str(claim.prompt), "--new", str(claim.new)]
        peers = [peer for peer in claim.peers if not args.peers or (peer.environment or "isojax") in args.peers.split(",")]
        for round in range(args.rounds):
            if not args.commands:
                for line in run(limits, cores):
                    print(json.dumps({"limits": claim.name, "cores": args.cores, "round": round} | line), flush=True)
                    floors.setdefault(line["rows"], []).append(line["floor_tokens_a_second"])
            for peer in peers:
                words = command(args.model, claim, peer, prompts, args.repeats or claim.repeats)
                if args.commands:
                    print(" ".join(words))
                    continue
                try:
                    for line in run(words, cores):
                        lines.append({"claim": claim.name, "peer": peer.name, "cores": args.cores, "round": round} | line)
                        print(json.dumps(lines[-1]), flush=True)
                except RuntimeError as e:
                    print(e, file=sys.stderr, flush=True)
                    failed = True
            if args.commands:
                break
    if lines:
        show(medians(lines), floors)
    sys.exit(failed)


if __name__ == "__main__":
    main()
