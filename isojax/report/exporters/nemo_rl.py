"""NeMo-RL's config (by its examples/configs/grpo_math_1B.yaml; the package index has only a
placeholder).

num_prompts_per_step counts prompts and train_global_batch_size completions: with B = B_p n a step
is one update. Its dynamic sampling fills up a step, batch after batch, with groups whose rewards
are not all equal, and ends the run where so many batches do not fill it."""

from math import ceil

from isojax.core.config import Config
from isojax.core.yaml_files import yaml_text
from isojax.report.exporters import KEPT_GROUPS, dynamic_sampling, exporter, header_comments
from isojax.scaling.allocate.recommendation import Recommendation

HOW_TO_RUN = "uv run examples/run_grpo.py --config {file}"
DEFAULT_MAX_BATCHES = 10  # of the example config


@exporter(how_to_run=HOW_TO_RUN)
def render(recommendation: Recommendation, sweep_config: Config | None) -> str:
    """NeMo-RL's YAML config for the recommended run, with comments above it; with dynamic sampling
    where the measured runs had it. `sweep_config`: of these runs; None for imported logs."""
    allocation = recommendation.allocation
    sampling = dynamic_sampling(recommendation, sweep_config)

    grpo: dict[str, int | bool] = {
        "num_prompts_per_step": allocation.B_p,
        "num_generations_per_prompt": allocation.n,
        "max_num_steps": allocation.M,
        "max_num_epochs": allocation.M,  # an epoch is at least one update, so this is no limit
    }
    notes = [
        "Put this file into NeMo-RL's examples/configs, "
        "the folder of the example on which it builds."
    ]
    if sampling is not None:
        # Twice as many as isojax's recipe allows, or (where that is not known) as an update takes
        # on average: an update that is not full ends the run.
        max_batches = max(DEFAULT_MAX_BATCHES, 2 * (sampling.limit or ceil(sampling.batches)))
        grpo |= {
            "max_num_epochs": sampling.epochs(allocation.M),
            "use_dynamic_sampling": True,
            "batch_multiplier": 1,
            "dynamic_sampling_max_gen_batches": max_batches,
        }
        notes.append(
            f"NeMo-RL ends with an error where {max_batches} batches do not fill an update. "
            f"{KEPT_GROUPS}"
        )

    config = {
        "defaults": "grpo_math_1B.yaml",
        "grpo": grpo,
        "policy": {"train_global_batch_size": allocation.B},
    }
    rate_key = "policy.optimizer.kwargs.lr"
    header = header_comments(recommendation, sweep_config, rate_key, notes, HOW_TO_RUN)
    return header + yaml_text(config)
