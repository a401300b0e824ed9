"""Words of a path, of a run's name or of a column that say what was measured: a split (train, val),
a metric (loss, pass@4) or a benchmark (gsm8k)."""

import re
from collections import defaultdict
from collections.abc import Sequence

TRAINING = frozenset({"train", "training", "trn", "trainset"})
HELD_OUT = frozenset(
    {
        "val",
        "valid",
        "validation",
        "valset",
        "dev",
        "devset",
        "eval",
        "evals",
        "evaluation",
        "evalset",
    }
    | {"test", "testing", "tst", "testset", "held", "heldout", "holdout", "ood"}
)
METRICS = frozenset(
    {
        "acc",
        "accuracy",
        "loss",
        "losses",
        "reward",
        "rewards",
        "score",
        "scores",
        "return",
        "returns",
        "format",
    }
    | {
        "entropy",
        "kl",
        "length",
        "lengths",
        "grad",
        "gradnorm",
        "correct",
        "correctness",
        "em",
        "f1",
        "ppl",
    }
    | {
        "perplexity",
        "pass",
        "maj",
        "mean",
        "avg",
        "average",
        "median",
        "std",
        "stderr",
        "min",
        "max",
        "best",
        "worst",
    }
    | {"greedy", "sampled"}
)
BENCHMARKS = frozenset(
    {
        "gsm",
        "gsm8k",
        "aime",
        "amc",
        "hmmt",
        "math500",
        "olympiad",
        "olympiadbench",
        "minerva",
        "gpqa",
        "mmlu",
    }
    | {
        "humaneval",
        "mbpp",
        "livecodebench",
        "lcb",
        "codeforces",
        "ifeval",
        "bbh",
        "svamp",
        "asdiv",
        "hellaswag",
    }
)
# Of a benchmark; "medium" is a size of models too, and who has it has one of these beside it.
# "part1" may be the first part of a resumed run.
SUBSETS = frozenset({"easy", "hard"})
NUMBERED_SUBSETS = frozenset({"level", "lvl", "difficulty"})
WORDS = TRAINING | HELD_OUT | METRICS | BENCHMARKS | SUBSETS
SEED_WORDS = frozenset(
    {
        "seed",
        "seeds",
        "run",
        "runs",
        "rep",
        "repeat",
        "replica",
        "replicate",
        "trial",
        "try",
        "attempt",
        "copy",
    }
    | {
        "job",
        "slurm",
        "part",
        "offline",
        "version",
        "rerun",
        "csv",
        "jsonl",
        "json",
        "log",
        "txt",
        "out",
        "wandb",
    }
)
SETTING_WORDS = frozenset(
    {
        "lr",
        "temp",
        "temperature",
        "topp",
        "topk",
        "kl",
        "beta",
        "clip",
        "eps",
        "wd",
        "decay",
        "warmup",
        "gamma",
        "lam",
    }
    | {
        "lambda",
        "tau",
        "alpha",
        "ent",
        "entropy",
        "coef",
        "dropout",
        "rank",
        "lora",
        "len",
        "length",
        "maxlen",
        "ctx",
    }
    | {"epochs", "ppo", "bs", "mbs", "minibatch", "stale", "staleness", "layers", "width", "dim"}
)

# "pass@4", "mean_at_8", "aime 2025" and "level_5" are each one word with its number: pass@1 and
# pass@4 are two metrics.
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
    """The words of a path or a name that say what was measured, in small letters, each as a whole:
    `trainer`, `constrained` and `Qwen2.5-Math` have none."""
    text = _METRIC_AT_K.sub(r" \1\2 ", text)
    text = _NUMBERED_SET.sub(r" \1\2 ", text)
    text = _NUMBERED_SUBSET.sub(r" \1\2 ", text)
    found: set[str] = set()
    for piece in _PIECE.findall(text):
        word = piece.lower()
        stem = word.rstrip("0123456789")
        is_numbered = (
            stem in {"pass", "maj", "mean", "avg", "best", "worst"}
            or stem in BENCHMARKS | NUMBERED_SUBSETS
        )
        if word in WORDS or (is_numbered and stem != word):
            found.add(word)
            continue
        parts = (part.lower() for part in _PART_OF_PIECE.findall(piece))
        found |= {part for part in parts if part in WORDS and len(part) >= _SHORTEST_PART}
    return frozenset(found)


def other_words(texts: Sequence[str]) -> list[str]:
    """The words, and sizes of models such as 7B, in which names of runs differ, but for those that
    count seeds."""
    parts = [{part.lower() for part in _WORD_OR_SIZE.findall(text)} - SEED_WORDS for text in texts]
    return sorted(set[str]().union(*parts) - set.intersection(*parts))


def other_settings(texts: Sequence[str]) -> dict[str, list[str]]:
    """The settings with numbers, such as lr1e-5 or temp0.6, in which names of runs differ, and
    their values; none that counts seeds. Of other words, only decimals and powers of ten are
    values: an id is made of any digits."""
    values_of_word: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        for word, value in _WORD_WITH_NUMBER.findall(text):
            values_of_word[word].add(value)
    settings = {}
    for word, values in sorted(values_of_word.items()):
        is_setting = word.lower() in SETTING_WORDS or any(
            re.search(r"[.-]", value) for value in values
        )
        # s1, and v1.5 of a program
        if is_setting and len(values) > 1 and word.lower() not in SEED_WORDS | {"s", "v"}:
            settings[word] = sorted(values)
    return settings


def is_of_training(text: str) -> bool:
    """Whether a name says that something was measured in training, and not on held-out problems:
    acc_train."""
    words = words_of_source(text)
    return bool(words & TRAINING) and not words & HELD_OUT
