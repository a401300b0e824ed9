"""NeMo-RL's config (by its examples/configs/grpo_math_1B.yaml; the package index has only a
placeholder).

num_prompts_per_step counts prompts and train_global_batch_size completions: with B = B_p n a step
is one update."""

from isojax.core.config import Config
from isojax.core.nouns import Recommendation
from isojax.core.yaml_files import yaml_text
from isojax.runs.exporters import exporter, header_comments

HOW_TO_RUN = "uv run examples/run_grpo.py --config {file}"


@exporter(how_to_run=HOW_TO_RUN)
def render(recommendation: Recommendation, sweep_config: Config | None) -> str:
    allocation = recommendation.allocation
    config = {
        "defaults": "grpo_math_1B.yaml",
        "grpo": {
            "num_prompts_per_step": allocation.B_p,
            "num_generations_per_prompt": allocation.n,
            "max_num_steps": allocation.M,
            "max_num_epochs": allocation.M,
        },
        "policy": {"train_global_batch_size": allocation.B},
    }
    notes = [
        "Put this file into NeMo-RL's examples/configs, the folder of the example on which it builds."
    ]
    rate_key = "policy.optimizer.kwargs.lr"
    return header_comments(recommendation, sweep_config, rate_key, notes, HOW_TO_RUN) + yaml_text(
        config
    )
