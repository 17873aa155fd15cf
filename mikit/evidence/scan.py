"""One pass over a corpus: where every latent of an SAE fires, and how strongly.

Each window is read as a text of its own, behind BOS, so that an activation met here is the one that the same text has
when it is scored alone. The forward pass ends at the hook point; what is kept is sparse, and merged in numpy: small
operations of torch wait for its threads.
"""

import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int

from mikit.evidence.corpora import Corpus
from mikit.evidence.postings import PostingsWriter
from mikit.evidence.store import Findings, identity, write
from mikit.evidence.windows import WindowTable, cut_windows
from mikit.progress import track
from mikit.settings import Params
from mikit.targets.base import Target
from mikit.targets.hooks import batch_of, read_residual
from mikit.targets.positions import ordinary_positions

log = logging.getLogger(__name__)
ENCODED_TOKENS = 256
"""Positions encoded at once: their activations stay in the processor's cache."""


@dataclass(frozen=True)
class Active:
    """The non-zero activations of a batch of texts at ordinary content positions, one an entry, in order of text."""

    text: Int[np.ndarray, " entry"]
    """Which text of the batch."""
    position: Int[np.ndarray, " entry"]
    """Index among its content tokens."""
    latent: Int[np.ndarray, " entry"]
    value: Float[np.ndarray, " entry"]
    massive: int
    """Content positions left out for their norm."""


@torch.inference_mode()
def read_active(target: Target, texts: Sequence[Sequence[int]]) -> Active:
    """All latents' non-zero activations on some texts; BOS, padding and massive positions are left out."""
    ids, mask = batch_of(target, texts)
    residual = read_residual(target, ids, mask)
    ordinary = ordinary_positions(residual, mask)
    kept = residual[ordinary].to(target.sae.W_enc.device)
    cells, values = [], []
    for start, part in enumerate(kept.split(ENCODED_TOKENS)):
        acts = target.sae.encode(part).cpu().numpy().reshape(-1)
        cell = np.flatnonzero(acts > 0)
        cells.append(cell + start * ENCODED_TOKENS * target.sae.d_sae)
        values.append(acts[cell])
    token, latent = np.divmod(np.concatenate(cells), target.sae.d_sae)
    text, column = np.nonzero(ordinary.cpu().numpy())
    n_content = int(mask.sum()) - len(texts)
    return Active(text[token], column[token] - 1, latent, np.concatenate(values), n_content - len(kept))


def batches(table: WindowTable, size: int) -> list[Int[np.ndarray, " text"]]:
    """Windows of like length together, so that little is padded; the longest first."""
    order = np.argsort(-table.lengths, kind="stable")
    return [order[start : start + size] for start in range(0, len(order), size)]


def scan(target: Target, corpus: Corpus, params: Params, folder: Path) -> None:
    """Read the corpus once and write the evidence of all latents to `folder`, `meta.json` last.

    Args:
        target: every latent of its SAE is followed.
        corpus: cut into windows as the params say.
        params: limits of the corpus, window length, ref and tau; and the batch size, which changes no result.
        folder: made by this function.
    """
    limits = params.protocol.window_tokens, params.corpus_tokens, params.document_tokens
    table = cut_windows(target, corpus, *limits)
    folder.mkdir(parents=True)
    postings, massive = PostingsWriter(folder / "shards", target.sae.d_sae), 0
    for windows in _tracked(table, params.batch):
        active = read_active(target, [table.text(window) for window in windows])
        postings.add(active.latent, windows[active.text], active.position, active.value)
        massive += active.massive
    findings = Findings(table, bos_activations(target), massive, *postings.merge())
    write(folder, identity(target, corpus, params), corpus.name, findings)
    shutil.rmtree(folder / "shards")


def bos_activations(target: Target) -> Float[np.ndarray, " d_sae"]:
    """Each latent's activation at BOS. It stands first, so in a causal model it is the same before every text."""
    residual = read_residual(target, *batch_of(target, [[]]))
    return target.sae.encode(residual[0, 0].to(target.sae.W_enc.device)).cpu().numpy()


def _tracked(table: WindowTable, size: int) -> Iterator[Int[np.ndarray, " text"]]:
    """The batches, with progress; how long they will take is logged once the second has shown it."""
    total = int(table.lengths.sum())
    parts = batches(table, size)
    work = track(parts, "reading the corpus", total, lambda rows: int(table.lengths[rows].sum()), "tokens")
    started = time.monotonic()
    for number, windows in enumerate(work):
        if number == 1:
            started = time.monotonic()
        elif number == 2:
            seconds = (time.monotonic() - started) * (len(parts) - 2)
            log.info("reading %d tokens in %d windows: about %.0f s", total, len(table), seconds)
        yield windows
