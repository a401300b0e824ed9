"""HTML pieces: escaping, tables, images and the style sheet. Everything passed as `str` is escaped; `Raw` marks HTML made here."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence


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


def document(title: str, body: Raw) -> str:
    """The whole page; the policy in its head forbids every load but inlined images and styles."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{esc(title)}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
</body>
</html>
"""


STYLE = """
:root { color-scheme: light dark; --ink: #1c2126; --soft: #57606a; --paper: #ffffff; --card: #f5f7f9; --line: #d5dbe1;
  --accent: #21568a; --good: #17693a; --bad: #9a3b12; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7eaee; --soft: #a3adb8; --paper: #14181c; --card: #1d2329; --line: #363f48;
  --accent: #8fc1f2; --good: #77d19a; --bad: #f3a97c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 68rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.25rem; font-weight: 600; margin: 0; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 2.75rem 0 .75rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
p, li { max-width: 48rem; }
a { color: var(--accent); }
nav { font-size: .875rem; margin: .75rem 0 0; }
nav a { margin-right: 1rem; white-space: nowrap; }
.soft, figcaption, caption { color: var(--soft); font-size: .9rem; }
.answer { background: var(--card); border: 1px solid var(--line); border-left: .35rem solid var(--accent); border-radius: .5rem;
  padding: 1.1rem 1.4rem; margin: 1.5rem 0; }
.answer p { margin: .25rem 0; }
.answer .headline { font-size: 1.45rem; line-height: 1.35; font-weight: 600; max-width: none; }
.warn { border-left: .35rem solid var(--bad); background: var(--card); padding: .6rem 1rem; border-radius: .5rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
.formula { font-family: "STIX Two Math", "Cambria Math", Georgia, serif; font-size: 1.15rem; margin: .75rem 0 .75rem 1.5rem; }
figure { margin: 1rem 0 2rem; }
img { display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--line); border-radius: .5rem; padding: .5rem; }
figcaption { margin-top: .5rem; max-width: 52rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .4rem; }
th, td { text-align: left; padding: .35rem .8rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; white-space: nowrap; } thead th { border-bottom: 2px solid var(--soft); vertical-align: bottom; }
tbody th { font-weight: 500; } .num { text-align: right; white-space: nowrap; }
td:not(.num) { min-width: 12rem; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem 1rem; overflow-x: auto;
  font: .82rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
details { border: 1px solid var(--line); border-radius: .5rem; padding: .5rem 1rem; margin: 1rem 0; }
summary { cursor: pointer; font-weight: 600; }
code { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .92em; }
@media print { :root { --ink: #000; --soft: #444; --paper: #fff; --card: #fff; --line: #bbb;
  --accent: #21568a; --good: #17693a; --bad: #9a3b12; }
  body { max-width: none; padding: 0; font-size: 10pt; } nav { display: none; } .scroll { overflow: visible; }
  figure, tr, .answer { break-inside: avoid; } h2 { break-after: avoid; } pre { white-space: pre-wrap; } }
"""
