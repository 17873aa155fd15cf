"""All clauses worth combining for a feature: conditions on the token alone, cues alone, and both together."""

from mikit.evidence.vocabulary import Vocabulary
from mikit.explainers.statistical.conditions import Own, own_conditions
from mikit.explainers.statistical.cues import MAX_DISTANCE, cues_of, with_cue
from mikit.explainers.statistical.measure import Candidate, false_windows, hits_of
from mikit.explainers.statistical.shown import Shown

MOST_USEFUL = 14
"""Conditions on the token that are also tried with a cue: those with the best recall."""


def without_cue(shown: Shown, own: Own) -> Candidate:
    """The conditions on the token as a clause."""
    false = false_windows(shown, own.at, shown.windows_holding(own.at, own.occurrences), trust=0.8, unseen=0.0)
    return Candidate(own.clause, hits_of(shown, own.at), hits_of(shown, own.credited_at), false)


def candidates(shown: Shown, vocabulary: Vocabulary) -> list[Candidate]:
    """All clauses worth combining; of those that match the same windows the simplest."""
    owns = own_conditions(shown, vocabulary)
    plain = [without_cue(shown, own) for own in owns]
    cues = cues_of(shown)
    found = list(plain)
    reach = shown.weight * shown.fires
    useful = sorted(range(len(owns)), key=lambda i: -float(reach @ plain[i].credited))[:MOST_USEFUL]
    for own in (None, *(owns[i] for i in useful)):
        cued = (with_cue(shown, own, cues, within) for within in range(1, MAX_DISTANCE + 1))
        found += [candidate for candidate in cued if candidate is not None]
    simplest: dict[bytes, Candidate] = {}
    for candidate in sorted(found, key=lambda c: (c.cost, c.false_windows)):
        key = candidate.hits.tobytes() + candidate.credited.tobytes()
        if key not in simplest or candidate.false_windows < simplest[key].false_windows - 1:
            simplest[key] = candidate
    return list(simplest.values())
