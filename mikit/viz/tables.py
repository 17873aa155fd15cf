"""Tables for notebooks, as HTML without classes, scripts or outside resources: readable on white and on black."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote, urlsplit

from markupsafe import Markup, escape

from mikit.trace import GateVerdict
from mikit.viz.style import MARKS
from mikit.viz.text import visible
from mikit.viz.windows import Html

TABLE = "border-collapse:collapse;font:13px/1.5 system-ui,sans-serif;margin:.4em 0"
CAPTION = "caption-side:top;text-align:left;font-weight:bold;padding:.2em 0;color:inherit"
CELL = "text-align:left;vertical-align:top;padding:.25em .9em .25em 0;border:0;border-bottom:1px solid rgba(128,128,128,.35);max-width:34em;overflow-wrap:break-word;white-space:normal"
NUMBER = CELL.replace("left", "right", 1)
EDGES = {"pass": "#00805f", "fail": "#c44e00", "undecided": "#a07d00", "none": "#808794"}
"""Beside the mark and the word, which are in the colour of the text around them."""


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "", empty: str = "nothing") -> Html:
    """A table with its heads; what is no `Markup` is escaped, and None is a dash.

    Args:
        heads: of the columns.
        rows: a cell for each head: text, a number, or `Markup` made here or in `mikit.viz.windows`.
        caption: what the table shows.
        empty: what to say where there is no row.
    """
    if not rows:
        return paragraph(f"{caption}: {empty}" if caption else empty)
    title = Markup('<caption style="{}">{}</caption>').format(CAPTION, visible(caption)) if caption else Markup("")
    head = Markup("").join(Markup('<th scope="col" style="{}">{}</th>').format(CELL, visible(each)) for each in heads)
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup('<td style="{}">{}</td>').format(_style(cell), _cell(cell))
                for _, cell in zip(heads, row, strict=True)
            )
        )
        for row in rows
    )
    return Html(
        Markup(
            '<div style="overflow-x:auto"><table style="{}">{}<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
        ).format(TABLE, title, head, body)
    )


def paragraph(*parts: Any) -> Html:
    """Text, escaped, with what is `Markup` kept."""
    return Html(Markup("<p>{}</p>").format(Markup("").join(_cell(part) for part in parts)))


def lines_html(lines: Sequence[str]) -> Html:
    """Lines of text below one another, each escaped."""
    return Html(Markup("<br>").join(visible(line) for line in lines))


def verdict(found: GateVerdict, text: str = "") -> Markup:
    """A gate's verdict as a mark and a word; a coloured edge says the same once more."""
    css = f"border-left:4px solid {EDGES[found]};padding-left:.45em;font-weight:600;white-space:nowrap"
    return Markup('<span style="{}"><span aria-hidden="true">{}</span> {}</span>').format(
        css, MARKS[found], visible(text or found)
    )


def link(text: str, address: str) -> Markup:
    """A link to a file beside the page; an address with a scheme or a host is shown as text, never linked.

    Args:
        text: what is read.
        address: a relative path, percent-encoded, as `relative_address` gives it.
    """
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return escape(visible(text))
    return Markup('<a href="{}">{}</a>').format(address, visible(text))


def relative_address(path: PurePath, start: PurePath) -> str:
    """The address of a file as seen from a folder, percent-encoded; both are absolute."""
    import os

    return quote(os.fsencode(os.path.relpath(path, start)))


def number(value: float | None, digits: int = 2) -> str | None:
    """A number with so many decimals; None stays None, which a table shows as a dash."""
    return None if value is None else f"{value:.{digits}f}"


def _cell(value: Any) -> Markup:
    if isinstance(value, Markup):
        return value
    return escape("–" if value is None else visible(str(value)))


def _style(value: Any) -> str:
    return NUMBER if isinstance(value, (int, float)) and not isinstance(value, bool) else CELL
