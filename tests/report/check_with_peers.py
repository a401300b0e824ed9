"""Exported configs read by the real trainers. By hand, not in CI: the trainers bring gigabytes.

    python -m venv peers && peers/bin/pip install torch==2.13.0
    peers/bin/pip install trl hydra-core ray tensordict codetiming orjson pillow datasets pyarrow
    peers/bin/pip install --no-deps verl
    isojax recommend runs/quickstart --budget 5e5 --write trl.yaml --for trl --json > answer.json
    isojax recommend runs/quickstart --budget 5e5 --write verl.yaml --for verl
    peers/bin/pip install --no-deps openrlhf google-tunix
    peers/bin/python tests/report/check_with_peers.py answer.json \
        trl.yaml verl.yaml openrlhf.txt tunix.yaml

openrlhf.txt and tunix.yaml are written likewise, by --for openrlhf and --for tunix.

trl's parser and GRPOConfig read trl.yaml; verl's own entry point composes verl.yaml with its
defaults (`--cfg job`). It prints what they made of the files and fails where that is not the
recommended allocation.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def expect(what: str, given: Any, expected: Any) -> None:
    print(f"  {what} = {given}")
    if given != expected:
        sys.exit(f"{what} is {given}, expected {expected}")


def check_trl(path: Path, answer: dict[str, Any]) -> None:
    """Through the classes that `trl grpo` hands to its parser."""
    from trl import GRPOConfig, ModelConfig, TrlParser
    from trl.scripts.grpo import GRPOScriptArguments

    print(f"trl {version('trl')}")
    parser = TrlParser((GRPOScriptArguments, GRPOConfig, ModelConfig))
    # A CPU has no bfloat16 training, which GRPOConfig turns on by itself.
    arguments = [
        "--config",
        str(path),
        "--dataset_name",
        "none",
        "--bf16",
        "False",
        "--output_dir",
        "none",
    ]
    _, config, _, *rest = parser.parse_args_and_config(arguments, return_remaining_strings=True)
    expect("unknown arguments", rest, [[]])
    expect("num_generations", config.num_generations, answer["n"])
    used = (
        config.per_device_train_batch_size * config.world_size * config.gradient_accumulation_steps
    )
    expect("completions an update", used, answer["B"])
    expect("generation_batch_size", config.generation_batch_size, answer["B"])
    # on-policy
    expect("steps_per_generation", config.steps_per_generation, config.gradient_accumulation_steps)
    expect("num_iterations", config.num_iterations, 1)
    expect("max_steps", config.max_steps, answer["M"])


def check_verl(path: Path, answer: dict[str, Any]) -> None:
    """Through `python -m verl.trainer.main_ppo`, which prints the composed config and stops."""
    import yaml

    print(f"verl {version('verl')}")
    command = [
        sys.executable,
        "-m",
        "verl.trainer.main_ppo",
        f"--config-dir={path.parent.resolve()}",
        f"--config-name={path.stem}",
    ]
    done = subprocess.run(
        [*command, "--cfg", "job", "--resolve"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    config = yaml.safe_load(done.stdout)
    actor = config["actor_rollout_ref"]["actor"]
    rollout = config["actor_rollout_ref"]["rollout"]
    expect("data.train_batch_size", config["data"]["train_batch_size"], answer["B_p"])
    expect("actor_rollout_ref.rollout.n", rollout["n"], answer["n"])
    expect("actor_rollout_ref.actor.rollout_n", actor["rollout_n"], answer["n"])
    expect(
        "actor_rollout_ref.actor.ppo_mini_batch_size", actor["ppo_mini_batch_size"], answer["B_p"]
    )
    expect("actor_rollout_ref.actor.ppo_epochs", actor["ppo_epochs"], 1)
    expect("algorithm.adv_estimator", config["algorithm"]["adv_estimator"], "grpo")
    expect("trainer.total_training_steps", config["trainer"]["total_training_steps"], answer["M"])
    if "batches" in answer:  # of a sweep with dynamic sampling
        filter_groups = config["algorithm"]["filter_groups"]
        expect("algorithm.filter_groups.enable", filter_groups["enable"], True)
        expect("data.gen_batch_size", config["data"]["gen_batch_size"], answer["B_p"])
        expect(
            "trainer.total_epochs",
            config["trainer"]["total_epochs"] >= answer["M"] * answer["batches"],
            True,
        )
    else:
        expect("trainer.total_epochs", config["trainer"]["total_epochs"], answer["M"])
    expect("defaults kept (data.prompt_key)", config["data"]["prompt_key"], "prompt")


def module_file(package: str, *parts: str) -> Path:
    """A file of an installed package, which is read and not imported: these trainers need GPUs or
    more packages."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]).joinpath(*parts)


def check_openrlhf(path: Path, answer: dict[str, Any]) -> None:
    """Its parser knows every argument."""
    lines = [line[2:] for line in path.read_text().splitlines() if line.startswith("--")]
    given = {name: value for name, _, value in (line.partition(" ") for line in lines)}
    text = module_file("openrlhf", "cli", "train_ppo_ray.py").read_text()
    for name in given:
        expect(f"--{name} is an argument", f'"--{name}"' in text, True)
    expect("prompts, rollouts", [int(given["rollout.batch_size"]), int(given["train.batch_size"])],
           [answer["B_p"], answer["B"]])  # fmt: skip


def check_tunix(path: Path, answer: dict[str, Any]) -> None:
    """Its pipeline reads the keys, and GRPOConfig has the fields."""
    import yaml

    given = yaml.safe_load(path.read_text())
    pipeline = module_file("tunix", "cli", "grpo_main.py").read_text()
    config = module_file("tunix", "rl", "grpo", "grpo_learner.py").read_text()
    for name in given:
        expect(f"{name} is read", f'"{name}"' in pipeline, True)
    for name in given["grpo_config"]:
        expect(
            f"{name} is a field", re.search(rf"^  {name}: ", config, re.MULTILINE) is not None, True
        )
    expect(
        "batch_size, num_batches",
        [given["batch_size"], given["num_batches"]],
        [answer["B_p"], answer["M"]],
    )


CHECKS = {"trl": check_trl, "verl": check_verl, "openrlhf": check_openrlhf, "tunix": check_tunix}

if __name__ == "__main__":
    answer_file, *configs = map(Path, sys.argv[1:])
    wanted = json.loads(answer_file.read_text())
    for config in configs:  # each is named after its trainer
        CHECKS[config.stem](config, wanted)
