"""Postings: for each latent, where it is active and how strongly. Collected window by window, kept latent by latent.

They are gathered in memory, written out in shards when there are many, and merged latent by latent at the end: what is
in memory does not grow with the corpus.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

POSTING = np.dtype([("window", "<i4"), ("position", "u1"), ("value", "<f4")])
"""A window, an index among its content tokens, and the activation there, which is not 0."""
SHARD = 1 << 19
"""Postings in memory at most, while collecting and while merging (more only where one latent has more)."""


@dataclass(frozen=True)
class Shard:
    """Postings on disk, sorted by latent."""

    path: Path
    pointers: Int[np.ndarray, " latent_and_1"]
    """Those of latent i are from `pointers[i]` to `pointers[i + 1]`."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """Postings from one rank to another."""
        return np.fromfile(self.path, POSTING, count=stop - start, offset=start * POSTING.itemsize)


class PostingsWriter:
    """Collects postings in `folder`, which is only used until `merge` is through."""

    def __init__(self, folder: Path, latents: int, shard: int = SHARD) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.latents, self.shard = folder, latents, shard
        self.shards: list[Shard] = []
        self._latents: list[np.ndarray] = []
        self._postings: list[np.ndarray] = []
        self._n = 0

    def add(
        self,
        latent: Int[np.ndarray, " n"],
        window: Int[np.ndarray, " n"],
        position: Int[np.ndarray, " n"],
        value: Float[np.ndarray, " n"],
    ) -> None:
        """Keep some postings. Those of one window come in one call, in order of position."""
        postings = np.empty(len(latent), POSTING)
        postings["window"], postings["position"], postings["value"] = window, position, value
        self._latents.append(latent.astype(np.int32))
        self._postings.append(postings)
        self._n += len(latent)
        if self._n >= self.shard:
            self._flush()

    @property
    def is_on_disk(self) -> bool:
        """Whether everything added so far lies in shards, and would be there after a crash."""
        return not self._n

    def take_up(self, n: int) -> None:
        """Go on behind the first `n` shards that an earlier writer left in the folder.

        Raises:
            ValueError: one of them is missing or torn.
        """
        for i in range(n):
            path = self._path(i)
            try:
                pointers = np.load(path.with_suffix(".npy"), allow_pickle=False)
                size = path.stat().st_size
            except (OSError, EOFError) as error:
                raise ValueError(f"{path} is missing or torn") from error
            if len(pointers) != self.latents + 1 or size != int(pointers[-1]) * POSTING.itemsize:
                raise ValueError(f"{path} is torn")
            self.shards.append(Shard(path, pointers))

    def _path(self, i: int) -> Path:
        return self.folder / f"{i}.bin"

    def _flush(self) -> None:
        if not self._n:
            return
        latent = np.concatenate(self._latents)
        # numpy sorts 16-bit integers by radix, several times as quickly
        narrow = latent.astype(np.uint16) if self.latents <= 1 << 16 else latent
        order = np.argsort(narrow, kind="stable")
        path = self._path(len(self.shards))
        counts = np.bincount(latent, minlength=self.latents)
        shard = Shard(path, np.concatenate([[0], np.cumsum(counts)]))
        with path.open("wb") as file, path.with_suffix(".npy").open("wb") as beside:
            np.concatenate(self._postings)[order].tofile(file)
            np.save(beside, shard.pointers)
            for written in (file, beside):
                written.flush()
                os.fsync(written.fileno())
        self.shards.append(shard)
        self._latents, self._postings, self._n = [], [], 0

    def merge(self) -> tuple[Int[np.ndarray, " latent_and_1"], Iterator[tuple[int, int, np.ndarray]]]:
        """All postings, by latent, window and position.

        Returns:
            Where each latent's postings start, with the total last; and, in order, the first latent, the one after the last, and the postings of blocks of latents.
        """
        self._flush()
        pointers = np.sum([shard.pointers for shard in self.shards], axis=0, initial=0, dtype=np.int64)
        pointers = np.broadcast_to(pointers, self.latents + 1).copy()
        return pointers, self._blocks(pointers)

    def _blocks(self, pointers: Int[np.ndarray, " latent_and_1"]) -> Iterator[tuple[int, int, np.ndarray]]:
        start = 0
        while start < self.latents:
            full = int(np.searchsorted(pointers, pointers[start] + self.shard, side="right")) - 1
            stop = min(max(full, start + 1), self.latents)
            yield start, stop, self._block(start, stop)
            start = stop

    def _block(self, start: int, stop: int) -> np.ndarray:
        parts = [shard.read(int(shard.pointers[start]), int(shard.pointers[stop])) for shard in self.shards]
        counts = [np.diff(shard.pointers[start : stop + 1]) for shard in self.shards]
        postings = np.concatenate([np.empty(0, POSTING), *parts])
        latent = np.concatenate([np.empty(0, np.int64), *(np.repeat(np.arange(stop - start), n) for n in counts)])
        # long sorted runs: a stable sort merges them
        order = np.argsort(latent << 32 | postings["window"], kind="stable")
        return postings[order]
