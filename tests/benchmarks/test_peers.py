"""The benchmarks against peers: prompts, the table and the floor by hand, and scripts that explain
themselves without any peer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not part of this copy", allow_module_level=True)
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "peers")]

import child  # noqa: E402
import compare  # noqa: E402
import limits  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.decoders import ByteLevel as Letters  # noqa: E402
from tokenizers.models import BPE  # noqa: E402
from tokenizers.pre_tokenizers import ByteLevel  # noqa: E402

SCRIPTS = sorted(
    {BENCHMARKS / "peers" / peer.script for claim in compare.CLAIMS for peer in claim.peers}
)
SCRIPTS += [
    BENCHMARKS / "limits.py",
    *(
        BENCHMARKS / "peers" / f"{name}.py"
        for name in ("compare", "logprobs", "logprobs_transformers")
    ),
]


def tokenizer() -> Tokenizer:
    """Byte-level BPE whose merges make " stone" and " river" out of letters, and no other word."""
    vocab = {letter: i for i, letter in enumerate(["Ġ", *"stoneriv"])}
    merges = []
    for word in ("Ġstone", "Ġriver"):
        for i in range(1, len(word)):
            if word[: i + 1] not in vocab:
                merges.append((word[:i], word[i]))
                vocab[word[: i + 1]] = len(vocab)
    result = Tokenizer(BPE(vocab, merges))
    result.pre_tokenizer, result.decoder = ByteLevel(add_prefix_space=False), Letters()
    return result


def test_prompts_have_their_length_and_their_texts_mean_their_ids() -> None:
    words = tokenizer()
    ids, texts = compare.make_prompts(words, 3, 5)
    assert [len(prompt) for prompt in ids] == [5, 5, 5]
    assert [words.encode(text).ids for text in texts] == ids
    assert {word for text in texts for word in text.split()} <= {
        "ston",
        "stone",
        "rive",
        "river",
    }  # of four letters or more
    assert (ids, texts) == compare.make_prompts(words, 3, 5)


def test_every_peer_gets_the_same_prompts_and_numbers(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer().to_str())
    claim = compare.Claim("x", 2, 8, 4, 16, compare.STEPS, 1)
    path = compare.write_prompts(tmp_path, claim, tmp_path)
    assert json.loads(path.read_text())["ids"] == child.read_prompts(path).ids
    assert [len(prompt) for prompt in child.read_prompts(path).ids] == [4, 4]
    inputs = [compare.command(tmp_path, claim, peer, path, 3)[2:10] for peer in claim.peers]
    assert inputs[0] == [
        str(tmp_path),
        "--prompts",
        str(path),
        "--n",
        "8",
        "--new",
        "16",
        "--repeats",
    ]
    assert all(words == inputs[0] for words in inputs)


def test_medians_and_ratios_of_measurements() -> None:
    def line(peer: str, seconds: float, cpu: float, peak: float) -> dict[str, object]:
        return {
            "claim": "x",
            "peer": peer,
            "seconds": seconds,
            "cpu_seconds": cpu,
            "tokens": 100,
            "peak_gib": peak,
        }

    lines = [
        line("isojax", 2.0, 1.0, 1.5),
        line("tunix", 9.0, 4.0, 3.0),
        line("isojax", 4.0, 2.0, 1.7),
        line("tunix", 5.0, 3.0, 2.0),
    ]
    lines += [
        line("tunix", 6.0, 2.0, 2.5),
        line("isojax", 3.0, 1.5, 1.6),
        line("trl", 30.0, 3.0, 1.0) | {"claim": "y"},
    ]
    ours, theirs, single = compare.medians(lines)
    assert ours == {
        **{
            "claim": "x",
            "peer": "isojax",
            "measured": 3,
            "seconds": 3.0,
            "cpu_seconds": 1.5,
            "tokens": 100,
            "peak_gib": 1.7,
        },
        **{"faster": 1.0, "cpu_faster": 1.0},
    }
    assert (theirs["seconds"], theirs["cpu_seconds"], theirs["peak_gib"]) == (6.0, 3.0, 3.0)
    assert (theirs["faster"], theirs["cpu_faster"]) == (2.0, 2.0)
    assert "faster" not in single


def test_the_floor_by_hand(tmp_path: Path) -> None:
    """One layer of width 4, a head of 2, a key-value head of 2, an MLP of 3: 16 + 16 + 36 + 8
    weights, and the last norm's 4.
    """
    config = {
        "hidden_size": 4,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "intermediate_size": 3,
    }
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"num_hidden_layers": 1, "vocab_size": 10})
    )
    shape = limits.read_shape(tmp_path)
    assert shape == limits.Shape(
        blocks=16 + 16 + 36 + 8 + 4, vocab=10, width=4, position_bytes=2 * 2 * 4
    )
    # Two slots, 3 + 4 positions. Layers, in 3 of 4 steps: 320 operations at 32 a second, 80 * 4 + 2
    # * 5 * 16 bytes at 64, 10 + 7.5. The unembedding, in all: 160 operations at 16, 40 * 4 bytes,
    # 10 + 2.5.
    assert limits.floor(
        shape, limits.Limits(32.0, 16.0, 64.0), rows=2, prompt=3, new=4
    ) == pytest.approx(2 / (0.75 * 17.5 + 12.5))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_needs_no_peer(script: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(script), "--help"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0 and "MODEL" in done.stdout, done.stderr


def refused(script: str, *words: str) -> str:
    """What a script says that refuses its arguments."""
    command = [sys.executable, str(BENCHMARKS / "peers" / script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    return done.stderr


def test_an_unknown_claim_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "step-4x9: expected some of few-shot" in refused(
        "compare.py", str(tmp_path), "--only", "step-4x9"
    )


@pytest.mark.parametrize("script", ["compare.py", "logprobs.py"])
def test_a_folder_without_a_model_is_refused(script: str) -> None:
    assert "models/x: has no tokenizer.json; expected a folder" in refused(script, "models/x")


def test_what_is_installed_is_pinned() -> None:
    for peer in ("transformers", "tunix", "trl"):
        lines = (BENCHMARKS / "peers" / f"requirements-{peer}.txt").read_text().splitlines()
        assert all(
            "==" in line and "/" not in line for line in lines if not line.startswith("#")
        ), peer
