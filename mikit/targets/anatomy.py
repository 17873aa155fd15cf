"""Where the parts of a transformers language model lie: its blocks and its final norm, for every family we know."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mikit.errors import BadInput

LAYOUTS = (
    ("model.layers", "model.norm"),
    ("model.layers", "model.final_layernorm"),
    ("model.language_model.layers", "model.language_model.norm"),
    ("transformer.h", "transformer.ln_f"),
    ("gpt_neox.layers", "gpt_neox.final_layer_norm"),
    ("model.decoder.layers", "model.decoder.final_layer_norm"),
)
"""Paths of blocks and final norm: LLaMA, Mistral, Qwen, Gemma 1 to 3; Phi; Gemma 3 with vision; GPT-2, GPT-J; GPT-NeoX, Pythia; OPT."""


def _layout(model: Any) -> tuple[str, str]:
    for blocks, norm in LAYOUTS:
        try:
            if model.get_submodule(norm) is not None and isinstance(model.get_submodule(blocks), torch.nn.ModuleList):
                return blocks, norm
        except AttributeError:
            continue
    known = ", ".join(dict.fromkeys(blocks for blocks, _ in LAYOUTS))
    raise BadInput(f"{type(model).__name__} has its blocks at no place that is known: valid: {known}")


def n_blocks(model: Any) -> int:
    """Number of transformer blocks."""
    return len(model.get_submodule(_layout(model)[0]))


def hook_path(model: Any, layer: int) -> str:
    """Path of the submodule whose output is the residual stream after block `layer`.

    Raises:
        BadInput: there is no such block, or the model's family is not known.
    """
    if not 0 <= layer < n_blocks(model):
        raise BadInput(f"layer {layer} is out of range: {type(model).__name__} has blocks 0 to {n_blocks(model) - 1}")
    return f"{_layout(model)[0]}.{layer}"


@torch.inference_mode()
def through_final_norm(model: Any, direction: Float[Tensor, " d_model"]) -> Float[Tensor, " d_model"]:
    """A direction of the residual stream as the unembedding reads it, up to the scale that the final norm divides by.

    RMSNorm multiplies by its weight, in Gemma by 1 + weight: which of the two is seen from what it makes of ones. LayerNorm
    takes the mean away first; its bias is the same for all directions and is left out.

    Raises:
        BadInput: the final norm is neither.
    """
    norm = model.get_submodule(_layout(model)[1])
    weight, direction = norm.weight.float(), direction.to(norm.weight.device)
    if isinstance(norm, torch.nn.LayerNorm):
        return (direction - direction.mean()) * weight
    of_ones = norm(torch.ones_like(norm.weight)[None])[0].float()
    for scale in (weight, 1 + weight):
        if torch.allclose(of_ones, scale, rtol=2e-2, atol=1e-3):
            return direction * scale
    raise BadInput(f"the final norm {type(norm).__name__} is neither RMSNorm nor LayerNorm: no logit lens for it")
