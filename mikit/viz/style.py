"""How every figure looks: one set of colours that the colour-blind can tell apart, titles that say what was found.

Figures are made without pyplot, so that drawing one changes nothing elsewhere.
"""

import io
import textwrap
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from mikit.trace import Estimate, Proportion

P = ParamSpec("P")

INK, MUTED, RULE, PAPER = "#20242c", "#6a7180", "#d9dde4", "#ffffff"
FEATURE = "#0072b2"
"""The feature itself, and everything that it claims."""
SECOND, THIRD = "#b04a86", "#8a6d00"
"""Other hypotheses beside the first."""
OTHER = "#9aa3b2"
"""What the feature is compared with."""
HOT = "#e69f00"
"""Activation."""
CONTROLS = {"near": "#b04a86", "random_live": "#4c9ed1", "random_direction": OTHER}
VERDICTS = {"pass": "#00805f", "fail": "#c44e00", "undecided": "#8a6d00", "none": MUTED}
MARKS = {"pass": "✓", "fail": "✗", "undecided": "?", "none": "–"}
"""Beside the colour, which alone says nothing to some and in print."""

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


def styled(plot: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in the style of this module, and leave matplotlib's settings as they were."""

    @wraps(plot)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return plot(*args, **kwargs)

    return drawn


def blank(title: str, height: float) -> Figure:
    """A figure 8.4 inches wide and `height` inches high under what was found, as a sentence."""
    figure = Picture(figsize=(8.4, height), layout="constrained")
    figure.suptitle(textwrap.fill(title, 100), x=0.008, ha="left", fontsize=10.5, fontweight="bold")
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


def interval(axes: Axes, found: Proportion | Estimate, y: float, color: str) -> None:
    """A dot at the value with its 95% interval, at height `y`; nothing where there is no value."""
    if found.value is None:
        axes.text(0.01, y, "no cases", va="center", fontsize=8, color=MUTED)
        return
    if found.low is not None and found.high is not None:
        axes.plot([found.low, found.high], [y, y], color=color, linewidth=2.2, alpha=0.55, zorder=2)
    axes.plot(found.value, y, "o", color=color, markersize=6.5, markeredgecolor=PAPER, zorder=3)


def bars(axes: Axes, labels: Sequence[str], values: Sequence[float], colors: Sequence[str] | str) -> None:
    """Horizontal bars from top to bottom with their names on the left."""
    places = np.arange(len(labels))
    axes.barh(places, values, color=colors, height=0.72)
    axes.set_yticks(places, labels)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.axvline(0, color=RULE, linewidth=1)
    axes.grid(axis="x")
    axes.margins(y=0.02)


def percent(share: float | None) -> str:
    """A share as a percentage with two significant digits where it is small."""
    if share is None:
        return "unknown"
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{100 * share:.2g}%"
