"""Gemma 3 270M itself, from the import to llama.cpp: one line for each claim, with its figure.

    isojax model import gemma3-270m --accept-terms
    python benchmarks/gemma3_270m.py                 # all stages; 16 GiB of memory
    python benchmarks/gemma3_270m.py logprobs cache

Needs torch and transformers; for `lora` peft, which loads the adapters; for `gguf`
llama-cpp-python, here or in the environment of `--llama-python`. Runs and exports are written below
`--work`. Stages:

    logprobs  log-probabilities of trainer, sampler and transformers on a text longer than the
              window; greedy texts
    train     20 updates on sums, from a prompt of four solved ones
    export    the trained policy as a folder, in transformers
    gguf      the trained policy as a file of llama.cpp in F32
    lora      6 updates of adapters; adapters in PEFT, and merged
    resume    the run of `train` again, killed by SIGKILL in the middle and resumed
    cache     bytes of keys and values for a prompt of 4,096 tokens
"""

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "concepts.md"  # whose text is longer than the window of 512
LONG_TOKENS = 620
PROMPT = 4096  # of the cache that is measured
RESPONSE = 64
PROMPTS = (
    "3 + 4 = 7\n15 + 2 = 17\n8 + 26 = 34\n34 + 52 = 86\n45 + 12 = ",
    "The capital of France is",
    "Once upon a time there was a fisherman who",
)
UPDATES = 20
LORA_UPDATES = 6
B_P = 4
N = 8
CELL = f"{B_P}x{N}-s0"
ISOJAX = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'isojax'; from isojax.cli.app import main; main()",
]

# Greedy texts by llama.cpp; in a program of its own, as it may be in another environment: FILE,
# prompts' ids, a count.
GREEDY_BY_LLAMA_CPP = """
import json, sys
from itertools import islice
from llama_cpp import Llama
model = Llama(sys.argv[1], verbose=False, n_ctx=256, n_threads=2)
prompts, count = json.loads(sys.argv[2]), int(sys.argv[3])
greedy = [model.generate(ids, temp=0.0, repeat_penalty=1.0) for ids in prompts]
print(json.dumps([list(islice(tokens, count)) for tokens in greedy]))
"""


@dataclass(frozen=True)
class Place:
    model: Path
    work: Path
    llama_python: str

    def run(self, name: str) -> Path:
        return self.work / "runs" / name

    def cell(self, name: str) -> Path:
        return self.run(name) / "cells" / CELL


def main() -> None:
    stages: dict[str, Callable[[Place], None]] = {
        "logprobs": check_logprobs,
        "train": train,
        "export": check_export,
        "gguf": check_gguf,
        "lora": check_lora,
        "resume": check_resume,
        "cache": check_cache,
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", choices=[[], *stages], default=list(stages)
    )
    parser.add_argument("--model", type=Path, default=Path("models/gemma3-270m"))
    parser.add_argument(
        "--work", type=Path, default=Path("gemma3-270m"), help="where runs and exports are written"
    )
    parser.add_argument(
        "--llama-python", default=sys.executable, help="a Python that has llama-cpp-python"
    )
    args = parser.parse_args()

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    args.work.mkdir(parents=True, exist_ok=True)
    place = Place(args.model.absolute(), args.work.absolute(), args.llama_python)
    for stage in args.stages:
        start = time.perf_counter()
        stages[stage](place)
        print(f"  ({stage}: {time.perf_counter() - start:.0f} s)", flush=True)


def claim(text: str, figure: object) -> None:
    print(f"{text}: {figure if not isinstance(figure, float) else f'{figure:.2g}'}", flush=True)


def check_logprobs(place: Place) -> None:
    text = PAGE.read_text(encoding="utf-8")
    ids_of_texts = [tokenise(place.model, [text])[0][:LONG_TOKENS], *tokenise(place.model, PROMPTS)]
    here = logits_here(place, place.model, ids_of_texts)
    there = logits_of_transformers(place.model, ids_of_texts)

    trainer, sampler, other = (
        log_softmax(x) for x in (here["logits"], here["decode_logits"], there["logits"])
    )
    lengths = [len(ids) for ids in ids_of_texts]
    claim(
        f"log-probabilities of {sum(lengths)} x 262,144 tokens, transformers",
        largest(trainer, other),
    )
    for name, difference in (("transformers", trainer - other), ("sampler", trainer - sampler)):
        of_tokens = at_tokens(difference, ids_of_texts)
        claim(
            f"log-probabilities of the texts' own tokens, trainer and {name}, largest",
            float(np.abs(of_tokens).max()),
        )
        claim(
            f"the same, root mean square over all {difference.shape[1]:,}",
            float(np.sqrt(np.mean(difference**2))),
        )
    claim("log-probabilities of all tokens, trainer and sampler", largest(trainer, sampler))
    claim(
        "greedy texts are those of transformers",
        bool((here["greedy_ids"] == there["greedy_ids"]).all()),
    )


def train(place: Place) -> None:
    shutil.rmtree(place.run("full"), ignore_errors=True)
    isojax(place, *training(place, "full", UPDATES))
    report_run(place, "full")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    claim("full: most memory of the process", f"{peak:.1f} GiB")


def report_run(place: Place, name: str) -> None:
    rows = read_ledger(place, name)
    first, last = rows[0], rows[-1]
    claim(f"{name}: updates", last["M"])
    claim(
        f"{name}: right answers before and after",
        [row["metrics"]["avg@2"] for row in (first, last)],
    )
    # some token was trained
    trained = [row["train"] for row in rows[1:] if "sampler_logp_gap" in row["train"]]
    claim(
        f"{name}: log-probabilities, sampler and trainer, mean",
        max(t["sampler_logp_gap"] for t in trained),
    )
    claim(f"{name}: the same, largest", max(t["sampler_logp_gap_max"] for t in trained))
    claim(f"{name}: norm of the last gradient", last["train"]["grad_norm"])


def check_export(place: Place) -> None:
    folder = export(place, "full", "trained")
    claim(
        "export: NOTICE and LICENSE are there",
        all((folder / name).is_file() for name in ("NOTICE", "LICENSE")),
    )
    ids_of_texts = tokenise(folder, PROMPTS)
    here = logits_here(place, folder, ids_of_texts)
    there = logits_of_transformers(folder, ids_of_texts)
    before = logits_of_transformers(place.model, ids_of_texts)
    claim(
        "export: training moved log-probabilities by",
        largest(*map(log_softmax, (there["logits"], before["logits"]))),
    )
    difference = largest(*map(log_softmax, (here["logits"], there["logits"])))
    claim("export: log-probabilities, isojax and transformers", difference)
    claim("export: greedy texts are equal", bool((here["greedy_ids"] == there["greedy_ids"]).all()))


def check_gguf(place: Place) -> None:
    folder = export(place, "full", "trained")
    file = place.work / "trained.gguf"
    if not file.exists():
        isojax(place, "model", "export", str(place.cell("full")), "--gguf", str(file))

    ids_of_texts = tokenise(folder, PROMPTS)
    expected = logits_here(place, folder, ids_of_texts)["greedy_ids"]
    words = [
        place.llama_python,
        "-c",
        GREEDY_BY_LLAMA_CPP,
        str(file),
        json.dumps(ids_of_texts),
        str(expected.shape[1]),
    ]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = np.array(json.loads(out.splitlines()[-1]))
    claim(
        f"GGUF in F32: the greedy {found.shape[1]} tokens of {len(found)} prompts are equal",
        bool((found == expected).all()),
    )


def check_lora(place: Place) -> None:
    shutil.rmtree(place.run("lora"), ignore_errors=True)
    isojax(
        place,
        *training(place, "lora", LORA_UPDATES),
        "cell.model.lora.rank=8",
        "cell.rl.learning_rate=1e-4",
    )
    report_run(place, "lora")
    merged = export(place, "lora", "lora-merged")
    adapter = export(place, "lora", "lora-adapter", "--adapter")

    ids_of_texts = tokenise(merged, PROMPTS)
    there = logits_of_transformers(place.model, ids_of_texts, adapter)
    here = logits_here(place, merged, ids_of_texts)
    of_merged = logits_of_transformers(merged, ids_of_texts)
    base = logits_of_transformers(place.model, ids_of_texts)
    claim(
        "lora: adapters moved log-probabilities by",
        largest(*map(log_softmax, (there["logits"], base["logits"]))),
    )
    difference = largest(*map(log_softmax, (here["logits"], there["logits"])))
    claim("lora: log-probabilities, merged here and adapters in PEFT", difference)
    difference = largest(*map(log_softmax, (here["logits"], of_merged["logits"])))
    claim("lora: log-probabilities, merged here and in transformers", difference)


def check_resume(place: Place) -> None:
    """Killed after the evaluation in the middle, whose state is saved."""
    shutil.rmtree(place.run("killed"), ignore_errors=True)
    words = [*training(place, "killed", UPDATES), "run.checkpoint_seconds=0"]
    process = subprocess.Popen(
        [*ISOJAX, *words], cwd=place.work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and len(read_ledger(place, "killed")) < 2:
        time.sleep(1)
    time.sleep(20)
    process.send_signal(signal.SIGKILL)
    claim("resume: killed in the middle", process.wait() == -signal.SIGKILL)
    isojax(place, *words, "--resume")

    ledgers = [(place.cell(name) / "records.jsonl").read_bytes() for name in ("full", "killed")]
    claim("resume: the ledger is that of the unbroken run, bit for bit", ledgers[0] == ledgers[1])
    states = [read_last_checksums(place, name) for name in ("full", "killed")]
    claim(
        f"resume: checksums of the {len(states[0])} last arrays, parameters and moments, are equal",
        states[0] == states[1],
    )


def read_last_checksums(place: Place, name: str) -> dict[str, int]:
    """Of the bits of every array in the last checkpoint, which is saved when the run ends."""
    host_data = json.loads(
        (place.cell(name) / "checkpoint" / str(UPDATES) / "host" / "metadata").read_text()
    )
    return host_data["checksums"]


def check_cache(place: Place) -> None:
    import jax

    from isojax.core.config import ModelConfig
    from isojax.models.decode import Decoding
    from isojax.models.hf.hf_load import resolve_model
    from isojax.models.transformer import ComputeOptions, Decoder

    model = resolve_model(ModelConfig(path=str(place.model)))
    assert model.options is not None
    all_full = model.model_copy(update={"options": model.options | {"sliding_layers": []}})
    sizes = {}
    for name, config in (("sliding", model), ("full", all_full)):
        decoder = Decoder(config).with_options(ComputeOptions("bfloat16", "bfloat16"))
        decoding = Decoding(decoder, 1, 1, PROMPT, RESPONSE, unrolled_layers=True)
        cache = jax.eval_shape(decoding.empty_cache)
        sizes[name] = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))
    claim(
        f"cache of a rollout, prompt {PROMPT:,} and response {RESPONSE}, bfloat16",
        f"{sizes['sliding']:,} bytes",
    )
    claim("the same, if all layers were full", f"{sizes['full']:,} bytes")


def training(place: Place, name: str, updates: int) -> list[str]:
    """Words of `isojax train`: sums from a prompt of four solved ones, evaluated at the start,
    middle and end."""
    budget = updates * B_P * N
    template = PROMPTS[0].rpartition("\n")[0] + "\n{prompt} "
    return [
        "train",
        "smollm2_cpu",
        f"name={name}",
        f"cell.model.path={place.model}",
        f"cell.prompt.template={json.dumps(template)}",
        "cell.rl.learning_rate=3e-6",  # by 3e-5 it unlearns the sums within 20 updates
        "cell.data.candidates=400",
        "cell.data.validation=40",
        f"cell.eval={{samples: 2, start: {budget // 2}, ratio: 2}}",
        f"sweep.B_p=[{B_P}]",
        f"sweep.n=[{N}]",
        f"sweep.budget={budget}",
        f"sweep.decode_slots={B_P * N}",
        f"sweep.microbatch={B_P * N}",
    ]


def export(place: Place, run: str, name: str, *options: str) -> Path:
    """The folder that a run is exported to, made unless it is there and newer."""
    folder = place.work / name
    ledger = place.cell(run) / "records.jsonl"
    if folder.is_dir() and folder.stat().st_mtime < ledger.stat().st_mtime:
        shutil.rmtree(folder)
    if not folder.is_dir():
        isojax(place, "model", "export", str(place.cell(run)), str(folder), *options)
    return folder


def isojax(place: Place, *words: str) -> None:
    completed = subprocess.run(
        [*ISOJAX, *words], cwd=place.work, capture_output=True, text=True, check=False
    )
    if completed.returncode:
        raise SystemExit(
            f"isojax {' '.join(words)} ended with {completed.returncode}:\n"
            f"{completed.stderr[-3000:]}"
        )


def read_ledger(place: Place, name: str) -> list[dict[str, Any]]:
    """The evaluations."""
    path = place.cell(name) / "records.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [row for row in map(json.loads, lines) if row.get("kind") == "eval"]


def tokenise(folder: Path, texts: Any) -> list[list[int]]:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)(list(texts)).input_ids


def logits_here(place: Place, folder: Path, ids_of_texts: list[list[int]]) -> dict[str, np.ndarray]:
    """By model_logprobs.py, in a process of its own."""
    lengths = np.array([len(ids) for ids in ids_of_texts])
    tokens = np.full((len(lengths), lengths.max()), -1, np.int32)
    for row, ids in zip(tokens, ids_of_texts, strict=True):
        row[: len(ids)] = ids
    given, made = place.work / "tokens.npz", place.work / "logits.npz"
    np.savez(given, input_ids=tokens, lengths=lengths)
    script = HERE / "model_logprobs.py"
    subprocess.run(
        [sys.executable, script, folder, given, made], check=True, stdout=subprocess.DEVNULL
    )
    with np.load(made) as out:
        result = {name: out[name] for name in ("logits", "decode_logits", "greedy_ids")}
    made.unlink()
    return result


def logits_of_transformers(
    folder: Path, ids_of_texts: list[list[int]], adapter: Path | None = None
) -> dict[str, np.ndarray]:
    """The same in float32, of one pass for each text; ends of texts are ignored."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    if adapter is not None:
        from peft import PeftModel  # pyright: ignore[reportMissingImports]

        model = PeftModel.from_pretrained(model, adapter).eval()
    logits, greedy = [], []
    with torch.no_grad():
        for ids in ids_of_texts:
            out = model(torch.tensor([ids]), use_cache=True)
            logits.append(out.logits[0].numpy())
            greedy.append([])
            for _ in range(24):
                greedy[-1].append(int(out.logits[0, -1].argmax()))
                out = model(
                    torch.tensor([greedy[-1][-1:]]),
                    past_key_values=out.past_key_values,
                    use_cache=True,
                )
    return {"logits": np.concatenate(logits), "greedy_ids": np.array(greedy)}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """In float64, row by row; rounded to float32, which moves it by 2e-6 at most."""
    log_p = np.empty_like(logits)
    for row, out in zip(logits, log_p, strict=True):
        shifted = row.astype(np.float64) - row.max()
        out[:] = shifted - np.log(np.exp(shifted).sum())
    return log_p


def largest(a: np.ndarray, b: np.ndarray) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))


def at_tokens(values: np.ndarray, ids_of_texts: list[list[int]]) -> np.ndarray:
    """Of rows [sum of lengths, V], the entry of the token that follows each; texts' last rows are
    left out."""
    next_ids = np.array([following for ids in ids_of_texts for following in (*ids[1:], -1)])
    rows = np.flatnonzero(next_ids >= 0)
    return values[rows, next_ids[rows]]


if __name__ == "__main__":
    main()
