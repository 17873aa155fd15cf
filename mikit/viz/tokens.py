"""Text with a feature's activation at each token, as HTML: depth of colour, a line below, weight, and the number itself."""

from collections.abc import Sequence

from markupsafe import Markup, escape

from mikit.trace import Observation, Window
from mikit.viz.text import visible
from mikit.viz.windows import DEEPEST, HEAD, ROW, TEXT, Html

LINES = {
    "fires": "text-decoration:underline 2px;text-underline-offset:3px;font-weight:700",
    "grey": "text-decoration:underline dotted 1px;text-underline-offset:3px",
}
NUMBER = (
    "font:10px/1 system-ui,sans-serif;font-weight:400;vertical-align:super;opacity:.8;margin-left:1px;user-select:none"
)
LEFT_OUT = "outline:1px dashed rgba(128,128,128,.7);border-radius:2px"
KEY = "font:12px/1.6 system-ui,sans-serif;opacity:.8;margin:.2em 0 .5em"


def tokens_html(tokens: Sequence[str], activations: Sequence[float], tau: float, full: float) -> Html:
    """A run of tokens: one that fires is bold over a line with its value beside it, one in the grey zone over dots.

    Args:
        tokens: their texts.
        activations: one for each; below 0 where the position is left out, as one of massive norm is.
        tau: firing threshold.
        full: activation drawn at full depth.
    """
    pairs = zip(tokens, activations, strict=True)
    parts = [_token(token, float(value), tau, full) for token, value in pairs]
    return Html(Markup('<span style="{}">{}</span>').format(TEXT, Markup("").join(parts)))


def _token(token: str, value: float, tau: float, full: float) -> Markup:
    """One token; `bdi` keeps a right-to-left word from reordering its neighbours."""
    if value < 0:
        title = "left out: the norm of this position is massive"
        return Markup('<bdi style="{}" title="{}">{}</bdi>').format(LEFT_OUT, title, visible(token))
    if not value:
        return Markup('<bdi title="0">{}</bdi>').format(visible(token))
    fires = value >= tau > 0
    depth = DEEPEST * min(value / full, 1.0) if full > 0 else DEEPEST
    css = f"background:rgba(230,159,0,{depth:.2f});border-radius:2px;{LINES['fires' if fires else 'grey']}"
    number = Markup('<span style="{}">{:.3g}</span>').format(NUMBER, value) if fires else ""
    title = f"{value:.3g}, {'fires' if fires else 'below tau'} (tau {tau:.3g})"
    return Markup('<bdi style="{}" title="{}">{}</bdi>{}').format(escape(css), title, visible(token), number)


def key_html(tau: float) -> Html:
    """What the lines and numbers mean."""
    text = "<b style='{}'>bold over a line</b> with its value: fires (activation of {:.3g}, which is tau, or more) · <span style='{}'>over dots</span>: active below tau · values on hover"
    return Html(Markup(f'<div style="{KEY}">{text}</div>').format(LINES["fires"], tau, LINES["grey"]))


def bands_html(observation: Observation, n: int = 4, n_bands: int = 4) -> Html:
    """Windows by how strongly they fire, then silent ones: `n` of each band.

    Args:
        observation: its `quantile` windows are even over the quantiles of the peak, so that equal parts of them are bands.
        n: windows shown of a band at most.
        n_bands: bands below the strongest windows.
    """
    full = observation.ref or None
    parts = [key_html(observation.tau)]
    for name, windows in bands(observation, n_bands):
        chosen = spread(windows, n)
        title = Markup("<p style='margin:.8em 0 .2em'><b>{}</b> ({} of {} shown)</p>").format(
            name, len(chosen), len(windows)
        )
        parts.append(Html(title + windows_rows(chosen, observation.tau, full)))
    return Html(Markup("<div>{}</div>").format(Markup("").join(parts)))


def bands(observation: Observation, n_bands: int = 4) -> list[tuple[str, list[Window]]]:
    """The windows of an observation under names: the strongest, bands of the other firing ones, silent ones."""
    of = {kind: [w for w in observation.windows if w.kind == kind] for kind in ("top", "quantile", "silent_trigger")}
    found = [("Strongest", of["top"])]
    rest = of["quantile"]
    size = -(-len(rest) // n_bands) if rest else 1
    for i, start in enumerate(range(0, len(rest), size), 1):
        part = rest[start : start + size]
        found.append((f"Part {i} of {n_bands} by strength: peaks {part[-1].peak:.3g} to {part[0].peak:.3g}", part))
    return [*found, ("Silent, though a trigger token is there", of["silent_trigger"])]


def spread(windows: Sequence[Window], n: int) -> list[Window]:
    """`n` of the windows, evenly spaced, the first among them."""
    return list(windows) if len(windows) <= n else [windows[i * len(windows) // n] for i in range(n)]


def windows_rows(windows: Sequence[Window], tau: float, full: float | None = None) -> Html:
    """Windows below one another, each behind its verdict and its peak."""
    deepest = full or max((window.peak for window in windows), default=0.0)
    return Html(Markup("").join(_row(window, tau, deepest) for window in windows) or Markup("<i>no such window</i>"))


def _row(window: Window, tau: float, full: float) -> Markup:
    head = Markup('<span style="{}">{} {:.3g}</span>').format(
        HEAD, "fires" if window.peak >= tau > 0 else "silent", window.peak
    )
    text = tokens_html(window.tokens, window.activations, tau, full)
    where = f"document {visible(window.document)}, token {window.start}"
    return Markup('<div style="{}" title="{}">{}{}</div>').format(ROW, where, head, text)
