"""Finds the file of a tokenizer that is broken: a pointer of Git LFS, or one that was cut off.

The libraries that read these files do not name the file in their errors.
"""

import json
from contextlib import suppress
from pathlib import Path

from isojax.core.errors import InputError
from isojax.core.git_lfs import refuse_pointer
from isojax.tasks.tokenizer_file import TOKEN_NAME_FILES, TOKENIZER_FILE

SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
TOKENIZER_FILES = (
    TOKENIZER_FILE,
    *SENTENCEPIECE_FILES,
    "vocab.json",
    "tiktoken.model",
    "tekken.json",
)
BESIDE_A_VOCABULARY = ("merges.txt",)


def refuse_pointers(folder: Path) -> None:
    """InputError where a file that holds the vocabulary is a pointer of Git LFS; beside a
    tokenizer.json no other is needed."""
    for file in _vocabulary_files(folder):
        refuse_pointer(file, "the tokenizer itself")


def refuse_broken_file(folder: Path) -> None:
    """Called when the tokenizer in a folder could not be read: InputError for the first of its
    files that is a pointer of Git LFS (a small text in place of a large file) or no complete JSON.
    Returns where no file is broken in this way."""
    refuse_pointers(folder)

    for file in [*_vocabulary_files(folder), *(folder / name for name in TOKEN_NAME_FILES)]:
        refuse_pointer(file)  # of the other files; nothing where there is none
        if file.suffix != ".json" or not file.is_file():
            continue

        with suppress(OSError, RecursionError):  # of a file that cannot be judged here
            try:
                json.loads(file.read_bytes())
            except ValueError as e:  # UnicodeDecodeError too
                problem = (
                    f"the tokenizer in {folder} cannot be read: {file.name} is no whole JSON ({e})"
                )
                raise InputError(
                    found=f"{problem}, as of a file cut off",
                    fix="Fetch or copy it again.",
                ) from e


def _vocabulary_files(folder: Path) -> list[Path]:
    names = (*TOKENIZER_FILES, *BESIDE_A_VOCABULARY)
    if (folder / TOKENIZER_FILE).is_file():  # which needs no other
        names = (TOKENIZER_FILE,)
    return [folder / name for name in names if (folder / name).is_file()]
