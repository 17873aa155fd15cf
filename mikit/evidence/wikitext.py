"""Wiki markup to plain prose.

Markup left in a corpus becomes features of an SAE trained on it (`260px|thumb` did): files, tables, templates,
references, lists of links and headings go.
"""

import bz2
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import mwparserfromhell

ENDS = re.compile(
    r"^==+\s*(references|see also|external links|further reading|notes|bibliography|sources|footnotes)", re.I | re.M
)
DROPPED_LINKS = re.compile(r"^\s*(file|image|category|media|[a-z]{2,3}(-[a-z]+)?)\s*:", re.I)
DROPPED_TAGS = {"ref", "gallery", "table", "math", "timeline", "imagemap", "syntaxhighlight", "source", "code", "score"}
MARKUP_LEFT = re.compile(r"\||\{|\}|\[\[|\]\]|<[a-z/!]|px\b|thumb\b|https?:", re.I)
MINIMUM_WORDS = 8


def articles(dump: Path) -> Iterator[tuple[str, str]]:
    """Title and raw wikitext of each article of a MediaWiki XML dump (.bz2); redirects are left out.

    The file must be trusted: it is read by the standard XML parser.
    """
    title = ""
    with bz2.open(dump) as file:
        for _event, element in ElementTree.iterparse(file):
            tag = element.tag.rpartition("}")[2]
            if tag == "title":
                title = element.text or ""
            elif tag == "text" and element.text and not element.text.lstrip().lower().startswith("#redirect"):
                yield title, element.text
            elif tag == "page":
                element.clear()


def prose(wikitext: str) -> str:
    """The running text of an article: one paragraph a line, nothing that still looks like markup."""
    end = ENDS.search(wikitext)
    code = mwparserfromhell.parse(wikitext[: end.start()] if end else wikitext, skip_style_tags=True)
    for link in code.filter_wikilinks():
        if DROPPED_LINKS.match(str(link.title)):
            _remove(code, link)
    for tag in code.filter_tags():
        if str(tag.tag).strip().lower() in DROPPED_TAGS:
            _remove(code, tag)
    text = code.strip_code(normalize=True, collapse=True).replace("\xa0", " ")
    text = re.sub(r"'{2,}", "", text)
    text = re.sub(r"\(\s*[;,:\s]*\)", "", text)
    return "\n".join(
        filter(_is_prose, (re.sub(r"\s+([,.;:)])", r"\1", " ".join(line.split())) for line in text.split("\n")))
    )


def _remove(code: mwparserfromhell.wikicode.Wikicode, node: object) -> None:
    # a node may lie inside one that is gone
    with contextlib.suppress(ValueError):
        code.remove(node)


def _is_prose(line: str) -> bool:
    return len(line.split()) >= MINIMUM_WORDS and line[0] not in "*#:;|!=" and not MARKUP_LEFT.search(line)
