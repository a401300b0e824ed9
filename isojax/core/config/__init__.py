"""What a user may set, as frozen pydantic models: YAML below dotted `key=value` overrides.

Three sections. `cell` decides a run's result and is hashed. `sweep` is the grid: it may grow, but a value in it never
changes once something has run. `run` says where and how to run and is not hashed: it changes no result.

load.py reads (`load_config`, `read_saved_config`) and writes (`save_config`) configs, and hashes a cell's settings.
Whatever is wrong with a file or an override is an InputError before any work. launch/resume.py says what a resumed
sweep may change.
"""

from isojax.core.config.data import PANEL, RESERVED_NAMES, DataConfig, PromptConfig, VerifierConfig
from isojax.core.config.load import (
    Config,
    config_hash,
    config_roots,
    find_config,
    load_config,
    load_configs,
    read_saved_config,
    save_config,
)
from isojax.core.config.model import FLOAT32_PRECISION, BasePolicyConfig, ModelConfig, PrecisionConfig, RopeScaling
from isojax.core.config.rl import CriticConfig, RLConfig
from isojax.core.config.run import ProcessGroupConfig, RunConfig
from isojax.core.config.sampling import InterruptConfig, SamplingConfig
from isojax.core.config.section import Section
from isojax.core.config.sweep import AUTOSIZED_SETTINGS, CellConfig, EvalConfig, SweepConfig

__all__ = [
    "AUTOSIZED_SETTINGS",
    "FLOAT32_PRECISION",
    "PANEL",
    "RESERVED_NAMES",
    "BasePolicyConfig",
    "CellConfig",
    "Config",
    "CriticConfig",
    "DataConfig",
    "EvalConfig",
    "InterruptConfig",
    "ModelConfig",
    "PrecisionConfig",
    "ProcessGroupConfig",
    "PromptConfig",
    "RLConfig",
    "RopeScaling",
    "RunConfig",
    "SamplingConfig",
    "Section",
    "SweepConfig",
    "VerifierConfig",
    "config_hash",
    "config_roots",
    "find_config",
    "load_config",
    "load_configs",
    "read_saved_config",
    "save_config",
]
