"""Figures of the feature explorer: how strongly a feature fires, what steering does to one text, two features side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from mikit.trace import Proportion
from mikit.viz import style
from mikit.viz.style import bars, empty, interval, panels, percent, plain, reference, styled
from mikit.viz.text import drawable, token_label


@styled
def plot_histogram(values: Float[np.ndarray, " n"], tau: float, ref: float, n_tokens: int) -> Figure:
    """The feature's activations above 0 in a corpus, those that fire apart from those in the grey zone.

    Args:
        values: activations above 0.
        tau: firing threshold.
        ref: the unit of steering.
        n_tokens: content tokens that were read.
    """
    firing = values[values >= tau] if tau > 0 else values[:0]
    title = f"The feature is never active on {n_tokens:,} tokens"
    if len(values):
        title = (
            f"Active on {percent(len(values) / n_tokens)} of {n_tokens:,} tokens, and fires on "
            f"{percent(len(firing) / n_tokens)}: {len(firing) / len(values):.0%} of its activations reach tau"
        )
    figure, (axes,) = panels(title, height=2.7)
    if not len(values):
        empty(axes, "no activation above 0")
        return figure
    edges = np.linspace(0, float(values.max()) * 1.0001, 61)
    grey = {"color": style.OTHER, "hatch": "////", "edgecolor": style.PAPER, "linewidth": 0}
    if len(firing) < len(values):
        axes.hist(values[values < tau], bins=edges, label="hatched: below tau, the grey zone", **grey)
    axes.hist(firing, bins=edges, color=style.HOT, label="plain: fires")
    axes.set(xlabel="activation of a token, SAE units", ylabel="number of tokens", yscale="log")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0.5)
    plain(axes.yaxis)
    axes.grid(axis="y")
    figure.legend(loc="outside lower right", ncols=2, borderpad=0)
    reference(axes, tau, f"tau {tau:.3g}")
    reference(axes, ref, f"ref {ref:.3g}")
    return figure


@dataclass(frozen=True)
class NextTokens:
    """The next token of a text under three models: unchanged, steered along the feature, steered at random."""

    likely: Sequence[str]
    """Tokens that are likely in the unchanged or in the steered model, most likely when steered first."""
    before: Float[np.ndarray, " likely"]
    """Their probabilities, unchanged."""
    after: Float[np.ndarray, " likely"]
    """Their probabilities, steered."""
    random: Float[np.ndarray, " likely"]
    """Their probabilities with a random direction of the same norm."""
    moved: Sequence[str]
    """Tokens whose probability rises most, most risen first."""
    change: Float[np.ndarray, " moved"]
    """Their change of log-probability, nats."""
    random_change: Float[np.ndarray, " moved"]
    """The same with the random direction."""
    kl: float
    """KL(unchanged || steered), nats."""
    random_kl: float
    """KL(unchanged || random), nats."""


@styled
def plot_next_tokens(found: NextTokens, how: str) -> Figure:
    """The next-token distribution before and after steering, and the tokens that it raises most, beside a random direction.

    Args:
        found: what was measured.
        how: what was added where, as a phrase: `1 x ref at the last token`.
    """
    title = (
        f"Adding {how} moves the next token by {found.kl:.3g} nats (KL); "
        f"a random direction of the same norm by {found.random_kl:.3g}"
    )
    rows = max(len(found.likely), len(found.moved), 4)
    figure, (likely, moved) = panels(title, height=1.25 + 0.24 * rows, columns=2)
    places = np.arange(len(found.likely))
    likely.hlines(places, found.before, found.after, color=style.RULE, linewidth=2, zorder=1)
    for values, marker, color, face, name in (
        (found.random, "x", style.MUTED, style.MUTED, "random direction"),
        (found.before, "o", style.INK, style.PAPER, "before"),
        (found.after, "o", style.FEATURE, style.FEATURE, "steered"),
    ):
        likely.plot(
            values, places, marker, markeredgecolor=color, markerfacecolor=face, markersize=6, label=name, zorder=3
        )
    likely.set_yticks(places, [token_label(token) for token in found.likely])
    likely.set(xlabel="probability of the next token", ylim=(len(places) - 0.4, -0.6))
    likely.set_xlim(left=-0.01)
    likely.tick_params(axis="y", length=0)
    likely.grid(axis="x")
    likely.set_title("likely before or after", color=style.MUTED)
    bars(moved, [token_label(token) for token in found.moved], found.change.tolist(), style.FEATURE)
    moved.plot(found.random_change, np.arange(len(found.moved)), "x", color=style.MUTED, markersize=6)
    moved.set(xlabel="change of log-probability, nats")
    moved.set_title("raised most", color=style.MUTED)
    figure.legend(*likely.get_legend_handles_labels(), loc="outside lower left", ncols=3, columnspacing=1.5)
    return figure


@dataclass(frozen=True)
class Overlap:
    """Where two features are active in a corpus."""

    names: tuple[str, str]
    shares: tuple[Proportion, Proportion]
    """Share of the tokens that the first is active on at which the second is too, and the reverse."""
    base: tuple[float, float]
    """Share of all tokens on which the second, and the first, is active: what chance alone would give."""
    values: Float[np.ndarray, "n 2"]
    """Their activations at the tokens where at least one of them is above 0."""
    cosine: float
    """Of their decoder directions."""


@styled
def plot_overlap(overlap: Overlap) -> Figure:
    """How often two features are active together, beside chance, and their activations token by token."""
    first, second = map(drawable, overlap.names)
    together = int((overlap.values > 0).all(1).sum())
    title = (
        f"{first} and {second}: decoder cosine {overlap.cosine:.2f}, active together on {together:,} of "
        f"{len(overlap.values):,} tokens that have either"
    )
    figure, (shares, values) = panels(title, height=2.8, columns=2)
    for y, (share, base, color) in enumerate(
        zip(overlap.shares, overlap.base, (style.FEATURE, style.SECOND), strict=True)
    ):
        interval(shares, share, y, color)
        shares.plot([base, base], [y - 0.25, y + 0.25], color=style.INK, linewidth=1.6)
    labels = [f"where {first} is active,\n{second} is too", f"where {second} is active,\n{first} is too"]
    shares.set_yticks([0, 1], labels)
    shares.tick_params(axis="y", length=0)
    shares.set(xlim=(-0.02, 1.02), ylim=(1.6, -0.6), xlabel="share of tokens, with 95% interval; bar: by chance")
    shares.grid(axis="x")
    if not len(overlap.values):
        empty(values, "neither is ever active")
        return figure
    values.plot(overlap.values[:, 0], overlap.values[:, 1], "o", color=style.THIRD, markersize=3, alpha=0.5)
    values.set(xlabel=f"activation of {first}, SAE units", ylabel=f"activation of {second}, SAE units")
    values.grid()
    return figure
