"""Candidate clauses for a feature, each measured on the windows shown.

Recall is measured as if each window had been left out: a window counts as found by a list of tokens only where the
token found there was seen in some other document too. Numbers of silent windows matched are estimated from the silent
windows shown and, more firmly, from how often the tokens occur in the corpus.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from mikit.evidence.vocabulary import Vocabulary
from mikit.explainers.rules import FORM_TESTS, normal, token_test
from mikit.explainers.statistical.shown import MAX_CUE_DISTANCE, Shown
from mikit.explainers.statistical.tokens import looks_of, satisfying
from mikit.trace import Clause

MIN_RATES = (0.3, 0.5, 0.7)
"""Lists hold the tokens that fire at least this often, estimated."""
MAX_TOKENS = 50
"""Tokens in a list."""
MAX_CUES = 80
"""Cue tokens tried."""
MAX_CUE_LIST = 12
LENGTH_COST = 0.8
"""Complexity of doubling a list, in conditions."""
FOLDS = 3
FEW_DOCUMENTS = 4
"""With firing windows from fewer documents than this, leaving one out leaves too little: nothing is."""
AFFIX_LENGTHS = range(2, 7)
MIN_AFFIX_TOKENS = 3
"""Distinct tokens that an affix must have been seen on."""
PRIOR = 3.0
"""Strength, in windows, of the belief that a token fires as often as trigger tokens do together."""
UNSEEN = 0.3
"""Silent windows matched that a clause with a cue is charged with beyond those seen."""


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
        conditions = sum(part is not None for part in (clause.tokens, clause.prefix, clause.suffix, clause.form, clause.after))
        return conditions + LENGTH_COST * sum(np.log2(len(part)) for part in (clause.tokens, clause.after) if part)


@dataclass(frozen=True)
class Own:
    """The part of a clause that speaks of the token itself."""

    clause: Clause
    at: Bool[np.ndarray, "window pos"]
    credited_at: Bool[np.ndarray, "window pos"]
    occurrences: float
    """Of its tokens in the corpus."""


# --- conditions on the token itself --------------------------------------------------------------------------------


def _own(shown: Shown, vocabulary: Vocabulary, clause: Clause, credited: Sequence[int] | None = None) -> Own:
    test = token_test(clause)
    ok = np.array([test(text) for text in shown.texts] + [False], bool)
    at = ok[shown.codes]
    leave_out = credited is not None and len(np.unique(shown.documents[shown.fires])) >= FEW_DOCUMENTS
    credited_at = at & np.isin(shown.codes, credited) if leave_out and credited is not None else at
    if clause.tokens is not None:
        elsewhere = set(clause.tokens) - set(shown.texts)
        occurrences = shown.counts[ok[:-1]].sum() + sum(vocabulary.counts[vocabulary.id_of[text]] for text in elsewhere)
    else:
        occurrences = max(vocabulary.counts[satisfying(clause, vocabulary)].sum(), at.sum())
    return Own(clause, at, credited_at, float(occurrences))


def token_rates(shown: Shown) -> dict[int, float]:
    """For each token on which the feature peaks, the share of windows holding it that peak on it, shrunk to the pooled share."""
    peaks = shown.peak_code[shown.fires]
    codes, seen = np.unique(peaks[peaks >= 0], return_counts=True)
    held = np.maximum(shown.shown_share * shown.occupied[codes], seen)
    pooled = seen.sum() / held.sum()
    return dict(zip(codes.tolist(), ((seen + PRIOR * pooled) / (held + PRIOR)).tolist(), strict=True))


def _token_lists(shown: Shown, vocabulary: Vocabulary) -> Iterator[Own]:
    """Lists by firing rate and by number of documents, with and without the other spellings of their tokens."""
    rates = token_rates(shown)
    peaks = shown.peak_code[shown.fires].tolist()
    support = shown.support(peaks)
    order = sorted(rates, key=lambda code: (-support[code], -rates[code], shown.texts[code]))
    lists: dict[tuple[int, ...], int] = {}
    for least in MIN_RATES:
        for documents in (1, 2):
            picked = [code for code in order if rates[code] >= least and support[code] >= documents]
            lists.setdefault(tuple(picked[:MAX_TOKENS]), documents)
    for code in order[:6]:
        lists.setdefault((code,), 1)
    lists.setdefault(tuple(code for code in order if support[code] > 1)[:MAX_TOKENS], 1)
    for picked, documents in lists.items():
        if picked:
            credited = [code for code in picked if support[code] > documents]
            yield _own(shown, vocabulary, Clause(tokens=[shown.texts[code] for code in picked]), credited)
    for least in MIN_RATES:
        yield from _spelling_lists(shown, vocabulary, order, rates, least)


def _spelling_lists(
    shown: Shown, vocabulary: Vocabulary, order: Sequence[int], rates: dict[int, float], least: float
) -> Iterator[Own]:
    """A list that holds the other spellings (case, leading space) too, if the feature was seen to peak on two of one word."""
    picked = [code for code in order if rates[code] >= least][:MAX_TOKENS]
    spellings = defaultdict(set)
    for code in picked:
        spellings[normal(shown.texts[code])].add(shown.texts[code])
    if not any(len(texts) > 1 for texts in spellings.values()):
        return
    known = {text: code for code, text in enumerate(shown.texts)}
    word_rate = {word: max(rates[known[text]] for text in texts) for word, texts in spellings.items()}
    added = []
    for word, text in zip(looks_of(vocabulary.texts).normals, vocabulary.texts, strict=True):
        if word in spellings and text not in spellings[word] and (n := vocabulary.counts[vocabulary.id_of[text]]) > 0:
            if PRIOR * word_rate[word] / (shown.shown_share * n + PRIOR) >= least:
                added.append(text)
    words, word_of = np.unique([normal(text) for text in shown.texts], return_inverse=True)
    support = shown.support(word_of[shown.peak_code[shown.fires]].tolist())
    credited = [code for code, word in enumerate(word_of.tolist()) if words[word] in spellings and support.get(word, 0) > 1]
    tokens = [*(shown.texts[code] for code in picked), *dict.fromkeys(added)][:MAX_TOKENS]
    yield _own(shown, vocabulary, Clause(tokens=tokens), credited)


def _affixes(shown: Shown) -> list[Clause]:
    """The prefixes and suffixes seen on most peak tokens; of those on the same tokens the longest."""
    peaks = {normal(shown.texts[code]) for code in shown.peak_code[shown.fires].tolist() if code >= 0}
    found: dict[tuple[bool, str], set[str]] = defaultdict(set)
    for word in sorted(word for word in peaks if word.isalpha()):
        for length in AFFIX_LENGTHS:
            if length < len(word):
                found[True, word[-length:]].add(word)
                found[False, word[:length]].add(word)
    longest: dict[tuple[bool, frozenset[str]], str] = {}
    for (is_suffix, affix), words in found.items():
        key = (is_suffix, frozenset(words))
        if len(words) >= MIN_AFFIX_TOKENS and len(affix) > len(longest.get(key, "")):
            longest[key] = affix
    ranked = sorted(longest.items(), key=lambda item: (-len(item[0][1]), -len(item[1]), item[1]))[:16]
    return [Clause(suffix=affix) if is_suffix else Clause(prefix=affix) for (is_suffix, _), affix in ranked]


def _forms(shown: Shown) -> list[Clause]:
    peaks = [shown.texts[code] for code in shown.peak_code[shown.fires].tolist() if code >= 0]
    return [Clause(form=form) for form, test in FORM_TESTS.items() if sum(map(test, peaks)) > 0.1 * len(peaks)]


def _formed(shown: Shown, affixes: Iterable[Clause]) -> Iterator[Clause]:
    """Each affix with each form that nearly all of its peak tokens have."""
    peaks = [shown.texts[code] for code in shown.peak_code[shown.fires].tolist() if code >= 0]
    for clause in affixes:
        has_affix = token_test(clause)
        on = [text for text in peaks if has_affix(text)]
        for form, test in FORM_TESTS.items():
            if form in ("capitalized", "word_start", "word_part") and on and np.mean([test(text) for text in on]) > 0.9:
                yield clause.model_copy(update={"form": form})


def own_conditions(shown: Shown, vocabulary: Vocabulary) -> list[Own]:
    """Everything that a clause may say of the token itself."""
    affixes = _affixes(shown)
    open_classes = [*_forms(shown), *affixes, *_formed(shown, affixes[:6])]
    return [*_token_lists(shown, vocabulary), *(_own(shown, vocabulary, clause) for clause in open_classes)]


# --- with and without a cue ----------------------------------------------------------------------------------------


def _hits(shown: Shown, at: np.ndarray) -> np.ndarray:
    """Windows matched at a firing position, or anywhere for silent ones; broadcasts over leading axes."""
    return np.where(shown.fires, (at & shown.firing).any(-1), at.any(-1))


def _false_windows(shown: Shown, at: np.ndarray, holding: float, trust: float, unseen: float) -> float:
    """Silent windows matched, from the sample and from how many windows of the corpus ought to hold a match."""
    anywhere = at.any(-1)
    sampled = float(shown.weight @ (anywhere & ~shown.fires)) + unseen * _mean_silent_weight(shown)
    counted = max(holding - float(shown.weight @ (anywhere & shown.fires)), 0.0)
    return trust * counted + (1 - trust) * sampled


def _mean_silent_weight(shown: Shown) -> float:
    silent = ~shown.fires
    return float(shown.weight[silent].mean()) if silent.any() else 0.0


def without_cue(shown: Shown, own: Own) -> Candidate:
    """The conditions on the token as a clause."""
    false = _false_windows(shown, own.at, shown.windows_holding(own.at, own.occurrences), trust=0.8, unseen=0.0)
    return Candidate(own.clause, _hits(shown, own.at), _hits(shown, own.credited_at), false)


@dataclass(frozen=True)
class Cues:
    """Tokens that stand before firing positions."""

    codes: np.ndarray
    distance: np.ndarray
    """[cue, window, pos]: how far back the cue was last seen; `MAX_CUE_DISTANCE` + 1 if farther."""


def cues_of(shown: Shown) -> Cues:
    """The tokens seen before firing positions in most documents, two at least."""
    documents: dict[int, set[int]] = defaultdict(set)
    for row in np.flatnonzero(shown.fires):
        peak = int(np.flatnonzero(shown.firing[row])[0]) if shown.firing[row].any() else 0
        last = int(np.flatnonzero(shown.firing[row])[-1]) if shown.firing[row].any() else 0
        for code in shown.codes[row, max(peak - MAX_CUE_DISTANCE, 0) : last].tolist():
            documents[code].add(int(shown.documents[row]))
    enriched = {c: len(d) / (shown.occupied[c] + len(d)) ** 0.5 for c, d in documents.items() if len(d) > 1 and c >= 0}
    codes = np.array(sorted(enriched, key=lambda c: (-enriched[c], c))[:MAX_CUES], int)
    distance = np.full((len(codes), *shown.codes.shape), MAX_CUE_DISTANCE + 1, np.uint8)
    for back in range(MAX_CUE_DISTANCE, 0, -1):
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
    hits = _hits(shown, near)
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
    false = _false_windows(shown, unseen_by_fold, holding, trust, UNSEEN)
    return Candidate(clause, _hits(shown, unseen_by_fold), _hits(shown, credited), false)


def _grow(shown: Shown, hits: np.ndarray, chance: np.ndarray, trust: float, on: np.ndarray) -> list[int]:
    """Rows of `hits` whose union has the best F1 on some windows, added one at a time while each adds half a point or more."""
    fires, silent = np.flatnonzero(shown.fires & on), np.flatnonzero(~shown.fires & on)
    share = shown.weight[fires].sum() / shown.n_firing
    in_fires, in_silent = hits[:, fires], hits[:, silent]
    picked, best, counted = list[int](), 0.0, 0.0
    while len(picked) < MAX_CUE_LIST:
        true = in_fires @ shown.weight[fires]
        sampled = in_silent @ shown.weight[silent] + UNSEEN * _mean_silent_weight(shown) * share
        false = trust * np.maximum((counted + chance) * share - true, 0) + (1 - trust) * sampled
        f1 = 2 * true / (true + false + share * shown.n_firing)
        choice = int(np.argmax(f1))
        if f1[choice] < best + 0.005:
            break
        best, counted = float(f1[choice]), counted + float(chance[choice])
        in_fires, in_silent = in_fires | in_fires[choice], in_silent | in_silent[choice]
        picked.append(choice)
    return picked


def candidates(shown: Shown, vocabulary: Vocabulary) -> list[Candidate]:
    """All clauses worth combining; of those that match the same windows the simplest."""
    owns = own_conditions(shown, vocabulary)
    plain = [without_cue(shown, own) for own in owns]
    cues = cues_of(shown)
    found = list(plain)
    reach = shown.weight * shown.fires
    useful = sorted(range(len(owns)), key=lambda i: -float(reach @ plain[i].credited))[:14]
    for own in (None, *(owns[i] for i in useful)):
        for within in range(1, MAX_CUE_DISTANCE + 1):
            if (candidate := with_cue(shown, own, cues, within)) is not None:
                found.append(candidate)
    simplest: dict[bytes, Candidate] = {}
    for candidate in sorted(found, key=lambda c: (c.cost, c.false_windows)):
        key = candidate.hits.tobytes() + candidate.credited.tobytes()
        if key not in simplest or candidate.false_windows < simplest[key].false_windows - 1:
            simplest[key] = candidate
    return list(simplest.values())
