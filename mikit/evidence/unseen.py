"""Evidence of documents that no earlier verdict could see: the corpus read further, and everything seen left out."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from mikit.evidence import open_evidence
from mikit.evidence.prompts import PROMPTS_A_SPLIT
from mikit.evidence.store import EvidenceStore
from mikit.settings import Params
from mikit.targets.base import Target

NO_SPLIT = -1
"""Of a window that nothing is drawn from."""
PROMPT_TOKENS = 8
"""Content tokens of a prompt that is the beginning of a document."""


@dataclass(frozen=True)
class Unseen:
    """What a further draw of `confirm` is made from."""

    store: EvidenceStore
    """Windows of documents that were seen are of no split. The scale is the one that the run began with."""
    prompts: list[list[int]]
    """Beginnings of some of its documents, of which nothing else is drawn; the fixed prompts were used by the first draw."""
    documents: int
    """Documents of `confirm` that are left for texts and positions."""


def unseen_evidence(target: Target, params: Params, first: EvidenceStore, draw: int) -> Unseen:
    """The evidence of the second or a later draw: the corpus read `draw` times as far as for the first.

    All documents that the evidence of earlier draws holds are left out, whatever was drawn from them.

    Args:
        target: the explained model.
        params: of the run.
        first: the run's own evidence.
        draw: from 2.
    """
    before = _read_further(target, params, draw - 1) if draw > 2 else first
    wide = _read_further(target, params, draw)
    left = without(wide, set(before.table.documents))
    table = left.table
    confirm = np.flatnonzero(table.in_split("confirm"))
    _, where = np.unique(table.document[confirm], return_index=True)
    begin = confirm[np.sort(where)][:PROMPTS_A_SPLIT]
    prompts = [table.text(window)[:PROMPT_TOKENS] for window in begin]
    left = without(left, {table.document_of(window) for window in begin})
    documents = len(np.unique(left.table.document[left.table.in_split("confirm")]))
    scale = {name: first.arrays[name] for name in ("ref", "tau")}
    return Unseen(replace(left, arrays={**left.arrays, **scale}), prompts, documents)


def _read_further(target: Target, params: Params, times: int) -> EvidenceStore:
    tokens = params.corpus_tokens
    return open_evidence(target, params.model_copy(update={"corpus_tokens": tokens and times * tokens}))


def without(store: EvidenceStore, documents: Collection[str]) -> EvidenceStore:
    """The store with some documents in no split, so that nothing is drawn from them."""
    table = store.table
    seen = np.array([name in documents for name in table.documents], bool)[table.document]
    splits = np.where(seen, NO_SPLIT, table.splits).astype(np.int8)
    return replace(store, table=replace(table, splits=splits))
