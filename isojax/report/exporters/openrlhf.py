"""OpenRLHF's arguments (checked with openrlhf 0.11: cli/train_ppo_ray.py), one on a line.

OpenRLHF counts rollout.batch_size in prompts and train.batch_size in completions: with B = B_p n,
and one epoch, every rollout is used once by the policy that drew it. It ends after max_samples
prompts of each episode, which its dynamic filtering takes one by one for groups that it
replaces."""

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.report.exporters import (
    KEPT_GROUPS,
    dynamic_sampling,
    exporter,
    header_comments,
    small_dataset_note,
)
from isojax.scaling.allocate.recommendation import Recommendation

HOW_TO_RUN = (
    "grep -v '^#' {file} | xargs python -m openrlhf.cli.train_ppo_ray "
    "--actor.model_name_or_path ..."
)


@exporter(how_to_run=HOW_TO_RUN)
def render(recommendation: Recommendation, sweep_config: Config | None) -> str:
    """OpenRLHF's arguments for the recommended run, one on a line, with comments above them; with
    dynamic filtering where the measured runs had dynamic sampling. InputError for n = 1, which
    OpenRLHF's group_norm refuses. `sweep_config`: of the measured runs; None for imported logs."""
    allocation = recommendation.allocation
    if allocation.n < 2:
        raise InputError(
            found=(
                f"n = {allocation.n} rollouts per problem; OpenRLHF's group_norm expects at least 2"
            ),
        )

    arguments = {
        "rollout.batch_size": allocation.B_p,
        "rollout.n_samples_per_prompt": allocation.n,
        "train.batch_size": allocation.B,
        "train.max_epochs": 1,
        "train.num_episodes": 1,
        "data.max_samples": allocation.C // allocation.n,
        "algo.advantage.estimator": "group_norm",
    }
    lines = [f"--{name} {value}\n" for name, value in arguments.items()]
    notes = [small_dataset_note(allocation, "train.num_episodes")]
    if dynamic_sampling(recommendation, sweep_config) is not None:
        lines.append("--algo.dynamic_filtering_enable\n")
        notes.append(
            f"OpenRLHF replaces groups whose mean reward is 0 or 1, one by one. {KEPT_GROUPS}"
        )
        notes.append("It needs reward.remote_url or train.agent_func_path for that.")

    header = header_comments(recommendation, sweep_config, "actor.adam.lr", notes, HOW_TO_RUN)
    return header + "".join(lines)
