"""What a user may set, as pydantic models: `cell` decides a result, `sweep` is the grid, `run`
where and how to run."""

from isojax.core.config.data import PANEL, DataConfig, PromptConfig, RewardConfig, VerifierConfig
from isojax.core.config.load import (
    Config,
    config_hash,
    config_names,
    deciding_settings,
    load_config,
    save_config,
)
from isojax.core.config.model import (
    InterruptConfig,
    ModelConfig,
    PrecisionConfig,
    RopeScaling,
    SamplingConfig,
)
from isojax.core.config.rl import CriticConfig, RLConfig
from isojax.core.config.sweep import (
    AUTOSIZED_SETTINGS,
    WHOLE_GRID,
    CellConfig,
    EvalConfig,
    SweepConfig,
)
