"""What `mkdocs build` adds to docs/: pages kept elsewhere, and the code that pages link to.

The pages link to files of the repository by relative paths. README.md, CONTRIBUTING.md,
CHANGELOG.md and benchmarks/README.md become pages of the site; any other file or folder outside
docs/ becomes a page with its text."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
SHOWN = (".py", ".sh", ".yaml")  # files of a linked folder that become pages
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that docs/ does not have."""
    pages: dict[str, str] = {}
    sources: set[str] = set()
    for path in [*MOVED, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]:
        text, linked = site_links((ROOT / path).read_text(), path)
        sources |= linked
        if path in MOVED:
            pages[MOVED[path]] = text
    sources |= {
        str(file) for path in sources if (ROOT / path).is_dir() for file in listed_files(path)
    }
    for path, text in (pages | {site_path(path): source_page(path) for path in sources}).items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Give the pages of docs/ the site's links."""
    if page.file.generated_by:
        return markdown
    return site_links(markdown, f"docs/{page.file.src_uri}")[0]


def site_path(path: str) -> str:
    """Where the site has a file or a folder of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return MOVED.get(path) or f"source/{path}{'.md' if (ROOT / path).is_file() else '/index.md'}"


def site_links(text: str, page_path: str) -> tuple[str, set[str]]:
    """The text of a page of the repository with the site's links, and the files that become pages
    of source code."""
    sources: set[str] = set()

    def move(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page_path), link[1]))
        if not (ROOT / path).exists():
            return link[1]  # broken, which mkdocs reports
        if not path.startswith("docs/") and path not in MOVED:
            sources.add(path)
        return posixpath.relpath(site_path(path), posixpath.dirname(site_path(page_path)) or ".")

    return LINK.sub(move, text), sources


def listed_files(folder: str) -> list[Path]:
    """The files of a folder whose text the site shows, by their paths in the repository."""
    return sorted(
        path.relative_to(ROOT) for path in (ROOT / folder).iterdir() if path.suffix in SHOWN
    )


def source_page(path: str) -> str:
    """The text of a file, or the names in a folder, with links to the files."""
    head = f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n"
    if (ROOT / path).is_file():
        language = {".py": "python", ".sh": "bash"}.get(Path(path).suffix, "text")
        return f"{head}``````{language}\n{(ROOT / path).read_text()}``````\n"
    folders = sorted(f"`{item.name}/`" for item in (ROOT / path).iterdir() if item.is_dir())
    files = [f"[`{file.name}`]({file.name}.md)" for file in listed_files(path)]
    return head + "".join(f"- {name}\n" for name in folders + files if name != "`__pycache__/`")
