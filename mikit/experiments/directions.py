"""The directions that are steered: the feature's own, and controls of the same norm that should do nothing alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from mikit.experiments.setting import Setting

N_NEAR = 4
N_RANDOM_LIVE = 4
N_RANDOM_DIRECTIONS = 4


@dataclass(frozen=True)
class Direction:
    """One control direction."""

    name: str
    kind: Literal["near", "random_live", "random_direction"]
    latent: int | None
    vector: Float[Tensor, " d_model"]
    """Of the norm of the feature's decoder row."""
    cosine: float
    """With the feature's decoder row."""


def control_directions(setting: Setting, feature: int, neighbours: Sequence[int]) -> list[Direction]:
    """The controls of a feature: 4 near neighbours, 4 random live features, 4 random directions, by seed and feature.

    Args:
        setting: gives the SAE, the live latents and the seed. Dense latents are not drawn: they stand for parts of
            speech and the like, and move most of what any feature moves (on the planted model one of them made two of
            39 true explanations fail).
        feature: whose controls they are.
        neighbours: live latents by decoder cosine, nearest first. Ranks 2 to 5 are the near neighbours; rank 1 is
            left out of the controls altogether, as its explanation is tried on this feature as a null.
    """
    W_dec = setting.target.sae.W_dec
    own = W_dec[feature]
    return [
        Direction(name, kind, latent, unit * own.norm(), float(unit @ normalize(own, dim=0)))
        for name, kind, latent, unit in _units(setting, feature, neighbours)
    ]


def _units(
    setting: Setting, feature: int, neighbours: Sequence[int]
) -> Iterator[tuple[str, Literal["near", "random_live", "random_direction"], int | None, Tensor]]:
    W_dec = setting.target.sae.W_dec
    rng = np.random.default_rng([setting.seed, feature, 0])
    near = list(neighbours[1 : 1 + N_NEAR])
    taken = {feature, *neighbours[:1], *near}
    strangers = [latent for latent in _neither_rare_nor_dense(setting) if latent not in taken]
    for latent in near:
        yield f"near {latent}", "near", latent, normalize(W_dec[latent], dim=0)
    for latent in rng.permutation(np.array(strangers, int))[:N_RANDOM_LIVE].tolist():
        yield f"live {latent}", "random_live", latent, normalize(W_dec[latent], dim=0)
    for i in range(1, 1 + N_RANDOM_DIRECTIONS):
        isotropic = torch.from_numpy(rng.standard_normal(W_dec.shape[1])).to(W_dec)
        yield f"random {i}", "random_direction", None, normalize(isotropic, dim=0)


def _neither_rare_nor_dense(setting: Setting) -> list[int]:
    store, protocol = setting.store, setting.protocol
    live = store.live(protocol.rare_windows)
    return live[store.firing_counts[live] <= protocol.dense_share * store.n_windows].tolist()


def stack(
    feature_vector: Float[Tensor, " d_model"], controls: Sequence[Direction]
) -> Float[Tensor, "direction d_model"]:
    """The feature's direction in row 0, then the controls."""
    return torch.stack([feature_vector, *(control.vector for control in controls)])
