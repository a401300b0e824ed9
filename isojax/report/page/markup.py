"""HTML pieces: escaping, tables, images and the page around them. All `str` is escaped, except
`Html`."""

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from importlib.resources import files
from string import Template


class Html(str):
    """A string that is HTML already."""


def escape(x: object) -> Html:
    """Text as HTML; `Html` stays as it is."""
    return x if isinstance(x, Html) else Html(html.escape(str(x)))


def join_html(parts: Iterable[object], separator: str = "\n") -> Html:
    """Pieces after one another, each escaped unless it is `Html`."""
    return Html(separator.join(escape(p) for p in parts))


def tag(name: str, *inner: object, cls: str = "") -> Html:
    """<name class=cls>inner</name>."""
    attribute = f' class="{escape(cls)}"' if cls else ""
    return Html(f"<{name}{attribute}>{join_html(inner, '')}</{name}>")


def bullet_list(items: Iterable[object]) -> Html:
    return tag("ul", *(tag("li", item) for item in items))


def html_section(section_id: str, title: str, *inner: object) -> Html:
    """A section with a heading that can be linked to."""
    heading = f'<h2 id="{section_id}-title">{escape(title)}</h2>'
    attributes = f'id="{section_id}" aria-labelledby="{section_id}-title"'
    return Html(f"<section {attributes}>{heading}\n{join_html(inner)}</section>")


def html_fold(fold_id: str, title: str, *inner: object) -> Html:
    """What opens with a click; a link to it opens it too (page.js)."""
    summary = f"<summary><h2>{escape(title)}</h2></summary>"
    return Html(f'<details id="{fold_id}">{summary}\n{join_html(inner)}</details>')


def html_table(
    caption: str,
    headings: Sequence[object],
    rows: Iterable[Sequence[object]],
    text_columns: Sequence[int] = (),
) -> Html:
    """An HTML table with a caption, whose cells are escaped unless they are `Html`. The first
    column heads the rows. `text_columns`: the indices of further columns that hold texts, which are
    left-aligned; the others hold numbers and are right-aligned."""
    left_aligned = {0, *text_columns}

    def class_attribute(column: int) -> str:
        return "" if column in left_aligned else ' class="num"'

    head = "".join(
        f'<th scope="col"{class_attribute(i)}>{escape(heading)}</th>'
        for i, heading in enumerate(headings)
    )
    lines = []
    for row in rows:
        row_head = f'<th scope="row">{escape(row[0])}</th>'
        cells = [f"<td{class_attribute(i)}>{escape(row[i])}</td>" for i in range(1, len(row))]
        lines.append(f"<tr>{row_head}{''.join(cells)}</tr>")
    body = "\n".join(lines)

    header = f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
    table = f"<table>{header}<tbody>\n{body}\n</tbody></table>"
    # a wide table scrolls within its box, by the keyboard too
    box = f'class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"'
    return Html(f"<div {box}>{table}</div>")


def html_figure(png: bytes | None, alt_text: str, caption: object, chart_id: str = "") -> Html:
    """A figure of the page: an image with its caption, and an empty element in which page.js draws
    a chart in place of the image. `png`: None for no image; `chart_id`: the element's, "" for no
    chart; `alt_text`: what the figure shows, for someone who cannot see it."""
    alt = escape(alt_text)
    chart = ""
    if chart_id:
        chart = f'<div id="{chart_id}" class="chart" role="img" aria-label="{alt}"></div>'

    image = ""
    if png:
        source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        image = f'<div class="scroll still"><img alt="{alt}" src="{source}"></div>'
    return Html(f"<figure>{chart}{image}<figcaption>{escape(caption)}</figcaption></figure>")


def read_page_file(name: str) -> str:
    """A file of this folder: a template, a style sheet or a script."""
    text = files("isojax.report.page").joinpath(name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")


def html_document(title: str, body: Html, scripts: Sequence[str], data: str) -> str:
    """The whole page, with `scripts` to run at its end and JSON `data` for them; it forbids every
    other script, by their hashes."""
    digests = [hashlib.sha256(code.encode()).digest() for code in scripts]
    hashes = [base64.b64encode(digest).decode() for digest in digests]
    return Template(read_page_file("page.html")).substitute(
        title=escape(title),
        script_hashes=" ".join(f"'sha256-{script_hash}'" for script_hash in hashes),
        style=read_page_file("page.css"),
        body=body,
        data=data,
        scripts="".join(f"<script>{code}</script>\n" for code in scripts),
    )
