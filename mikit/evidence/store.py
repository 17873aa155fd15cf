"""The evidence of one SAE on one corpus, on disk: written once, checked and mapped when it is opened."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from mikit.errors import MikitError
from mikit.evidence.corpora import Corpus
from mikit.evidence.windows import PADDING, WindowTable
from mikit.files import file_hash, value_hash, write_json
from mikit.settings import Params
from mikit.targets.base import Target
from mikit.trace import Split

FORMAT = 1
"""Version of what is written; a change makes every store anew."""
TABLE = ("ids", "lengths", "document", "start", "splits")
POSTINGS = ("window", "position", "value")
LATENTS = ("pointers", "ref", "tau", "bos", "firing_windows")
FILES = (*(f"{name}.npy" for name in (*TABLE, *POSTINGS, *LATENTS, "token_counts")), "documents.json")
FACTS = {"corpus_name", "tokens_read", "massive_tokens"}
"""What `meta.json` says besides what the store is made of and its files."""
TYPES = {"window": "<i4", "position": "|u1", "value": "<f4"}


class DamagedEvidence(MikitError):
    """A store that is not what was written: the message says which file, and what to do."""


@dataclass(frozen=True)
class Findings:
    """What a pass over a corpus has found."""

    table: WindowTable
    bos: Float[np.ndarray, " d_sae"]
    """Activation at BOS."""
    massive_tokens: int
    """Content tokens left out for their norm."""
    pointers: Int[np.ndarray, " d_sae_and_1"]
    """Where each latent's postings start."""
    blocks: Iterable[tuple[int, int, np.ndarray]]
    """First latent, the one after the last, and their postings by latent, window and position: block after block."""


@dataclass(frozen=True)
class Firings:
    """Windows in which a latent is active, in order of window."""

    window: Int[np.ndarray, " n"]
    peak: Float[np.ndarray, " n"]
    """Largest activation, above 0."""
    peak_index: Int[np.ndarray, " n"]
    """Where it lies among the window's content tokens."""


@dataclass(frozen=True, eq=False)
class EvidenceStore:
    """Where every latent of an SAE fires in a corpus. Compared by identity; runs of a process share it, and can't change it."""

    table: WindowTable
    corpus_name: str
    corpus_hash: str
    hash: str
    """Of what the evidence follows from: model, SAE, corpus and the params that matter."""
    tokens_read: int
    """Content tokens of all windows."""
    massive_tokens: int
    """Content tokens among them that were left out for their norm."""
    token_counts: Int[np.ndarray, " vocab"]
    """Occurrences of each token among the content tokens."""
    firing_counts: Int[np.ndarray, " d_sae"]
    """Windows of all splits in which a latent fires: its peak is at least tau."""
    arrays: Mapping[str, np.ndarray]
    """The other files, by name."""

    @property
    def n_windows(self) -> int:
        """Number of windows."""
        return len(self.table)

    def _postings(self, latent: int) -> list[np.ndarray]:
        start, stop = self.arrays["pointers"][latent : latent + 2]
        return [np.array(self.arrays[name][start:stop]) for name in POSTINGS]

    def firings(self, latent: int) -> Firings:
        """All windows in which the latent's activation is above 0 somewhere."""
        window, position, value = self._postings(latent)
        starts = np.flatnonzero(np.diff(window, prepend=-1))
        peak = np.maximum.reduceat(value, starts) if len(starts) else value
        group = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(window)))
        at_peak = np.flatnonzero(value == peak[group])
        first = np.unique(group[at_peak], return_index=True)[1]
        return Firings(window[starts], peak, position[at_peak[first]].astype(np.int64))

    def peaks(self, latent: int) -> Float[np.ndarray, " window"]:
        """The latent's largest activation in every window, 0 where it is silent."""
        peaks = np.zeros(self.n_windows, np.float32)
        window, _, value = self._postings(latent)
        np.maximum.at(peaks, window, value)
        return peaks

    def activations(self, latent: int, windows: Sequence[int]) -> Float[np.ndarray, "n pos"]:
        """The latent's activation at each content token of some windows, 0 beyond their end."""
        window, position, value = self._postings(latent)
        acts = np.zeros((len(windows), self.table.ids.shape[1]), np.float32)
        for row, wanted in enumerate(windows):
            here = slice(*np.searchsorted(window, [wanted, wanted + 1]))
            acts[row, position[here]] = value[here]
        return acts

    def ref(self, latent: int) -> float:
        """99.5th percentile of the latent's non-zero activations on `explain`; 0 if there are none."""
        return float(self.arrays["ref"][latent])

    def tau(self, latent: int) -> float:
        """Firing threshold: 0.25 ref."""
        return float(self.arrays["tau"][latent])

    def density(self, latent: int) -> float:
        """Share of content tokens on which the latent's activation is above 0."""
        start, stop = self.arrays["pointers"][latent : latent + 2]
        return float(stop - start) / (self.tokens_read - self.massive_tokens)

    def actives(self, latent: int, split: Split) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """The content tokens of a split on which the latent's activation is above 0.

        Returns:
            each token's window times the width of a window plus its position, ascending, and its activation.
        """
        window, position, value = self._postings(latent)
        here = self.table.in_split(split)[window]
        return window[here].astype(np.int64) * self.table.ids.shape[1] + position[here], value[here]

    def bos_max(self, latent: int) -> float:
        """Activation at BOS, which is never evidence."""
        return float(self.arrays["bos"][latent])

    def live(self, min_windows: int) -> Int[np.ndarray, " latent"]:
        """Latents that fire in at least so many windows."""
        return np.flatnonzero(self.firing_counts >= min_windows)


def identity(target: Target, corpus: Corpus, params: Params) -> dict[str, Any]:
    """All that the evidence follows from; the batch size is not in it, since no result depends on it."""
    protocol = params.protocol
    return {
        "format": FORMAT,
        "model": target.model_hash,
        "dtype": str(target.model.dtype).removeprefix("torch."),
        "tokenizer": target.tokenizer_hash,
        "hook_point": target.hook_point,
        "bos_id": target.bos_id,
        "sae": target.sae.hash,
        "corpus": corpus.hash,
        "corpus_tokens": params.corpus_tokens,
        "document_tokens": params.document_tokens,
        "window_tokens": protocol.window_tokens,
        "ref_percentile": protocol.ref_percentile,
        "tau_fraction": protocol.tau_fraction,
        "vocab_size": target.vocab_size,
    }


def write(folder: Path, made_of: dict[str, Any], corpus_name: str, findings: Findings) -> None:
    """Write a store into a folder; `meta.json`, with size and hash of every other file, comes last."""
    table = findings.table
    content = table.ids[table.ids != PADDING]
    arrays = {
        **{name: getattr(table, name) for name in TABLE},
        **_write_postings(folder, findings, made_of["ref_percentile"], made_of["tau_fraction"]),
        "pointers": findings.pointers,
        "bos": findings.bos,
        "token_counts": np.bincount(content, minlength=made_of["vocab_size"]),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    write_json(folder / "documents.json", table.documents)
    files = [folder / f"{name}.npy" for name in (*arrays, *POSTINGS)] + [folder / "documents.json"]
    meta = {
        "made_of": made_of,
        "corpus_name": corpus_name,
        "tokens_read": len(content),
        "massive_tokens": findings.massive_tokens,
        "files": {file.name: {"size": file.stat().st_size, "hash": file_hash(file)} for file in files},
    }
    write_json(folder / "meta.json", meta)


def _write_postings(folder: Path, findings: Findings, percent: float, tau_fraction: float) -> dict[str, np.ndarray]:
    """Write the postings' columns block by block.

    Returns:
        ref and tau of each latent, and in how many windows it fires.
    """
    explain = findings.table.in_split("explain")
    d_sae, total = len(findings.bos), int(findings.pointers[-1])
    ref, fires = np.zeros(d_sae, np.float32), np.zeros(d_sae, np.int64)
    with ExitStack() as stack:
        columns = {name: stack.enter_context((folder / f"{name}.npy").open("wb")) for name in POSTINGS}
        for name, file in columns.items():
            header = {"descr": TYPES[name], "fortran_order": False, "shape": (total,)}
            np.lib.format.write_array_header_1_0(file, header)
        for start, stop, postings in findings.blocks:
            for name, file in columns.items():
                np.ascontiguousarray(postings[name]).tofile(file)
            window, value = np.ascontiguousarray(postings["window"]), np.ascontiguousarray(postings["value"])
            shown, at = explain[window], (findings.pointers[start : stop + 1] - findings.pointers[start]).tolist()
            for latent, mine in enumerate(map(slice, at, at[1:]), start):
                ref[latent] = percentile(value[mine][shown[mine]], percent)
                if ref[latent] > 0:
                    firing = window[mine][value[mine] >= np.float32(ref[latent] * tau_fraction)]
                    fires[latent] = np.count_nonzero(np.diff(firing, prepend=-1))
    return {"ref": ref, "tau": (ref * tau_fraction).astype(np.float32), "firing_windows": fires}


def percentile(values: Float[np.ndarray, " n"], percent: float) -> float:
    """`numpy.percentile` of a few values, ten times as quickly; 0 of none."""
    if not len(values):
        return 0.0
    ordered, rank = np.sort(values), (len(values) - 1) * percent / 100
    below = int(rank)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    return low + (high - low) * (rank - below)


def open_store(folder: Path) -> EvidenceStore:
    """Open a store that was written to `folder`. One that this process has open is read again only if a file changed.

    Raises:
        DamagedEvidence: a file is missing, or is not what was written.
    """
    return _open_store(folder, tuple(map(_stamp, (folder / name for name in ("meta.json", *FILES)))))


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes with a file's content; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@lru_cache(maxsize=4)
def _open_store(folder: Path, _stamps: tuple[tuple[int, ...] | None, ...]) -> EvidenceStore:
    meta = check_store(folder)
    names = (*TABLE, *POSTINGS, *LATENTS, "token_counts")
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in names}
    documents = tuple(json.loads((folder / "documents.json").read_text("utf-8")))
    return EvidenceStore(
        table=WindowTable(**{name: arrays[name] for name in TABLE}, documents=documents),
        corpus_name=meta["corpus_name"],
        corpus_hash=meta["made_of"]["corpus"],
        hash=value_hash(meta["made_of"]),
        tokens_read=meta["tokens_read"],
        massive_tokens=meta["massive_tokens"],
        # mapped as the others are: whoever writes to what runs share gets no further
        token_counts=np.asarray(arrays["token_counts"]),
        firing_counts=np.asarray(arrays["firing_windows"]),
        arrays=MappingProxyType({name: arrays[name] for name in (*POSTINGS, *LATENTS)}),
    )


def check_store(folder: Path) -> dict[str, Any]:
    """The store's `meta.json`, once every file is found to be what it says.

    Raises:
        DamagedEvidence: a file is missing, or is not what was written.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
        listed = {name: (meta["files"][name]["size"], meta["files"][name]["hash"]) for name in FILES}
        if "corpus" not in meta["made_of"] or not set(meta) >= FACTS:
            raise KeyError("a fact is missing")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, "meta.json", "is missing or unreadable") from error
    for name, (size, digest) in listed.items():
        path = folder / name
        if not path.is_file():
            raise _damaged(folder, name, "is missing")
        if path.stat().st_size != size:
            raise _damaged(folder, name, f"has {path.stat().st_size} bytes, not {size}")
        if file_hash(path) != digest:
            raise _damaged(folder, name, "is not what was written")
    return meta


def _damaged(folder: Path, name: str, fault: str) -> DamagedEvidence:
    return DamagedEvidence(f"evidence in {folder}: {name} {fault}: delete the folder, and it is made again")
