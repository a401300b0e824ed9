"""Fetches a model from a hub by huggingface_hub: safetensors, config.json, tokenizer and licence,
of one commit.

Files land in huggingface_hub's cache, where an interrupted download continues and HF_ENDPOINT,
HF_TOKEN, HF_HOME and HF_HUB_OFFLINE act as its users expect. The model's folder takes its name when
all is there and fits config.json.
"""

import os
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import HfApi, constants, errors, snapshot_download
from huggingface_hub.utils import httpx

from isojax.core.config import ModelConfig
from isojax.core.errors import InputError
from isojax.models.folder_kinds import ADAPTER_CONFIG, describe_folder, holds_model
from isojax.models.hf import hf_export, hf_load
from isojax.models.safetensors_io import new_model_folder
from isojax.models.weight_files import INDEX_FILE, SINGLE_FILE, indexed_names, weight_files

SMALL_FILES = [hf_load.CONFIG_FILE, INDEX_FILE, *hf_export.COPIED_FILES]


def import_from_hub(repository: str, revision: str | None, folder: Path) -> None:
    """Make a model's folder of ORG/NAME; InputError, before weights are fetched, where isojax
    cannot run it."""
    path = Path(repository)
    if path.exists() or not re.fullmatch(hf_load.HUB_ID, repository):
        expected = "expected smollm2, gemma3-270m, FILE.gguf or a model hub's ORG/NAME, its revision as --revision REVISION"
        fix = "A folder with *.safetensors is used as it is."
        if path.is_dir():
            found = describe_folder(path)
            fix = (
                found if found and not holds_model(path) else f"{fix[:-1]}: cell.model.path={path}"
            )
        raise InputError(f"given {repository!r}, {expected}. {fix}")
    with new_model_folder(folder) as temp:
        snapshot = _download(repository, revision, SMALL_FILES)
        commit = snapshot.name
        try:
            if not (snapshot / hf_load.CONFIG_FILE).is_file():
                expected = f"expected {hf_load.CONFIG_FILE}, *.safetensors and a tokenizer"
                raise InputError(f"{snapshot}: has no {hf_load.CONFIG_FILE}; {expected}.")
            model = hf_load.resolve_model(ModelConfig(path=str(snapshot)))
            _download(repository, commit, indexed_names(snapshot) or [SINGLE_FILE])
            hf_load.check_weights(model)
        except InputError as e:
            problem = str(e).replace(str(snapshot), f"{repository}@{commit[:12]}")
            raise InputError(
                f"{problem} {_describe_repository(repository, snapshot)}".rstrip()
            ) from e
        for file in {file for pattern in SMALL_FILES for file in snapshot.glob(pattern)}:
            shutil.copyfile(file, temp / file.name)
        for file in weight_files(snapshot):
            # a hard link to the cache's file takes no room, and stays when the cache is cleared
            try:
                os.link(file.resolve(), temp / file.name)
            except OSError:  # another file system, or one without links
                shutil.copyfile(file, temp / file.name)
        source = {"hub": constants.ENDPOINT, "repository": repository, "commit": commit}
        hf_export.write_json(temp / hf_load.SOURCE_FILE, source)


def _describe_repository(repository: str, snapshot: Path) -> str:
    """What the repository holds in a model's place, by the names of its files; empty where it is a
    model, or where the hub is out of reach, as with HF_HUB_OFFLINE."""
    commit = snapshot.name
    try:
        names = HfApi().list_repo_files(repository, revision=commit)
    except (
        OSError,
        ValueError,
        RuntimeError,
        httpx.HTTPError,
    ):  # what is wrong with the model is known all the same
        return ""
    if ADAPTER_CONFIG in names:
        _download(repository, commit, [ADAPTER_CONFIG])

    with TemporaryDirectory() as folder:
        for name in names:
            file, fetched = Path(folder, name), snapshot / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(fetched.read_bytes() if name == ADAPTER_CONFIG else b"")
        description = "" if holds_model(Path(folder)) else describe_folder(Path(folder))
    return description.replace(folder, repository)


def _download(repository: str, revision: str | None, patterns: list[str]) -> Path:
    """The cache's folder of the commit, whose name is its hash."""
    try:
        return Path(
            snapshot_download(
                repository, revision=revision, allow_patterns=patterns, ignore_patterns="*/*"
            )
        )
    except (
        OSError,
        ValueError,
        RuntimeError,
        httpx.HTTPError,
    ) as e:  # RuntimeError: hf_xet's, in the middle of a file
        raise InputError(_explain(e, repository, revision)) from e


def _explain(error: Exception, repository: str, revision: str | None) -> str:
    hub, log_in = constants.ENDPOINT, "log in by `hf auth login`, or set HF_TOKEN."
    if isinstance(error, errors.GatedRepoError):
        return f"{repository} is gated. Accept its terms at {hub}/{repository}; then {log_in}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{repository}: no such model at {hub}, or a private one. Correct the name; for a private one {log_in}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"--revision: given {revision!r}, expected a branch, tag or commit of {repository}."
    if constants.HF_HUB_OFFLINE:
        cache = f"{constants.HF_HUB_CACHE} does not hold all of {repository}"
        return f"HF_HUB_OFFLINE is set, and {cache}. Unset it, or copy the cache of a machine that has fetched it."
    cause = (
        error.__cause__
        if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__
        else error
    )
    reason = (str(cause).strip() or repr(cause)).splitlines()[0].rstrip(".")
    return (
        f"{repository} could not be fetched from {hub}: {reason}. What was fetched is kept: the same command goes on "
        "from there. HF_ENDPOINT names a mirror; or copy the model's folder here, and set cell.model.path to it."
    )
