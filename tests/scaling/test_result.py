"""FitResult: what fit.json holds, and what is refused."""

import pytest

from isojax.core.errors import InputError
from isojax.scaling.result import FitResult, read_fit_file


def test_a_file_that_is_no_fit_is_refused(tmp_path):
    path = tmp_path / "fit.json"
    with pytest.raises(InputError, match=r"cannot read .*fit\.json"):
        read_fit_file(path)
    for content in ("[]", "{", '{"schema_version": 2}', '{"mode": "hierarchical"}'):
        path.write_text(content)
        with pytest.raises(InputError, match=r"is no fit of schema version 1 .*Make it with `isojax fit RUN`"):
            read_fit_file(path)
    assert "schema_version" in FitResult.model_fields
