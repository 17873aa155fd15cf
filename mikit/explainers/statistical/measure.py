"""A clause with what it matches among the windows shown, and how many silent windows of the corpus it would match.

That number is estimated from the silent windows shown and, more firmly, from how often the tokens occur in the corpus.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from mikit.explainers.statistical.shown import Shown
from mikit.trace import Clause

LENGTH_COST = 0.8
"""Complexity of doubling a list, in conditions."""


@dataclass(frozen=True)
class Candidate:
    """A clause with what it matches."""

    clause: Clause
    hits: Bool[np.ndarray, " window"]
    """Firing windows matched at a position that fires; silent windows matched anywhere."""
    credited: Bool[np.ndarray, " window"]
    """Firing windows found even with their own document left out."""
    false_windows: float
    """Silent windows of the corpus that it matches, estimated."""

    @property
    def cost(self) -> float:
        """Complexity: conditions, and lists by the logarithm of their length."""
        clause = self.clause
        conditions = sum(
            part is not None for part in (clause.tokens, clause.prefix, clause.suffix, clause.form, clause.after)
        )
        return conditions + LENGTH_COST * sum(np.log2(len(part)) for part in (clause.tokens, clause.after) if part)


def hits_of(shown: Shown, at: np.ndarray) -> np.ndarray:
    """Windows matched at a firing position, or anywhere for silent ones; broadcasts over leading axes."""
    return np.where(shown.fires, (at & shown.firing).any(-1), at.any(-1))


def false_windows(shown: Shown, at: np.ndarray, holding: float, trust: float, unseen: float) -> float:
    """Silent windows matched, from the sample and from how many windows of the corpus ought to hold a match."""
    anywhere = at.any(-1)
    sampled = float(shown.weight @ (anywhere & ~shown.fires)) + unseen * mean_silent_weight(shown)
    counted = max(holding - float(shown.weight @ (anywhere & shown.fires)), 0.0)
    return trust * counted + (1 - trust) * sampled


def mean_silent_weight(shown: Shown) -> float:
    """Corpus windows that a silent window shown stands for; 0 where none is shown."""
    silent = ~shown.fires
    return float(shown.weight[silent].mean()) if silent.any() else 0.0
