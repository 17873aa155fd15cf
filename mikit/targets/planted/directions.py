"""The directions that the residual stream is made of, and the coordinates along them.

A residual vector is `z @ D`: `z` holds one coordinate a name, `D` one unit row a name. Rows are orthogonal, but for
those of features that share a theme (cosine 0.2) or are declared to be near each other. Coordinates are read exactly by
the dual basis, whatever the cosines: this is what the encoder and the first block do. The unembedding reads along
the rows themselves, so that a direction moves the words of its theme too, in proportion to the cosine; of two that are
declared to be near, neither moves the other's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float

from mikit.targets.planted.features import Latent, Trigger

TEXTURES = 8
"""Coordinates that hold a random number a word; the word before makes a feature more or less active through them."""
THEME_SIZE = 6
THEME_COSINE = 0.2


@dataclass(frozen=True)
class Directions:
    """Named coordinates, and the directions that they stand for."""

    latents: int
    """The first coordinates are those of the latents."""
    cued: tuple[tuple[int, Trigger], ...]
    """The triggers that need a cue, each with the index of its latent."""
    rows: Float[np.ndarray, "coordinate d_model"]
    """Unit rows, float64."""
    outlets: Float[np.ndarray, "coordinate d_model"]
    """What the unembedding reads each coordinate by: its row, but nothing of a latent that is declared to be near."""

    @property
    def width(self) -> int:
        """Size of the residual stream."""
        return self.rows.shape[1]

    @property
    def heads(self) -> int:
        """Attention heads of the first block: one for the token before, and one for each trigger that needs a cue."""
        return 1 + len(self.cued)

    @property
    def constant(self) -> int:
        """The coordinate that is the same at every token and keeps the norm what it is."""
        return self.latents

    def texture(self, k: int) -> int:
        """A random number of the token itself."""
        return self.latents + 1 + k

    def texture_before(self, k: int) -> int:
        """The same of the token before."""
        return self.latents + 1 + TEXTURES + k

    def own(self, k: int) -> int:
        """How active the latent of `cued[k]` would be at this token if there were a cue."""
        return self.latents + 1 + 2 * TEXTURES + 3 * k

    def cue(self, k: int) -> int:
        """Whether the token is a cue of `cued[k]`."""
        return self.own(k) + 1

    def cue_before(self, k: int) -> int:
        """Whether a cue of `cued[k]` stands close before."""
        return self.own(k) + 2

    @cached_property
    def readers(self) -> Float[np.ndarray, "coordinate d_model"]:
        """Rows whose product with a residual vector is its coordinate."""
        gram = torch.from_numpy(self.rows @ self.rows.T)
        return torch.linalg.inv(gram).numpy() @ self.rows


def directions_of(latents: tuple[Latent, ...], seed: int) -> Directions:
    """Directions for these latents, at random but for the cosines between them."""
    cued = tuple((i, trigger) for i, latent in enumerate(latents) for trigger in latent.triggers if trigger.cues)
    n = len(latents) + 1 + 2 * TEXTURES + 3 * len(cued)
    themes = list(_themes(latents, seed))
    heads = 1 + len(cued)
    width = (
        -(-(n + len(themes)) // heads) * heads
    )  # transformers wants a multiple, though heads have a size of their own
    basis = _basis(width, seed)
    rows = basis[:n].copy()
    for k, members in enumerate(themes):
        rows[members] = np.sqrt(1 - THEME_COSINE) * basis[members] + np.sqrt(THEME_COSINE) * basis[n + k]
    outlets = rows.copy()
    for i, latent in enumerate(latents):
        if latent.near is not None:
            sine = np.sqrt(1 - latent.cosine**2)
            rows[i] = latent.cosine * rows[latent.near] + sine * basis[i]
            outlets[i] = basis[i] / sine
            outlets[latent.near] -= latent.cosine / sine * basis[i]
    return Directions(len(latents), cued, rows, outlets)


def _basis(width: int, seed: int) -> Float[np.ndarray, "width width"]:
    """Orthonormal rows with no large entry: the waves of the cosine transform (DCT-II), in random order and signs.

    A closed form, where a decomposition of a random matrix would differ between machines in its last digits.
    """
    rng = np.random.default_rng([seed, 2])
    frequency, place = np.arange(width), np.arange(width) + 0.5
    waves = np.sqrt(2 / width) * np.cos(np.pi / width * np.outer(frequency, place))
    waves[0] /= np.sqrt(2)
    return rng.permutation(waves) * rng.choice([-1.0, 1.0], size=width)


def _themes(latents: tuple[Latent, ...], seed: int) -> Iterator[list[int]]:
    """Groups of latents that promote words; never one that is declared to be near another.

    One that only suppresses would promote the words of its group, by accident and yet truly.
    """
    members = [i for i, latent in enumerate(latents) if latent.promotes and latent.near is None]
    order = np.random.default_rng([seed, 3]).permutation(members)
    yield from ([int(i) for i in order[start : start + THEME_SIZE]] for start in range(0, len(order), THEME_SIZE))
