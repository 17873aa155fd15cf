"""Windows: the texts that are looked at. Each is a run of content tokens of one document, read behind one BOS."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from mikit.errors import BadInput
from mikit.evidence.corpora import Corpus, Document
from mikit.targets.base import LanguageModel
from mikit.trace import SPLITS, Split

PADDING = -1
MINIMUM_TOKENS = 8
"""A shorter run left over at the end of a document is dropped."""
CHARACTERS_A_TOKEN = 8
"""More than a token has on average: so much of a document is tokenised first when only its beginning is read."""
MARGIN_TOKENS = 16
"""Tokens this near to where a text was cut for tokenising may differ from those of the whole text."""


@dataclass(frozen=True)
class WindowTable:
    """All windows of a corpus, in order of document and start. A window is known by its row."""

    ids: Int[np.ndarray, "window pos"]
    """Content ids, int32, padded on the right with -1."""
    lengths: Int[np.ndarray, " window"]
    """Content tokens of each."""
    document: Int[np.ndarray, " window"]
    """Index into `documents`."""
    start: Int[np.ndarray, " window"]
    """Index of its first token among the document's content tokens."""
    documents: tuple[str, ...]
    """Ids of the documents that have a window."""
    splits: Int[np.ndarray, " window"]
    """Index into `trace.SPLITS`."""

    def __len__(self) -> int:
        return len(self.lengths)

    def text(self, window: int) -> list[int]:
        """The content ids of a window."""
        return self.ids[window, : self.lengths[window]].tolist()

    def document_of(self, window: int) -> str:
        """Id of the document that a window is part of."""
        return self.documents[self.document[window]]

    def split_of(self, window: int) -> Split:
        """The split that a window is in: its document's."""
        return SPLITS[self.splits[window]]

    def in_split(self, split: Split) -> Bool[np.ndarray, " window"]:
        """Which windows are in a split."""
        return np.asarray(self.splits == SPLITS.index(split))

    def holding(self, ids: Sequence[int]) -> Bool[np.ndarray, " window"]:
        """Which windows hold at least one of these tokens."""
        return np.asarray(np.isin(self.ids, [i for i in ids if i != PADDING]).any(axis=1))


def cut_windows(
    lm: LanguageModel, corpus: Corpus, window_tokens: int, corpus_tokens: int | None, document_tokens: int | None
) -> WindowTable:
    """Cut the documents, in order of the hash of their id, into runs of content tokens.

    A text that occurred before is left out wherever it occurs again, so that no window is in two splits.

    Args:
        lm: its tokenizer makes the ids.
        corpus: the documents.
        window_tokens: content tokens in a window.
        corpus_tokens: content tokens read at most; None reads all.
        document_tokens: content tokens read of a document at most, from its beginning; None reads all.

    Raises:
        BadInput: no document is long enough for a window.
    """
    rows: list[Int[np.ndarray, " pos"]] = []
    names: list[str] = []
    document, start, splits = [], [], []
    seen: set[bytes] = set()
    for item, ids in _read(lm, corpus, corpus_tokens, document_tokens):
        for begin in range(0, len(ids), window_tokens):
            row = ids[begin : begin + window_tokens]
            key = hashlib.blake2b(row.tobytes(), digest_size=12).digest()
            if len(row) < min(MINIMUM_TOKENS, window_tokens) or key in seen:
                continue
            seen.add(key)
            if not names or names[-1] != item.id:
                names.append(item.id)
            rows.append(row)
            document.append(len(names) - 1)
            start.append(begin)
            splits.append(SPLITS.index(item.split))
    if not rows:
        raise BadInput(f"corpus {corpus.name!r} has no document of {MINIMUM_TOKENS} tokens or more")
    lengths = np.array([len(row) for row in rows], np.int32)
    return WindowTable(
        ids=_padded(rows, lengths, window_tokens),
        lengths=lengths,
        document=np.array(document, np.int32),
        start=np.array(start, np.int32),
        documents=tuple(names),
        splits=np.array(splits, np.int8),
    )


def _read(
    lm: LanguageModel, corpus: Corpus, corpus_tokens: int | None, document_tokens: int | None
) -> Iterator[tuple[Document, Int[np.ndarray, " pos"]]]:
    """Each document with the content ids that are read of it."""
    left = corpus_tokens
    for document in sorted(corpus.documents, key=lambda d: hashlib.sha256(d.id.encode()).digest()):
        limit = min((n for n in (left, document_tokens) if n is not None), default=None)
        ids = first_ids(lm, document.text, limit)
        yield document, np.array(ids, np.int32)
        if left is not None:
            left -= len(ids)
            if left < MINIMUM_TOKENS:
                return


def first_ids(lm: LanguageModel, text: str, limit: int | None) -> list[int]:
    """The first content ids of a text, `limit` at most, without tokenising much more of it than they need."""
    if limit is None:
        return lm.ids_of(text)
    characters = CHARACTERS_A_TOKEN * (limit + MARGIN_TOKENS)
    while characters < len(text):
        ids = lm.ids_of(text[:characters])
        if len(ids) >= limit + MARGIN_TOKENS:
            return ids[:limit]
        characters *= 4
    return lm.ids_of(text)[:limit]


def _padded(
    rows: list[Int[np.ndarray, " pos"]], lengths: Int[np.ndarray, " window"], width: int
) -> Int[np.ndarray, "window pos"]:
    ids = np.full((len(rows), width), PADDING, np.int32)
    ids[np.arange(width) < lengths[:, None]] = np.concatenate(rows)
    return ids
