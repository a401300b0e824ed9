"""A tokenizer's chat template, rendered in a process of its own: a template is a program, which may loop for ever or
ask for any memory. The process reads settings, then conversations, as JSON lines, and answers each with a line."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isojax.core.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_PROMPT_CHARACTERS = 2**20  # of one conversation
MAX_MEMORY_BYTES = 2**29  # that the process may write to
SECONDS, SECONDS_PER_CONVERSATION = 10.0, 0.02


def render_chats(
    tokenizer: PreTrainedTokenizerBase, conversations: Sequence[list[dict[str, str]]], options: Mapping[str, Any]
) -> list[str]:
    """Each conversation as text; InputError where the template refuses one, or takes too much."""
    seconds = SECONDS + SECONDS_PER_CONVERSATION * len(conversations)
    arguments = {**tokenizer.special_tokens_map, **options, "chat_template": tokenizer.get_chat_template()}
    lines = [{"seconds": seconds, "arguments": arguments}, *conversations]
    command = [sys.executable, "-m", "isojax.tasks.chat_templates"]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    completed = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    replies = [json.loads(line) for line in completed.stdout.splitlines() if line.endswith("}")]
    texts = [reply["text"] for reply in replies if "text" in reply]
    if len(texts) < len(conversations):
        problem = f"its process ended with {completed.returncode} ({completed.stderr.strip()[-200:]})"
        if completed.returncode == -signal.SIGALRM:
            problem = f"took more than {seconds:.0f} s"
        problem = next((reply["error"] for reply in replies if "error" in reply), problem)
        raise InputError(
            f"the chat template in {tokenizer.name_or_path} refuses the conversation {conversations[len(texts)]}:"
            f" {problem}. It may need to go without cell.prompt.system, or to be another."
        )
    return texts


def _serve() -> None:
    """The process. It handles no alarm: that ends a template that loops."""
    from transformers.utils.chat_template_utils import render_jinja_template

    settings = json.loads(sys.stdin.readline())
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    signal.setitimer(signal.ITIMER_REAL, settings["seconds"])
    reply: dict[str, str] = {}
    for line in sys.stdin:
        try:
            (reply["text"],), _ = render_jinja_template([json.loads(line)], **settings["arguments"])
            if (count := len(reply["text"])) > MAX_PROMPT_CHARACTERS:
                reply = {"error": f"{count:,} characters, expected at most {MAX_PROMPT_CHARACTERS:,}"}
        except MemoryError:
            reply = {"error": f"more than {MAX_MEMORY_BYTES // 2**20} MiB of memory"}
        except Exception as e:  # the template's own refusal, and whatever its expressions raise
            reply = {"error": f"{type(e).__name__}: {str(e)[:500]}"}
        print(json.dumps(reply), flush=True)
        if "error" in reply:
            break


if __name__ == "__main__":
    _serve()
