"""The base policy and its problems, made once per sweep and kept in `base/`.

A checkpoint (`cell.model.path`) is read from its own folder. A task with demonstrations gets a policy trained on them,
`params.safetensors`. `problems.jsonl` holds the chosen problems with their split; it is written last, in one step.
`about.json` has the checksums of both, which are compared whenever the folder is read."""

import json
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial, reduce
from pathlib import Path
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh
from jaxtyping import Array
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from isojax.core.atomic_files import write_bytes, write_text
from isojax.core.config import PANEL, CellConfig, ModelConfig
from isojax.core.errors import InputError
from isojax.core.machine import cores
from isojax.core.nouns import Problem
from isojax.core.random_streams import LABEL_STREAM
from isojax.core.terminal import warn
from isojax.distributed import multiprocess
from isojax.models import safetensors_io
from isojax.models.hf import hf_load
from isojax.models.transformer import Decoder, Params
from isojax.tasks.difficulty import ProgressCallback, compute_label_key, label_problems, stored_label_key
from isojax.tasks.problem_selection import ProblemSelection, best_constant, select_problems
from isojax.tasks.protocol import DeviceTask, EncodedProblems, TokenizedProblems
from isojax.tasks.task import is_on_device
from isojax.train.checkpoint import CHECKSUM_KEY, json_checksum
from isojax.train.evaluate import VALIDATION_SET, Evaluator
from isojax.train.programs import SweepPrograms

PARAMS_FILE, ABOUT_FILE = "params.safetensors", "about.json"
PROBLEMS_FILE, LABELS_FILE = "problems.jsonl", "labels.jsonl"
EXTRA_PREFIX = "extra/"
WARMUP_STEPS = 60
GRADIENT_PIECES = 8  # a batch of demonstrations is split into so many pieces, which fit a processor's cache


@dataclass(frozen=True)
class BasePolicy:
    """The base policy, in `folder` or in the checkpoint `model.path`, and the problems of the sweep."""

    folder: Path
    model: ModelConfig
    training: list[Problem]
    validation: list[Problem]
    extra_sets: dict[str, list[Problem]]

    def load_params(self, decoder: Decoder, mesh: Mesh) -> Params:
        """Its parameters, sharded over the mesh; InputError where they cannot be read, or do not fit the decoder."""
        if self.model.path:
            return hf_load.load(Path(self.model.path), self.model, decoder, mesh)
        try:
            flat = load_file(self.folder / PARAMS_FILE)
        except (OSError, ValueError, SafetensorError) as e:
            raise _unreadable(self.folder, e) from e
        return jax.device_put(unflatten_dict(flat, sep="."), decoder.shardings(mesh))


def _unreadable(folder: Path, error: Exception) -> InputError:
    return InputError(
        f"the base policy in {folder} cannot be read ({error!r}); remove the folder and it is made again."
    )


def _damaged(folder: Path, name: str) -> InputError:
    return InputError(
        f"{folder / name} is damaged: its checksum is not that of what was saved. Put back a copy of it; or remove"
        f" {folder}, which is made again, and the cells that began from it."
    )


def sft_loss(decoder: Decoder, params: Params, demonstrations: EncodedProblems, eos: int) -> Array:
    """Mean negative log-likelihood of the answers' tokens, including their end token."""
    prompts, lengths, answers, _ = demonstrations
    tokens = jnp.concatenate([prompts, answers[:, :-1]], 1)  # demonstrations fill prompt_length exactly
    hidden = decoder.forward(params, tokens, jnp.zeros_like(lengths))[:, prompts.shape[1] - 1 :]
    log_probs = jax.nn.log_softmax(decoder.logits(params, hidden))
    token_logps = jnp.take_along_axis(log_probs, answers[..., None], -1)[..., 0]
    loss_mask = jnp.arange(answers.shape[1])[None] <= (answers == eos).argmax(1)[:, None]
    return -(token_logps * loss_mask).sum() / loss_mask.sum()


def train_base_policy(cell: CellConfig, decoder: Decoder, task: DeviceTask, on_progress: ProgressCallback) -> Params:
    """Supervised learning on the task's demonstrations, `base.steps` batches of `base.batch`: Muon for the matrices,
    Adam for the rest. On a CPU the cores share the pieces of a batch, whose gradients are added in a fixed order."""
    base_config, sampling = cell.base, cell.sampling
    learning_rate = optax.warmup_cosine_decay_schedule(
        0.0, base_config.learning_rate, WARMUP_STEPS, max(base_config.steps, WARMUP_STEPS + 1)
    )
    optimizer = optax.contrib.muon(learning_rate)
    pieces = GRADIENT_PIECES if base_config.batch % GRADIENT_PIECES == 0 else 1
    rng = np.random.default_rng(base_config.seed)

    def demonstrations() -> list[EncodedProblems]:
        batch = task.demonstrations(base_config.batch, rng, sampling.prompt_length, sampling.response_length)
        return [EncodedProblems(*part) for part in zip(*(np.split(x, pieces) for x in batch), strict=True)]

    @jax.jit
    def piece_gradient(params: Params, piece: EncodedProblems) -> tuple[Array, Params]:
        return jax.value_and_grad(lambda p: sft_loss(decoder, p, piece, task.eos))(params)

    @partial(jax.jit, donate_argnums=0)
    def add_gradients(total: tuple[Array, Params], piece: tuple[Array, Params]) -> tuple[Array, Params]:
        return jax.tree.map(jnp.add, total, piece)

    @partial(jax.jit, donate_argnums=(0, 1))
    def apply_gradient(
        params: Params, opt_state: optax.OptState, total: tuple[Array, Params]
    ) -> tuple[Params, optax.OptState, Array]:
        loss, gradient = jax.tree.map(lambda x: x / pieces, total)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return jax.tree.map(jnp.add, params, updates), opt_state, loss

    params = jax.jit(decoder.init)(jax.random.key(base_config.seed))
    opt_state = jax.jit(optimizer.init)(params)
    batch = demonstrations()
    with ThreadPoolExecutor(min(pieces, cores()) if jax.default_backend() == "cpu" else 1) as pool:
        for i in range(base_config.steps):
            piece_gradients = pool.map(
                lambda piece, params=params: jax.block_until_ready(piece_gradient(params, piece)), batch
            )
            batch = demonstrations()  # the next batch, while the threads compute
            params, opt_state, loss = apply_gradient(params, opt_state, reduce(add_gradients, piece_gradients))
            if i % 50 == 49:
                progress = f"base policy: step {i + 1} of {base_config.steps}, loss {float(loss):.3f}"
                on_progress(progress, (i + 1) / base_config.steps)
    return jax.device_get(params)


@dataclass(frozen=True)
class PolicyLabeller:
    """Labels problems by sampling a policy: the `Labeller` of tasks/difficulty.py."""

    evaluator: Evaluator
    params: Params
    problem_set: TokenizedProblems
    seed: int

    @property
    def problems_per_call(self) -> int:
        return self.evaluator.problems_per_call

    @property
    def samples_per_problem(self) -> int:
        return self.evaluator.samples_per_problem

    def sum_rewards(self, problem_indices: Sequence[int], repeats: int) -> Sequence[float]:
        """The sum of each problem's rewards."""
        block = self.problem_set.select(problem_indices)
        counts = self.evaluator.evaluate(
            self.params, block, seed=self.seed, evaluation=0, repeats=repeats, random_stream=LABEL_STREAM
        )
        return counts.reward_sums.tolist()


def prepare_base_policy(folder: Path, programs: SweepPrograms, on_progress: ProgressCallback) -> BasePolicy:
    """The base policy of a sweep and its problems: read from `folder`, or made and written there. InputError where
    problems of the wanted difficulty are too few, the checkpoint is not the sweep's, or the folder is damaged."""
    cell, task = programs.cell_config, programs.task
    fingerprint = safetensors_io.fingerprint(Path(cell.model.path)) if cell.model.path else ""
    if not multiprocess.run_on_primary((folder / PROBLEMS_FILE).exists):
        folder.mkdir(parents=True, exist_ok=True)
        if is_on_device(task) and not cell.model.path and multiprocess.is_primary():
            params = flatten_dict(train_base_policy(cell, programs.decoder, task, on_progress), sep=".")
            write_bytes(folder / PARAMS_FILE, save({name: np.ascontiguousarray(x) for name, x in params.items()}))
        multiprocess.barrier("the base policy is there")

        def label(problems: list[Problem]) -> list[Problem]:
            labels_path, label_key = folder / LABELS_FILE, compute_label_key(cell, fingerprint, problems)
            stored_key = stored_label_key(labels_path) if multiprocess.is_primary() else None
            if stored_key and stored_key != label_key:
                problem = "are of other settings or problems; they are made again"
                warn(f"the labels in {labels_path} {problem}")
                labels_path.unlink()
            params = BasePolicy(folder, cell.model, [], [], {}).load_params(programs.decoder, programs.mesh)
            programs.labeller.compile()
            labeller = PolicyLabeller(programs.labeller, params, programs.tokenize(problems), cell.data.seed)
            return label_problems(labels_path, label_key, problems, cell.data.attempts, labeller, on_progress)

        selection = select_problems(cell, task, label)
        if multiprocess.is_primary():
            for note in selection.notes:
                warn(note)
            with_constant = not is_on_device(task) and cell.reward.kind == "binary"
            _save_problems(folder, cell.model, selection, fingerprint, with_constant)
        multiprocess.barrier("the problems are chosen")
    return load_base_policy(folder, cell, fingerprint)


def _save_problems(
    folder: Path, model: ModelConfig, selection: ProblemSelection, fingerprint: str, with_constant: bool
) -> None:
    constant_answer = best_constant(selection.validation) if with_constant else None
    constant = dict(zip(("answer", "reward"), constant_answer, strict=True)) if constant_answer else None
    source = hf_load.read_source(Path(model.path)) if model.path else None
    problems_by_split = {
        "training": selection.training,
        "validation": selection.validation,
        "left out": selection.out_of_range,
        **{f"{EXTRA_PREFIX}{name}": problems for name, problems in selection.extra_sets.items()},
    }
    rows = [{**asdict(p), "split": split} for split, problems in problems_by_split.items() for p in problems]
    problems_text = "".join(json.dumps(row) + "\n" for row in rows)
    checksums = {PROBLEMS_FILE: crc32(problems_text.encode())}
    if (folder / PARAMS_FILE).exists():
        checksums[PARAMS_FILE] = crc32((folder / PARAMS_FILE).read_bytes())
    about = {
        "checkpoint": fingerprint, "source": source, "notes": selection.notes, "best_constant": constant,
        "checksums": checksums,
    }  # fmt: skip
    about_text = json.dumps(about | {CHECKSUM_KEY: json_checksum(about)}, indent=1)
    write_text(folder / ABOUT_FILE, about_text + "\n")
    write_text(folder / PROBLEMS_FILE, problems_text)


def load_base_policy(folder: Path, cell: CellConfig, fingerprint: str = "") -> BasePolicy:
    """The base policy kept in `folder`; InputError where the folder is damaged, or the checkpoint is no longer the one
    with this fingerprint."""
    problems_by_split: dict[str, list[Problem]] = defaultdict(list)
    try:
        about = json.loads((folder / ABOUT_FILE).read_bytes())
        if about.pop(CHECKSUM_KEY) != json_checksum(about):
            raise _damaged(folder, ABOUT_FILE)
        for name, checksum in about["checksums"].items():
            if crc32((folder / name).read_bytes()) != checksum:
                raise _damaged(folder, name)
        stored_fingerprint = about["checkpoint"]
        for line in (folder / PROBLEMS_FILE).read_text().splitlines():
            row = json.loads(line)
            split, messages = row.pop("split"), tuple(row["messages"])
            problems_by_split[split].append(Problem(**row | {"messages": messages}))
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise _unreadable(folder, e) from e
    if stored_fingerprint != fingerprint:
        raise InputError(
            f"cell.model.path: {cell.model.path} is not the checkpoint that {folder} was made with (fingerprint "
            f"{fingerprint!r}, expected {stored_fingerprint!r}); put that one back, or choose another name=NAME for a "
            "new run."
        )
    training, validation = problems_by_split["training"], problems_by_split["validation"]
    extra_sets = {
        split.removeprefix(EXTRA_PREFIX): problems
        for split, problems in problems_by_split.items()
        if split.startswith(EXTRA_PREFIX)
    }
    return BasePolicy(folder, cell.model, training, validation, extra_sets)


def eval_problem_sets(base_policy: BasePolicy, config: CellConfig) -> dict[str, list[Problem]]:
    """The problem sets that are evaluated, by name: the validation set, then the extra sets, then the panel, a
    random choice of the training problems."""
    order = np.random.default_rng([config.data.seed, 5]).permutation(len(base_policy.training))
    panel = [base_policy.training[i] for i in sorted(order[: config.eval.panel])]
    return {VALIDATION_SET: base_policy.validation, **base_policy.extra_sets, **({PANEL: panel} if panel else {})}
