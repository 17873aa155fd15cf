"""Figures of an SAE as a whole."""

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from mikit.viz import style
from mikit.viz.style import empty, panels, percent, plain, reference, styled

DENSE = 0.1
"""More than this share of tokens is more than a feature of one thing is expected to be active on."""


@styled
def plot_density(density: Float[np.ndarray, " d_sae"]) -> Figure:
    """The share of tokens at which each latent is active, over all latents, on a logarithmic axis.

    Args:
        density: by latent, 0 for one that is never active.
    """
    alive = density[density > 0]
    dead, dense = float(np.mean(density == 0)), float(np.mean(density > DENSE))
    title = f"{percent(dead)} of {density.size:,} latents are never active; {percent(dense)} are on more than {DENSE:.0%} of tokens"
    figure, (axes,) = panels(title, height=2.8)
    if not alive.size:
        empty(axes, "no latent is ever active")
        return figure
    edges = np.logspace(np.floor(np.log10(alive.min())), 0, 50)
    axes.hist(alive, bins=edges, color=style.HOT)
    axes.set(xscale="log", xlabel="density: share of tokens at which the latent is active", ylabel="number of latents")
    plain(axes.xaxis, subs=(1.0,))
    axes.grid(axis="y")
    median = float(np.median(alive))
    reference(axes, median, f"median {median:.2g}")
    return figure
