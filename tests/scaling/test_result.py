"""FitResult: what fit.json holds, and what is refused."""

import json

import pytest

from isojax.scaling.result import (
    EVALUATION_SIZE,
    GRADED_FLAG,
    NOT_CONVERGED,
    NOTHING_LEARNT,
    NOTHING_TO_LEARN,
    FitFlag,
    FitResult,
    read_fit_file,
)
from tests.refusals import refused
from tests.scaling.documents import document

CODES = ("tie", NOTHING_LEARNT, NOTHING_TO_LEARN, NOT_CONVERGED, EVALUATION_SIZE, GRADED_FLAG)


def test_a_file_that_is_no_fit_is_refused(tmp_path):
    path = tmp_path / "fit.json"
    with refused(where="fit.json"):
        read_fit_file(path)
    for content in ("[]", "{", '{"schema_version": 2}', '{"mode": "hierarchical"}'):
        path.write_text(content)
        with refused(where="fit.json"):
            read_fit_file(path)
    assert "schema_version" in FitResult.model_fields


CONTRADICTIONS = {
    "a cell without draws": lambda fit: [
        fit["draws"][name].pop() for name in ("cells", "A", "exponent", "C_mid")
    ],
    "a cell fewer": lambda fit: fit["draws"]["cells"].pop(),
    "a replicate fewer": lambda fit: fit["draws"]["A"][1].pop(),
    "a replicate fewer of the tail": lambda fit: fit["draws"]["tail"].pop(),
    "no runs": lambda fit: fit["runs"].clear(),
    "n = -4 of a curve": lambda fit: fit["curves"][0].update(n=-4),
    "n = 0 of a run": lambda fit: fit["runs"][0].update(n=0),
    "B_p of 400 digits": lambda fit: fit["joint"]["frontier"][0].update(B_p=10**400),
    "C = 0 of the frontier": lambda fit: fit["joint"]["frontier"][0].update(C=0),
    "C_mid below 0": lambda fit: fit["curves"][0].update(C_mid=-1.0),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_file_that_contradicts_itself_is_refused(tmp_path, case):
    path, fit = tmp_path / "fit.json", document(replicates=5)
    path.write_text(fit.model_dump_json())
    assert read_fit_file(path) == fit
    content = json.loads(path.read_text())
    CONTRADICTIONS[case](content)
    path.write_text(json.dumps(content))
    with refused(where="fit.json"):
        read_fit_file(path)


def test_sentences_of_a_fit_are_those_of_its_flags():
    """Each of its own flag, whatever the others are; none without it."""
    flags = {code: FitFlag(code=code, severity="info", text=f"of {code}") for code in CODES}
    fit = document().model_copy(update={"flags": (flags["tie"], *flags.values())})
    assert (fit.nothing_learnt, fit.not_settled) == (f"of {NOTHING_LEARNT}", f"of {NOT_CONVERGED}")
    assert (fit.evaluation_size, fit.reward_name) == (f"of {EVALUATION_SIZE}", "mean reward")
    assert (
        fit.model_copy(update={"flags": (flags[NOTHING_TO_LEARN],)}).nothing_learnt
        == f"of {NOTHING_TO_LEARN}"
    )
    others = document().model_copy(update={"flags": (flags["tie"],)})
    assert (others.nothing_learnt, others.not_settled, others.evaluation_size) == ("", "", "")
    assert others.reward_name == "reward" and not others.has_dynamic_sampling
