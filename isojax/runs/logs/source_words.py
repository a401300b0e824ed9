"""What the path of a log and the name of its run say was measured: train, val, loss, gsm8k. Two
logs of one (B_p, n) whose names differ in such a word are two curves of one run, or of two
benchmarks, and no two seeds."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from isojax.core.errors import InputError
from isojax.core.tabular import list_some
from isojax.runs.logs.log_run import LogRun
from isojax.runs.logs.measured_words import HELD_OUT, TRAINING, words_of_source

MAX_NAMED = 4  # sources that a message names
# Where torch, transformers and TensorBoard write the name of the host, which may be anything.
_NAMES_A_HOST = re.compile(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_|tfevents")


def depth_of_shared_folder(folders: Sequence[Path]) -> int:
    """The number of leading parts that all folders share, as they say nothing of one log.

    2 for a/b/c and a/b/d.
    """
    depth = 0
    for parts in zip(*(folder.parts for folder in folders), strict=False):
        if len({*parts}) > 1:
            break
        depth += 1
    return depth


def path_below(depth: int, source: str) -> str:
    """A path without its first `depth` parts."""
    return "/".join(Path(source).parts[depth:])


@dataclass(frozen=True)
class SourceChoice:
    """Which logs and runs are taken, by words, or patterns with *, of their paths and names; of
    several in `only`, any will do."""

    only: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()

    def takes(self, *names: str) -> bool:
        """Whether a source is taken that has these names: its path, and its run's name."""
        return self.may_take(*names) and (
            not self.only or any(_has_word(word, names) for word in self.only)
        )

    def may_take(self, *names: str) -> bool:
        """Whether no name has a word of `leave_out`.

        Asked with a log's path, before the names of its runs, which may have a word of `only`, are
        known.
        """
        return not any(_has_word(word, names) for word in self.leave_out)


TAKE_ALL = SourceChoice()


def _has_word(word: str, names: Iterable[str]) -> bool:
    """Whether one of the names has a word, whatever its case, with no letter right before or after.

    A pattern with *, ? or [ has to fit a whole name, or the last part of a path, instead.
    """
    names = [name for name in names if name]
    if re.search(r"[*?\[]", word):
        return any(fnmatchcase(text, word) for name in names for text in (name, Path(name).name))
    pattern = re.compile(rf"(?i)(?<![a-z]){re.escape(word)}(?![a-z])")
    return any(pattern.search(name) or word.lower() in words_of_source(name) for name in names)


@dataclass(frozen=True)
class _Source:
    label: str
    words: frozenset[str]
    setting: tuple[int, int]  # B_p, n

    @property
    def is_of_training(self) -> bool:
        return bool(self.words & TRAINING) and not self.words & HELD_OUT

    @property
    def is_held_out(self) -> bool:
        return bool(self.words & HELD_OUT) and not self.words & TRAINING


def reject_mixed_sources(runs: Sequence[LogRun]) -> None:
    """InputError where runs seem to be measurements of different things, by words in their names.

    The names are of their logs or runs, the words such as "train", "val" or "gsm8k". Refused are
    runs of one (B_p, n) whose words differ, which would count as its seeds, and some settings
    measured in training and others in validation. Runs to which the user's table gives seeds are
    taken as they are.
    """
    runs = [run for run in runs if not run.seed_is_stated]
    depth = _depth_of_runs(runs)
    sources = [source for run in runs for source in _sources_of(run, depth)]

    sources_by_setting: dict[tuple[int, int], list[_Source]] = defaultdict(list)
    for source in sources:
        sources_by_setting[source.setting].append(source)
    for (B_p, n), alike in sources_by_setting.items():
        if len({source.words for source in alike}) > 1:
            raise InputError(
                where=f"B_p = {B_p}, n = {n}",
                found=_describe_difference(alike),
            )

    of_training = [source for source in sources if source.is_of_training]
    held_out = [source for source in sources if source.is_held_out]
    if of_training and held_out:
        difference = _describe_difference([*of_training, *held_out])
        raise InputError(
            found=f"n would be compared across two metrics: {difference}",
        )


def describe_training_runs(runs: Sequence[LogRun]) -> str:
    """A note where logs, or the runs in them, are named as those of training; "" where none is."""
    depth = _depth_of_runs(runs)
    sources = [source for run in runs for source in _sources_of(run, depth)]
    labels = [source.label for source in sources if source.is_of_training]
    if not labels:
        return ""
    return (
        f"named as of training: {list_some(labels)}; their reward is taken as the validation metric"
    )


def _depth_of_runs(runs: Sequence[LogRun]) -> int:
    return depth_of_shared_folder([Path(source).parent for run in runs for source in run.sources])


def _sources_of(run: LogRun, depth: int) -> list[_Source]:
    """The words in the path of a run's log and in its name, and what to call it in a message.

    For a resumed run, one source for each of its logs. depth: how many leading folders all runs
    share, whose words tell nothing.
    """
    table = run.column_map.table
    name = run.name or table.run
    words_of_name = words_of_source(name)
    sources = []
    for source in run.sources:
        parts = [part for part in Path(source).parts[depth:] if not _NAMES_A_HOST.search(part)]
        path = "/".join(parts)
        if table.run_id:
            path = path.replace(table.run_id, "/")  # an id is made of any letters
        words = words_of_source(path) | words_of_name
        label = f"{source} (run {name!r})" if name else source
        sources.append(_Source(label, words, (run.B_p, run.n)))
    return sources


def _describe_difference(sources: Sequence[_Source]) -> str:
    """The rest of a message: which of the sources differ in which words, and what to type.

    That is the option which takes only those that share one group of words. sources: two or more,
    not all with the same words.
    """
    shared = frozenset.intersection(*(source.words for source in sources))
    first_by_words: dict[frozenset[str], _Source] = {}
    for source in sources:
        first_by_words.setdefault(source.words - shared, source)
    # What was measured on held-out problems is what most will want to fit, so it is named first.
    first_by_words = dict(sorted(first_by_words.items(), key=lambda item: not item[0] & HELD_OUT))

    # For each group, the options that keep it and leave the others out.
    groups = list(first_by_words)
    choices = []
    for words, source in first_by_words.items():
        options = _options_to_take(words, groups)
        if options:
            choices.append(f"{options} (for {source.label})")

    labels = [source.label for source in first_by_words.values()]
    differing = sorted(frozenset().union(*groups))
    return (
        f"{' and '.join(labels[:MAX_NAMED])} differ in what their names say was measured "
        f"({' and '.join(differing)}), so they are no seeds of one setting; "
        f"expected one measurement of each run. Add {list_some(choices)}; "
        "where they are seeds after all, number them by --settings TABLE, "
        "with the columns run and seed."
    )


def _options_to_take(words: frozenset[str], groups: Sequence[frozenset[str]]) -> str:
    """The options that take the sources of one group of words, of several; "" where none does.

    First by leaving out those of the others, which also keeps logs that have none of the words;
    where that is not possible, by taking only those with a word that no other group has.
    """
    other_groups = [other for other in groups if other != words]
    words_of_others = [other - words for other in other_groups]
    if all(words_of_others):
        words_to_leave_out = sorted({min(other) for other in words_of_others})
        return " ".join(f"--leave-out {word}" for word in words_to_leave_out)
    words_of_this_alone = words.difference(*other_groups)
    return f"--only {min(words_of_this_alone)}" if words_of_this_alone else ""
