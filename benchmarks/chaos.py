"""A run killed by SIGKILL at random instants and resumed each time, against one that nothing broke:
what they leave must be equal.

    python benchmarks/chaos.py [--kinds device,text,async,resampling] [--kills 20] [--seed 0]
    [--keep DIR]

Each kind is a small run through the command line: `device`, a task whose rollouts, verification and
updates are one program; `text`, a language model whose reward function takes about as long as its
rollouts and its updates; `async`, the same with a sampler two updates ahead, which alternates with
the trainer; `resampling`, an asynchronous run that leaves out solved problems. A state is saved
after every update. It is killed `--kills` times: at random instants between its first moment of
work and its end, and some aimed at what is too short to be hit by chance (chaos_watch.py). In the
end the last checkpoint (every array's bits, and what the host knew), records.jsonl and samples.txt
must be those of the unbroken run.

A line for each kill goes to standard error. The last line, JSON, says how many fell into each
phase, how many while a checkpoint was being written (`saving`) or responses graded (`judging`) at
the same time, how many resumptions found a damaged checkpoint, and whether all was equal; the exit
code is 1 where it was not.
"""

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from chaos_watch import BEFORE, CHECKPOINT, HALF, LAST, LEDGER, SETTINGS, UPDATE

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 300.0  # a process that works for longer hangs

SHAPE = "{layers: 1, width: 32, heads: 2, kv_heads: 2, head_dim: 16, mlp: 64}"
DEVICE = f"""\
cell:
  model: {SHAPE}
  base: {{steps: 60, batch: 128}}
  data: {{candidates: 600, validation: 200, difficulty: [0.0, 1.0]}}
  rl: {{kl: 0.02, entropy: 0.001, learning_rate: 1.0e-2}}
  eval: {{samples: 8, start: 64, ratio: 1.2}}
sweep: {{B_p: [8], n: [16], budget: 100000, decode_slots: 32, microbatch: 32}}
run: {{cells_at_once: 1, checkpoint_seconds: 0}}
"""
TEXT = """\
cell:
  task: addition
  model: {path: lm}
  prompt: {template: "3 + 4 = 7\\n{prompt}", stop: ["\\n", "<|im_start|>"]}
  verifier: {use: function:rewards.py:reward}
  data: {attempts: 0, candidates: 60, validation: 16}
  sampling: {prompt_length: 24, response_length: 24, temperature: 0.8, top_p: 0.9}
  rl: {learning_rate: 3.0e-3, lr_reference_batch: 16, warmup: 2, kl: 0.01}
  eval: {samples: 4, start: 16, ratio: 1.25}
sweep: {B_p: [4], n: [4], budget: 1600, decode_slots: 8, microbatch: 8, prefill_batch: 4}
run: {verifier_workers: 1, cells_at_once: 1, checkpoint_seconds: 0}
"""
# Rates from 0 to 1 by problem, whatever the random policy says.
REWARDS = """\
import time
from zlib import crc32
def reward(prompts, completions, **columns):
    time.sleep(0.003)
    asked, said = prompts[0], completions[0]
    return [int(crc32(f"{asked}{said}".encode()) % 100 < 100 * (crc32(asked.encode()) % 17 / 16))]
"""
SITE = "import os, sys, chaos_watch\nchaos_watch.begin(os.environ, sys.orig_argv)\n"
KINDS: dict[str, list[str]] = {
    "device": ["device.yaml"],
    "text": ["text.yaml"],
    "async": ["text.yaml", "cell.rl.max_staleness=2"],
    "resampling": ["text.yaml", "cell.rl.max_staleness=1", "cell.rl.no_positive_resampling=0.5"],
}
CELLS = {kind: "8x16-s0" if kind == "device" else "4x4-s0" for kind in KINDS}
PARTS = {kind: ("rollout", "verification", UPDATE) for kind in KINDS} | {"device": (UPDATE,)}
AIMS = {
    kind: (CHECKPOINT, HALF, LEDGER, "evaluation", *parts, *BEFORE) for kind, parts in PARTS.items()
}


def prepare(folder: Path) -> None:
    """What the runs need, in `folder`."""
    sys.path.insert(0, str(ROOT))
    from tests.e2e.tiny_lm import make_model

    make_model(folder / "lm")
    for name, text in (("device.yaml", DEVICE), ("text.yaml", TEXT), ("rewards.py", REWARDS)):
        (folder / name).write_text(text)
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SITE)


def run(
    folder: Path, kind: str, name: str, killing: dict[str, Any] | None = None
) -> tuple[dict[str, Any] | None, str]:
    """One process of a run, to its end or to a kill (chaos_watch.py); what is known of the kill,
    and what it said."""
    report = folder / f"{name}.report"
    report.unlink(missing_ok=True)
    path = os.pathsep.join([str(folder / "site"), str(Path(__file__).resolve().parent), str(ROOT)])
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    environment |= {"JAX_PLATFORMS": "cpu", **os.environ, "PYTHONPATH": path}
    if killing is not None:
        cell = f"runs/{name}/cells/{CELLS[kind]}"
        environment[SETTINGS] = json.dumps({"cell": cell, "report": str(report), **killing})
    command = [sys.executable, "-m", "isojax.train", *KINDS[kind], f"name={name}", "--resume"]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    output = done.stdout + done.stderr
    # a kill like another, of which less is known
    if killing is not None and done.returncode == -signal.SIGSEGV:
        return {"phase": "crashed by the watch", "saving": False, "judging": False}, output
    if done.returncode not in (0, -signal.SIGKILL) or "chaos_watch" in output:
        raise RuntimeError(f"{name}: exit code {done.returncode}\n{output}")
    return json.loads(report.read_text()) if done.returncode else None, output


def share(folder: Path, name: str, updates: int) -> float:
    """Of a run, how much is saved."""
    saved = [
        int(p.name) for p in folder.glob(f"runs/{name}/cells/*/checkpoint/*") if p.name.isdigit()
    ]
    return max(saved, default=0) / updates


def unbroken(folder: Path, kind: str) -> tuple[float, int]:
    """Runs it to its end: the seconds between its first record and its last file, and its
    updates."""
    name = f"{kind}-whole"
    run(folder, kind, name)
    (cell,) = folder.glob(f"runs/{name}/cells/*")
    clocks = [
        json.loads(line)["seconds"] for line in (cell / "timing.jsonl").read_text().splitlines()
    ]
    return sum(clocks), last_checkpoint(cell)[0]["M"]


def broken(
    folder: Path, kind: str, kills: int, rng: random.Random, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Runs it without a break, then killed so many times; what it was killed at, and whether the
    two are equal."""
    work, updates = unbroken(folder, kind)
    tell(f"{kind}: unbroken, {updates} updates in {work:.1f} s")
    names = [f"{kind}-killed"]
    phases = Counter[str]()
    during = {"saving": 0, "judging": 0, "damaged": 0}

    # One kill for each aim, the others at any instant (None); that of the last checkpoint last.
    aims: list[str | None] = [*AIMS[kind], *[None] * kills][: kills - 1]
    rng.shuffle(aims)
    aims.append(LAST)
    while aims:
        name = names[-1]
        aim = aims[0]
        seconds_left = work * (1 - share(folder, name, updates))
        after = rng.uniform(0, 2 * seconds_left / (len(aims) + 1))
        kill, output = run(folder, kind, name, {"after": after, "aim": aim})
        during["damaged"] += "is damaged" in output
        # The run came to its end before: another run takes the kills that are left, this one at any
        # instant.
        if kill is None:
            names.append(f"{kind}-killed-{len(names) + 1}")
            aims[0] = None
            continue

        aims.pop(0)
        phases[kill["phase"]] += 1
        during["saving"] += kill["saving"]
        during["judging"] += kill["judging"]
        aside = ", a checkpoint half written" if kill["saving"] else ""
        aside += ", responses being judged" if kill["judging"] else ""
        aimed = f", aimed at {aim}" if aim else ""
        tell(
            f"{kind}: kill {phases.total()} of {kills} at {share(folder, name, updates):.0%}"
            f"{aimed}: {kill['phase']}{aside}"
        )
    during["damaged"] += "is damaged" in run(folder, kind, names[-1])[1]
    result = [line for name in names for line in differences(folder, f"{kind}-whole", name)]
    for line in result:
        tell(f"{kind}: {line}")
    return {
        "kills": phases.total(),
        "runs": len(names),
        "phases": dict(phases),
        **during,
        "updates": updates,
        "equal": not result,
    }


def last_checkpoint(cell: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Of a run's folder: what the host knew, and every array by its place."""
    path = (cell / "checkpoint").absolute()
    options = ocp.CheckpointManagerOptions(create=False, read_only=True)
    with ocp.CheckpointManager(path, options=options) as manager:
        step = manager.latest_step()
        assert step is not None, path
        host = manager.restore(step, args=ocp.args.Composite(host=ocp.args.JsonRestore()))["host"]

    arrays: dict[str, np.ndarray] = {}
    for part in ("state", "pending"):
        folder = path / str(step) / part
        if not folder.is_dir():
            continue
        with ocp.PyTreeCheckpointer() as reader:
            metadata = reader.metadata(folder).item_metadata.tree
            kinds = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), metadata)
            tree = reader.restore(folder, restore_args=kinds)
        for location, value in jax.tree_util.tree_leaves_with_path(tree):
            arrays[part + jax.tree_util.keystr(location)] = np.asarray(value)
    return host, arrays


def differences(folder: Path, one: str, other: str) -> list[str]:
    """In what two runs differ, in words; nothing where they are equal bit for bit."""
    result = []
    for file in ("records.jsonl", "samples.txt"):
        (a,), (b,) = (list(folder.glob(f"runs/{name}/cells/*/{file}")) for name in (one, other))
        if a.read_bytes() != b.read_bytes():
            result.append(f"{file} differs")

    (cell,) = folder.glob(f"runs/{one}/cells/*")
    (cell_2,) = folder.glob(f"runs/{other}/cells/*")
    host, arrays = last_checkpoint(cell)
    host_2, arrays_2 = last_checkpoint(cell_2)
    for key in host | host_2:
        if host.get(key) != host_2.get(key):
            result.append(f"the last checkpoint's {key} differs")
    if arrays.keys() != arrays_2.keys():
        return [*result, "the last checkpoints hold other arrays"]
    for location in arrays:
        if arrays[location].tobytes() != arrays_2[location].tobytes():
            result.append(f"{location} differs")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the instants of the kills")
    parser.add_argument("--keep", type=Path, help="a new folder to work in, which stays")
    args = parser.parse_args()
    if args.keep:
        args.keep.mkdir(parents=True)
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax's remarks on reading

    rng = random.Random(args.seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.keep or Path(temporary)).absolute()
        prepare(folder)

        def tell(line: str) -> None:
            print(f"{time.monotonic() - began:4.0f} s  {line}", file=sys.stderr, flush=True)

        result = {
            kind: broken(folder, kind, args.kills, rng, tell) for kind in args.kinds.split(",")
        }
    equal = all(kind["equal"] for kind in result.values())
    phases = sum((Counter(kind["phases"]) for kind in result.values()), Counter[str]())
    line = {
        "seed": args.seed,
        "kills": sum(phases.values()),
        "kills_by_phase": dict(phases),
        "equal": equal,
        "seconds": round(time.monotonic() - began),
        "kinds": result,
    }
    print(json.dumps(line), flush=True)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
