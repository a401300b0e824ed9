"""Messages about a plug-in point to the user's line, also where isojax or a library raised the
error."""

from __future__ import annotations

from pathlib import Path

import pytest

from isojax.core.config import RLConfig
from isojax.core.registry import import_file
from isojax.core.user_code import describe_exception
from isojax.rl.algorithm import resolve_algorithm
from isojax.rl.losses import loss
from isojax.rl.recipe_checks import check_plugins
from tests.refusals import refused

HEAD = "from isojax.rl.advantages import advantage\n\n\n@advantage\n"


def error_of(path: Path, text: str) -> str:
    path.write_text(text)
    module = import_file(path)
    with pytest.raises(Exception) as raised:
        module.run()
    return describe_exception(raised.value)


def test_an_error_that_a_library_raises_has_the_line_of_the_call(tmp_path: Path) -> None:
    in_python = error_of(
        tmp_path / "reads_json.py", "import json\n\ndef run():\n    return json.loads('{')\n"
    )
    in_numpy = error_of(
        tmp_path / "adds_arrays.py",
        "import numpy as np\ndef run():\n    return np.zeros(2) @ np.zeros(3)\n",
    )
    in_isojax = error_of(
        tmp_path / "wrong_count.py",
        (
            "from isojax.core.schedule import parse_schedule\n\n\ndef run():\n    "
            "parse_schedule('nonsense')\n"
        ),
    )

    assert in_python.startswith("reads_json.py:4: json.decoder.JSONDecodeError: ")
    assert in_numpy.startswith("adds_arrays.py:3: ValueError: ")
    assert in_isojax.startswith("wrong_count.py:5: isojax.core.errors.InputError: ")


def test_of_several_own_frames_the_innermost_counts(tmp_path: Path) -> None:
    text = "def inner():\n    return {}['x']\n\ndef run():\n    return inner()\n"

    assert error_of(tmp_path / "two_frames.py", text) == "two_frames.py:2: KeyError: 'x'"


def test_an_error_in_no_own_code_has_the_place_that_raised_it() -> None:
    assert describe_exception(ValueError("no traceback")) == "ValueError: no traceback"


@pytest.mark.parametrize(
    "body",
    [
        "    return batch.rewards.reshape(-1, batch.n)",  # jax raises, for n is traced
        "    return batch.group_sum(None)",  # isojax raises
        "    half = batch.rewards / 2\n    return half.no_such_method()",
    ],
)
def test_an_advantage_that_cannot_be_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    name = f"advantage_{abs(hash(body))}"
    (tmp_path / f"{name}.py").write_text(f"{HEAD}def mine(batch):\n{body}\n")
    monkeypatch.syspath_prepend(tmp_path)

    algorithm = resolve_algorithm(RLConfig(advantage=f"{name}.mine"))

    with refused(where="cell.rl.advantage"):
        check_plugins(algorithm)


def test_a_module_whose_import_fails_in_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fails_in_json.py").write_text("import json\n\nSETTINGS = json.loads('{')\n")
    monkeypatch.chdir(tmp_path)

    with refused(where="losses plug-in 'fails_in_json'"):
        loss.load("fails_in_json")
