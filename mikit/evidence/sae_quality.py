"""How good an SAE is on documents it was not trained on: the numbers of its card."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mikit.evidence.activations import chunks
from mikit.evidence.corpora import Document
from mikit.progress import track
from mikit.targets.base import Target
from mikit.targets.hooks import batch_of, logits, read_residual
from mikit.targets.positions import ordinary_positions

HELD_OUT_PERCENT = 8


def held_out(document: Document) -> bool:
    """Whether a document is kept from SAE training, by the hash of its id."""
    digest = hashlib.sha256(f"held-out:{document.id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % 100 < HELD_OUT_PERCENT


@dataclass(frozen=True)
class Quality:
    """Measured at content positions that are not massive; the others are left as they are in every variant."""

    tokens: int
    """Positions measured."""
    variance_explained: float
    """1 - sum |x - x_hat|^2 / sum |x - mean|^2."""
    l0: float
    """Mean number of active latents."""
    loss_clean: float
    """Next-token cross-entropy of the model, nats."""
    loss_reconstructed: float
    """With the residual stream replaced by its reconstruction."""
    loss_zeroed: float
    """With the residual stream replaced by zero."""
    loss_recovered: float
    """(zeroed - reconstructed) / (zeroed - clean), as in Gated SAEs (Rajamanoharan et al. 2024)."""
    silent_share: float
    """Share of latents that fire nowhere in these tokens; an upper bound on the dead ones."""


def quality_of(target: Target, documents: Iterable[Document], *, length: int = 127, batch: int = 8) -> Quality:
    """Measure an SAE on documents.

    Args:
        target: model, hook point and SAE.
        documents: cut into runs of `length` content tokens, each behind one BOS.
        length: content tokens in a run.
        batch: runs in a forward pass.
    """
    runs = sorted(chunks(target, documents, length), key=len)
    batches = [runs[start : start + batch] for start in range(0, len(runs), batch)]
    width, fired = target.sae.d_in, torch.zeros(target.sae.d_sae, dtype=torch.bool)
    total, square, error = torch.zeros(width, dtype=torch.float64), 0.0, 0.0
    active = positions = predicted = 0
    losses = torch.zeros(3, dtype=torch.float64)
    for rows in track(batches, "measuring the SAE", sum(map(len, runs)), lambda b: sum(map(len, b)), "tokens"):
        ids, mask = batch_of(target, rows)
        residual = read_residual(target, ids, mask)
        kept = ordinary_positions(residual, mask)
        x = residual[kept]
        acts = target.sae.encode(x)
        total += x.sum(0).cpu().double()
        square += float((x**2).sum())
        error += float(((x - target.sae.decode(acts, x)) ** 2).sum())
        active += int((acts > 0).sum())
        positions += len(x)
        fired |= (acts > 0).any(0).cpu()
        losses += torch.stack([_loss(target, ids, mask, kept, how) for how in ("clean", "reconstructed", "zeroed")])
        predicted += int(mask[:, 1:].sum())
    variance = square - float((total**2).sum()) / positions
    clean, reconstructed, zeroed = (losses / predicted).tolist()
    return Quality(
        tokens=positions,
        variance_explained=1 - error / variance,
        l0=active / positions,
        loss_clean=clean,
        loss_reconstructed=reconstructed,
        loss_zeroed=zeroed,
        loss_recovered=(zeroed - reconstructed) / (zeroed - clean),
        silent_share=float((~fired).float().mean()),
    )


def _loss(
    target: Target, ids: Tensor, mask: Bool[Tensor, "batch pos"], kept: Bool[Tensor, "batch pos"], how: str
) -> Float[Tensor, ""]:
    """Sum of the cross-entropy over predicted content tokens, in nats."""

    def edit(residual: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        x = residual[kept].float()
        edited = residual.clone()
        edited[kept] = (
            target.sae.decode(target.sae.encode(x), x) if how == "reconstructed" else torch.zeros_like(x)
        ).to(residual.dtype)
        return edited

    predictions = logits(target, ids, mask, None if how == "clean" else edit)[:, :-1]
    losses = torch.nn.functional.cross_entropy(predictions.transpose(1, 2), ids[:, 1:], reduction="none")
    return (losses * mask[:, 1:]).sum().cpu().double()
