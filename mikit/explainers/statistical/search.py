"""The rules that best tell firing windows from silent ones: a beam search over unions of clauses."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from mikit.evidence.vocabulary import Vocabulary
from mikit.explainers.sentences import describe
from mikit.explainers.statistical.candidates import candidates
from mikit.explainers.statistical.measure import Candidate
from mikit.explainers.statistical.shown import Shown, shown_windows
from mikit.trace import Observation, Rule

BEAM = 8
MAX_CLAUSES = 3
COST = 0.01
"""F1 that a unit of complexity must buy."""
BETTER = 0.02
"""A further hypothesis beats every one taken by this much in precision or in recall."""
SAME = 0.8
"""Two rules whose matched windows overlap more than this (Jaccard) are one hypothesis."""
WORTH = 0.3
"""A further hypothesis reaches this share of the best one's score at least."""


@dataclass(frozen=True)
class Scored:
    """A union of candidates with its scores."""

    parts: tuple[int, ...]
    hits: np.ndarray
    precision: float
    recall: float
    cost: float

    def f(self, beta: float = 1.0) -> float:
        """F measure less complexity; `beta` below 1 favours precision."""
        denominator = beta**2 * self.precision + self.recall
        measure = (1 + beta**2) * self.precision * self.recall / denominator if denominator > 0 else 0.0
        return measure - COST * self.cost


def score(shown: Shown, pool: Sequence[Candidate], parts: tuple[int, ...]) -> Scored:
    """Precision over the corpus, and recall with each window's own document left out, of a union.

    One false window is added to keep a rule that matches next to nothing from looking precise.
    """
    chosen = [pool[i] for i in parts]
    hits = np.any([c.hits for c in chosen], axis=0)
    credited = np.any([c.credited for c in chosen], axis=0)
    true = float(shown.weight @ (hits & shown.fires))
    false = sum(c.false_windows for c in chosen) + 1
    recall = float(shown.weight @ (credited & shown.fires)) / shown.n_firing
    return Scored(parts, hits, true / (true + false), recall, sum(c.cost for c in chosen) + len(chosen) - 1)


def search(shown: Shown, pool: Sequence[Candidate]) -> list[Scored]:
    """Every union looked at, the best F1 first."""
    seen: dict[tuple[int, ...], Scored] = {(i,): score(shown, pool, (i,)) for i in range(len(pool))}
    beam = sorted(seen.values(), key=lambda s: -s.f())[:BEAM]
    for _ in range(MAX_CLAUSES - 1):
        wider = {
            parts: score(shown, pool, parts)
            for scored in beam
            for i in range(len(pool))
            if i not in scored.parts and (parts := tuple(sorted((*scored.parts, i)))) not in seen
        }
        seen.update(wider)
        beam = sorted(wider.values(), key=lambda s: -s.f())[:BEAM]
    return sorted(seen.values(), key=lambda s: -s.f())


def _overlap(first: np.ndarray, second: np.ndarray) -> float:
    either = int((first | second).sum())
    return float((first & second).sum()) / either if either else 1.0


def _adds_to(scored: Scored, taken: Scored) -> bool:
    """Whether a rule matches other windows than one taken, and is better in some way."""
    better = scored.precision > taken.precision + BETTER or scored.recall > taken.recall + BETTER
    return better and _overlap(scored.hits, taken.hits) < SAME


def distinct(ranked: Sequence[Scored], n: int) -> list[Scored]:
    """The best by F1, then of those that add something the best by precision (F0.5), then by recall (F2)."""
    if not ranked or ranked[0].recall <= 0:
        return []
    taken = [ranked[0]]
    worthy = [scored for scored in ranked if scored.f() >= WORTH * ranked[0].f()]
    for beta in (0.5, 2.0, 1.0, 0.5):
        rest = [scored for scored in worthy if all(_adds_to(scored, other) for other in taken)]
        if rest and len(taken) < n:
            taken.append(max(rest, key=lambda scored: scored.f(beta)))
    return taken


def find_rules(
    observation: Observation, vocabulary: Vocabulary, n: int, failed: Collection[str] = frozenset()
) -> list[Rule]:
    """Up to `n` distinct rules, the best first.

    Args:
        observation: at least one of its windows fires.
        vocabulary: token texts and their counts in the corpus.
        failed: descriptions of rules that were tried; what matches the same windows as one of them is no new rule.
    """
    shown = shown_windows(observation, vocabulary)
    pool = candidates(shown, vocabulary)

    def rule_of(scored: Scored) -> Rule:
        return Rule(any_of=[pool[i].clause for i in scored.parts])

    ranked = search(shown, pool)
    if failed:
        known = [scored for scored in ranked if describe(rule_of(scored)) in failed]
        ranked = [scored for scored in ranked if all(_overlap(scored.hits, other.hits) < SAME for other in known)]
    return [rule_of(scored) for scored in distinct(ranked, n)]
