"""Where the latents of an SAE fire: corpora cut into windows, read once, kept on disk for every feature."""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from mikit import paths
from mikit.settings import Params
from mikit.targets.base import Target

if TYPE_CHECKING:
    from mikit.evidence.store import EvidenceStore

log = logging.getLogger(__name__)

__all__ = ["open_evidence"]


def open_evidence(target: Target, params: Params) -> "EvidenceStore":
    """The evidence of all latents of the target's SAE on the params' corpus: from disk, or made by reading the corpus.

    One process makes it while others wait. A store that is not what was written is made again.

    Raises:
        BadInput: there is no such corpus, or no document in it is long enough.
    """
    from mikit.evidence.corpora import FULL, load_corpus
    from mikit.evidence.scan import scan
    from mikit.evidence.store import DamagedEvidence, identity, open_store
    from mikit.files import value_hash

    corpus = load_corpus(params.corpus or target.default_corpus, target)
    if params.corpus == FULL:
        params = params.model_copy(update={"corpus_tokens": None, "document_tokens": None})
    key = value_hash(identity(target, corpus, params))
    folder = paths.outputs() / "evidence" / f"{target.name}-{target.sae.hash}-{key}"
    with _one_at_a_time(folder):
        if folder.exists():
            try:
                return open_store(folder)
            except DamagedEvidence as fault:
                log.warning("%s; making it now", fault)
                shutil.rmtree(folder)
        for abandoned in folder.parent.glob(f".{folder.name}.*"):
            shutil.rmtree(abandoned)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
            scan(target, corpus, params, Path(scratch) / "store")
            (Path(scratch) / "store").rename(folder)
        return open_store(folder)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Hold the lock of a store; other processes wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.parent / f"{folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info("another process is making the evidence in %s: waiting for it", folder)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
