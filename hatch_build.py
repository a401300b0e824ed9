"""The description in the package's metadata: README.md without its image, and with its relative
links as plain text. On the page of a package index they would lead nowhere."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

NOTE = (
    "*The pages of `docs/` are in the installed package, in the folder that `isojax --help` names.*"
)


def describe(readme: str) -> str:
    text = re.sub(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n", "", readme, flags=re.M)
    text = re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)
    return f"{text.rstrip()}\n\n{NOTE}\n"


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": describe(readme)}
