"""The first sentence of every command's answer about a sweep that shows nothing."""

from rich.console import Console
from rich.markup import escape

from isojax.report.wording import sentence_of


def print_nothing_learnt(console: Console, text: str, label: str = "") -> None:
    """Print `text`, what was seen of a sweep that shows nothing; nothing where it is "".

    `label` names the sweep, where the answer is about several.
    """
    if not text:
        return
    sentence = f"{label}: {text}." if label else sentence_of(text)
    console.print(f"[bold yellow]{escape(sentence)}[/bold yellow]", highlight=False)
