"""Chat templates without a process for each rendering, which takes a second to import transformers.

tests/tasks/test_chat_templates.py has the processes, their limits and how they end.
"""

from __future__ import annotations

import io
import signal
import sys
from contextlib import redirect_stdout
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.utils import chat_template_utils

from isojax.tasks import tokenizer


def render_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`render_chats` writes the same lines, and reads the same replies."""
    monkeypatch.setattr(tokenizer, "subprocess", SimpleNamespace(run=_serve_here))


def _serve_here(command: list[str], *, input: str, **options: Any) -> CompletedProcess[str]:
    """As subprocess.run; nothing of this process is limited, nor left changed."""
    printed = io.StringIO()
    no_limits = SimpleNamespace(
        RLIMIT_DATA=None, getrlimit=lambda which: (0, 0), setrlimit=lambda which, limits: None
    )
    no_alarm = SimpleNamespace(ITIMER_REAL=signal.ITIMER_REAL, setitimer=lambda *timer: None)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(sys, "stdin", io.StringIO(input))
        patch.setattr(tokenizer, "resource", no_limits)
        patch.setattr(tokenizer, "signal", no_alarm)
        clock = chat_template_utils.__dict__["datetime"]
        patch.setitem(chat_template_utils.__dict__, "datetime", clock)
        tokenizer._serve()
    return CompletedProcess(command, 0, printed.getvalue(), "")
