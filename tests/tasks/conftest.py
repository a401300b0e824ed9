"""What all tests of tasks share."""

from __future__ import annotations

import pytest

from tests.tasks.rendering import render_in_this_process


@pytest.fixture(autouse=True)
def chat_templates_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    render_in_this_process(monkeypatch)
