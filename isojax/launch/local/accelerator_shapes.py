"""What `isojax accelerator` measures where no config is given: shapes of published models."""

from typing import NamedTuple

LENGTHS = (
    "cell.sampling.prompt_length=256",
    "cell.sampling.response_length=512",
    "sweep.B_p=[16]",
    "sweep.n=[16]",
    "sweep.decode_slots=128",
)


class MeasuredShape(NamedTuple):
    """A model's shape and a batch, as settings."""

    name: str
    min_gib: int  # of the device's memory
    settings: tuple[str, ...]


SHAPES = (
    MeasuredShape(
        "Qwen3-1.7B",
        60,
        (
            "cell.model.family=qwen3",
            "cell.model.layers=28",
            "cell.model.width=2048",
            "cell.model.heads=16",
            "cell.model.kv_heads=8",
            "cell.model.head_dim=128",
            "cell.model.mlp=6144",
            "cell.model.vocab=151936",
            "cell.model.tied=true",
            "cell.model.qk_norm=true",
            *LENGTHS,
        ),
    ),
    MeasuredShape(
        "Qwen2.5-0.5B",
        14,
        (
            "cell.model.family=qwen2",
            "cell.model.layers=24",
            "cell.model.width=896",
            "cell.model.heads=14",
            "cell.model.kv_heads=2",
            "cell.model.head_dim=64",
            "cell.model.mlp=4864",
            "cell.model.vocab=151936",
            "cell.model.tied=true",
            "cell.model.qkv_bias=true",
            *LENGTHS,
        ),
    ),
    MeasuredShape(
        "small",
        0,
        (
            "cell.model.layers=2",
            "cell.model.width=128",
            "cell.model.heads=4",
            "cell.model.kv_heads=2",
            "cell.model.head_dim=32",
            "cell.model.mlp=512",
            "cell.model.vocab=1024",
            "cell.sampling.prompt_length=32",
            # Of one width of microbatches (`bucket_widths`): a CPU spends the time on compiling.
            "cell.sampling.response_length=24",
            "sweep.B_p=[4]",
            "sweep.n=[8]",
            "sweep.decode_slots=16",
        ),
    ),
)
COMMON_SETTINGS = (
    "cell.task=jsonl:none",
    "cell.rl.kl=0",
    "cell.rl.entropy=0",
    "cell.rl.learning_rate=1e-6",
)


def largest_shape(gib: float) -> MeasuredShape:
    """The largest shape for a device of so much memory; 0 of a CPU."""
    return next(shape for shape in SHAPES if gib >= shape.min_gib)
