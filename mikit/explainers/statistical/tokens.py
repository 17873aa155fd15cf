"""A vocabulary by the look of its tokens: which ones have a form, start or end with something, or could stand in for another."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool, Int

from mikit.evidence.vocabulary import Vocabulary
from mikit.explainers.rules import FORM_TESTS, normal, token_test
from mikit.trace import Clause, Form


@dataclass(frozen=True)
class Looks:
    """Index = token id."""

    normals: tuple[str, ...]
    """Text without surrounding space and case."""
    kind: Int[np.ndarray, " vocab"]
    """Equal for tokens that look alike: same leading space and same form."""
    forms: Mapping[Form, Bool[np.ndarray, " vocab"]]
    alphabetic: Bool[np.ndarray, " vocab"]
    """Letters alone, after a space or not."""
    lengths: Int[np.ndarray, " vocab"]
    """Characters, surrounding space left out."""


@lru_cache(maxsize=4)
def looks_of(texts: tuple[str, ...]) -> Looks:
    """The looks of a vocabulary's tokens."""
    forms: dict[Form, np.ndarray] = {
        form: np.array([test(text) for text in texts], bool) for form, test in FORM_TESTS.items()
    }
    alphabetic = np.array([text.strip().isalpha() for text in texts], bool)
    bits = [*forms.values(), alphabetic]
    kind = np.sum([bit.astype(int) << i for i, bit in enumerate(bits)], axis=0)
    normals = tuple(map(normal, texts))
    lengths = np.array([len(text) for text in normals], int)
    for array in (*bits, kind, lengths):
        array.setflags(write=False)
    return Looks(normals, kind, MappingProxyType(forms), alphabetic, lengths)


def satisfying(clause: Clause, vocabulary: Vocabulary) -> Bool[np.ndarray, " vocab"]:
    """Which tokens satisfy the clause's conditions on the token itself."""
    looks = looks_of(vocabulary.texts)
    test = token_test(clause)
    if clause.tokens is not None:
        wanted = frozenset(clause.tokens)
        return np.array([text in wanted and test(text) for text in vocabulary.texts], bool)
    ok = looks.forms[clause.form].copy() if clause.form else np.ones(len(vocabulary.texts), bool)
    if (affix := clause.prefix) is not None:
        ok &= np.array([text.startswith(affix) and len(text) > len(affix) for text in looks.normals], bool)
    if (affix := clause.suffix) is not None:
        ok &= np.array([text.endswith(affix) and len(text) > len(affix) for text in looks.normals], bool)
    return ok


def usable(vocabulary: Vocabulary) -> Bool[np.ndarray, " vocab"]:
    """Tokens that a text may be written with: seen in the corpus (any, if counts are unknown), not special, whole characters."""
    seen = vocabulary.counts > 0 if vocabulary.counts.any() else np.ones(len(vocabulary.texts), bool)
    whole = np.array(["\ufffd" not in text for text in vocabulary.texts], bool)
    ok = seen & whole
    ok[list(vocabulary.special_ids)] = False
    return ok
