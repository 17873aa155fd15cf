"""Residual-stream activations of a corpus, cached on disk: what an SAE is trained on."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mikit.evidence.corpora import Document
from mikit.files import atomic_path
from mikit.progress import track
from mikit.targets.base import LanguageModel
from mikit.targets.hooks import batch_of, read_residual
from mikit.targets.positions import ordinary_positions
from mikit.targets.sae import Sae


def chunks(lm: LanguageModel, documents: Iterable[Document], length: int) -> Iterator[list[int]]:
    """Content ids of each document in runs of at most `length`; a run of one token is left out."""
    for document in documents:
        ids = lm.ids_of(document.text)
        yield from (part for start in range(0, len(ids), length) if len(part := ids[start : start + length]) > 1)


def cache_activations(
    lm: LanguageModel, documents: Iterable[Document], path: Path, *, length: int = 127, batch: int = 16
) -> int:
    """Write the residual stream at ordinary positions to a raw float32 file, row by row.

    Args:
        lm: the model; its hook point is read.
        documents: cut into runs of `length` content tokens, each behind one BOS.
        path: the file, written atomically; `read_activations` opens it.
        length: content tokens in a run.
        batch: runs in a forward pass.

    Returns:
        The number of positions written.
    """
    runs = sorted(chunks(lm, documents, length), key=len)
    batches = [runs[start : start + batch] for start in range(0, len(runs), batch)]
    written = 0
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        total = sum(map(len, runs))
        for rows in track(batches, "caching activations", total, lambda b: sum(map(len, b)), "tokens"):
            ids, mask = batch_of(lm, rows)
            residual = read_residual(lm, ids, mask)
            kept = residual[ordinary_positions(residual, mask)].cpu().numpy()
            kept.tofile(file)
            written += len(kept)
    return written


def read_activations(path: Path, width: int) -> Float[np.ndarray, "position d_model"]:
    """What `cache_activations` wrote, mapped from disk."""
    return np.memmap(path, dtype=np.float32, mode="r").reshape(-1, width)


def draws(
    activations: Float[np.ndarray, "position d_model"], batch: int, seed: int
) -> Iterator[Float[Tensor, "batch d_model"]]:
    """Endless batches of rows: every row once in random order, then again in another order."""
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(activations))
        for start in range(0, len(order) - batch + 1, batch):
            yield torch.from_numpy(activations[np.sort(order[start : start + batch])])


def beginnings(lm: LanguageModel, documents: Iterable[Document], tokens: int | None) -> list[Document]:
    """Each document cut to its first `tokens` content tokens; whole if `tokens` is None."""
    if tokens is None:
        return list(documents)
    return [Document(document.id, lm.text_of(lm.ids_of(document.text)[:tokens])) for document in documents]


def density(
    sae: Sae, activations: Float[np.ndarray, "position d_model"], sample: int = 100_000, seed: int = 0
) -> Float[np.ndarray, " d_sae"]:
    """Share of positions at which each latent is active, over at most `sample` random positions."""
    chosen = np.random.default_rng(seed).permutation(len(activations))[:sample]
    counts = np.zeros(sae.d_sae, dtype=np.int64)
    for start in range(0, len(chosen), 4096):
        rows = torch.from_numpy(activations[np.sort(chosen[start : start + 4096])])
        counts += (sae.encode(rows) > 0).sum(0).numpy()
    return counts / len(chosen)
