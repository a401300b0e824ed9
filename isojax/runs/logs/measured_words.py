"""Finds words in a path, a run's name or a column's name that tell what was measured: a split
(train, val), a metric (loss, pass@4) or a benchmark (gsm8k). They show that two logs may not be of
the same thing."""

import re
from collections import defaultdict
from collections.abc import Sequence


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TRAINING = _words("train training trn trainset")
HELD_OUT = _words(
    "val valid validation valset dev devset eval evals evaluation evalset test testing tst "
    "testset held heldout holdout ood"
)
METRICS = _words(
    "acc accuracy loss losses reward rewards score scores return returns format entropy kl "
    "length lengths grad gradnorm correct correctness em f1 ppl perplexity pass maj mean "
    "avg average median std stderr min max best worst greedy sampled"
)
BENCHMARKS = _words(
    "gsm gsm8k aime amc hmmt math500 olympiad olympiadbench minerva gpqa mmlu humaneval "
    "mbpp livecodebench lcb codeforces ifeval bbh svamp asdiv hellaswag"
)
# Of a benchmark; "medium" is a size of models too, and who has it has one of these beside it.
# "part1" may be the first part of a resumed run.
SUBSETS = _words("easy hard")
NUMBERED_SUBSETS = _words("level lvl difficulty")
WORDS = TRAINING | HELD_OUT | METRICS | BENCHMARKS | SUBSETS
SEED_WORDS = _words(
    "seed seeds run runs rep repeat replica replicate trial try attempt copy job slurm part "
    "offline version rerun csv jsonl json log txt out wandb"
)
SETTING_WORDS = _words(
    "lr temp temperature topp topk kl beta clip eps wd decay warmup gamma lam lambda tau "
    "alpha ent entropy coef dropout rank lora len length maxlen ctx epochs ppo bs mbs "
    "minibatch stale staleness layers width dim"
)

# Words whose number belongs to them: pass@1 and pass@4 are two metrics.
_NUMBERED_METRICS = _words("pass maj mean avg best worst")
_NUMBERED_WORDS = _NUMBERED_METRICS | BENCHMARKS | NUMBERED_SUBSETS
_METRIC_AT_K = re.compile(r"(?i)(?<![a-z])(pass|maj|mean|avg|best|worst|acc)_?(?:@|at)_?(\d+)")
_NUMBERED_SET = re.compile(r"(?i)(?<![a-z])(aime|amc|hmmt|math)[-_ ]?(\d{2,4})(?!\d)")
_NUMBERED_SUBSET = re.compile(r"(?i)(?<![a-z])(level|lvl|difficulty)[-_ =]?(\d{1,2})(?!\d)")
_PIECE = re.compile(r"[A-Za-z0-9]+")
_PART_OF_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # "accVal" and "n8val" have parts
_WORD_OR_SIZE = re.compile(r"(?<![A-Za-z0-9.])\d+(?:\.\d+)?[bB](?![A-Za-z0-9])|[A-Za-z]{2,}")
# "lr1e-5", "lr=1e-5" and "temp_0.6", but not the groups of a UUID.
_WORD_WITH_NUMBER = re.compile(
    r"(?<![A-Za-z])([A-Za-z]+)[-_=]?(\d+(?:\.\d+)?(?:[eE]-?\d{1,2})?[kKM]?)(?![A-Za-z0-9]|\.\d)"
)
_SHORTEST_PART = 3  # letters; shorter ones stand by chance between the digits of a run's id


def words_of_source(text: str) -> frozenset[str]:
    """The words in a path or a name that tell what was measured, in small letters.

    {"val", "pass4"} for "val/pass@4". They must be whole words: `trainer`, `constrained` and
    `Qwen2.5-Math` have none.
    """
    # "pass@4", "mean_at_8", "aime 2025" and "level_5" become one word with its number.
    for pattern in (_METRIC_AT_K, _NUMBERED_SET, _NUMBERED_SUBSET):
        text = pattern.sub(r" \1\2 ", text)

    words: set[str] = set()
    for piece in _PIECE.findall(text):
        word = piece.lower()
        stem = word.rstrip("0123456789")
        has_number = stem in _NUMBERED_WORDS and stem != word
        if word in WORDS or has_number:
            words.add(word)
            continue
        for part in _PART_OF_PIECE.findall(piece):
            if part.lower() in WORDS and len(part) >= _SHORTEST_PART:
                words.add(part.lower())
    return frozenset(words)


def other_words(texts: Sequence[str]) -> list[str]:
    """The words in which names of runs differ, sorted, but for those that count seeds.

    Sizes of models, such as 7b, are such words too. texts: one or more names.
    """
    parts = [{part.lower() for part in _WORD_OR_SIZE.findall(text)} - SEED_WORDS for text in texts]
    return sorted(set[str]().union(*parts) - set.intersection(*parts))


def other_settings(texts: Sequence[str]) -> dict[str, list[str]]:
    """The settings in which the names of runs differ, with their values.

    {"lr": ["1e-5", "2e-5"]} for "a-lr1e-5" and "a-lr2e-5". Words that count seeds are left out. A
    word that is no known setting counts only with decimals or powers of ten, since an id may have
    any digits.
    """
    values_of_word: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        for word, value in _WORD_WITH_NUMBER.findall(text):
            values_of_word[word].add(value)

    settings = {}
    for word, values in sorted(values_of_word.items()):
        # s1 is a seed, and v1.5 the version of a program
        counts_seeds = word.lower() in SEED_WORDS or word.lower() in ("s", "v")
        is_value = any(re.search(r"[.-]", value) for value in values)
        is_setting = word.lower() in SETTING_WORDS or is_value
        if is_setting and len(values) > 1 and not counts_seeds:
            settings[word] = sorted(values)
    return settings


def is_of_training(text: str) -> bool:
    """Whether a name, such as acc_train, says that something was measured in training alone."""
    words = words_of_source(text)
    return bool(words & TRAINING) and not words & HELD_OUT
