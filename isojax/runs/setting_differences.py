"""Which settings make two runs different, by the config.yaml of their sweeps."""

from pathlib import Path
from typing import Any

from isojax.core.config import Config, config_hash, deciding_settings, load_config
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.core.yaml_files import flatten

CONFIG_FILE = "config.yaml"
MAX_NAMED = 5  # settings in a sentence


def describe_difference(a: RunRecord, b: RunRecord) -> str:
    """The settings that differ, as "cell.rl.kl (0.0 and 0.1)"; "" where a run's are not known."""
    settings_a = _settings_of_run(a)
    settings_b = _settings_of_run(b)
    if settings_a is None or settings_b is None:
        return ""

    config = Config().model_dump(mode="json")
    defaults = dict(flatten({"cell": config["cell"], "run": config["run"]}))
    defaults["run.evaluations"] = Config().run.evaluations  # a property, which no dump has

    texts = []
    for name in sorted(settings_a.keys() | settings_b.keys()):
        default = defaults.get(name, "not set")
        values = [settings.get(name, default) for settings in (settings_a, settings_b)]
        if values[0] != values[1]:
            texts.append(f"{name} ({values[0]} and {values[1]})")
    named = ", ".join(texts[:MAX_NAMED])
    return f"{named}, and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else named


def _settings_of_run(run: RunRecord) -> dict[str, Any] | None:
    """The settings that decide a run's result and are off their defaults, by dotted name.

    None where the config of the run's sweep is not there, or not that of this run.
    """
    # runs/NAME/cells/8x4-s0/records.jsonl
    parents = Path(run.source).absolute().parents
    if not run.source or len(parents) < 3 or not (parents[2] / CONFIG_FILE).is_file():
        return None

    try:
        config = load_config(str(parents[2] / CONFIG_FILE))
    except InputError:
        return None  # of another version, say; the caller then names the hashes
    engines = (config.run.rollouts, config.run.evaluations)
    if config_hash(config.cell, *engines) != run.cell_hash:
        return None  # not the config that this run was made with
    return deciding_settings(config.cell, *engines)
