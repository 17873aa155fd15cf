"""One pass over a corpus: where every latent of an SAE fires, and how strongly.

Each window is read as a text of its own, behind BOS, so that an activation met here is the one that the same text has
when it is scored alone. The forward pass ends at the hook point; what is kept is sparse, and merged in numpy: small
operations of torch wait for its threads.
"""

import json
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from mikit.errors import MikitError
from mikit.evidence.corpora import Corpus
from mikit.evidence.postings import POSTING, PostingsWriter
from mikit.evidence.store import Findings, identity, write
from mikit.evidence.windows import WindowTable, cut_windows
from mikit.files import value_hash, write_json
from mikit.progress import track
from mikit.settings import Params
from mikit.targets.base import Target
from mikit.targets.hooks import batch_of, read_residual
from mikit.targets.positions import ordinary_positions

log = logging.getLogger(__name__)
SHARDS, REACHED = "shards", "reached.json"
GIB = 2**30
SAMPLE_BATCHES = 4
"""Batches from which time and disk are estimated."""
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


def by_length(table: WindowTable) -> Int[np.ndarray, " window"]:
    """All windows, the longest first: windows of like length share a batch, so that little is padded."""
    return np.argsort(-table.lengths, kind="stable")


def batches(order: Int[np.ndarray, " window"], size: int) -> list[Int[np.ndarray, " window"]]:
    """Windows in that order, `size` at once."""
    return [order[start : start + size] for start in range(0, len(order), size)]


def scan(target: Target, corpus: Corpus, params: Params, folder: Path) -> None:
    """Read the corpus once and write the evidence of all latents to `folder`, `meta.json` last.

    Stopped anywhere and called again with the same folder, it goes on behind the windows whose activations had reached
    the disk, and ends in the same evidence.

    Args:
        target: every latent of its SAE is followed.
        corpus: cut into windows as the params say.
        params: limits of the corpus, window length, ref and tau; and the batch size, which changes no result.
        folder: made by this function, or left by one that was stopped.

    Raises:
        MikitError: the disk has too little room for what is being found.
    """
    limits = params.protocol.window_tokens, params.corpus_tokens, params.document_tokens
    table = cut_windows(target, corpus, *limits)
    made_of = identity(target, corpus, params)
    postings = PostingsWriter(folder / SHARDS, target.sae.d_sae)
    reached = _taken_up(folder, postings, made_of)
    order, done, massive, n_active = by_length(table), reached.windows, reached.massive, reached.active
    for windows in _tracked(table, order[done:], params.batch):
        active = read_active(target, [table.text(window) for window in windows])
        postings.add(active.latent, windows[active.text], active.position, active.value)
        done, massive, n_active = done + len(windows), massive + active.massive, n_active + len(active.value)
        if postings.is_on_disk:
            _check_room(folder, n_active, done / len(order))
            now = Reached(value_hash(made_of), done, massive, n_active, len(postings.shards))
            write_json(folder / REACHED, asdict(now))
    findings = Findings(table, bos_activations(target), massive, *postings.merge())
    write(folder, made_of, corpus.name, findings)
    shutil.rmtree(folder / SHARDS)
    (folder / REACHED).unlink(missing_ok=True)


@dataclass(frozen=True)
class Reached:
    """How far a scan has come, as far as the disk knows."""

    made_of: str
    """Hash of all that the evidence follows from."""
    windows: int
    """Windows done, in the order of `by_length`."""
    massive: int
    active: int
    """Non-zero activations found."""
    shards: int


def _taken_up(folder: Path, postings: PostingsWriter, made_of: dict[str, Any]) -> Reached:
    """Where a scan that was stopped left off, its shards taken up; the beginning if there is none, or nothing sound."""
    start = Reached(value_hash(made_of), 0, 0, 0, 0)
    try:
        reached = Reached(**json.loads((folder / REACHED).read_text("utf-8")))
        if reached.made_of != start.made_of:
            return start
        postings.take_up(reached.shards)
    except FileNotFoundError:
        return start
    except (OSError, ValueError, TypeError) as error:
        log.warning("what a stopped scan left in %s can't be used (%s): reading from the start", folder, error)
        postings.shards.clear()
        return start
    log.info("going on behind the %d windows that were read before", reached.windows)
    return reached


def _check_room(folder: Path, n_active: int, share: float) -> None:
    """Stop while there is room to stop: shards and the merged columns lie side by side at the end.

    Raises:
        MikitError: what is still to come would not fit.
    """
    expected = 2 * n_active / share * POSTING.itemsize
    to_come = expected - n_active * POSTING.itemsize
    free = shutil.disk_usage(folder).free
    if to_come > free:
        raise MikitError(
            f"the evidence will need {to_come / GIB:.1f} GiB more in {folder.parent}, where {free / GIB:.1f} GiB are "
            "free: make room, or name another folder in MIKIT_OUTPUTS; what was read is kept"
        )


@dataclass(frozen=True)
class Estimate:
    """What a scan will take, by its first batches."""

    tokens: int
    windows: int
    seconds: float
    l0: float
    """Active latents a content token."""
    disk: float
    """Bytes of the evidence at the end; twice that while it is merged."""


def estimate(target: Target, corpus: Corpus, params: Params) -> Estimate:
    """Time and disk that the scan of a corpus will take, from a few batches spread over it; the first is not timed."""
    limits = params.protocol.window_tokens, params.corpus_tokens, params.document_tokens
    table = cut_windows(target, corpus, *limits)
    parts = batches(by_length(table), params.batch)
    tried = [parts[i] for i in np.unique(np.linspace(0, len(parts) - 1, SAMPLE_BATCHES).astype(int))]
    read_active(target, [table.text(window) for window in tried[0]])
    started, n_active = time.monotonic(), 0
    for windows in tried:
        n_active += len(read_active(target, [table.text(window) for window in windows]).value)
    seconds = time.monotonic() - started
    total, read = int(table.lengths.sum()), int(sum(table.lengths[windows].sum() for windows in tried))
    l0 = n_active / read
    return Estimate(total, len(table), seconds * total / read, l0, l0 * total * POSTING.itemsize + table.ids.nbytes)


def bos_activations(target: Target) -> Float[np.ndarray, " d_sae"]:
    """Each latent's activation at BOS. It stands first, so in a causal model it is the same before every text."""
    residual = read_residual(target, *batch_of(target, [[]]))
    return target.sae.encode(residual[0, 0].to(target.sae.W_enc.device)).cpu().numpy()


def _tracked(table: WindowTable, order: Int[np.ndarray, " window"], size: int) -> Iterator[Int[np.ndarray, " text"]]:
    """The batches, with progress; how long they will take is logged once the second has shown it."""
    total = int(table.lengths[order].sum())
    parts = batches(order, size)
    work = track(parts, "reading the corpus", total, lambda rows: int(table.lengths[rows].sum()), "tokens")
    started = time.monotonic()
    for number, windows in enumerate(work):
        if number == 1:
            started = time.monotonic()
        elif number == 2:
            seconds = (time.monotonic() - started) * (len(parts) - 2)
            log.info("reading %d tokens in %d windows: about %.0f s", total, len(order), seconds)
        yield windows
