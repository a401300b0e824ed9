"""Settings that a task in text must state, as their defaults are the toy task's, and which suit its model and problems.

prompt_length     holds the prompts of 99% of the problems, a multiple of 16; at most half of the model's context
response_length   512, room to reason in, or what the prompts leave of the context
learning_rate     the paper's 1e-6 for 7B parameters at B = 1024, and with fewer parameters more, by the square root; by
                  the square root too at another cell.rl.lr_reference_batch
"""

import math

import numpy as np

from isojax.core.config import CellConfig, ModelConfig
from isojax.core.errors import InputError
from isojax.core.table_files import read_json_object
from isojax.tasks.task import TextTask

LENGTHS, LEARNING_RATE = ("cell.sampling.prompt_length", "cell.sampling.response_length"), "cell.rl.learning_rate"
MEASURED_PROBLEMS = 1000
PROMPT_QUANTILE, PROMPT_MULTIPLE = 0.99, 16
REASONING_TOKENS = 512
REFERENCE_RATE, REFERENCE_PARAMETERS, REFERENCE_BATCH = 1e-6, 7e9, 1024


def require_settings(cell: CellConfig, task: TextTask, *required: str) -> None:
    """InputError where one of the settings `required` is not set; it suggests values of all three that are not."""
    set_keys = {f"cell.sampling.{key}" for key in cell.sampling.model_fields_set}
    set_keys |= {f"cell.rl.{key}" for key in cell.rl.model_fields_set}
    if set_keys.issuperset(required):
        return
    problems = task.problems(min(MEASURED_PROBLEMS, cell.data.candidates), np.random.default_rng(0))
    lengths = task.prompt_lengths(problems)
    held_length = int(np.quantile(lengths, PROMPT_QUANTILE, method="higher"))
    context = read_json_object(task.folder / "config.json").get("max_position_embeddings")
    context = context if isinstance(context, int) and context > 1 else 2**31
    prompt_length = min(-(-held_length // PROMPT_MULTIPLE) * PROMPT_MULTIPLE, context // 2)
    rate = REFERENCE_RATE * math.sqrt(REFERENCE_PARAMETERS / parameter_count(cell.model, task.vocab))
    rate *= math.sqrt(cell.rl.lr_reference_batch / REFERENCE_BATCH)
    suggestions = {
        LENGTHS[0]: prompt_length,
        LENGTHS[1]: min(REASONING_TOKENS, context - prompt_length),
        LEARNING_RATE: f"{rate:.0e}",
    }
    unset = [f"{key}={value}" for key, value in suggestions.items() if key not in set_keys]
    raise InputError(
        f"{' and '.join(key for key in required if key not in set_keys)} must be set for cell.task = {cell.task}, which"
        f" is in text. For this model and these problems, begin with: {' '.join(unset)} (of {len(lengths)} prompts 99%"
        f" have at most {held_length} tokens, the longest {max(lengths)}; those longer than prompt_length are dropped;"
        f" short answers need a smaller response_length; `isojax lr-search` finds the learning rate)."
    )


def parameter_count(model: ModelConfig, vocab: int) -> int:
    """The weights of a model's matrices."""
    attention = 2 * model.width * model.head_dim * (model.heads + model.kv_heads)
    return (1 if model.tied else 2) * vocab * model.width + model.layers * (attention + 3 * model.width * model.mlp)
