"""Tokens like others: of the same leading space, case and script, and of the nearest frequency."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int

MISMATCH = 100.0
"""What a difference in leading space, case or script costs, against 1 for a factor of e in frequency: such a token is
taken only where no other is left."""


@dataclass(frozen=True)
class Looks:
    """Index = token."""

    kinds: Int[np.ndarray, "token 3"]
    """Codes of leading space, case and script; equal for tokens that agree."""
    log_count: Float[np.ndarray, " token"]
    """log(1 + occurrences in the corpus)."""

    def of(self, tokens: Int[np.ndarray, " subset"]) -> "Looks":
        """Those of some tokens."""
        return Looks(self.kinds[tokens], self.log_count[tokens])


def case_of(text: str) -> str:
    """`lower`, `capitalized`, `upper` (two letters or more), `mixed`, or `none` where there is no cased letter."""
    word = text.strip()
    if not any(char.isupper() or char.islower() for char in word):
        return "none"
    if word.islower():
        return "lower"
    if word.isupper() and len(word) > 1:
        return "upper"
    return "capitalized" if word[0].isupper() and not any(char.isupper() for char in word[1:]) else "mixed"


def script_of(text: str) -> str:
    """The script of the first letter, by the first word of its Unicode name; else `digits` or `symbols`."""
    letter = next((char for char in text if char.isalpha()), None)
    if letter is not None:
        return unicodedata.name(letter, "UNKNOWN").split()[0]
    return "digits" if any(char.isdigit() for char in text) else "symbols"


@lru_cache(maxsize=4)
def _kinds(texts: tuple[str, ...]) -> Int[np.ndarray, "token 3"]:
    spaces = ["space" if text.startswith(" ") else "none" for text in texts]
    columns = [spaces, list(map(case_of, texts)), list(map(script_of, texts))]
    kinds = np.stack([np.unique(column, return_inverse=True)[1] for column in columns], axis=1)
    kinds.setflags(write=False)
    return kinds


def looks_of(texts: Sequence[str], counts: Int[np.ndarray, " token"]) -> Looks:
    """The looks of tokens, given their texts with leading spaces and their counts."""
    return Looks(_kinds(tuple(texts)), np.log1p(counts))


def matched(
    targets: Int[np.ndarray, " target"],
    pool: Int[np.ndarray, " candidate"],
    looks: Looks,
    kinds: bool = True,
) -> Int[np.ndarray, " match"]:
    """For each target another token of the pool: the assignment of least total distance.

    Args:
        targets: indices into `looks`.
        pool: indices to choose from; of equally good ones the earlier is taken.
        looks: of all tokens.
        kinds: whether leading space, case and script count beside frequency.

    Returns:
        As many tokens of the pool as there are targets, in their order, or all of them if they are fewer.
    """
    from scipy.optimize import linear_sum_assignment

    wanted, offered = looks.of(targets), looks.of(pool)
    cost = np.abs(wanted.log_count[:, None] - offered.log_count[None, :])
    if kinds:
        cost = cost + MISMATCH * (wanted.kinds[:, None] != offered.kinds[None, :]).sum(-1)
    return pool[linear_sum_assignment(cost)[1]]
