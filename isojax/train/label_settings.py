"""With which settings a data set of `isojax difficulty` was labelled, and how those of a run differ
from them.

A label is an avg@k of one policy, one prompt, one way to sample and one verifier. Under others the
same problem is easier or harder, and its part of the data set another one."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isojax.core.atomic_files import read_file
from isojax.core.config import CellConfig, config_hash
from isojax.core.table_files import read_json_object
from isojax.core.terminal import note, warn
from isojax.core.yaml_files import flatten
from isojax.models import safetensors_io
from isojax.tasks.verifiers import verifier_files

METADATA_FILE = "metadata.json"  # in the folder of a data set
MAX_SHOWN_CHARACTERS = 80  # of a setting's value in a message


def describe_label_settings(
    cell: CellConfig, engine: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What labels depend on, as plain JSON, for the metadata of a data set.

    cell: its `model.path` is set, as labels are made with a checkpoint.
    engine: the server that sampled, such as {"server": "vllm", "model": "Qwen/Qwen3-8B"}; None:
        isojax's own sampler.

    The keys: "model", "task", "temperature", "top_p", "seed", "attempts", "cell" (a hash of all
    settings), "checkpoint" (the fingerprint of the weights, if they are here), "text_files" (that
    of the tokenizer's files), "settings" (values by dotted name, such as "cell.sampling.top_p"),
    "verifier_files" (hashes by file name) and "engine" (where a server sampled).
    """
    model_folder = Path(str(cell.model.path))
    settings: dict[str, Any] = {
        "model": cell.model.path,
        "task": cell.task,
        "temperature": cell.sampling.temperature,
        "top_p": cell.sampling.top_p,
        "seed": cell.data.seed,
        "attempts": cell.data.attempts,
        "cell": config_hash(cell),
    }
    # Where a server sampled, the folder may lack the weights: only the server has them.
    has_weights = engine is None or any(model_folder.glob("*.safetensors"))
    if has_weights:
        settings["checkpoint"] = safetensors_io.fingerprint(model_folder)
    settings["text_files"] = safetensors_io.text_fingerprint(model_folder)
    settings["settings"] = _settings(cell)
    settings["verifier_files"] = _hash_verifier_files(cell)
    if engine is not None:
        settings["engine"] = dict(engine)
    return settings


def read_label_settings(folder: Path) -> dict[str, Any]:
    """What the metadata of a data set says of its labels (`describe_label_settings`).

    {} where the folder has no metadata, or those of another program, which lack the three keys that
    isojax has always written.
    """
    path = folder / METADATA_FILE
    metadata = read_json_object(path) if path.is_file() else {}
    return metadata if {"model", "task", "temperature"} <= set(metadata) else {}


def label_differences(stored: Mapping[str, Any], cell: CellConfig) -> list[str]:
    """What was different when problems were labelled, as far as the metadata `stored` has it.

    stored: by `read_label_settings`, not empty. cell: of the run that is to use the labels. Each
    difference is a phrase for a message, such as "cell.sampling.top_p = 1.0 (now 0.95)"; [] where
    none is known. What the metadata of an older version lacks is not compared.
    """
    differences: list[str] = []
    model_folder = Path(str(cell.model.path))
    # Older metadata, and those of a server whose weights were not here, have the name of the folder
    # alone.
    if "checkpoint" not in stored:
        if stored["model"] != cell.model.path:
            differences.append(_difference("cell.model.path", stored["model"], cell.model.path))
    elif stored["checkpoint"] != safetensors_io.fingerprint(model_folder):
        differences.append(f"other weights, those of {stored['model']} (now {cell.model.path})")
    if stored.get("text_files") not in (None, safetensors_io.text_fingerprint(model_folder)):
        differences.append(f"another tokenizer or chat template than that in {cell.model.path}")

    # Older metadata have no "settings", but two of sampling under keys without a section.
    settings = _settings(cell)
    sampling = {
        f"cell.sampling.{key}": stored[key] for key in ("temperature", "top_p") if key in stored
    }
    stored_settings = stored.get("settings") or sampling
    for key, value in stored_settings.items():
        if key in settings and settings[key] != value:
            differences.append(_difference(key, value, settings[key]))

    files = _hash_verifier_files(cell)
    for name, digest in stored.get("verifier_files", {}).items():
        if name in files and files[name] != digest:
            differences.append(f"another {name}: this file of the verifier has changed")
    return differences


def engine_difference(stored: Mapping[str, Any], engine: Mapping[str, str] | None) -> list[str]:
    """[] where labels were sampled by this engine, else a list of one phrase that says by which.

    engine: as in `describe_label_settings`.
    """
    before = stored.get("engine")
    if before == engine:
        return []
    return [f"{describe_engine(before)} (now {describe_engine(engine)})"]


def describe_engine(engine: Mapping[str, str] | None) -> str:
    if engine is None:
        return "isojax's own sampler"
    return f"a server of {engine.get('server')} that serves {_shown(engine.get('model'))}"


def problems_have_labels(cell: CellConfig) -> bool:
    """Whether the problems of `cell.task` were labelled by `isojax difficulty`."""
    kind, _, argument = cell.task.partition(":")
    folder, _, _ = argument.partition("#")
    return kind == "tfds" and bool(read_label_settings(Path(folder).expanduser()))


def warn_of_other_labels(cell: CellConfig) -> None:
    """Prints a warning where a run chooses its problems by labels that were made with other
    settings than its own; a note where these are not known in full."""
    # A task such as "tfds:data/math#hard": labelled by `isojax difficulty`, and a split of it.
    kind, _, argument = cell.task.partition(":")
    folder, _, splits = argument.partition("#")
    chooses_by_label = cell.data.attempts or cell.data.mixture or splits not in ("", "all")
    if kind != "tfds" or not chooses_by_label:
        return
    stored = read_label_settings(Path(folder).expanduser())
    if not stored:
        return

    differences = label_differences(stored, cell)
    if differences:
        warn(
            f"{folder}: its labels were made with {'; '.join(differences)}. How hard these "
            "problems are for the base policy of this run may differ from their labels: label "
            "again by `isojax difficulty` with the settings of this run and another --out."
        )
    engine = stored.get("engine")
    if engine is not None:
        note(
            f"{folder}: its labels were sampled by {describe_engine(engine)}, and whether its "
            f"weights are those in {cell.model.path} is not known."
        )
    elif "settings" not in stored and not differences:
        note(
            f"{folder}: its metadata does not record the prompt and the verifier of its labels, so "
            "that these are not compared with those of this run."
        )


def _settings(cell: CellConfig) -> dict[str, Any]:
    """The settings that labels depend on, by their dotted names.

    prompt_length is left out: it decides which problems fit, not how hard they are. So is how a
    verifier runs, such as its timeout.
    """
    sections = {"prompt": True, "reward": True, "sampling": True, "verifier": {"use"}}
    values = cell.model_dump(mode="json", include=sections, exclude={"sampling": {"prompt_length"}})
    return dict(flatten(values, "cell."))


def _hash_verifier_files(cell: CellConfig) -> dict[str, str]:
    """16 hex digits of each file of the user's verifier, by the file's name without its folder."""
    return {
        path.name: hashlib.sha256(read_file(path)).hexdigest()[:16]
        for path in verifier_files(cell.verifier.use)
    }


def _difference(key: str, before: Any, now: Any) -> str:
    return f"{key} = {_shown(before)} (now {_shown(now)})"


def _shown(value: Any) -> str:
    text = repr(value)
    if len(text) <= MAX_SHOWN_CHARACTERS:
        return text
    half = MAX_SHOWN_CHARACTERS // 2
    return f"{text[:half]} ... {text[-half:]}"
