"""The file of a pack: written here, unpacked on a host.

It is a .tar.gz with

    pack.json           the format, and which folder below files/ is the working folder
    config.yaml         the settings, of all configs and overrides
    requirements.txt    what pip must install for the plug-ins, besides isojax
    files/...           the files, as they lie from the folder on that is above all of them

so that relative paths mean there what they mean here.
"""

import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from isojax import __version__
from isojax.core.atomic_files import atomic_folder, open_file, write_error
from isojax.core.errors import InputError
from isojax.core.table_files import read_json_object
from isojax.core.yaml_files import yaml_text
from isojax.launch.packing.pack_plan import PackPlan
from isojax.runs.storage import exclusive_lock

SUFFIX = ".pack.tgz"
FORMAT = 1
GZIP_START = b"\x1f\x8b"  # of a gzip file, and of no YAML
MANIFEST, CONFIG, REQUIREMENTS, FILES = "pack.json", "config.yaml", "requirements.txt", "files"
UNPACK_TIMEOUT = 600.0  # seconds that one process waits for another one that unpacks the same


class UnpackedPack(NamedTuple):
    """A pack's folders and files, once it is unpacked."""

    config: Path
    folder: Path  # the working folder


@dataclass(frozen=True)
class _Tree:
    """Where files are in a pack: below files/, from the folder on that is above all of them."""

    top: str

    def name(self, path: Path | str) -> str:
        return os.path.normpath(os.path.join(FILES, os.path.relpath(path, self.top)))


def write_pack(plan: PackPlan, path: Path) -> None:
    """Write the file of a pack, whole or not at all; InputError where it cannot be written."""
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temp, "wb") as file:
            pack_into(plan, file)
        os.replace(temp, path)
    except OSError as e:
        raise write_error(Path(e.filename or path), e) from e
    finally:
        temp.unlink(missing_ok=True)


def pack_bytes(plan: PackPlan) -> bytes:
    """A pack as bytes, to be sent."""
    out = io.BytesIO()
    pack_into(plan, out)
    return out.getvalue()


def pack_into(plan: PackPlan, out: BinaryIO) -> None:
    """Write a pack to an open file; the same files and settings give the same bytes."""
    links = {file.path: os.path.realpath(file.path) for file in plan.files}
    tree = _Tree(os.path.commonpath([plan.folder, *links, *links.values(), *plan.in_place]))
    manifest = {
        "format": FORMAT,
        "isojax": __version__,
        "folder": tree.name(plan.folder),
        "in_place": {tree.name(path): str(path) for path in plan.in_place},
    }
    settings = plan.config.model_dump(mode="json", exclude_unset=True)
    texts = {
        MANIFEST: json.dumps(manifest, indent=1, sort_keys=True) + "\n",
        CONFIG: yaml_text(settings | {"name": plan.config.name}),
        REQUIREMENTS: "".join(f"{line}\n" for line in plan.requirements),
    }

    # Level 1 packs text as fast as a disk gives it; no time and no name make the bytes differ.
    packed = gzip.GzipFile("", "wb", compresslevel=1, fileobj=out, mtime=0)
    with packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in texts.items():
            _add(archive, tarfile.TarInfo(name), io.BytesIO(text.encode()), len(text.encode()))
        for target in sorted(set(links.values())):
            with open(target, "rb") as file:
                _add(archive, tarfile.TarInfo(tree.name(target)), file, os.stat(target).st_size)
        for path, target in links.items():
            if str(path) != target:
                link = tarfile.TarInfo(tree.name(path))
                link.type = tarfile.SYMTYPE
                folder = os.path.dirname(tree.name(path))
                link.linkname = os.path.relpath(tree.name(target), folder)
                archive.addfile(link)


def _add(archive: tarfile.TarFile, entry: tarfile.TarInfo, file: BinaryIO, size: int) -> None:
    entry.size = size
    entry.mode = 0o644
    archive.addfile(entry, file)


def is_pack(word: str) -> bool:
    """Whether a word of a command is a pack's file."""
    if not os.path.isfile(word):
        return False
    with open_file(Path(word)) as file:
        return file.read(len(GZIP_START)) == GZIP_START


def unpack_file(path: Path) -> UnpackedPack:
    """Unpack the file of a pack, as of `unpack`."""
    with open_file(path) as file:
        return unpack(file, str(path))


def unpack(packed: BinaryIO, label: str) -> UnpackedPack:
    """Unpack a pack to the user's cache, in a folder that is named by its content; where it is
    there already nothing is written.

    packed: can be read from its start again. label: what an InputError calls it, where it is no
    pack or cannot be unpacked.
    """
    digest = hashlib.file_digest(packed, "sha256").hexdigest()[:16]  # type: ignore[arg-type]
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    root = cache_folder / "isojax" / "packs" / digest
    if not root.is_dir():
        # Several processes of a host begin at the same time.
        with exclusive_lock(root.with_name(f"{digest}.lock"), UNPACK_TIMEOUT):
            if not root.is_dir():
                packed.seek(0)
                try:
                    _extract(packed, root, label)
                except InputError:
                    # On a file system without locks another process may have been faster.
                    if not root.is_dir():
                        raise
    return UnpackedPack(root / CONFIG, root / read_json_object(root / MANIFEST)["folder"])


def _extract(packed: BinaryIO, root: Path, label: str) -> None:
    """Write what a pack holds to the folder `root`, whole or not at all."""
    wrong_file = InputError(
        where=label,
        found="no pack, or a damaged one",
        expected="a file that `isojax pack` has written, whole, or a config in YAML",
    )
    with atomic_folder(root) as folder:
        try:
            with tarfile.open(fileobj=packed, mode="r:gz") as archive:
                # data: nothing outside of the folder, no devices, no links that lead out of it.
                archive.extractall(folder, filter="data")
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as e:
            raise wrong_file from e
        if not (folder / MANIFEST).is_file():
            raise wrong_file
        manifest = read_json_object(folder / MANIFEST)
        if manifest.get("format") != FORMAT:
            version = manifest.get("isojax")
            raise InputError(
                where=label,
                found=f"a pack of format {manifest.get('format')}, by isojax {version}",
                expected=f"format {FORMAT}, of isojax {__version__}",
                fix="Install the same isojax here and there.",
            )
        names = [manifest["folder"], *manifest["in_place"]]
        if any(os.path.isabs(name) or ".." in Path(name).parts for name in names):
            raise wrong_file
        for name, target in manifest["in_place"].items():
            link = folder / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
        (folder / manifest["folder"]).mkdir(parents=True, exist_ok=True)
