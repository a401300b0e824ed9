"""What a user may set, as frozen pydantic models: YAML below dotted `key=value` overrides. No jax here.

Three sections. `cell` decides a run's result and is hashed. `sweep` is the grid: it may grow, but a value in it never changes once
something has run. `run` says where and how to run and is not hashed: it changes no result.

Below the models: reading (`load_config`, `read_saved`), writing (`save_config`), and the hash of a cell's settings. Whatever is wrong with
a file or an override is an InputError before any work. What a resumed sweep may change stands in launch/resume.py.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_validator
from pydantic_core import PydanticCustomError

from isojax.config_rl import FIRST_CLIP, FIRST_LOSS, FIRST_RECIPE, RLConfig
from isojax.files import load_yaml, write_yaml
from isojax.section import Fraction, Section
from isojax.types import InputError

PANEL = "panel"  # the name of the training problems that every evaluation includes
RESERVED_NAMES = ("train", "verl", PANEL)  # what opens a metric's name and is no set of a user's


class RopeScaling(Section):
    """Llama 3's stretched rotary positions (`rope_type: llama3` of a config.json), for contexts beyond the original one."""

    factor: PositiveFloat = 8.0
    low_freq_factor: PositiveFloat = 1.0
    high_freq_factor: PositiveFloat = 4.0
    original_max_position_embeddings: PositiveInt = 8192


class ModelConfig(Section):
    """The policy's shape. `family` names a file in isojax/models/.

    `path`: a folder with config.json, *.safetensors and a tokenizer, as a hub gives it; the shape is then read from its config.json, and
    what is set here must agree with it. `vocab`: rows of the embedding; null takes the task's own vocabulary.
    """

    family: str = "tiny"
    path: str | None = None
    layers: PositiveInt = 3
    width: PositiveInt = 64
    heads: PositiveInt = 4
    kv_heads: PositiveInt = 2
    head_dim: PositiveInt = 16
    mlp: PositiveInt = 128
    vocab: PositiveInt | None = None
    norm_eps: PositiveFloat = 1e-6
    rope_base: PositiveFloat = 10_000.0
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False


class BasePolicyConfig(Section):
    """How the base policy is made where a task brings its own: supervised learning on the task's demonstrations."""

    steps: PositiveInt = 1500
    batch: PositiveInt = 512
    learning_rate: PositiveFloat = 2e-2
    seed: int = Field(default=0, ge=0, le=2**31 - 1)


class DataConfig(Section):
    """Which problems a run trains and validates on.

    At most `candidates` problems are labelled by the base policy's avg@`attempts` (0: none are, and none are left out); those inside
    `difficulty` (both ends included) are split into `validation` held-out problems and the rest for training. `held_out`: a task string
    of which `validation` problems, a random choice, are held out instead. `mixture`: the parts of a labelled data set (`isojax
    difficulty`) and their shares of the training set, such as {hard: 0.5, easy: 0.5}; the held-out problems of the part with the largest
    share validate (of equal shares, of the first by name). `size`: D, how many problems to train on at most. `prompt_key`, `answer_key`:
    columns of a file; null finds the usual names.
    """

    candidates: PositiveInt = 6000
    attempts: Annotated[int, Field(ge=0)] = 16
    difficulty: tuple[Fraction, Fraction] = (0.0, 0.61)
    validation: PositiveInt = 300
    held_out: str | None = None
    mixture: dict[str, PositiveFloat] | None = None
    size: PositiveInt | None = None
    prompt_key: str | None = None
    answer_key: str | None = None
    seed: int = Field(default=0, ge=0, le=2**31 - 1)


class PromptConfig(Section):
    """How a problem becomes text for a language model.

    raw: `template` with the problem in the place of {prompt}. chat: the same as a user's message, after `system` where there is one,
    through the tokenizer's chat template; `thinking` is passed to templates that know it (Qwen3). `stop`: strings that end a response.
    """

    format: Literal["raw", "chat"] = "raw"
    template: str = "{prompt}"
    system: str = ""
    thinking: bool | None = None
    stop: tuple[str, ...] = ()


class VerifierConfig(Section):
    """How a response in text is judged right or wrong.

    `use` names a file in isojax/tasks/verifiers/, with an argument after a colon where it takes one (`function:rewards.py:my_reward`).
    A check that takes over `timeout` seconds or `memory_gb`, or ends its process, costs its own rollout alone: reward 0, and counted.
    """

    use: str = "math"
    timeout: PositiveFloat = 5.0
    memory_gb: PositiveFloat = 4.0


class InterruptConfig(Section):
    """What is said to a response that goes on for too long; the default text is ScaleRL's (arXiv:2510.13786).

    A response that has `after` tokens and has not met the token `unless` (empty: every one) gets the tokens of `text`, and goes on from
    there. They count as the response's for the verifier and for its length, never in the loss.
    """

    after: PositiveInt
    text: Annotated[str, Field(min_length=1)] = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"
    unless: str = "</think>"


class SamplingConfig(Section):
    """How rollouts are drawn: P prompt positions, T response positions, temperature, and the probability mass of the nucleus (top-p)."""

    prompt_length: PositiveInt = 6
    response_length: PositiveInt = 4
    temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    interrupt: InterruptConfig | None = None


class PrecisionConfig(Section):
    """Of what is computed: products in `compute`, keys and values of the sampler's cache in `cache`; auto: float32 on a CPU and bfloat16
    elsewhere, and the cache as `compute`. Parameters, Adam's moments, softmax, log-probabilities and sums are float32 always.
    """

    compute: Literal["auto", "float32", "bfloat16"] = "auto"
    cache: Literal["auto", "float32", "bfloat16", "int8"] = "auto"

    def for_platform(self, platform: str) -> PrecisionConfig:
        """With `auto` decided for a platform: cpu, gpu or tpu."""
        default_dtype: Literal["float32", "bfloat16"] = "float32" if platform == "cpu" else "bfloat16"
        compute = default_dtype if self.compute == "auto" else self.compute
        return PrecisionConfig(compute=compute, cache=compute if self.cache == "auto" else self.cache)


FLOAT32_PRECISION = PrecisionConfig(compute="float32", cache="float32")


class EvalConfig(Section):
    """Validation by avg@`samples` at the first update reaching each C in start * ratio^k, and of the base policy at C = 0.

    `extra`: more problem sets to evaluate on, by name: task strings such as {hard: "tfds:splits#hard_validation"}; their metrics are
    called hard/avg@4 and so on.
    `panel`: at most so many training problems, the same for all cells, are evaluated each time too; of these the right answers are
    recorded, which show how training moves single problems (the paper's Figs. 11 and 27).
    """

    samples: PositiveInt = 4
    extra: dict[str, str] = Field(default_factory=dict)
    panel: int = Field(default=0, ge=0)
    start: Annotated[float, Field(ge=1)] = 1024
    ratio: Annotated[float, Field(gt=1)] = 1.3

    @field_validator("extra")
    @classmethod
    def _check_set_names(cls, extra: dict[str, str]) -> dict[str, str]:
        bad_name = next((name for name in extra if name in RESERVED_NAMES or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)), None)
        if bad_name is not None:
            rule = f"names of letters, digits, '.', '_' and '-', other than {', '.join(RESERVED_NAMES)}. Rename the set {bad_name!r}"
            raise PydanticCustomError("set_name", "{rule}", {"rule": rule})
        return extra

    def evaluation_targets(self, budget: int) -> list[int]:
        """The values of C at which a run is evaluated: 0 (the base policy), then every distinct ceil(start * ratio^k) within the budget.

        start and ratio are fixed, so a larger budget only appends. A run ends at the last of them.

        Raises:
            InputError: the budget is below the first evaluation.
        """
        if budget < self.start:
            raise InputError(
                f"sweep.budget = {budget} rollouts is below the first evaluation, cell.eval.start = {self.start}; raise it, or lower that."
            )
        targets, k = [0], 0
        while (target := math.ceil(round(self.start * self.ratio**k, 6))) <= budget:
            if target != targets[-1]:
                targets.append(target)
            k += 1
        return targets


class CellConfig(Section):
    """Everything that decides what a run of given (B_p, n, seed) measures. Hashed."""

    task: str = "solvers"
    model: ModelConfig = ModelConfig()
    base: BasePolicyConfig = BasePolicyConfig()
    data: DataConfig = DataConfig()
    prompt: PromptConfig = PromptConfig()
    verifier: VerifierConfig = VerifierConfig()
    sampling: SamplingConfig = SamplingConfig()
    precision: PrecisionConfig = PrecisionConfig()
    rl: RLConfig = RLConfig()
    eval: EvalConfig = EvalConfig()


class SweepConfig(Section):
    """The grid of (B_p, n), its seeds and the budget C of each cell.

    Cell seeds are 1000 * seed + 0, 1, ... `slots` (R) and `microbatch` (m) are rollouts a shard, `prompts` (g) how many problems it
    prefills at once, `slots_per_prefix` (W) how many slots share one prompt's keys and values, which pays for long prompts. `decode_attention`
    and `forward_attention`: plain, or a kernel of this backend (pallas on a TPU, cudnn on an NVIDIA GPU). Null lets the planner choose,
    the kernels by measurement, once; the choice is stored with the run. `remat`: layer computes a layer's inner values again for its
    gradient, which takes less memory and more time.
    `over_B_max` says what happens to a pair with B_p * n > B_max: refuse the sweep, or leave the pair out.
    `strategy`: grid runs every cell to `budget`; frontier spends `rollouts` in all (null: half of what the grid takes) where n*(C) is
    least certain.
    """

    B_p: tuple[PositiveInt, ...] = (16,)
    n: tuple[PositiveInt, ...] = (2, 4, 8, 16, 32)
    B_max: PositiveInt = 1024
    over_B_max: Literal["refuse", "drop"] = "refuse"
    seeds: Annotated[int, Field(ge=1, le=1000)] = 1
    seed: int = Field(default=0, ge=0, le=2_000_000)
    budget: PositiveInt = 250_000
    decode_slots: PositiveInt | None = None
    microbatch: PositiveInt | None = None
    prefill_batch: PositiveInt | None = None
    slots_per_prefix: PositiveInt | None = None
    decode_attention: Literal["plain", "pallas", "cudnn"] | None = None
    forward_attention: Literal["plain", "pallas", "cudnn"] | None = None
    remat: Literal["none", "layer"] = "none"
    strategy: Literal["grid", "frontier"] = "grid"
    total_rollouts: PositiveInt | None = None


AUTOSIZED_SETTINGS = ("slots", "microbatch", "prompts", "slots_per_prefix", "decode_attention", "forward_attention")
"""Settings of a sweep that are chosen once, where they are null, and stored with it."""


class ProcessGroupConfig(Section):
    """The processes that are one cell's run on a Ray cluster, placed together or not at all.

    `processes`: how many, each on a node of its own where there are enough; null: as few as hold the mesh's devices. `tpu`: they are the
    hosts of a TPU slice, such as v5e:4x4 (of `slices` slices). `gpus`: GPUs of a process; `cpus`: cores; null: what the mesh takes.
    `resources` and `labels`: what else a process's node must have, by Ray's names. `share`: cells on one accelerator at a time.
    `retries`: how often a cell is begun again, after its gang has died, without getting further.
    """

    processes: PositiveInt | None = None
    tpu: str | None = None
    slices: PositiveInt = 1
    gpus: PositiveInt | None = None
    cpus: PositiveFloat | None = None
    resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    share: PositiveInt = 1
    retries: NonNegativeInt = 3


class RunConfig(Section):
    """Where and how to run; changes no result (but for rounding, where a half-done cell goes on with another mesh, and for how far a
    pipeline runs ahead, where its sampler has devices of its own).

    `dir`: the folder that holds runs, or a URL of one (gs://bucket/runs: docs/hosts.md).
    `sampler_mesh`: devices of its own for the sampler of a pipeline, beside those of `mesh`; null: they take turns on the same ones.
    `sampler_process`: the sampler is a process of its own, which simulates `sampler_mesh` (null: one device); on a CPU.
    `cells_at_once`: null runs as many cells side by side as the mesh fits into the devices. `checkpoint_seconds`: a cell's state is
    saved after the first update after this long, at its end, and when the run is told to end (SIGTERM); the newest `keep_checkpoints`
    are kept. `verifier_workers`: processes that check responses; null takes one for each core. `device_memory`: GB that a
    device has, of which the planner may fill 85%; null asks the accelerator, and on a CPU shares what the machine (or its cgroup) has among
    the devices at work. `ray`: run the cells on a Ray cluster (local, auto or its address), each by a gang of processes.
    `loggers`: where the curves of each cell go beside its ledger: tensorboard, wandb, or a module of your own; [] for nowhere.
    """

    dir: str = "runs"
    mesh: str = "auto"
    sampler_mesh: str | None = None
    sampler_process: bool = False
    cells_at_once: PositiveInt | None = None
    verifier_workers: PositiveInt | None = None
    checkpoint_seconds: NonNegativeFloat = 60.0
    keep_checkpoints: PositiveInt = 2
    device_memory: PositiveFloat | None = None
    compilation_cache: bool = True
    ray: str | None = None
    gang: ProcessGroupConfig = ProcessGroupConfig()
    loggers: tuple[str, ...] = ("tensorboard",)


class Config(Section):
    """One sweep: its name and three sections."""

    name: str = Field(default="quickstart", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    cell: CellConfig = CellConfig()
    sweep: SweepConfig = SweepConfig()
    run: RunConfig = RunConfig()


def config_roots() -> list[Path]:
    """Folders that hold named configs: ./configs, then the ones isojax came with (packaged, or the repository's)."""
    package = Path(__file__).resolve().parent
    return [Path("configs"), package / "configs" if (package / "configs").is_dir() else package.parent / "configs"]


def find_config(name_or_path: str) -> Path:
    """The YAML file meant by a path or a name: `quickstart`, `hard.yaml`, `../mine.yaml`."""
    if Path(name_or_path).is_file():
        return Path(name_or_path)
    for root in config_roots():
        for path in (root / name_or_path, root / f"{name_or_path}.yaml"):
            if path.is_file():
                return path
    names = sorted({p.relative_to(root).with_suffix("").as_posix() for root in config_roots() for p in root.rglob("*.yaml")})
    suggestions = difflib.get_close_matches(name_or_path, names, n=1)
    hint = f"Did you mean {suggestions[0]!r}?" if suggestions else f"Known names: {', '.join(names) or 'none'}."
    raise InputError(
        f"no such config: given {name_or_path!r}, expected a YAML file's path or a name in {' or '.join(map(str, config_roots()))}. {hint}"
    )


def load_config(name_or_path: str, overrides: Sequence[str] = ()) -> Config:
    """The config a name or path means, below dotted overrides such as "sweep.n=[2,4]".

    Raises:
        InputError: no such file, broken YAML, an unknown key or a wrong type.
    """
    return load_configs([name_or_path], overrides)


def load_configs(names_or_paths: Sequence[str], overrides: Sequence[str] = ()) -> Config:
    """Several configs in one, each over those before it: `gsm8k`, then `models/qwen2.5-7b-instruct`; raises as `load_config`."""
    return load_yaml(Config, [find_config(name) for name in names_or_paths], overrides)


def config_hash(cell: CellConfig) -> str:
    """12 hex digits that name the settings deciding a cell's result. What cells did before they could choose (float32; a recipe's later
    settings at their defaults; no panel; no interruption) counts as no setting, so that their records stay theirs."""
    settings = cell.model_dump(mode="json")
    if cell.precision == FLOAT32_PRECISION:
        del settings["precision"]
    default_rl = RLConfig().model_dump(mode="json")
    settings["rl"] = {k: v for k, v in settings["rl"].items() if k in FIRST_RECIPE or v != default_rl[k]}
    if cell.rl.clip is None and cell.rl.loss == FIRST_LOSS:
        settings["rl"]["clip"] = FIRST_CLIP
    if not cell.eval.panel:
        del settings["eval"]["panel"]
    if cell.sampling.interrupt is None:
        del settings["sampling"]["interrupt"]
    return hashlib.sha256(json.dumps(settings, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:12]


def save_config(config: Config, path: Path) -> None:
    """The resolved config as YAML, which `read_saved` and `load_config` read back equal."""
    write_yaml(path, config.model_dump(mode="json"))


def read_saved_config(path: Path) -> Config:
    """A config written by `save_config`; one from before there was a choice of precision was run in float32."""
    config = load_yaml(Config, [path], ())
    if "precision" not in config.cell.model_fields_set:
        config = config.model_copy(update={"cell": config.cell.model_copy(update={"precision": FLOAT32_PRECISION})})
    return config
