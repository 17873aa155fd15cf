"""Figures of runs side by side."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from mikit.trace import Estimate, Proportion
from mikit.viz import style
from mikit.viz.style import bars, empty, interval, panels, reference, styled
from mikit.viz.text import drawable

NAME = 30
"""Characters of a name that are drawn."""


@styled
def plot_compared(
    title: str, metrics: Mapping[str, Mapping[str, Proportion | Estimate | None]], gates: Mapping[str, float]
) -> Figure:
    """Each metric of each run with its 95 % interval, a panel a metric.

    Args:
        title: what was found, as a sentence.
        metrics: by metric, then by run; shares from 0 to 1, or scores from -1 to 1. Runs are rows, those of the first
            metric.
        gates: by metric, its threshold where it has one.
    """
    names = list(next(iter(metrics.values())))
    figure, axes = panels(title, height=1.3 + 0.36 * max(len(names), 2), columns=len(metrics), sharey=True)
    lowest = min(
        [0.0, *(low for found in metrics.values() for v in found.values() if v and (low := v.low) is not None)]
    )
    for panel, (metric, by_run) in zip(axes, metrics.items(), strict=True):
        panel.set_title(metric)
        for row, name in enumerate(names):
            color, marker = style.series(row)
            found = by_run.get(name) or Proportion(value=None, low=None, high=None, n=0)
            interval(panel, found, row, color, marker=marker, nothing="not measured")
        if metric in gates:
            reference(panel, gates[metric], "gate")
        panel.set_xlim(lowest - 0.03, 1.03)
        panel.grid(axis="x")
        panel.set_xlabel("share")
        panel.tick_params(axis="y", length=0)
    figure.supxlabel("lines: 95% intervals", fontsize=8.5, color=style.MUTED)
    axes[0].set_yticks(range(len(names)), [drawable(name, NAME) for name in names])
    axes[0].set_ylim(len(names) - 0.5, -0.7)
    return figure


@styled
def plot_costs(title: str, seconds: Mapping[str, float], tokens: Mapping[str, int]) -> Figure:
    """Work and tokens of each run.

    Args:
        title: what was found, as a sentence.
        seconds: of work, by run.
        tokens: of language models, by run.
    """
    names = [drawable(name, NAME) for name in seconds]
    figure, (left, right) = panels(title, height=1.1 + 0.3 * max(len(names), 2), columns=2, sharey=True)
    bars(left, names, list(seconds.values()), style.FEATURE)
    left.set_xlabel("work, seconds")
    if not any(tokens.values()):
        empty(right, "no language model was asked")
        return figure
    right.barh(range(len(names)), list(tokens.values()), color=style.OTHER, height=0.72)
    right.set_xlabel("language model, tokens")
    right.set_xlim(left=0)
    right.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    right.tick_params(axis="y", length=0)
    right.grid(axis="x")
    return figure
