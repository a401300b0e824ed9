"""MaxText's RL config (checked with maxtext 0.2.5: RLConfig, configs/post_train/rl.yml), which it
hands to Tunix.

batch_size counts prompts, and a batch is one update. A run takes num_batches batches, num_epoch
times."""

from isojax.core.config import Config
from isojax.core.yaml_files import yaml_text
from isojax.report.exporters import (
    exporter,
    header_comments,
    small_dataset_note,
    without_dynamic_sampling,
)
from isojax.scaling.allocate.recommendation import Recommendation

HOW_TO_RUN = (
    "python -m maxtext.trainers.post_train.rl.train_rl {file} model_name=... "
    "load_parameters_path=..."
)


@exporter(how_to_run=HOW_TO_RUN)
def render(recommendation: Recommendation, sweep_config: Config | None) -> str:
    """MaxText's YAML config for the recommended run, with comments above it. `sweep_config`: of the
    measured runs; None for imported logs."""
    one_batch = without_dynamic_sampling(recommendation, sweep_config, "MaxText")
    recommendation = one_batch.recommendation
    allocation = recommendation.allocation

    config = {
        "base_config": "rl.yml",
        "batch_size": allocation.B_p,
        "num_batches": allocation.M,
        "num_epoch": 1,
        "train_fraction": 1.0,
        "rl": {"num_generations": allocation.n, "num_iterations": 1},
    }
    notes = [
        *one_batch.notes,
        "Put this file into the folder of MaxText's rl.yml, on which it builds.",
        small_dataset_note(allocation, "num_epoch", "num_batches is D / B_p, and "),
    ]
    header = header_comments(recommendation, sweep_config, "learning_rate", notes, HOW_TO_RUN)
    return header + yaml_text(config)
