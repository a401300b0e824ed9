"""HTML pieces: escaping, tables, images and the page around them. Everything passed as `str` is escaped; `Raw` marks HTML made here."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from importlib.resources import files


class Raw(str):
    """A string that is HTML already."""


def esc(x: object) -> Raw:
    """Text as HTML; Raw stays as it is."""
    return x if isinstance(x, Raw) else Raw(html.escape(str(x)))


def join(parts: Iterable[object], gap: str = "\n") -> Raw:
    """Pieces after one another, each escaped unless Raw."""
    return Raw(gap.join(esc(p) for p in parts))


def tag(name: str, *inner: object, cls: str = "") -> Raw:
    """<name class=cls>inner</name>."""
    attribute = f' class="{esc(cls)}"' if cls else ""
    return Raw(f"<{name}{attribute}>{join(inner, '')}</{name}>")


def bullets(items: Iterable[object]) -> Raw:
    """An unordered list."""
    return tag("ul", *(tag("li", item) for item in items))


def section(key: str, title: str, *inner: object) -> Raw:
    """A section with a heading that can be linked to."""
    return Raw(f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{esc(title)}</h2>\n{join(inner)}</section>')


def table(caption: str, heads: Sequence[object], rows: Iterable[Sequence[object]], text: Sequence[int] = ()) -> Raw:
    """A table whose first column heads its rows; columns are right-aligned numbers but those in `text`."""
    words = {0, *text}

    def cls(i: int) -> str:
        return "" if i in words else ' class="num"'

    head = "".join(f'<th scope="col"{cls(i)}>{esc(h)}</th>' for i, h in enumerate(heads))
    body = "\n".join(
        "<tr>" + f'<th scope="row">{esc(row[0])}</th>' + "".join(f"<td{cls(i)}>{esc(x)}</td>" for i, x in enumerate(row[1:], 1)) + "</tr>"
        for row in rows
    )
    return Raw(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{esc(caption)}"><table><caption>{esc(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


def figure(png: bytes, alt: str, caption: object) -> Raw:
    """An inlined image with its caption."""
    data = base64.b64encode(png).decode()
    return Raw(f'<figure><img alt="{esc(alt)}" src="data:image/png;base64,{data}"><figcaption>{esc(caption)}</figcaption></figure>')


def details(summary: object, *inner: object) -> Raw:
    """Closed until asked for."""
    return Raw(f"<details><summary>{esc(summary)}</summary>{join(inner)}</details>")


def document(title: str, body: Raw, scripts: Sequence[str] = (), data: str = "") -> str:
    """The whole page; the policy in its head forbids every load, and every script but these.

    Args:
        scripts: JavaScript to run at the page's end, in order. data: JSON for them, safe to stand in a script element.
    """
    allowed = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'" for code in scripts) or "'none'"
    style = files("isojax.report").joinpath("page.css").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; form-action 'none'"
    )
    embedded = f'<script type="application/json" id="data">{data}</script>\n' if data else ""
    ending = embedded + "".join(f"<script>{code}</script>\n" for code in scripts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark">
<title>{esc(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
{ending}</body>
</html>
"""
