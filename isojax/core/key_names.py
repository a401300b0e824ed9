"""The known key that a user most likely meant by an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

# What TRL, verl and Hugging Face call a setting -> the last part of its key here.
SYNONYMS = {
    "temp": "temperature",
    "max_prompt_length": "prompt_length",
    "max_tokens": "response_length",
    "max_new_tokens": "response_length",
    "max_response_length": "response_length",
    "max_completion_length": "response_length",
    "batch_size": "B_p",
    "train_batch_size": "B_p",
    "num_generations": "n",
    "group_size": "n",
    "epsilon": "clip",
    "clip_ratio": "clip",
    "beta": "kl",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
}


def nearest_key(key: str, known_keys: Sequence[str]) -> str:
    """The known dotted name that is closest to `key`.

    Last parts are compared first: equal ones (SYNONYMS count as equal), then abbreviations (`lr` for `learning_rate`),
    then spelling. Among those that are as close, the section decides, then the shorter name: `cell.rl.lr` means
    `cell.rl.learning_rate`, and so does `lr`.
    """
    section, _, name = key.rpartition(".")
    name = SYNONYMS.get(name, name)

    def closeness(known_key: str) -> tuple[float, float, int]:
        known_section, _, known_name = known_key.rpartition(".")
        if name == known_name:
            name_closeness = 2.0
        elif is_abbreviation(name, known_name):
            name_closeness = 1.0
        else:
            name_closeness = _similarity(key, known_key)
        return name_closeness, _similarity(section, known_section), -len(known_key)

    return max(known_keys, key=closeness)


def is_abbreviation(short: str, name: str) -> bool:
    """Whether `short` is two letters or more that begin the name (`learn` for learning_rate) or its words (`lr`, or
    `learn_rate`, for learning_rate).
    """
    if len(short) < 2 or short == name:
        return False
    words, short_words = name.split("_"), short.split("_")
    initials = "".join(word[0] for word in words if word)
    starts_each_word = len(short_words) == len(words) and all(map(str.startswith, words, short_words))
    return short == initials or starts_each_word or (len(short) > 2 and name.startswith(short))


def _similarity(a: str, b: str) -> float:
    """In [0, 1]; 1 where both are equal."""
    return difflib.SequenceMatcher(None, a, b).ratio()
