"""Corpora: documents by name, and the split that keeps what is written from apart from what is tested on."""

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mikit import paths
from mikit.errors import BadInput
from mikit.files import value_hash, write_text
from mikit.targets.base import Target
from mikit.trace import Split

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
    path = Path(name).expanduser()
    if not path.exists():
        raise BadInput(
            f"unknown corpus {name!r}: valid: 'embedded', 'full', or the path of a .txt or .jsonl file or a folder of .txt files"
        )
    try:
        return corpus_of(path.name, list(_from_files(path)))
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, OSError) as error:
        raise BadInput(f"corpus {path}: not readable as UTF-8 text or JSONL with a 'text' field ({error})") from error


def _from_files(path: Path) -> Iterator[Document]:
    if path.is_dir():
        for file in sorted(path.glob("*.txt")):
            yield Document(file.name, file.read_text("utf-8"))
    elif path.suffix == ".jsonl":
        for number, line in enumerate(path.read_text("utf-8").splitlines()):
            if line.strip():
                row = json.loads(line)
                if not isinstance(row["text"], str):
                    raise TypeError(f"line {number + 1}: text is no string")
                yield Document(str(row.get("id", number)), row["text"])
    else:
        for number, paragraph in enumerate(path.read_text("utf-8").split("\n\n")):
            yield Document(str(number), paragraph)


def _embedded() -> list[Document]:
    """The Wikipedia excerpt and the Lee news corpus inside the `gensim` wheel, cleaned once and kept in the cache."""
    cached = paths.cache() / f"embedded-corpus-v{CLEANING}.jsonl"
    if not cached.is_file():
        documents = [*_wikipedia(wheel_folder() / WIKI), *_news(wheel_folder())]
        write_text(cached, "".join(json.dumps([d.id, d.text], ensure_ascii=False) + "\n" for d in documents))
    return [Document(*json.loads(line)) for line in cached.read_text("utf-8").splitlines()]


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
