"""Pictures of the lessons: each takes numbers and a title that says what is seen, and returns a Figure."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from mikit.viz import style
from mikit.viz.style import panels, plain, reference, styled
from mikit.viz.text import visible

DIVERGING = "PuOr_r"
FEW = 30
"""Up to this many bars have all their numbers below them."""
CELLS = 1500
"""Up to this many cells of a matrix can carry a mark."""


def _array(values: Tensor | np.ndarray | Sequence[float]) -> Float[np.ndarray, "..."]:
    return values.detach().double().numpy() if isinstance(values, Tensor) else np.asarray(values, dtype=float)


def _image(axes: Axes, values: Float[np.ndarray, "rows columns"], largest: float, **options: Any) -> Any:
    return axes.imshow(
        values, cmap=DIVERGING, vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest", **options
    )


@styled
def matrix(values: Float[Tensor, "rows columns"], title: str, rows: str, columns: str, label: str) -> Figure:
    """A matrix as an image, white at zero; in a small one a dash marks what is negative, for who sees no colour."""
    shown = _array(values)
    figure, (axes,) = panels(title, height=min(1.6 + 0.16 * len(shown), 4.5))
    image = _image(axes, shown, float(np.abs(shown).max()) or 1.0)
    axes.set(xlabel=columns, ylabel=rows)
    if len(shown) <= FEW // 2:
        axes.set_yticks(range(len(shown)))
    if shown.size <= CELLS:
        largest = np.abs(shown).max()
        for deep, color in ((False, style.INK), (True, "white")):
            below = np.nonzero((shown < -largest / 10) & ((shown < -largest / 2) == deep))
            axes.plot(below[1], below[0], linestyle="", marker="_", markersize=5, color=color)
    figure.colorbar(image, ax=axes, label=label, pad=0.01)
    return figure


@styled
def bars(
    values: Float[Tensor, " things"],
    title: str,
    things: str,
    label: str,
    first: int = 0,
    marked: Collection[int] = (),
    line: tuple[float, str] | None = None,
    log: bool = False,
) -> Figure:
    """A bar for each thing, by its number.

    Args:
        values: by thing.
        title: what is seen.
        things: what the numbers count.
        label: of the values.
        first: number of the first thing.
        marked: numbers of those to be coloured and hatched.
        line: a threshold, and its name.
        log: whether the axis is logarithmic; zeros then lie on the floor as open circles.
    """
    shown = _array(values)
    numbers = np.arange(first, first + len(shown))
    colors = [style.FEATURE if number in marked else style.OTHER for number in numbers]
    figure, (axes,) = panels(title, height=2.6)
    if log:
        positive = shown[shown > 0]
        floor = float(positive.min()) / 10 if positive.size else 1e-9
        axes.vlines(numbers, floor, np.maximum(shown, floor), colors=colors, linewidth=2)
        is_marked = np.isin(numbers, list(marked))
        for chosen, marker in ((~is_marked, "o"), (is_marked, "D")):
            pairs = [(v, c) for v, c, is_one in zip(shown, colors, chosen, strict=True) if is_one]
            axes.scatter(
                numbers[chosen],
                np.maximum(shown[chosen], floor),
                s=26,
                marker=marker,
                c=[style.PAPER if value <= 0 else color for value, color in pairs],
                edgecolors=[color for _, color in pairs],
                zorder=3,
                clip_on=False,
            )
        axes.set(yscale="log", ylim=(floor, None))
        plain(axes.yaxis, subs=(1.0,))
    else:
        drawn = axes.bar(numbers, shown, color=colors, width=0.74)
        style.hatch(drawn, [style.CLAIMED if number in marked else "" for number in numbers])
        axes.axhline(0, color=style.RULE, linewidth=1)
    if len(shown) <= FEW:
        axes.set_xticks(numbers)
    axes.set(xlabel=things, ylabel=label)
    axes.margins(x=0.01)
    axes.grid(axis="y")
    if line is not None:
        reference(axes, *line, vertical=False)
    return figure


@styled
def scatter(
    x: Float[Tensor, " things"],
    y: Float[Tensor, " things"],
    title: str,
    xlabel: str,
    ylabel: str,
    first: int = 0,
    named: Collection[int] = (),
) -> Figure:
    """A dot for each thing; those named are coloured diamonds and carry their numbers."""
    across, up = _array(x), _array(y)
    figure, (axes,) = panels(title, height=3.2)
    chosen = [number - first for number in named]
    axes.scatter(across, up, s=30, color=style.OTHER, edgecolors=style.PAPER)
    axes.scatter(across[chosen], up[chosen], s=42, marker="D", color=style.FEATURE, edgecolors=style.PAPER, zorder=3)
    for i in chosen:
        axes.annotate(str(i + first), (across[i], up[i]), (4, 4), textcoords="offset points", fontsize=8)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid()
    return figure


@styled
def curves(
    x: Float[Tensor, " points"],
    lines: Mapping[str, Float[Tensor, " points"]],
    title: str,
    xlabel: str,
    ylabel: str,
    highlighted: Collection[str] = (),
) -> Figure:
    """Lines over one axis, each with its name at its end; those highlighted are coloured, and dashed each its own way."""
    across = _array(x)
    figure, (axes,) = panels(title, height=3.2)
    strongs = 0
    for name, line in lines.items():
        strong = name in highlighted or not highlighted
        dashes = style.LINES[strongs % len(style.LINES)] if strong else "-"
        strongs += strong
        axes.plot(
            across,
            _array(line),
            linewidth=2 if strong else 1,
            color=style.FEATURE if strong else style.OTHER,
            linestyle=dashes,
            alpha=0.9,
        )
    _names(axes, {name: float(_array(line)[-1]) for name, line in lines.items()}, float(across[-1]))
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(axis="y")
    return figure


def _names(axes: Axes, ends: Mapping[str, float], x: float) -> None:
    """Names beside the ends of lines, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    step, last = (high - low) / 22, low - (high - low)
    for name, y in sorted(ends.items(), key=lambda end: end[1]):
        last = max(y, last + step)
        axes.annotate(
            visible(name), (x, last), (5, 0), textcoords="offset points", fontsize=8, va="center", annotation_clip=False
        )


@styled
def surfaces(
    grids: Mapping[str, Float[Tensor, "points points"]], title: str, xlabel: str, ylabel: str, label: str = "value"
) -> Figure:
    """Values over two inputs from -1 to 1, one image for each name, all in the same colours; dashed contours are negative."""
    arrays = {name: _array(grid) for name, grid in grids.items()}
    largest = max(float(np.abs(array).max()) for array in arrays.values()) or 1.0
    figure, row = panels(title, height=2.9, columns=len(arrays), sharey=True)
    for axes, (name, array) in zip(row, arrays.items(), strict=True):
        image = _image(axes, array, largest, origin="lower", extent=(-1, 1, -1, 1))
        if np.ptp(array) > 0:
            levels = largest * np.array([-0.75, -0.5, -0.25, 0.25, 0.5, 0.75])
            points = np.linspace(-1, 1, len(array))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "No contour levels")
                axes.contour(points, points, array, levels, colors=style.INK, linewidths=0.5, alpha=0.6)
        axes.set(title=visible(name), xlabel=xlabel)
    row[0].set_ylabel(ylabel)
    figure.colorbar(image, ax=row, label=label, pad=0.01)
    return figure


@styled
def series(numbers: Mapping[str, Float[Tensor, " points"]], title: str, xlabel: str) -> Figure:
    """Values by number, one panel below another for each name."""
    figure = style.blank(title, height=0.9 + 0.9 * len(numbers))
    column = figure.subplots(len(numbers), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, values) in zip(column, numbers.items(), strict=True):
        shown = _array(values)
        axes.plot(np.arange(len(shown)), shown, ".-", color=style.FEATURE, linewidth=1, markersize=4)
        axes.axhline(0, color=style.RULE, linewidth=1)
        axes.set_ylabel(visible(name))
        axes.margins(x=0.01)
    column[-1].set_xlabel(xlabel)
    return figure
