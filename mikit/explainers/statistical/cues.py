"""Clauses that ask for a cue, a token that stands shortly before: which cues, and how far back."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, UInt8

from mikit.explainers.statistical.conditions import Own
from mikit.explainers.statistical.measure import Candidate, false_windows, hits_of, mean_silent_weight
from mikit.explainers.statistical.shown import Shown
from mikit.trace import Clause

MAX_DISTANCE = 8
"""Tokens back that cues are looked for."""
MAX_CUES = 80
"""Cue tokens tried."""
MAX_LIST = 12
"""Cues in a clause."""
FOLDS = 3
GAIN = 0.005
"""F1 that a further cue must bring."""
UNSEEN = 0.3
"""Silent windows matched that a clause is charged with beyond those seen."""


@dataclass(frozen=True)
class Cues:
    """Tokens that stand before firing positions."""

    codes: Int[np.ndarray, " cue"]
    distance: UInt8[np.ndarray, "cue window pos"]
    """How far back the cue was last seen; `MAX_DISTANCE` + 1 if farther."""


def cues_of(shown: Shown) -> Cues:
    """The tokens seen before firing positions in two documents or more, those first that are frequent there for how rare they are."""
    documents: dict[int, set[int]] = defaultdict(set)
    for row in np.flatnonzero(shown.firing.any(1)):
        first, *_, last = [*np.flatnonzero(shown.firing[row]).tolist()] * 2
        for code in shown.codes[row, max(first - MAX_DISTANCE, 0) : last].tolist():
            documents[code].add(int(shown.documents[row]))
    enriched = {c: len(d) / (shown.occupied[c] + len(d)) ** 0.5 for c, d in documents.items() if len(d) > 1 and c >= 0}
    codes = np.array(sorted(enriched, key=lambda c: (-enriched[c], c))[:MAX_CUES], int)
    distance = np.full((len(codes), *shown.codes.shape), MAX_DISTANCE + 1, np.uint8)
    for back in range(MAX_DISTANCE, 0, -1):
        before = shown.codes[:, :-back] == codes[:, None, None]
        distance[:, :, back:][before] = back
    return Cues(codes, distance)


def with_cue(shown: Shown, own: Own | None, cues: Cues, within: int) -> Candidate | None:
    """The clause that asks for the best list of cues among the `within` tokens before; None if no cue helps.

    The list grows greedily by F1 over windows. What it matches is measured on documents that a list of their own fold's
    making was not grown on; the clause holds the list grown on all.
    """
    if not len(cues.codes):
        return None
    near = (cues.distance <= within) & (shown.codes >= 0 if own is None else own.at)
    hits = hits_of(shown, near)
    rate, trust = (1.0, 0.5) if own is None else (own.occurrences / shown.n_tokens, 0.2)
    chance = shown.occupied[cues.codes] * (1 - max(1 - rate, 0.0) ** within)
    picked = _grow(shown, hits, chance, trust, np.ones(len(shown.codes), bool))
    if not picked:
        return None
    unseen_by_fold = np.zeros(shown.codes.shape, bool)
    for fold in range(FOLDS):
        out = shown.documents % FOLDS == fold
        grown = _grow(shown, hits, chance, trust, ~out)
        unseen_by_fold[out] = near[grown][:, out].any(0)
    credited = unseen_by_fold if own is None else unseen_by_fold & own.credited_at
    clause = (Clause() if own is None else own.clause).model_copy(
        update={"after": [shown.texts[cues.codes[i]] for i in picked], "within": within}
    )
    holding = min(float(chance[picked].sum()), float(shown.n_windows))
    false = false_windows(shown, unseen_by_fold, holding, trust, UNSEEN)
    return Candidate(clause, hits_of(shown, unseen_by_fold), hits_of(shown, credited), false)


def _grow(shown: Shown, hits: np.ndarray, chance: np.ndarray, trust: float, on: np.ndarray) -> list[int]:
    """Rows of `hits` whose union has the best F1 on some windows, added one at a time while each adds half a point or more."""
    fires, silent = np.flatnonzero(shown.fires & on), np.flatnonzero(~shown.fires & on)
    share = shown.weight[fires].sum() / shown.n_firing
    in_fires, in_silent = hits[:, fires], hits[:, silent]
    picked, best, counted = list[int](), 0.0, 0.0
    while len(picked) < MAX_LIST:
        true = in_fires @ shown.weight[fires]
        sampled = in_silent @ shown.weight[silent] + UNSEEN * mean_silent_weight(shown) * share
        false = trust * np.maximum((counted + chance) * share - true, 0) + (1 - trust) * sampled
        f1 = 2 * true / (true + false + share * shown.n_firing)
        choice = int(np.argmax(f1))
        if f1[choice] < best + GAIN:
            break
        best, counted = float(f1[choice]), counted + float(chance[choice])
        in_fires, in_silent = in_fires | in_fires[choice], in_silent | in_silent[choice]
        picked.append(choice)
    return picked
