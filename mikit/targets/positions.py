"""Which positions of a text count: content, but for those whose norm is massive."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MASSIVE = 10.0
"""A position is massive when its norm exceeds this many times its text's median (Sun et al. 2024, "Massive activations")."""


def ordinary_positions(
    residual: Float[Tensor, "batch pos d_model"], mask: Bool[Tensor, "batch pos"]
) -> Bool[Tensor, "batch pos"]:
    """Content positions that are not massive: index 0 (BOS) and norms above `MASSIVE` medians are left out.

    The median is that of the text's own content, so a position is judged alike whatever else is in the batch.
    """
    norms = residual.norm(dim=-1)
    content = mask.clone()
    content[:, 0] = False
    median = norms.where(content, torch.nan).nanmedian(dim=-1, keepdim=True).values
    return content & (norms <= MASSIVE * median)
