"""A process that has imported everything and done nothing. Each command of a test is a fork of it.

`python -m tests.e2e.nursery FOLDER`. A fork saves two seconds of imports (four with a tokenizer),
and ends without taking the interpreter down, which saves half of one. XLA reads its flags at its
first use, in the fork. Equal settings have equal base policies, and equal models layers of equal
sizes: the first command trains or measures, and the others of the session read FOLDER.

Requests arrive as lines of JSON, and each has a line of JSON for an answer:

    ["fork", folder, out, err, words, fit, report, environment]   the id of the process
    ["wait", id, seconds or null]         its exit code, or null where it has not ended by then
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import pickle
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # read by the imports below

import jaxlib.mlir.dialects.mhlo  # noqa: F401  (which jax loads at its first program)

import tests.e2e.few_draws  # noqa: F401  (first: others take the number as they are imported)

# isort: split
import isojax.cli.app
import isojax.launch.local.local_runner
import isojax.runs.loggers.tensorboard
import isojax.train.base_policy
import isojax.train.loop
from isojax.cli.app import LAUNCH, TRAIN, main_module
from isojax.cli.commands import launch_command, report_command, train_command  # noqa: F401
from isojax.core.config import CellConfig
from isojax.models import describe_sizes
from isojax.models.stack import Stack
from isojax.models.transformer import Decoder
from isojax.train import base_policy
from tests.compiler import keep_programs_of_each_process
from tests.e2e.time_limits import reach_at

with contextlib.suppress(ImportError):
    import transformers.models.llama.configuration_llama  # noqa: F401
    from transformers import AutoTokenizer, LlamaTokenizer  # noqa: F401

MAINS: Mapping[str, Callable[[], None]] = {
    "isojax.launch": partial(main_module, LAUNCH),
    "isojax.train": partial(main_module, TRAIN),
}


def read_or_make(folder: Path, kind: str, key: str, make: Callable[[], Any]) -> Any:
    """What an earlier command made of the same key, or else what this one makes."""
    path = folder / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()}"
    if not path.exists():
        written = path.with_suffix(f".{os.getpid()}")
        written.write_bytes(pickle.dumps(make()))
        written.rename(path)  # two commands may make the same at once
    return pickle.loads(path.read_bytes())


def keep_base_policies(folder: Path) -> None:
    """Equal settings train one base policy for all commands that follow."""
    train = base_policy.train_base_policy

    def read_or_train(cell: CellConfig, *others: Any) -> Any:
        settings = cell.model_dump(mode="json", include={"task", "model", "base", "sampling"})
        key = json.dumps([settings, os.environ.get("XLA_FLAGS")], sort_keys=True)
        return read_or_make(folder, "base", key, lambda: train(cell, *others))

    base_policy.train_base_policy = read_or_train


def keep_layer_sizes(folder: Path) -> None:
    """What a layer of a model keeps for its gradient is measured once: each plan would trace it
    twice. A layer that is not isojax's, as a test may write one, is always measured."""
    measure = describe_sizes.stack_sizes

    def read_or_measure(
        decoder: Decoder, stack: Stack, compute: str, platform: str, split: describe_sizes.Split
    ) -> describe_sizes.LayerSizes:
        def measure_now() -> describe_sizes.LayerSizes:
            return measure(decoder, stack, compute, platform, split)

        if not type(decoder.architecture).__module__.startswith("isojax."):
            return measure_now()

        model = decoder.config.model_dump(mode="json", exclude={"path"})
        question = [model, decoder.vocab, stack.name, compute, platform, repr(split)]
        key = json.dumps(question, sort_keys=True)
        return read_or_make(folder, "layer", key, measure_now)

    describe_sizes.stack_sizes = read_or_measure


def run(
    folder: str,
    out: str,
    err: str,
    words: list[str],
    fit: bool,
    report: bool,
    environment: Mapping[str, Any],
) -> Any:
    """In the fork: the command to its end, and its exit code.

    Fitting and drawing take most of a small sweep's time: where a test looks at neither, there is
    no fit and no report.
    """
    os.chdir(folder)
    for name, value in environment.items():
        if name == "file_bytes":  # what comes after so many bytes fails as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (value, resource.RLIM_INFINITY))
        elif name == "time_limit_at":
            reach_at(value)
        elif name.startswith("jax_"):  # jax has read its variables by now
            sys.modules["jax"].config.update(name, value)
        else:
            os.environ[name] = value

    if not report:
        report_command.draw_report = lambda folder, document: folder / "report.html"
    if not fit:
        report_command.fit_and_report = lambda folder, with_report: None

    for number, path in enumerate(("/dev/null", out, err)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)

    module = words[0] in MAINS
    sys.argv = ["isojax", *words[module:]]
    try:
        (MAINS[words[0]] if module else isojax.cli.app.main)()
    except SystemExit as e:
        return e.code
    except BaseException:
        traceback.print_exc()
    return 1


def fork(*request: Any) -> int:
    child = os.fork()
    if not child:
        code = run(*request)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return child


def wait(child: int, seconds: float | None) -> int | None:
    if seconds is None:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    last = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= last:
            return None
        time.sleep(0.01)


def main() -> None:
    warnings.filterwarnings("ignore", "os.fork")  # jax has started no thread before its first use
    gc.collect()
    gc.freeze()  # what is imported stays, and no fork looks through it
    gc.set_threshold(20_000, 20, 50)
    folder = Path(sys.argv[1])
    keep_base_policies(folder)
    keep_layer_sizes(folder)
    keep_programs_of_each_process()

    for line in sys.stdin:
        kind, *request = json.loads(line)
        answer = fork(*request) if kind == "fork" else wait(*request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
