"""TRL's GRPOConfig (checked with trl 1.16) as `trl grpo --config FILE` reads it.

TRL counts batches in completions: per_device_train_batch_size x gradient_accumulation_steps x
processes = B = B_p n. generation_batch_size = B draws exactly one update's rollouts, and
num_iterations = 1 uses each once."""

from collections.abc import Mapping

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.yaml_files import yaml_text
from isojax.report.exporters import (
    GrowingStage,
    exporter,
    growing_stages,
    header_comments,
    without_dynamic_sampling,
)
from isojax.scaling.allocate.recommendation import Recommendation

HOW_TO_RUN = (
    "trl grpo --config {file} --model_name_or_path ... --dataset_name ... --reward_funcs ..."
)
# the file names the model
HOW_TO_GO_ON = "trl grpo --config {file} --dataset_name ... --reward_funcs ..."
MAX_PER_DEVICE_BATCH = 8


def render_growing(
    recommendation: Recommendation, sweep_config: Config | None, name: str
) -> list[str]:
    """A series: each run begins with the weights that the one before has saved; Adam's averages
    begin from zero."""
    texts = []
    for stage in growing_stages(recommendation):
        folders = {"output_dir": f"{name}-{stage.number}"}
        if stage.number > 1:
            folders["model_name_or_path"] = f"{name}-{stage.number - 1}"
        texts.append(render(stage.recommendation, sweep_config, stage, folders))
    return texts


@exporter(how_to_run=HOW_TO_RUN, render_growing=render_growing, how_to_go_on=HOW_TO_GO_ON)
def render(
    recommendation: Recommendation,
    sweep_config: Config | None,
    stage: GrowingStage | None = None,
    folders: Mapping[str, str] | None = None,
) -> str:
    """TRL's arguments for the recommended run as YAML, with comments above them; InputError for
    n = 1, which TRL's GRPO refuses. `sweep_config`: of the measured runs; None for imported logs.
    For a run of a series (`render_growing`), `stage` is which one, and `folders` the arguments that
    name where it saves its weights and where it loads those of the run before."""
    one_batch = without_dynamic_sampling(recommendation, sweep_config, "TRL")
    recommendation = one_batch.recommendation
    allocation = recommendation.allocation
    if allocation.n < 2:
        raise InputError(
            found=(
                f"n = {allocation.n} rollouts per problem; TRL's GRPO expects at least 2, "
                "which it compares"
            ),
        )

    # the largest that divides B: gradient_accumulation_steps is a whole number
    microbatch = max(
        size for size in range(1, MAX_PER_DEVICE_BATCH + 1) if allocation.B % size == 0
    )
    arguments = {
        "num_generations": allocation.n,
        "per_device_train_batch_size": microbatch,
        "gradient_accumulation_steps": allocation.B // microbatch,
        "generation_batch_size": allocation.B,
        "num_iterations": 1,
        "max_steps": allocation.M,
        **(folders or {}),
    }

    how_to_run = HOW_TO_RUN if stage is None or stage.number == 1 else HOW_TO_GO_ON
    notes = [
        *one_batch.notes,
        "On G processes divide gradient_accumulation_steps by G: "
        f"an update takes {allocation.B} completions.",
    ]
    header = header_comments(
        recommendation, sweep_config, "learning_rate", notes, how_to_run, stage
    )
    return header + yaml_text(arguments)
