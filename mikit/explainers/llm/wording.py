"""What a model wrote, made fit to be kept and judged: one line, no hidden character, no list in place of a description."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from mikit.evidence.vocabulary import Vocabulary
from mikit.trace import Clause, Rule

LONGEST = 400
"""Characters of a hypothesis that are kept."""
MOST_QUOTED = 3
"""Tokens that a judge of the output end may read in a hypothesis."""
QUOTED = re.compile(r'"[^"]*"|\N{LEFT DOUBLE QUOTATION MARK}[^"]*?\N{RIGHT DOUBLE QUOTATION MARK}|`[^`]*`'
                    r"|(?<!\w)'[^']*'(?!\w)")  # fmt: skip
WORD = r"[\w'-]+"
LISTED = re.compile(rf"\b{WORD}(?:,\s+(?:and\s+|or\s+)?{WORD}){{{MOST_QUOTED},}}(?:,?\s+(?:and|or)\s+{WORD})?")


def one_line(text: str) -> str:
    """The text on one line, without control and formatting characters, at most `LONGEST` characters."""
    plain = "".join(" " if unicodedata.category(char) in ("Cc", "Zl", "Zp") else char for char in text)
    shown = "".join(char for char in plain if unicodedata.category(char) not in ("Cf", "Co", "Cs"))
    return " ".join(shown.split())[:LONGEST].strip()


def few_tokens(text: str) -> str:
    """A hypothesis with its first three quoted tokens, and with its first three words of any longer list of words."""
    seen = 0

    def keep(found: re.Match[str]) -> str:
        nonlocal seen
        seen += 1
        return found[0] if seen <= MOST_QUOTED else ""

    kept = QUOTED.sub(keep, text)
    kept = re.sub(r"(?:,\s*(?:and|or)?\s*)+(?=[,.;)]|$)", "", kept)
    kept = LISTED.sub(lambda found: ", ".join(re.findall(WORD, found[0])[:MOST_QUOTED]), kept)
    return " ".join(kept.split())


def rule_of(clauses: Iterable[Mapping[str, Any]] | None, vocabulary: Vocabulary) -> Rule | None:
    """The rule that a model gave beside its sentence; None if it gave none, or none that can be tried."""
    made = []
    for clause in clauses or ():
        parts = {name: value for name, value in clause.items() if value is not None and value != [] and value != ""}
        for name in ("tokens", "after"):
            if name in parts:
                parts[name] = spelled(parts[name], vocabulary)
                if not parts[name]:
                    return None
        for name in ("prefix", "suffix"):
            if name in parts:
                parts[name] = parts[name].strip().lower()
        if "after" not in parts:
            parts.pop("within", None)
        try:
            made.append(Clause.model_validate(parts))
        except ValidationError:
            return None
        if not set(parts) - {"within"}:
            return None
    return Rule(any_of=made) if made else None


def spelled(texts: Iterable[str], vocabulary: Vocabulary) -> list[str]:
    """Those of the texts that are tokens, as they are or with a space before them."""
    found = [next((t for t in (text, f" {text}") if t in vocabulary.id_of), None) for text in texts]
    return list(dict.fromkeys(token for token in found if token is not None))
