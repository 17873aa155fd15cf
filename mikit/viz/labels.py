"""Whether the axes of a figure say what they show, and in which unit."""

import re

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FuncFormatter, NullFormatter

UNITS = re.compile(
    r"\b(nats|seconds|SAE units|tokens|share|probability|multiples of ref|squared output|no unit|number( of \w+)?|windows)\b"
)
"""What a label names as the unit; a count names what is counted."""


def unlabelled(figure: Figure) -> list[str]:
    """The axes of numbers without a label, or with one that names no unit; an axis of names needs none."""
    faults = []
    for i, axes in enumerate(axes for axes in figure.axes if axes.axison and axes.has_data()):
        for name, axis in (("horizontal", axes.xaxis), ("vertical", axes.yaxis)):
            label = _label(axes, axis, name)
            if not _has_names(axis) and not UNITS.search(label):
                faults.append(f"{name} axis of panel {i + 1}: {label!r}")
    return faults


def _label(axes: Axes, axis: Axis, name: str) -> str:
    """The label; of a panel that shares its vertical axis, that of the panel which has it."""
    if label := axis.get_label_text():
        return label
    figure = axes.figure
    shared = axes.get_shared_x_axes() if name == "horizontal" else axes.get_shared_y_axes()
    others = [each.get_xlabel() if name == "horizontal" else each.get_ylabel() for each in shared.get_siblings(axes)]
    whole = figure.get_supxlabel() if name == "horizontal" else figure.get_supylabel()
    return next(filter(None, [*others, whole]), "")


def _has_names(axis: Axis) -> bool:
    """Whether its ticks are words, or none."""
    if isinstance(axis.get_major_formatter(), NullFormatter) or not len(axis.get_majorticklocs()):
        return True
    if not isinstance(axis.get_major_formatter(), FixedFormatter | FuncFormatter):
        return False
    return any(not re.fullmatch(r"[-−\d.]*", text.get_text()) for text in axis.get_ticklabels()) or not any(
        text.get_text() for text in axis.get_ticklabels()
    )
