"""Configs read from YAML below dotted overrides, written, and hashed."""

import difflib
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from isojax.core.atomic_files import write_text
from isojax.core.config.section import Section, Text
from isojax.core.config.sweep import LOCAL_ROLLOUTS, CellConfig, RunConfig, SweepConfig
from isojax.core.errors import InputError
from isojax.core.yaml_files import flatten, load_yaml, yaml_text

HASH_VERSION = 1
PACKAGE = Path(__file__).resolve().parents[2]
# It holds configs/, docs/ and launch/: in the package, or in the repository where that is used.
SHARE = PACKAGE / "share" if (PACKAGE / "share").is_dir() else PACKAGE.parent

# What a text task must set, and values of which are proposed where they are not set. A null leaves
# them unset, as if no file had them, and so asks for the proposal again.
PROMPT_LENGTH = "cell.sampling.prompt_length"
RESPONSE_LENGTH = "cell.sampling.response_length"
LEARNING_RATE = "cell.rl.learning_rate"
PROPOSED_SETTINGS = (PROMPT_LENGTH, RESPONSE_LENGTH, LEARNING_RATE)


class Config(Section):
    """One sweep: its name and three sections."""

    # Of the sweep and of its folder in run.dir; where no config sets it, the name of the first
    # config's file.
    name: Text = Field(
        default="quickstart", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100
    )
    cell: CellConfig = CellConfig()
    sweep: SweepConfig = SweepConfig()
    run: RunConfig = RunConfig()

    def run_targets(self, budget: int) -> list[int]:
        """The C at which a run up to `budget` is evaluated, rising from 0.

        One that spends it on one policy is evaluated at its end, too.
        """
        targets = self.cell.eval.evaluation_targets(budget)
        if self.sweep.trains_one_policy and targets[-1] < budget:
            targets.append(budget)
        return targets


def config_roots() -> list[Path]:
    """Folders that hold named configs: ./configs, then the ones that isojax came with."""
    return [Path("configs"), SHARE / "configs"]


def config_names() -> list[str]:
    """The named configs: quickstart, models/smollm2-135m."""
    names: set[str] = set()
    for root in config_roots():
        for path in root.rglob("*.yaml"):
            names.add(path.relative_to(root).with_suffix("").as_posix())
    return sorted(names)


def find_config(name_or_path: str) -> Path:
    """The YAML file meant by a path or a name: `quickstart`, `hard.yaml`, `../mine.yaml`.

    A path comes before a name, and ./configs before the configs that isojax came with. InputError
    where there is none.
    """
    places = [Path(name_or_path)]
    for root in config_roots():
        places += [root / name_or_path, root / f"{name_or_path}.yaml"]
    for path in places:
        if path.is_file():
            return path

    names = config_names()
    suggestions = difflib.get_close_matches(name_or_path, names, n=1)
    if suggestions:
        hint = f"Did you mean {suggestions[0]!r}?"
    else:
        hint = f"Known names: {', '.join(names) or 'none'}."
    roots = " or ".join(map(str, config_roots()))
    raise InputError(
        where="config",
        found=f"no such file or name: given {name_or_path!r}",
        expected=f"a YAML file or a name in {roots}",
        fix=hint,
    )


def load_config(names_or_paths: str | Sequence[str], overrides: Sequence[str] = ()) -> Config:
    """The config that a name or path means, with overrides on top.

    names_or_paths: such as "quickstart", or ["models/smollm2-135m", "mine.yaml"], each over those
        before it.
    overrides: such as "sweep.n=[2,4]".

    Where nothing sets `name`, the sweep is called as the first file is. InputError for what cannot
    be used.
    """
    names = [names_or_paths] if isinstance(names_or_paths, str) else names_or_paths
    paths = [find_config(name) for name in names]
    config = load_yaml(Config, paths, overrides, unset_by_null=PROPOSED_SETTINGS)
    if "name" in config.model_fields_set:
        return config

    # The name becomes that of a folder.
    file_name = re.sub(r"[^A-Za-z0-9._-]", "-", paths[0].stem).lstrip("._-")[:100]
    return config.model_copy(update={"name": file_name}) if file_name else config


def deciding_settings(cell: CellConfig, rollouts: str, evaluations: str) -> dict[str, Any]:
    """The settings that decide a cell's result, those off their defaults, by dotted name.

    Such as {"cell.rl.kl": 0.01, "run.rollouts": "server"}. rollouts, evaluations: the engines that
    sample them, as in `run.rollouts`; LOCAL_ROLLOUTS by default.
    """
    defaults = dict(flatten(CellConfig().model_dump(mode="json")))
    settings: dict[str, Any] = {}
    for name, value in flatten(cell.model_dump(mode="json")):
        # A section that is null by default has settings that `defaults` lacks.
        if name not in defaults or value != defaults[name]:
            settings[f"cell.{name}"] = value
    if rollouts != LOCAL_ROLLOUTS:
        settings["run.rollouts"] = rollouts
    if evaluations != LOCAL_ROLLOUTS:
        settings["run.evaluations"] = evaluations
    return settings


def config_hash(
    cell: CellConfig, rollouts: str = LOCAL_ROLLOUTS, evaluations: str = LOCAL_ROLLOUTS
) -> str:
    """12 hex digits that name the settings deciding a cell's result, such as "3f2a91c07b5e".

    `rollouts`, `evaluations`: the engines that sample them. Only settings off their defaults count,
    so that a new setting changes the hash of no run that exists; and HASH_VERSION, for the day on
    which a default or its meaning changes.
    """
    settings = {
        name.removeprefix("cell."): value
        for name, value in deciding_settings(cell, rollouts, evaluations).items()
    }
    document = {"version": HASH_VERSION, "settings": settings}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def save_config(config: Config, path: Path) -> None:
    """The resolved config as YAML, which `load_config` reads back equal."""
    write_text(path, yaml_text(config.model_dump(mode="json")))
