"""Windows of text with the feature's activation at each token, as HTML for notebooks and pages."""

import itertools
from collections.abc import Sequence

from markupsafe import Markup, escape

from mikit.trace import Observation, Window
from mikit.viz.text import visible

KINDS = {
    "top": "strongest",
    "quantile": "over the quantiles",
    "silent_trigger": "silent, with a trigger token",
    "silent_random": "silent, at random",
}
DEEPEST = 0.55
"""Opacity behind the strongest token: the text stays readable on white and on black."""
ROW = "display:flex;gap:1em;align-items:baseline;padding:.3em 0;border-bottom:1px solid rgba(128,128,128,.25)"
HEAD = "flex:none;width:6em;font:12px/1.5 system-ui,sans-serif;opacity:.75;text-align:right"
TEXT = "min-width:0;font:13px/1.75 ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre-wrap;overflow-wrap:anywhere"


class Html(Markup):
    """Escaped HTML that shows itself: in a notebook, and in a template."""

    def _repr_html_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"<{len(self)} characters of HTML>"


def windows_html(windows: Sequence[Window], tau: float, n: int = 10, scale: float | None = None) -> Html:
    """The first `n` windows: the stronger the activation the deeper the colour, the peak underlined, values on hover.

    Args:
        windows: as an observation holds them.
        tau: firing threshold; a window fires where its peak reaches it.
        n: how many windows at most.
        scale: activation drawn at full depth, such as the feature's `ref`; the largest peak shown if not given.

    Returns:
        Escaped HTML without classes, scripts or outside resources, for light and dark pages.
    """
    shown = list(itertools.islice(windows, n))
    full = scale or max((window.peak for window in shown), default=0.0) or 1.0
    return Html(Markup("<div>{}</div>").format(Markup("").join(_row(window, tau, full) for window in shown)))


def show_windows(observation: Observation, n: int = 5) -> Html:
    """The first `n` windows of each kind that an observation holds, under their names."""
    parts = []
    for kind, name in KINDS.items():
        windows = [window for window in observation.windows if window.kind == kind]
        title = Markup("<p><b>{}</b> ({} of {})</p>").format(name.capitalize(), min(n, len(windows)), len(windows))
        parts.append(title + windows_html(windows, observation.tau, n, observation.ref or None))
    return Html(Markup("").join(parts))


def _row(window: Window, tau: float, full: float) -> Markup:
    verdict = "fires" if window.peak >= tau > 0 else "silent"
    head = Markup('<span style="{}">{} {:.3g}</span>').format(HEAD, verdict, window.peak)
    pairs = zip(window.tokens, window.activations, strict=True)
    tokens = [
        _token(token, value, full, window.peak_index == i and value > 0) for i, (token, value) in enumerate(pairs)
    ]
    text = Markup('<span style="{}">{}</span>').format(TEXT, Markup("").join(tokens))
    return Markup('<div style="{}" title="{}">{}{}</div>').format(
        ROW, f"document {visible(window.document)}, token {window.start}", head, text
    )


def _token(token: str, value: float, full: float, peak: bool) -> Markup:
    """One token; `bdi` keeps a right-to-left word from reordering its neighbours."""
    if value <= 0:
        return Markup("<bdi>{}</bdi>").format(visible(token))
    depth = DEEPEST * min(value / full, 1.0)
    line = ";text-decoration:underline 2px;text-underline-offset:3px" if peak else ""
    css = f"background:rgba(230,159,0,{depth:.2f});border-radius:2px{line}"
    return Markup('<bdi style="{}" title="{:.3g}">{}</bdi>').format(escape(css), value, visible(token))
