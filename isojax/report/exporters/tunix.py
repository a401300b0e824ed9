"""Tunix's overrides (checked with google-tunix 0.1: cli/grpo_main.py), on top of a config of yours.

Tunix counts batch_size and mini_batch_size in prompts; without a mini_batch_size a batch is one
update. It replaces rl_training_config as a whole, so that what stands in it (the optimizer,
max_steps) stays in your config."""

from isojax.core.config import Config
from isojax.core.yaml_files import yaml_text
from isojax.report.exporters import (
    exporter,
    header_comments,
    small_dataset_note,
    without_dynamic_sampling,
)
from isojax.scaling.allocate.recommendation import Recommendation

HOW_TO_RUN = "python -m tunix.cli.grpo_main BASE.yaml override_config_file={file}"


@exporter(how_to_run=HOW_TO_RUN)
def render(recommendation: Recommendation, sweep_config: Config | None) -> str:
    """Tunix's YAML overrides for the recommended run, with comments above them. `sweep_config`: of
    the measured runs; None for imported logs."""
    one_batch = without_dynamic_sampling(recommendation, sweep_config, "Tunix")
    recommendation = one_batch.recommendation
    allocation = recommendation.allocation

    overrides = {
        "batch_size": allocation.B_p,
        "num_batches": allocation.M,
        "grpo_config": {"num_generations": allocation.n, "num_iterations": 1},
    }
    notes = [
        *one_batch.notes,
        "In rl_training_config of BASE.yaml leave out mini_batch_size and max_steps, "
        f"or set them to {allocation.B_p} and {allocation.M}.",
        small_dataset_note(allocation, "num_train_epochs", "num_batches is D / B_p, and "),
    ]
    rate_key = "rl_training_config.actor_optimizer_config.learning_rate"
    header = header_comments(recommendation, sweep_config, rate_key, notes, HOW_TO_RUN)
    return header + yaml_text(overrides)
