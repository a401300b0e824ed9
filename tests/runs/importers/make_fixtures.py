"""Write tests/logs/fixtures/ with the real writers: `python tests/runs/importers/make_fixtures.py
csv|names|tensorboard|wandb|wandb_resumed|verl|verl_console|trl`.

Each function needs the packages it imports, and none of them is needed by the tests (wandb and
tensorboardX, of the extra test, read). Made with torch 2.13.0, tensorboard 2.21.0, wandb 0.31.0,
trl 1.16.0 (transformers 5.23) and verl 0.9.1; in a fresh environment:

    pip install torch==2.13.0
    pip install tensorboard wandb trl orjson && pip install --no-deps verl

Of verl only utils/tracking.py and utils/logger/aggregate_logger.py are loaded, because importing
the package needs ray and more. Values are those of `accuracy` and `training_reward` below, which
tests/runs/importers/test_fixtures.py knows too, but for TRL, whose GRPOTrainer trains a random
model of 3,000 parameters for six updates and logs what it measures.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures"
STEPS, EVERY, B_P = 12, 3, 16


def accuracy(n: int, step: int) -> float:
    """Validation metric after a number of updates; the base policy's at 0."""
    return 0.2 + 0.05 * step**0.5 + 0.001 * n


def training_reward(n: int, step: int) -> float:
    """Mean training reward of an update."""
    return 0.1 + 0.01 * step + 0.001 * n


def metrics(n: int, step: int, names: tuple[str, str, str]) -> dict[str, float]:
    """What a trainer logs at a step: `names` are those of validation, training reward and mean
    response length."""
    validation, reward, length = names
    trained = {reward: training_reward(n, step), length: 100.0 + step} if step else {}
    return trained | ({validation: accuracy(n, step)} if step % EVERY == 0 else {})


VERL = ("val-core/openai/gsm8k/acc/mean@4", "critic/rewards/mean", "response_length/mean")
OWN = ("val/acc", "train/reward", "train/length")


def make_csv() -> None:
    """One file of several runs, as a plot's source data: no row of the base policy, n and B_p as
    columns, steps and rollouts.
    """
    with (FIXTURES / "runs.csv").open("w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["model", "n", "B_p", "step", "prompts", "rollouts", "reward_heldout"])
        for n in (4, 8, 16):
            for step in range(2, STEPS + 1):
                out.writerow(
                    ["base", n, B_P, step, step * B_P, step * B_P * n, round(accuracy(n, step), 5)]
                )


def make_names() -> None:
    """A pivot, whose columns are runs, and folders of each run with a file for training and one for
    validation."""
    steps = range(0, STEPS + 1, EVERY)
    runs = {f"n{n}-s{seed}": (n, seed) for n in (4, 8) for seed in (0, 1)}
    with (FIXTURES / "pivot.csv").open("w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["Step", *runs])
        for step in steps:
            out.writerow(
                [step, *(round(accuracy(n, step) + seed / 100, 5) for n, seed in runs.values())]
            )
    for n in (4, 8):
        folder = FIXTURES / "splits" / f"n{n}"
        folder.mkdir(parents=True, exist_ok=True)
        for split, metric in (("train", training_reward), ("validation", accuracy)):
            rows = [f"{step},{round(metric(n, step), 5)}\n" for step in steps]
            (folder / f"{split}.csv").write_text("step,acc\n" + "".join(rows))


def make_tensorboard() -> None:
    """torch's SummaryWriter: one run a folder."""
    from torch.utils.tensorboard import SummaryWriter

    for n in (8, 16):
        folder = _fresh("tensorboard", f"n{n}")
        with SummaryWriter(str(folder)) as writer:
            for step in range(STEPS + 1):
                for tag, value in metrics(n, step, OWN).items():
                    writer.add_scalar(tag, value, step)
        _rename_events(folder)


def make_wandb() -> None:
    """W&B offline: one run with settings of its own, one with verl's, logged by verl's Tracking."""
    import wandb

    folder = _fresh("wandb")
    with tempfile.TemporaryDirectory() as temp:
        _quiet_wandb(temp)
        run = wandb.init(
            project="isojax", name="own", config={"n": 8, "B_p": B_P, "optimizer": {"lr": 1e-6}}
        )
        for step in range(STEPS + 1):
            run.log(metrics(8, step, OWN), step=step)
        run.finish()
        config = {
            "data": {"train_batch_size": B_P},
            "actor_rollout_ref": {"rollout": {"n": 16}},
            "trainer": {"logger": ["wandb"]},
        }
        tracking = _verl_tracking()("isojax", "verl", ["wandb"], config)
        for step in range(STEPS + 1):
            tracking.log(metrics(16, step, VERL), step)
        tracking.finish()
        for name, file in zip(
            ("own", "verl"),
            sorted(Path(temp).glob("wandb/offline-run-*/run-*.wandb"), key=_started),
            strict=True,
        ):
            (folder / name).mkdir()
            shutil.copy(file, folder / name / f"run-{name}.wandb")


def make_wandb_resumed() -> None:
    """A folder of W&B's offline runs: one whole, one that broke off at step 10 and was resumed from
    the state of step 8 (it had measured .01 more at step 9), and one that broke off before its
    first step."""
    folder = _fresh("wandb_resumed")
    with tempfile.TemporaryDirectory() as temp:
        _quiet_wandb(temp)
        for name, n, steps, shift in (
            ("whole-n16", 16, range(STEPS + 1), 0.0),
            ("cut-n8", 8, range(11), 0.01),
            ("cut-n8", 8, range(9, STEPS + 1), 0.0),
            ("nothing-n4", 4, range(0), 0.0),
        ):
            if os.fork():
                os.wait()
            else:
                _log_to_wandb(name, n, steps, shift)
        for file in sorted(Path(temp).glob("wandb/offline-run-*/run-*.wandb")):
            (folder / file.parent.name).mkdir()
            shutil.copy(file, folder / file.parent.name / file.name)


def _log_to_wandb(name: str, n: int, steps: range, shift: float) -> None:
    """One process of a run: without a step it is killed, and before the last step it breaks off."""
    import wandb

    run = wandb.init(
        project="isojax", name=name, id=name.replace("-", ""), resume="allow", config={"B_p": B_P}
    )
    for step in steps:
        logged = metrics(n, step, OWN)
        run.log(
            {key: value + (shift if step >= 9 else 0.0) for key, value in logged.items()}, step=step
        )
    if steps:
        run.finish(exit_code=int(STEPS not in steps))
    os._exit(0)


def make_verl() -> None:
    """verl's Tracking with its loggers "file" and "tensorboard"."""
    shutil.rmtree(FIXTURES / "verl_tensorboard", ignore_errors=True)
    folder = _fresh("verl")
    for n in (8, 16):
        os.environ["VERL_FILE_LOGGER_PATH"] = str(folder / f"n{n}.jsonl")
        os.environ["TENSORBOARD_DIR"] = str(FIXTURES / "verl_tensorboard" / f"n{n}")
        tracking = _verl_tracking()("isojax", f"n{n}", ["file", "tensorboard"])
        for step in range(STEPS + 1):
            tracking.log(metrics(n, step, VERL), step)
        tracking.finish()
        _rename_events(FIXTURES / "verl_tensorboard" / f"n{n}")


def make_verl_console() -> None:
    """verl's console logger, behind its command line and the prefix that Ray gives a line of a
    worker."""
    folder = _fresh("verl_console")
    logger = _verl_module("utils", "logger", "aggregate_logger.py").LocalLogger()
    for n in (8, 16):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for step in range(STEPS + 1):
                logger.log(metrics(n, step, VERL), step)
        settings = (
            f"data.train_batch_size={B_P} actor_rollout_ref.rollout.n={n} "
            f"trainer.experiment_name=gsm8k-n{n}"
        )
        devices = "trainer.nnodes=1 trainer.n_gpus_per_node=8"
        with (folder / f"job-{n}.log").open("w") as f:
            f.write(f"++ python3 -m verl.trainer.main_ppo {settings} {devices}\n")
            f.writelines(
                f"\x1b[36m(TaskRunner pid=20910)\x1b[0m {line}\n"
                for line in printed.getvalue().splitlines()
            )


def make_trl() -> None:
    """TRL's GRPOTrainer on CPU: n = 4, 16 rollouts per update in two microbatches, evaluated at 0,
    2, 4 and 6."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    words = ["<pad>", "<eos>", *"0123456789+="]
    characters = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<eos>")
    )
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    shape = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
    }
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=len(words), eos_token_id=1, pad_token_id=0, **shape)
    )
    data = Dataset.from_dict({"prompt": [f"{i}+{j}=" for i in range(4) for j in range(4)]})
    batch = {
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "per_device_eval_batch_size": 8,
    }
    times = {
        "max_steps": 6,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "eval_on_start": True,
        "save_steps": 6,
    }
    folder = _fresh("trl")
    with tempfile.TemporaryDirectory() as temp:
        os.chdir(temp)  # the arguments are saved with the names of their folders
        args = GRPOConfig(
            output_dir="out",
            use_cpu=True,
            max_completion_length=4,
            report_to=["tensorboard"],
            **batch,
            **times,
        )

        def rewards(completions: list[str], **_: Any) -> list[float]:
            return [float("1" in c) for c in completions]

        trainer = GRPOTrainer(
            model,
            rewards,
            args,
            train_dataset=data,
            eval_dataset=data.select(range(8)),
            processing_class=tokenizer,
        )
        trainer.train()
        shutil.copytree(
            "out/checkpoint-6",
            folder / "checkpoint-6",
            ignore=lambda _, names: [n for n in names if n not in KEPT],
        )
        shutil.copytree(next(Path("out/runs").iterdir()), folder / "runs")
        os.chdir(FIXTURES)
    _rename_events(folder / "runs")


KEPT = ("trainer_state.json", "training_args.bin")


def _fresh(*parts: str) -> Path:
    folder = FIXTURES.joinpath(*parts)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _rename_events(folder: Path) -> None:
    """Event files are named by the clock and the machine."""
    for i, file in enumerate(sorted(folder.glob("events.out.tfevents.*"))):
        file.rename(folder / f"events.out.tfevents.{i}.fixture")


def _started(file: Path) -> float:
    return file.stat().st_ctime


def _quiet_wandb(folder: str) -> None:
    """Offline, and nothing recorded of the machine."""
    off = (
        "WANDB_DISABLE_GIT",
        "WANDB_DISABLE_CODE",
        "WANDB_SILENT",
        "WANDB_X_DISABLE_META",
        "WANDB_X_DISABLE_STATS",
        "WANDB_X_DISABLE_MACHINE_INFO",
    )
    os.environ |= {
        "WANDB_MODE": "offline",
        "WANDB_DIR": folder,
        "WANDB_CONSOLE": "off",
        "WANDB_HOST": "fixture",
        **dict.fromkeys(off, "true"),
    }


def _verl_tracking() -> Callable[..., object]:
    """verl.utils.tracking.Tracking, from its file alone."""
    return _verl_module("utils", "tracking.py").Tracking


def _verl_module(*parts: str) -> Any:
    """A module of verl, from its file alone."""
    package = importlib.util.find_spec("verl")
    assert package and package.origin
    spec = importlib.util.spec_from_file_location(
        "verl_module", Path(package.origin).parent.joinpath(*parts)
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[f"make_{name}"]()
