"""How strongly a text makes latents fire: the largest activation over its content tokens.

Massive positions are left out, as they are from the evidence: a window has the same peak here and there.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mikit.targets.base import Target
from mikit.targets.hooks import batch_of, read_texts
from mikit.targets.positions import ordinary_positions
from mikit.targets.remote.served import is_complete, served


def text_activations(
    target: Target, latents: Sequence[int], texts: Sequence[Sequence[int]], batch: int
) -> list[Float[np.ndarray, "pos latent"]]:
    """The activations of some latents at each content token of each text; those at massive positions are -1.

    Only the encoder columns of these latents are used, and the model is run up to its hook point alone.

    Args:
        target: model and SAE.
        latents: indices.
        texts: content ids of each, no BOS, at least one.
        batch: texts in a forward pass.

    Returns:
        float32, in the order given.
    """
    assert all(len(ids) for ids in texts), "a text without content tokens has no activation"
    # an SAE that was changed here is not the one that lies where the model is
    read = read_activations if is_complete(target) else read_activations_here
    found: dict[int, Float[np.ndarray, "pos latent"]] = {}
    # texts of like length share a pass: little is padded where they can't share a row
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        acts = read(target, *batch_of(target, [texts[i] for i in rows]), [int(i) for i in latents]).numpy()
        found.update({i: acts[row, : len(texts[i])] for row, i in enumerate(rows)})
    return [found[i] for i in range(len(texts))]


@torch.inference_mode()
def ordinary_activations(
    target: Target,
    residual: Float[Tensor, "batch pos d_model"],
    ids: Int[Tensor, "batch pos"],
    mask: Bool[Tensor, "batch pos"],
    latents: list[int],
) -> Float[Tensor, "batch content latent"]:
    """The activations of some latents at each position after BOS, on the CPU; -1 at massive positions and padding."""
    device = target.sae.W_enc.device
    counted = ordinary_positions(residual, mask)[:, 1:, None].to(device)
    columns = torch.as_tensor(latents, dtype=torch.long, device=device)
    # every activation is above -1, so such a position is never the peak, not even where all are silent
    return target.sae.encode(residual.to(device), columns)[:, 1:].where(counted, -1.0).cpu()


def read_activations_here(
    target: Target, ids: Int[Tensor, "batch pos"], mask: Bool[Tensor, "batch pos"], latents: list[int]
) -> Float[Tensor, "batch content latent"]:
    """Read the residual stream, and encode it with the SAE that this process holds."""
    return ordinary_activations(target, read_texts(target, ids, mask), ids, mask, latents)


read_activations = served(by_row=("ids", "mask"), read=read_texts, rest=ordinary_activations)(read_activations_here)
"""The same where the model is: a few numbers travel instead of the residual stream."""


def peak_activations(
    target: Target, latents: Sequence[int], texts: Sequence[Sequence[int]], batch: int
) -> tuple[Float[np.ndarray, "text latent"], Int[np.ndarray, "text latent"]]:
    """The largest activation of some latents in each text, and where it lies; arguments as in `text_activations`.

    Returns:
        float32 peaks, and the index among the content tokens of the first position that has it; both in the order given.
    """
    return peaks_of(text_activations(target, latents, texts, batch), len(latents))


def peaks_of(
    activations: Sequence[Float[np.ndarray, "pos latent"]], n_latents: int
) -> tuple[Float[np.ndarray, "text latent"], Int[np.ndarray, "text latent"]]:
    """The largest activation of each latent in each text, and its first position."""
    shape = (len(activations), n_latents)
    peaks = np.array([acts.max(0) for acts in activations], np.float32).reshape(shape)
    return peaks, np.array([acts.argmax(0) for acts in activations], np.int64).reshape(shape)
