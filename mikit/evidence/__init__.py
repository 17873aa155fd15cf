"""Where the latents of an SAE fire: corpora cut into windows, read once, kept on disk for every feature."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from mikit import paths
from mikit.errors import BadInput
from mikit.progress import working
from mikit.settings import Params
from mikit.targets.base import Target

if TYPE_CHECKING:
    from mikit.evidence.corpora import Corpus
    from mikit.evidence.scan import Estimate
    from mikit.evidence.store import EvidenceStore

log = logging.getLogger(__name__)

__all__ = ["estimate_evidence", "open_evidence"]


def open_evidence(target: Target, params: Params) -> "EvidenceStore":
    """The evidence of all latents of the target's SAE on the params' corpus: from disk, or made by reading the corpus.

    One process makes it while others wait. A scan that was stopped goes on where it was; a store that is not what was
    written is made again.

    Raises:
        BadInput: there is no such corpus, no document in it is long enough, or the folder can't be written.
    """
    from mikit.evidence.scan import scan
    from mikit.evidence.store import DamagedEvidence, open_store

    corpus, params, folder = _place(target, params)
    with _one_at_a_time(folder):
        if folder.exists():
            try:
                return open_store(folder)
            except DamagedEvidence as fault:
                log.warning("%s; making it now", fault)
                shutil.rmtree(folder)
        unfinished = folder.parent / f".{folder.name}.unfinished"
        scan(target, corpus, params, unfinished)
        unfinished.rename(folder)
        return open_store(folder)


def estimate_evidence(target: Target, params: Params) -> "tuple[Estimate, Path, bool]":
    """What making the evidence will take, where it will lie, and whether it is there already.

    Raises:
        BadInput: as for `open_evidence`.
    """
    from mikit.evidence.scan import estimate

    with working("measuring on a few batches how long it will take"):
        corpus, params, folder = _place(target, params)
        return estimate(target, corpus, params), folder, folder.exists()


def _place(target: Target, params: Params) -> "tuple[Corpus, Params, Path]":
    """The corpus, the params with no limits where all of it is wanted, and the folder of the evidence."""
    from mikit.evidence.corpora import FULL, load_corpus
    from mikit.evidence.store import identity
    from mikit.files import value_hash

    corpus = load_corpus(params.corpus or target.default_corpus, target)
    if params.corpus == FULL:
        params = params.model_copy(update={"corpus_tokens": None, "document_tokens": None})
    key = value_hash(identity(target, corpus, params))
    return corpus, params, paths.outputs() / "evidence" / f"{target.name}-{target.sae.hash}-{key}"


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Hold the lock of a store; other processes wait."""
    lock = FileLock(folder.parent / f"{folder.name}.lock")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        log.info("another process is making the evidence in %s: waiting for it", folder)
        lock.acquire()
    except OSError as error:
        raise BadInput(
            f"{folder.parent} can't be written ({error.strerror}): remove what is in its way, make it writable, or "
            "name another folder in MIKIT_OUTPUTS"
        ) from None
    try:
        yield
    finally:
        lock.release()
