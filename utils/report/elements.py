"""Elements of an HTML page from plain text and tables."""

import base64
import html
from collections.abc import Iterable
from io import BytesIO

from utils.report.tables import Table

from PIL import Image

LONG_CELL = 60  # characters; longer cells may break into lines


def escaped(value) -> str:
    return html.escape(str(value))


def paragraph(text: str, style: str = "") -> str:
    return f"<p{f' class={style}' if style else ''}>{escaped(text)}</p>"


def table(content: Table) -> str:
    """Return a table with its title and note, which scrolls by itself if wider than the page."""
    head = "".join(f"<th>{escaped(name)}</th>" for name in content.head)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in content.rows)
    parts = [
        f"<h3>{escaped(content.title)}</h3>" if content.title else "",
        paragraph(content.note, "soft") if content.note else "",
        f"<div class=scroll tabindex=0><table class=numbers><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>",
    ]
    return "\n".join(filter(None, parts))


def _cell(text: str) -> str:
    first, _, second = text.partition("\n")
    style = " class=long" if len(text) > LONG_CELL else ""
    small = f"<small>{escaped(second)}</small>" if second else ""
    return f"<td{style}>{escaped(first)}{small}</td>"


def image(data: bytes, title: str) -> str:
    """Return a PNG at half its size in pixels; on narrow screens a tap switches to that size."""
    width, height = Image.open(BytesIO(data)).size
    return (
        f'<label class=zoom><input type=checkbox aria-label="enlarge"><div class=scroll>'
        f'<img src="data:image/png;base64,{base64.b64encode(data).decode()}" '
        f'width={width // 2} height={height // 2} alt="{escaped(title)}"></div></label>'
    )


def folded(summary: str, texts: Iterable[str]) -> str:
    """Return preformatted texts behind a click."""
    content = "".join(f"<pre>{escaped(text)}</pre>" for text in texts)
    return f"<details><summary>{escaped(summary)}</summary>{content}</details>"


def document(title: str, style: str, body: Iterable[str]) -> str:
    """Return a whole page that needs no other file."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escaped(title)}</title>\n<style>\n{style}</style>\n"
        "</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )
