"""Pass rates with their intervals, one panel for each thing passed."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from mikit.trace import Proportion
from mikit.viz import style
from mikit.viz.style import interval, panels, styled
from mikit.viz.text import drawable, visible


@styled
def plot_rates(title: str, rates: Mapping[str, Mapping[str, Proportion]], reference: str | None = None) -> Figure:
    """How often explanations of each origin pass, with 95 % intervals.

    Args:
        title: what was found, as a sentence.
        rates: by what is passed, then by origin; origins are rows, in the order of the first panel.
        reference: an origin that is no null, drawn in grey and with a marker of its own.
    """
    origins = list(next(iter(rates.values())))
    figure, axes = panels(title, height=1.1 + 0.32 * len(origins), columns=len(rates), sharey=True)
    for panel, (what, by_origin) in zip(axes, rates.items(), strict=True):
        panel.set_title(visible(what.replace("_", " ")))
        for row, origin in enumerate(origins):
            color = style.OTHER if origin == reference else style.FEATURE if row == 0 else style.SECOND
            interval(panel, by_origin[origin], row, color, "D" if origin == reference else "o" if row == 0 else "s")
        panel.set_xlim(-0.02, 1.02)
        panel.grid(axis="x")
        panel.set_xlabel("share that passes")
        panel.tick_params(axis="y", length=0)
    names = [f"{drawable(name.replace('_', ' '), 60)} (n {rates[next(iter(rates))][name].n})" for name in origins]
    axes[0].set_yticks(range(len(origins)), names)
    axes[0].set_ylim(len(origins) - 0.5, -0.5)
    return figure
