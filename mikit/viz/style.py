"""How every figure looks: one set of colours that the colour-blind can tell apart, titles that say what was found.

Figures are made without pyplot, so that drawing one changes nothing elsewhere.
"""

import io
import textwrap
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Literal, ParamSpec

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from mikit.errors import BadInput
from mikit.trace import Estimate, Proportion
from mikit.viz.text import in_glyphs, visible

P = ParamSpec("P")
TITLE, LINE = 300, 100
"""Characters of a title, and of a line of any text in a figure, that are drawn."""

INK, MUTED, RULE, PAPER = "#20242c", "#6a7180", "#d9dde4", "#ffffff"
FEATURE = "#0072b2"
"""The feature itself, and everything that it claims."""
SECOND, THIRD = "#6d1a4b", "#b08a00"
"""Other hypotheses beside the first."""
OTHER = "#9aa3b2"
"""What the feature is compared with."""
HOT = "#e69f00"
"""Activation."""
CONTROLS = {"near": SECOND, "random_live": "#56b4e9", "random_direction": OTHER}
HATCHES = {"near": "///", "random_live": "\\\\\\", "random_direction": ""}
"""Of bars: what tells them apart in print."""
CLAIMED = "//"
"""Hatching of what a hypothesis claims, or of what is pointed out."""
VERDICTS = {"pass": "#00805f", "fail": "#7d2200", "undecided": "#8a6d00", "none": "#3f4550"}
MARKS = {"pass": "✓", "fail": "✗", "undecided": "?", "none": "–"}
"""Beside the colour, which alone says nothing to some and in print."""
SERIES = ((FEATURE, "o"), (SECOND, "s"), (THIRD, "^"), (OTHER, "D"), (CONTROLS["random_live"], "v"))
"""Colour and marker of what is drawn side by side."""
LINES = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (5, 1.5, 1, 1.5)))
"""Of curves in one panel."""

DARK = {
    INK: "#e6e8ec",
    MUTED: "#a2aab8",
    RULE: "#363c47",
    PAPER: "#111111",
    FEATURE: "#56b4ea",
    SECOND: "#ffc9e6",
    THIRD: "#c79a00",
    OTHER: "#7f8999",
    CONTROLS["random_live"]: "#2b6ca3",
    VERDICTS["pass"]: "#35a880",
    VERDICTS["fail"]: "#e5532d",
    VERDICTS["undecided"]: "#f0d060",
    VERDICTS["none"]: "#d5dae2",
}
"""What takes the place of each colour in the dark theme, whose paper is that of JupyterLab's dark theme."""
Theme = Literal["light", "dark"]
_theme: Theme = "light"

STYLE: dict[Any, Any] = {
    "figure.dpi": 100,
    "savefig.dpi": 100,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a token may be "$"
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.edgecolor": RULE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "hatch.linewidth": 1.1,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "mikit",
}


class Picture(Figure):
    """A figure that shows itself in a notebook, with or without matplotlib's inline backend."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def set_theme(name: Theme) -> None:
    """Draw all figures of this process from now on for a light page, or for a dark one.

    Raises:
        BadInput: another name.
    """
    global _theme
    if name not in ("light", "dark"):
        raise BadInput(f"no theme {name!r}: valid: light, dark")
    _theme = name


def styled(plot: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in the style of this module and its theme, and leave matplotlib's settings as they were.

    Whatever the texts of a figure hold, they are drawn: no dollar sign begins a formula, and what the font lacks is
    drawn as its code point.
    """

    @wraps(plot)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            figure = plot(*args, **kwargs)
            for text in figure.findobj(Text):
                text.set_text("\n".join(in_glyphs(line[:LINE]) for line in text.get_text().split("\n")))
                text.set_parse_math(False)
            return darkened(figure) if _theme == "dark" else figure

    return drawn


def darkened(figure: Figure) -> Figure:
    """The figure with every colour of this module replaced by the one of the dark theme."""
    for artist in figure.findobj():
        for name in ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor"):
            get, put = getattr(artist, f"get_{name}", None), getattr(artist, f"set_{name}", None)
            if get and put and (found := _dark(get())) is not None:
                put(found)
    for axes in figure.axes:
        axes.tick_params(color=DARK[RULE], labelcolor=DARK[INK], grid_color=DARK[RULE])
    return figure


def _dark(value: Any) -> Any:
    """A colour, or an array of colours, in the dark theme; None where nothing changes."""
    if isinstance(value, str) and value in ("none", "auto"):
        return None
    if isinstance(value, np.ndarray):
        rows = [_dark(tuple(row)) for row in value.reshape(-1, 4)] if value.size % 4 == 0 else []
        return [new or tuple(old) for new, old in zip(rows, value.reshape(-1, 4), strict=True)] if any(rows) else None
    new = DARK.get(to_hex(value))
    return to_rgba(new, to_rgba(value)[3]) if new else None


def series(place: int) -> tuple[str, str]:
    """Colour and marker of the thing at that place among those side by side; markers change first."""
    color, _ = SERIES[place % len(SERIES)]
    _, marker = SERIES[(place + place // len(SERIES)) % len(SERIES)]
    return color, marker


def blank(title: str, height: float) -> Figure:
    """A figure 8.4 inches wide and `height` inches high under what was found, as a sentence."""
    figure = Picture(figsize=(8.4, height), layout="constrained")
    figure.suptitle(
        textwrap.fill(textwrap.shorten(visible(title), TITLE, placeholder=" …"), 100),
        x=0.008,
        ha="left",
        fontsize=10.5,
        fontweight="bold",
    )
    return figure


def panels(
    title: str, height: float, columns: int = 1, widths: Sequence[float] | None = None, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with a row of panels.

    Args:
        title: what was found, as a sentence.
        height: inches.
        columns: how many panels.
        widths: their relative widths.
        sharey: whether they share the vertical axis.
    """
    figure = blank(title, height)
    axes = figure.subplots(1, columns, squeeze=False, sharey=sharey, width_ratios=widths)
    return figure, list(axes[0])


def empty(axes: Axes, why: str) -> None:
    """Say in the panel's middle why there is nothing to draw."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=MUTED)


def reference(axes: Axes, value: float, label: str, vertical: bool = True, color: str = INK) -> None:
    """A dashed line at a threshold, with its name at its end."""
    line: dict[str, Any] = {"color": color, "linewidth": 1, "linestyle": (0, (4, 3)), "zorder": 1.5}
    text: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": color}
    if vertical:
        axes.axvline(value, **line)
        axes.annotate(label, (value, 1), (4, 0), xycoords=axes.get_xaxis_transform(), va="top", **text)
    else:
        axes.axhline(value, **line)
        axes.annotate(label, (1, value), (0, 2), xycoords=axes.get_yaxis_transform(), va="bottom", ha="right", **text)


def plain(axis: Axis, subs: Sequence[float] = (1.0, 2.0, 5.0)) -> None:
    """Ticks of a logarithmic axis as plain numbers: as powers they would need mathematical type.

    Args:
        axis: already logarithmic.
        subs: the ticks of a decade; an axis of a few decades needs more than one to have any.
    """
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def interval(
    axes: Axes, found: Proportion | Estimate, y: float, color: str, marker: str = "o", nothing: str = "no cases"
) -> None:
    """A marker at the value with its 95% interval, at height `y`; where there is no value, `nothing` in words."""
    if found.value is None:
        axes.text(0.01, y, nothing, va="center", fontsize=8, color=MUTED)
        return
    if found.low is not None and found.high is not None:
        axes.plot([found.low, found.high], [y, y], color=color, linewidth=2.2, alpha=0.55, zorder=2)
    axes.plot(found.value, y, marker, color=color, markersize=6.5, markeredgecolor=PAPER, zorder=3)


def bars(
    axes: Axes,
    labels: Sequence[str],
    values: Sequence[float],
    colors: Sequence[str] | str,
    hatches: Sequence[str] | None = None,
) -> None:
    """Horizontal bars from top to bottom with their names on the left."""
    places = np.arange(len(labels))
    drawn = axes.barh(places, values, color=colors, height=0.72)
    hatch(drawn, hatches or [""] * len(labels))
    axes.set_yticks(places, labels)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.axvline(0, color=RULE, linewidth=1)
    axes.grid(axis="x")
    axes.margins(y=0.02)


def hatch(drawn: Sequence[Any], hatches: Sequence[str]) -> None:
    """Hatch bars in the colour of the paper; an empty string leaves one plain."""
    for bar, pattern in zip(drawn, hatches, strict=True):
        if pattern:
            bar.set(hatch=pattern, edgecolor=PAPER, linewidth=0)


def percent(share: float | None) -> str:
    """A share as a percentage with two significant digits where it is small."""
    if share is None:
        return "unknown"
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{100 * share:.2g}%"
