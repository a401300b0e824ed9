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

# What goes wrong between here and a hub; RuntimeError is hf_xet's, in the middle of a file.
HUB_ERRORS = (OSError, ValueError, RuntimeError, httpx.HTTPError)
SMALL_FILES = [hf_load.CONFIG_FILE, INDEX_FILE, *hf_export.COPIED_FILES]


def import_from_hub(repository: str, revision: str | None, folder: Path) -> None:
    """Make a model's folder of a hub's model, whole or not at all.

    `repository`: ORG/NAME. `revision`: a branch, tag or commit; None: the hub's default branch.
    InputError, before weights are fetched, where isojax cannot run it."""
    _check_name(repository)
    with new_model_folder(folder) as temp:
        snapshot = _download(repository, revision, SMALL_FILES)
        commit = snapshot.name
        try:
            _fetch_weights(repository, snapshot)
        except InputError as e:
            problem = str(e).replace(str(snapshot), f"{repository}@{commit[:12]}")
            description = _describe_repository(repository, snapshot)
            raise InputError(f"{problem} {description}".rstrip()) from e

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


def _check_name(repository: str) -> None:
    """Raise InputError where it is no hub's ORG/NAME, or a path that is here."""
    path = Path(repository)
    if re.fullmatch(hf_load.HUB_ID, repository) and not path.exists():
        return

    fix = "A folder with *.safetensors is used as it is."
    if path.is_dir():
        description = describe_folder(path)
        if description and not holds_model(path):
            fix = description
        else:
            fix = f"A folder with *.safetensors is used as it is: cell.model.path={path}"
    raise InputError(
        found=f"given {repository!r}",
        expected=(
            "smollm2, gemma3-270m, FILE.gguf or a model hub's ORG/NAME, its revision as "
            "--revision REVISION"
        ),
        fix=fix,
    )


def _fetch_weights(repository: str, snapshot: Path) -> None:
    """Fetch the weights of a snapshot of small files, if its model runs here.

    `snapshot`: the cache's folder of the commit, named by it, with config.json. InputError where
    the model does not run here, before weights are fetched, or where the weights do not fit
    config.json."""
    if not (snapshot / hf_load.CONFIG_FILE).is_file():
        raise InputError(
            where=snapshot,
            found=f"no {hf_load.CONFIG_FILE}",
            expected=f"{hf_load.CONFIG_FILE}, *.safetensors and a tokenizer",
        )
    model = hf_load.resolve_model(ModelConfig(path=str(snapshot)))
    _download(repository, snapshot.name, indexed_names(snapshot) or [SINGLE_FILE])
    hf_load.check_weights(model)


def _describe_repository(repository: str, snapshot: Path) -> str:
    """Say what the repository holds in a model's place, by the names of its files.

    Empty where it is a model, or where the hub is out of reach, as with HF_HUB_OFFLINE. `snapshot`:
    the cache's folder of the commit, named by it."""
    commit = snapshot.name
    try:
        names = HfApi().list_repo_files(repository, revision=commit)
    except HUB_ERRORS:  # what is wrong with the model is known all the same
        return ""
    if ADAPTER_CONFIG in names:
        _download(repository, commit, [ADAPTER_CONFIG])

    # A folder of the same names tells; of the contents it needs the adapter's settings alone.
    with TemporaryDirectory() as folder:
        for name in names:
            file = Path(folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            content = (snapshot / name).read_bytes() if name == ADAPTER_CONFIG else b""
            file.write_bytes(content)
        if holds_model(Path(folder)):
            return ""
        return describe_folder(Path(folder)).replace(folder, repository)


def _download(repository: str, revision: str | None, patterns: list[str]) -> Path:
    """The cache's folder of the commit, whose name is its hash."""
    try:
        # "*/*": none from subfolders, whatever their names
        snapshot = snapshot_download(
            repository, revision=revision, allow_patterns=patterns, ignore_patterns="*/*"
        )
    except HUB_ERRORS as e:
        raise _download_error(e, repository, revision) from e
    return Path(snapshot)


def _download_error(error: Exception, repository: str, revision: str | None) -> InputError:
    """Return the InputError for what went wrong between here and the hub, with the remedy.

    `error`: one of HUB_ERRORS. `revision`: as the user has given it."""
    hub = constants.ENDPOINT
    log_in = "log in by `hf auth login`, or set HF_TOKEN."
    if isinstance(error, errors.GatedRepoError):
        return InputError(
            where=repository,
            found="a gated model",
            fix=f"Accept its terms at {hub}/{repository}; then {log_in}",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return InputError(
            where=repository,
            found=f"no such model at {hub}, or a private one",
            fix=f"Correct the name; for a private one {log_in}",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError(
            where="--revision",
            found=f"given {revision!r}",
            expected=f"a branch, tag or commit of {repository}",
        )
    if constants.HF_HUB_OFFLINE:
        cache = f"{constants.HF_HUB_CACHE} does not hold all of {repository}"
        return InputError(
            where=repository,
            found=f"HF_HUB_OFFLINE is set, and {cache}",
            fix="Unset it, or copy the cache of a machine that has fetched it.",
        )

    cause: BaseException = error
    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__:
        cause = error.__cause__
    reason = (str(cause).strip() or repr(cause)).splitlines()[0].rstrip(".")
    return InputError(
        where=repository,
        found=f"could not be fetched from {hub}: {reason}",
        fix=(
            "What was fetched is kept: the same command goes on from there. HF_ENDPOINT names a "
            "mirror; or copy the model's folder here, and set cell.model.path to it."
        ),
    )
