"""The first sentence of every command's answer about a sweep that shows nothing."""

from rich.console import Console
from rich.markup import escape

from isojax.report.wording import sentence_of


def print_nothing_learnt(console: Console, text: str, label: str = "") -> None:
    """The first sentence of an answer about a sweep that shows nothing; nothing where there is no
    such text."""
    if text:
        sentence = f"{label}: {text}." if label else sentence_of(text)
        console.print(f"[bold yellow]{escape(sentence)}[/bold yellow]", highlight=False)
