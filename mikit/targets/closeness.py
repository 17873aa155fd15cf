"""How far apart two readings of the residual stream are, and how far they may be."""

import torch
from jaxtyping import Float
from torch import Tensor

CLOSE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}


def closeness(dtype: torch.dtype) -> float:
    """Largest difference of two readings of one position, as a share of its norm: rounding, and no more."""
    return CLOSE.get(dtype, CLOSE[torch.float32])


def difference(a: Float[Tensor, "*position d_model"], b: Float[Tensor, "*position d_model"]) -> float:
    """The largest distance of two readings of one position, as a share of the norm."""
    norm = b.norm(dim=-1).clamp(min=torch.finfo(torch.float32).tiny)
    return float(((a - b).norm(dim=-1) / norm).max())
