"""A figure as SVG inside a page: no outside resource, text as text, colours that follow the page's theme."""

import io
import re

import matplotlib
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from mikit.viz import style
from mikit.viz.text import visible

THEMED = {
    style.INK: "--ink",
    style.MUTED: "--muted",
    style.RULE: "--rule",
    style.PAPER: "--paper",
    style.FEATURE: "--feature",
    style.SECOND: "--second",
    style.THIRD: "--third",
    style.OTHER: "--other",
    style.HOT: "--hot",
    style.CONTROLS["random_live"]: "--live",
    style.VERDICTS["pass"]: "--pass",
    style.VERDICTS["fail"]: "--fail",
}
"""Colours of a figure, and the CSS variable that a page may set instead."""
THEMED |= {style.DARK[color]: variable for color, variable in THEMED.items() if color in style.DARK}


def inline_svg(figure: Figure, label: str) -> Markup:
    """The figure as an `<svg>` element that scales with the page.

    Args:
        figure: as a plot function returned it.
        label: what it shows; with its title, which says what was found, it is read to those who can't see it.
    """
    file = io.StringIO()
    # a salt of its own: equal shapes in two figures of a page must not share an id
    with matplotlib.rc_context({**style.STYLE, "svg.hashsalt": label}):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    name = visible(f"{label}: {' '.join(figure.get_suptitle().split())}")
    box = re.search(r'viewBox="([\d. ]+)"', svg)
    assert box, "matplotlib gives every SVG a viewBox"
    # names of groups, which nothing refers to: the same in every figure
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    for color, variable in THEMED.items():
        body = body.replace(color, f"var({variable}, {color})")
    return Markup(f'<svg role="img" aria-label="{escape(name)}" viewBox="{box[1]}">{body}')
