"""The tokens of a target as text, with how often each occurs in the corpus."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool, Int

from mikit.targets.base import LanguageModel


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Index = token id."""

    texts: tuple[str, ...]
    """The text of each token alone, leading space kept."""
    counts: Int[np.ndarray, " vocab"]
    """Occurrences among the content tokens of the corpus that was read."""
    special_ids: frozenset[int]

    @cached_property
    def id_of(self) -> Mapping[str, int]:
        """The id of a token text; of several with one text the most frequent in the corpus."""
        return MappingProxyType({self.texts[i]: int(i) for i in np.argsort(self.counts, kind="stable")})

    def eligible(self, min_count: int) -> Bool[np.ndarray, " vocab"]:
        """Tokens that an output score may use: printable, not special, seen at least `min_count` times."""
        printable = np.array(
            [bool(text.strip()) and text.isprintable() and "\ufffd" not in text for text in self.texts]
        )
        printable[list(self.special_ids)] = False
        return printable & (self.counts >= min_count)


def vocabulary_of(lm: LanguageModel, counts: Int[np.ndarray, " vocab"]) -> Vocabulary:
    """The vocabulary of a model, with counts from a corpus."""
    return Vocabulary(tuple(lm.token_strings(range(lm.vocab_size))), counts, lm.special_ids)
