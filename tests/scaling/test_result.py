"""FitResult: what fit.json holds, and what is refused."""

import json

import pytest

from isojax.core.errors import InputError
from isojax.scaling.result import FitResult, read_fit_file
from tests.scaling.documents import document


def test_a_file_that_is_no_fit_is_refused(tmp_path):
    path = tmp_path / "fit.json"
    with pytest.raises(InputError, match=r"cannot read .*fit\.json"):
        read_fit_file(path)
    for content in ("[]", "{", '{"schema_version": 2}', '{"mode": "hierarchical"}'):
        path.write_text(content)
        with pytest.raises(
            InputError, match=r"is no fit of schema version 1 .*Make it with `isojax fit RUN`"
        ):
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
    with pytest.raises(
        InputError, match=r"is no fit of schema version 1 .*Make it with `isojax fit RUN`"
    ):
        read_fit_file(path)
