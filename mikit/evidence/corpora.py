"""Corpora: documents by name, and the split that keeps what is written from apart from what is tested on."""

import hashlib
import importlib.util
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mikit import paths
from mikit.errors import BadInput
from mikit.files import value_hash, write_text
from mikit.targets.base import Target
from mikit.trace import Split

log = logging.getLogger(__name__)

SHARES = {"explain": 50, "select": 20, "confirm": 30}
"""Percent of the documents."""

WIKI = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
NEWS = ("lee_background.cor", "lee.cor")
FULL = "full"
"""Name of the target's default corpus when it is read without limits."""
CLEANING = 1
"""Version of the cleaning; a change makes the cached corpus anew."""


@dataclass(frozen=True)
class Document:
    """One document. Windows never cross it."""

    id: str
    """Unique in its corpus; a document's split follows from it."""
    text: str

    @property
    def split(self) -> Split:
        """Which split the document is in: by hash of its id, 50 / 20 / 30 %."""
        return split_of(self.id)


@dataclass(frozen=True)
class Corpus:
    """Documents with a name and a hash of what they say."""

    name: str
    documents: tuple[Document, ...]
    hash: str

    def __len__(self) -> int:
        return len(self.documents)


def split_of(key: str) -> Split:
    """The split of a document, or of anything else that must not be in two of them, by the hash of its key."""
    percent = int.from_bytes(hashlib.sha256(f"split:{key}".encode()).digest()[:8], "big") % 100
    if percent < SHARES["explain"]:
        return "explain"
    return "select" if percent < SHARES["explain"] + SHARES["select"] else "confirm"


def corpus_of(name: str, documents: Sequence[Document]) -> Corpus:
    """A corpus of these documents.

    Raises:
        BadInput: there is no document with text in it, or two share an id.
    """
    kept = tuple(document for document in documents if document.text.strip())
    if not kept:
        raise BadInput(f"corpus {name!r} has no text in it")
    if len({document.id for document in kept}) < len(kept):
        raise BadInput(f"corpus {name!r}: two documents share an id")
    return Corpus(name, kept, value_hash([[document.id, document.text] for document in kept]))


def load_corpus(name: str, target: Target | None = None) -> Corpus:
    """A corpus by name.

    Args:
        name: the target's default corpus, for the documents that it brings; `embedded`; `full` for the target's default
            or else the embedded one, to be read without limits; or the path of a text file (a document a paragraph), of a
            JSONL file (a document a line, its text under `text`, its id under `id` or counted), or of a folder of text files.
        target: whose own documents are meant.

    Raises:
        BadInput: there is no such corpus, or it can't be read.
    """
    if target is not None and target.own_documents is not None and name in (target.default_corpus, FULL):
        return corpus_of(name, [Document(*pair) for pair in target.own_documents])
    if name in ("embedded", FULL):
        return corpus_of(name, _embedded())
    path = paths.existing(name)
    if path is None:
        raise BadInput(
            f"unknown corpus {name!r}: valid: 'embedded', 'full', or the path of a .txt or .jsonl file or a folder of .txt files"
        )
    try:
        return corpus_of(path.name, list(_from_files(path)))
    except (ValueError, OSError) as error:
        raise BadInput(f"corpus {path}: not readable as UTF-8 text ({error})") from error


def _from_files(path: Path) -> Iterator[Document]:
    if path.is_dir():
        for file in paths.texts(path):
            yield Document(file.name, file.read_text("utf-8-sig"))
    elif path.suffix == ".jsonl":
        # not splitlines, which also splits at characters that JSON allows inside a text, such as U+2028
        for number, line in enumerate(path.read_text("utf-8-sig").split("\n")):
            if line.strip():
                yield _from_line(line, number, path)
    else:
        for number, paragraph in enumerate(path.read_text("utf-8-sig").split("\n\n")):
            yield Document(str(number), paragraph)


def _from_line(line: str, number: int, path: Path) -> Document:
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise ValueError("no object with a string under it")
        document = Document(str(row.get("id", number)), row["text"])
        f"{document.id}{document.text}".encode()
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise BadInput(
            f"corpus {path}, line {number + 1}: not readable as JSON with a 'text' field ({reason})"
        ) from None
    return document


def _embedded() -> list[Document]:
    """The Wikipedia excerpt and the Lee news corpus inside the `gensim` wheel, cleaned once and kept in the cache."""
    cached = paths.cache() / f"embedded-corpus-v{CLEANING}.jsonl"
    try:
        kept = [Document(*json.loads(line)) for line in cached.read_text("utf-8").split("\n") if line]
    except FileNotFoundError:
        kept = []
    except (ValueError, TypeError):
        log.warning("%s is damaged; making it again", cached)
        kept = []
    if not kept:
        kept = [*_wikipedia(wheel_folder() / WIKI), *_news(wheel_folder())]
        write_text(cached, "".join(json.dumps([d.id, d.text], ensure_ascii=False) + "\n" for d in kept))
    return kept


def wheel_folder() -> Path:
    """The folder of texts inside the installed `gensim` wheel, which is read as data and never imported.

    Raises:
        BadInput: the wheel is not installed.
    """
    spec = importlib.util.find_spec("gensim")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        texts = Path(folder) / "test" / "test_data"
        if (texts / WIKI).is_file():
            return texts
    raise BadInput("the embedded corpus is not installed: run `mikit fetch corpus`")


def _wikipedia(dump: Path) -> Iterator[Document]:
    from mikit.evidence import wikitext

    for title, raw in wikitext.articles(dump):
        text = wikitext.prose(raw)
        if text:
            yield Document(f"wiki:{title}", text)


def _news(folder: Path) -> Iterator[Document]:
    for name in NEWS:
        for number, line in enumerate((folder / name).read_text("latin-1").splitlines()):
            if line.strip():
                yield Document(f"{name}:{number}", line.strip())
