"""Texts written from a rule: positives that satisfy it, and near misses that are the same texts with the match broken.

A positive is a carrier that satisfies the rule as it stands or, where too few do, a carrier in which one or two tokens
are replaced. A near miss is a positive in which the trigger or its cue is replaced by a token of the same looks and
frequency. Nothing is ever added or cut, so length and position say nothing of a text's role.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice

import numpy as np

from mikit.evidence.vocabulary import Vocabulary
from mikit.explainers.rules import clause_matcher, constrains_token, matcher
from mikit.explainers.statistical.tokens import looks_of, satisfying, usable
from mikit.trace import Clause, Rule, Stratum, TextCase

MAX_CONTENT = 32
"""Content tokens in a text."""
SIMILAR = 20
"""A stand-in is drawn from this many tokens of nearest frequency."""
ENOUGH = 3
"""Tokens of the same looks that there must be, for a stand-in to be one of them."""
UNLIKE = 3.0
"""Tokens farther apart than this, in units of e-fold frequency or of two characters, do not take each other's place lightly."""
MAX_BREAKS = 12
"""Replacements that a near miss may need."""


class Writer:
    """A rule with what writing from it needs: the tokens that satisfy it, and those that could stand in for them."""

    def __init__(self, rule: Rule, vocabulary: Vocabulary, seed: int) -> None:
        self.clauses = rule.any_of
        self.texts = vocabulary.texts
        self.match: Callable[[Sequence[str]], list[int]] = matcher(rule)
        self.clause_match = [clause_matcher(clause) for clause in rule.any_of]
        self.rng = np.random.default_rng(seed)
        looks = looks_of(vocabulary.texts)
        self.kind, self.inside, self.spaced = looks.kind, looks.forms["word_part"], looks.forms["word_start"]
        self.lengths, self.alphabetic = looks.lengths, looks.alphabetic
        self.log_count = np.log1p(vocabulary.counts)
        allowed = usable(vocabulary)
        ordinary = np.ones(len(self.texts), bool)
        ordinary[list(vocabulary.special_ids)] = False
        self.triggers = [satisfying(clause, vocabulary) if constrains_token(clause) else None for clause in rule.any_of]
        self.cues = [
            None if clause.after is None else satisfying(Clause(tokens=clause.after), vocabulary)
            for clause in rule.any_of
        ]
        avoided = [mask for mask in (*self.triggers, *self.cues) if mask is not None]
        self.neutral = np.flatnonzero(allowed & ~np.any(avoided, axis=0)) if avoided else np.flatnonzero(allowed)
        self.next_trigger = [
            self._endless(mask, allowed if clause.tokens is None else ordinary, evenly=clause.tokens is not None)
            for clause, mask in zip(rule.any_of, self.triggers, strict=True)
        ]
        self.next_cue = [self._endless(mask, ordinary, evenly=True) for mask in self.cues]

    def _endless(self, mask: np.ndarray | None, allowed: np.ndarray, evenly: bool) -> Iterator[int | None]:
        """Ids that satisfy a condition, over and over: in random order, or frequent ones first more often than not."""
        if mask is None:
            return cycle([None])
        ids = np.flatnonzero(mask & allowed)
        if not len(ids):
            return iter(())
        chances = np.ones(len(ids)) if evenly else np.expm1(self.log_count[ids]) + 1e-9
        return cycle(self.rng.choice(ids, size=len(ids), replace=False, p=chances / chances.sum()).tolist())

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The texts of some ids."""
        return [self.texts[i] for i in ids]

    def matched_clause(self, ids: Sequence[int]) -> int | None:
        """The first clause that a text satisfies, if it satisfies one."""
        tokens = self.tokens(ids)
        return next((i for i, match in enumerate(self.clause_match) if match(tokens)), None)

    # --- positives

    def _cost(self, ids: Sequence[int], place: int, new: int | None, mask: np.ndarray | None) -> int:
        """How much replacing the token at `place` would hurt: 0 where nothing has to be replaced."""
        if mask is None or new is None or mask[ids[place]]:
            return 0
        splits_word = place + 1 < len(ids) and self.inside[ids[place + 1]]
        other_kind = self.kind[ids[place]] != self.kind[new]
        return 1 + 3 * int(other_kind) + int(splits_word) + int(self._unlike([ids[place]], new)[0] > UNLIKE)

    def _unlike(self, ids: Sequence[int] | np.ndarray, token: int) -> np.ndarray:
        """How far tokens are from one in log-frequency and in length: " the" should not become " platypus"."""
        frequency = np.abs(self.log_count[ids] - self.log_count[token])
        return frequency + np.abs(self.lengths[ids] - self.lengths[token]) / 2

    def satisfied(self, ids: Sequence[int], clause: int) -> list[int] | None:
        """The text with as few tokens replaced as make it satisfy a clause, at a place drawn from the most plausible ones."""
        trigger, cue = next(self.next_trigger[clause], -1), next(self.next_cue[clause], -1)
        if -1 in (trigger, cue):
            return None
        distances = range(1, self.clauses[clause].within + 1) if cue is not None else [0]
        places = [(place, back) for place in range(len(ids)) for back in distances if back <= place]
        if not places:
            return None
        costs = np.array(
            [
                self._cost(ids, place, trigger, self.triggers[clause])
                + self._cost(ids, place - back, cue, self.cues[clause])
                for place, back in places
            ]
        )
        place, back = places[self.rng.choice(np.flatnonzero(costs == costs.min()))]
        edited = list(ids)
        for where, new, mask in ((place, trigger, self.triggers[clause]), (place - back, cue, self.cues[clause])):
            if new is not None and mask is not None and not mask[edited[where]]:
                edited[where] = new
        return edited if self.match(self.tokens(edited)) else None

    # --- near misses

    def stand_in(self, token: int) -> int | None:
        """A token that takes no part in the rule and is like this one in looks, frequency and length."""
        alike = self.neutral[self.kind[self.neutral] == self.kind[token]]
        if len(alike) < ENOUGH:
            spaced = self.spaced[self.neutral] == self.spaced[token]
            words = self.neutral[spaced & self.alphabetic[self.neutral]]
            alike = words if len(words) >= ENOUGH else self.neutral
        if not len(alike):
            return None
        nearest = alike[np.argsort(self._unlike(alike, token), kind="stable")[:SIMILAR]]
        return int(self.rng.choice(nearest))

    def broken(self, ids: Sequence[int], break_cue: bool) -> list[int] | None:
        """The text with triggers, or their cues, replaced until the rule is silent; None where that takes too much."""
        edited = list(ids)
        for _ in range(MAX_BREAKS):
            tokens = self.tokens(edited)
            hits = [(i, found[0]) for i, match in enumerate(self.clause_match) if (found := match(tokens))]
            if not hits:
                return edited
            clause, place = hits[0]
            cues, within = self.cues[clause], self.clauses[clause].within
            places = [place]
            if cues is not None and (break_cue or self.triggers[clause] is None):
                places = [i for i in range(max(place - within, 0), place) if cues[edited[i]]]
            for i in places:
                new = self.stand_in(edited[i])
                if new is None:
                    return None
                edited[i] = new
        return None


def _case(writer: Writer, ids: Sequence[int], stratum: Stratum | None) -> TextCase:
    role = "near_miss" if stratum else "positive"
    return TextCase(role=role, stratum=stratum, ids=list(ids), text="".join(writer.tokens(ids)), document=None)


def _distinct(texts: Iterator[list[int] | None], n: int, taken: set[tuple[int, ...]]) -> list[list[int]]:
    kept: list[list[int]] = []
    for ids in texts:
        if len(kept) >= n:
            break
        if ids is not None and tuple(ids) not in taken:
            taken.add(tuple(ids))
            kept.append(ids)
    return kept


def _natural(writer: Writer, carriers: Sequence[list[int]]) -> Iterator[list[int]]:
    """The carriers that satisfy the rule, clauses in turn so that a frequent one does not crowd out the others."""
    by_clause: list[list[list[int]]] = [[] for _ in writer.clauses]
    for ids in carriers:
        if (clause := writer.matched_clause(ids)) is not None:
            by_clause[clause].append(ids)
    for rank in range(max(map(len, by_clause))):
        yield from (texts[rank] for texts in by_clause if rank < len(texts))


def _edited(writer: Writer, carriers: Sequence[list[int]]) -> Iterator[list[int] | None]:
    """The other carriers, each with one clause made true, clauses in turn; every carrier is used up to three times."""
    silent = [ids for ids in carriers if writer.matched_clause(ids) is None]
    turns = cycle(range(len(writer.clauses)))
    yield from (writer.satisfied(ids, next(turns)) for ids in silent * 3)


def write_cases(
    rule: Rule, n_positive: int, n_near: int, carriers: Sequence[Sequence[int]], vocabulary: Vocabulary, seed: int
) -> list[TextCase]:
    """Positives, then near misses of the stratum `authored`: fewer than asked for where the carriers or the rule allow no more."""
    writer = Writer(rule, vocabulary, seed)
    order = writer.rng.permutation(len(carriers))
    material = [list(carriers[i][:MAX_CONTENT]) for i in order if len(carriers[i])]
    taken: set[tuple[int, ...]] = set()
    positives = _distinct(_natural(writer, material), n_positive, taken)
    positives += _distinct(_edited(writer, material), n_positive - len(positives), taken)
    # A text that can't be broken one way may break the other; further passes give other stand-ins.
    bases = positives or _distinct(_edited(writer, material), n_near, set())
    attempts = islice(cycle(enumerate(bases)), 6 * max(len(bases), n_near) if bases else 0)
    broken = (writer.broken(ids, break_cue=(i + turn // len(bases)) % 2 == 0) for turn, (i, ids) in enumerate(attempts))
    near = _distinct(broken, n_near, taken)
    return [*(_case(writer, ids, None) for ids in positives), *(_case(writer, ids, "authored") for ids in near)]
