"""Figures of a sweep: how its metrics are spread, and where its time went."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from mikit.viz import style
from mikit.viz.style import bars, empty, panels, reference, styled
from mikit.viz.text import drawable

BINS = 20


@styled
def plot_distributions(title: str, values: Mapping[str, Sequence[float]], gates: Mapping[str, float]) -> Figure:
    """How each metric is spread over the features of a sweep, a panel a metric.

    Args:
        title: what was found, as a sentence.
        values: by metric, of every feature that has it; from 0 to 1.
        gates: by metric, its threshold where it has one.
    """
    figure, axes = panels(title, height=2.4, columns=len(values), sharey=True)
    for panel, (name, found) in zip(axes, values.items(), strict=True):
        if not found:
            empty(panel, "not measured")
            continue
        panel.hist(found, bins=BINS, range=(min(0.0, *found), 1.0), color=style.FEATURE)
        panel.set_xlabel(f"{name.replace('_', ' ')}, share")
        panel.grid(axis="y")
        if name in gates:
            reference(panel, gates[name], "gate")
    axes[0].set_ylabel("number of features")
    return figure


@styled
def plot_step_seconds(title: str, seconds: Mapping[str, float]) -> Figure:
    """The median time of each step.

    Args:
        title: what was found, as a sentence.
        seconds: by step.
    """
    figure, (axes,) = panels(title, height=0.9 + 0.24 * max(len(seconds), 1))
    if not seconds:
        empty(axes, "no step was timed")
        return figure
    bars(axes, [drawable(name) for name in seconds], list(seconds.values()), style.FEATURE)
    axes.set_xlabel("median over features, seconds")
    return figure
