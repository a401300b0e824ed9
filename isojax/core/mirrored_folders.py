"""The folders of this process that mirror a URL (runs/mirror.py makes them). What is written below
one, by whichever thread, is put to its URL, and messages name the URL."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol


class MirroredFolder(Protocol):
    url: str
    local: Path

    def push(self, path: Path) -> None:
        """Put a file to the URL, if it is below the folder."""

    def fetch_below(self, path: Path) -> None:
        """Bring what another process of the run has written below a folder of this one."""


class MirroredFolders:
    """A folder is uploaded while `uploading` lasts, and named by its URL to the end of the process:
    the message that ends a command is printed after its folders are closed.

    Threads read the tuples while another one adds a folder, so these are replaced, not changed.
    """

    def __init__(self) -> None:
        self.folders: tuple[MirroredFolder, ...] = ()  # the newest first
        self.uploaded: tuple[MirroredFolder, ...] = ()

    @contextmanager
    def uploading(self, folder: MirroredFolder) -> Iterator[None]:
        # One of this place that was closed before, as by a worker's last cell, is replaced.
        others = [other for other in self.folders if other.local != folder.local]
        self.folders = (folder, *others)
        self.uploaded = (*self.uploaded, folder)
        try:
            yield
        finally:
            self.uploaded = tuple(other for other in self.uploaded if other is not folder)

    def on_write(self, path: Path) -> None:
        """A file was written whole, or appended to."""
        for folder in self.uploaded:
            folder.push(path)

    def fetch_below(self, path: Path) -> None:
        """Bring what process 0 has written below a folder, to the other processes of its run, where
        the processes share a URL alone. Nothing happens where they share a disk."""
        for folder in self.uploaded:
            folder.fetch_below(path)

    def name_urls(self, text: str) -> str:
        """A text with URLs in the place of the folders."""
        for folder in self.folders:
            text = text.replace(str(folder.local), folder.url)
        return text


MIRRORED_FOLDERS = MirroredFolders()  # of this process
