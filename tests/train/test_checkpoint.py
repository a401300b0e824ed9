"""A run's state to disk and back, bit for bit, onto the same mesh and onto others; the newest is
what comes back."""

from __future__ import annotations

import errno
import gc
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from isojax.core.config.model import LoraConfig
from isojax.core.errors import RunFailed
from isojax.models.transformer import Decoder
from isojax.rl.optimizer import TrainState, build_init_state, train_state_shardings
from isojax.train.checkpoint import Checkpoints, RunCursor
from tests.device import CONFIG, DECODER, MESHES, VOCAB, mesh

pytestmark = pytest.mark.seconds(12)


def some_state(axes: str, seed: int, decoder: Decoder = DECODER) -> TrainState:
    """A state whose every number was drawn, on a mesh."""
    on = mesh(axes)
    rng = np.random.default_rng(seed)
    like = jax.eval_shape(build_init_state(decoder, on), decoder.shapes())
    drawn = jax.tree.map(lambda x: (rng.normal(size=x.shape) * 100).astype(x.dtype), like)
    return jax.device_put(drawn, train_state_shardings(decoder, on))


def check(got: TrainState, like: TrainState, expected: TrainState) -> None:
    for a, b, c in zip(*(jax.tree.leaves(x) for x in (got, like, expected)), strict=True):
        assert a.sharding == b.sharding and a.dtype == c.dtype
        np.testing.assert_array_equal(np.asarray(a).view(np.uint32), np.asarray(c).view(np.uint32))


def test_nothing_saved(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "checkpoint") as checkpoints:
        assert checkpoints.restore(some_state("auto", 0)) is None


@pytest.mark.parametrize("axes", [MESHES[0], MESHES[1], "auto"])
def test_back_bit_for_bit(tmp_path: Path, axes: str) -> None:
    """Saved on data=4,tensor=2."""
    saved = some_state(MESHES[0], 1)
    position = RunCursor(M=70, evaluation=9, tokens=123_456_789_012)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(saved, position)
    like = some_state(axes, 2)
    with Checkpoints(tmp_path) as again:
        restored = again.restore(like)
    assert restored is not None and restored[1] == position
    check(restored[0], like, saved)


GEMMA = {"family": "gemma3", "layers": 4, "options": {"window": 3, "sliding_layers": [0, 1, 3]}}
POLICIES = {
    "layers in several stacks": CONFIG.with_settings(**GEMMA),
    "adapters": CONFIG.with_settings(lora=LoraConfig(rank=2, targets=("query", "down"))),
}


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_trained_comes_back_whatever_the_policy(tmp_path: Path, name: str) -> None:
    decoder = Decoder(POLICIES[name], VOCAB)
    saved, like = some_state("auto", 1, decoder), some_state("auto", 2, decoder)
    assert len(decoder.stacks) > 1 or len(jax.tree.leaves(saved.params)) == 2 * 2  # A and B
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(saved, RunCursor(M=7, evaluation=2, tokens=100))
    with Checkpoints(tmp_path) as again:
        restored = again.restore(like)
    assert restored is not None
    check(restored[0], like, saved)


def test_the_newest_of_several(tmp_path: Path) -> None:
    states = [some_state("auto", seed) for seed in range(3)]
    with Checkpoints(tmp_path) as checkpoints:
        for i, state in enumerate(states):
            checkpoints.save(state, RunCursor(10 * i, i, 100 * i))
    with Checkpoints(tmp_path) as again:
        restored = again.restore(states[0])
    assert restored is not None and restored[1] == RunCursor(20, 2, 200)
    check(restored[0], states[0], states[2])


def _data(checkpoint: Path) -> Path:
    """The file that holds most of the numbers."""
    return max(
        (p for p in (checkpoint / "state").rglob("d/*") if p.is_file()),
        key=lambda p: p.stat().st_size,
    )


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path) -> None:
    """A bit of every 256 bytes: not all of a file is in use."""
    data = bytearray(path.read_bytes())
    data[::256] = bytes(byte ^ 1 for byte in data[::256])
    path.write_bytes(data)


def _count_on(path: Path) -> None:
    text = path.read_text()
    assert '"tokens": 200' in text
    path.write_text(text.replace('"tokens": 200', '"tokens": 201'))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a data file cut short": lambda c: _truncate(_data(c)),
    "bits of a data file": lambda c: _flip(_data(c)),
    "a data file gone": lambda c: _data(c).unlink(),
    "all data files gone": lambda c: [
        p.unlink() for p in (c / "state").rglob("d/*") if p.is_file()
    ],
    "the index gone": lambda c: (c / "state" / "manifest.ocdbt").unlink(),
    "the arrays gone": lambda c: shutil.rmtree(c / "state"),
    "their description gone": lambda c: (c / "state" / "_METADATA").unlink(),
    "their description cut short": lambda c: _truncate(c / "state" / "_METADATA"),
    "what the host knew cut short": lambda c: _truncate(c / "host" / "metadata"),
    "what the host knew gone": lambda c: (c / "host" / "metadata").unlink(),
    "what the host knew changed": lambda c: _count_on(c / "host" / "metadata"),
    "the clock cut short": lambda c: _truncate(c / "clock" / "metadata"),
    "everything gone": lambda c: [shutil.rmtree(c), c.mkdir()],
}


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the checkpoints 10 and 20, of which each test damages a copy."""
    folder = tmp_path_factory.mktemp("two") / "checkpoint"
    with Checkpoints(folder) as checkpoints:
        for i in (1, 2):
            checkpoints.save(some_state("auto", i), RunCursor(10 * i, i, 100 * i))
    return folder


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # what Orbax has not awaited when a file is missing
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_the_one_before_is_taken(
    tmp_path: Path, two_checkpoints: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is missing or changed; what is damaged stays for a person to look at, and the
    message names both."""
    folder = shutil.copytree(two_checkpoints, tmp_path / "checkpoint")
    DAMAGES[damage](folder / "20")
    shutil.rmtree(folder / "10" / "clock")  # older versions saved none
    first = some_state("auto", 1)
    with Checkpoints(folder) as checkpoints:
        restored = checkpoints.restore(first)
    assert restored is not None and restored[1] == RunCursor(10, 1, 100)
    check(restored[0], first, first)
    err = capsys.readouterr().err
    assert f"{folder / '20'} is damaged (" in err and "going on from the one of update 10" in err
    assert (tmp_path / "checkpoint-damaged-20").is_dir() and not (folder / "20").exists()
    gc.collect()  # here, and not in another test


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory"),
        OSError(errno.EMFILE, "Too many open files"),
    ],
)
def test_what_lacks_here_is_no_damage(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without the memory, or the files, to read a checkpoint leaves it where it is, and
    says what it lacks.
    """
    state = some_state("auto", 0)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, RunCursor(10, 1, 100))

    def lacking(*_: object, **__: object) -> None:
        raise error

    with Checkpoints(tmp_path) as checkpoints, monkeypatch.context() as patch:
        patch.setattr(ocp.PyTreeCheckpointHandler, "restore", lacking)
        with pytest.raises(type(error)) as raised:
            checkpoints.restore(state)
        assert raised.value is error
        patch.undo()
        assert checkpoints.restore(state) is not None


@pytest.mark.parametrize("marker", ["commit_success.txt", "_CHECKPOINT_METADATA"])
def test_without_a_marker(tmp_path: Path, marker: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a file system that has no atomic renaming the marker says what is whole. Here the name
    does: nothing else is lost with it.
    """
    folder, state = tmp_path / "checkpoint", some_state("auto", 0)
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(state, RunCursor(10, 1, 100))
        checkpoints.save(state, RunCursor(20, 2, 200))
    (folder / "20" / marker).unlink()
    with Checkpoints(folder) as checkpoints:
        restored = checkpoints.restore(state)
    assert restored is not None and restored[1].M in (10, 20)
    check(restored[0], state, state)


def test_what_a_kill_left_half_written_is_removed(tmp_path: Path) -> None:
    torn = tmp_path / "30.orbax-checkpoint-tmp"
    (torn / "state").mkdir(parents=True)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.restore(some_state("auto", 0)) is None
    last = time.monotonic() + 20
    while torn.exists():  # Orbax may remove it in a thread
        assert time.monotonic() < last
        time.sleep(0.01)


def test_saving_waits_for_no_later_change(tmp_path: Path) -> None:
    """The run goes on, and gives the saved buffers away, while they are being written."""
    state = some_state("auto", 3)
    remaining = jax.device_get(state)
    remaining = jax.tree.map(np.copy, remaining)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, RunCursor(1, 1, 1))
        jax.block_until_ready(
            jax.jit(lambda s: jax.tree.map(lambda x: x * 0 + 1, s), donate_argnums=0)(state)
        )
    like = some_state("auto", 4)
    with Checkpoints(tmp_path) as again:
        restored = again.restore(like)
    assert restored is not None
    check(restored[0], like, remaining)


@pytest.mark.parametrize(
    "notes", [("source locations", "tensorstore_spec"), ("tensorstore_spec", "source locations")]
)
def test_why_a_state_cannot_be_written_is_said_without_tensorstores_notes(
    tmp_path: Path, notes: tuple[str, str]
) -> None:
    """Which come in any order, and are long."""
    output = "UNKNOWN: Error writing: File too large [OS error 27: EFBIG] " + " ".join(
        f"[{note}='{'x' * 900}']" for note in notes
    )
    with (
        Checkpoints(tmp_path) as checkpoints,
        pytest.raises(RunFailed) as failure,
        checkpoints._writing(),
    ):
        raise ValueError(output)
    assert "(UNKNOWN: Error writing: File too large [OS error 27: EFBIG])" in str(failure.value)
