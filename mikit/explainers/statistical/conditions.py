"""What a clause may say of the token itself: lists by firing rate, forms, prefixes and suffixes.

A list is credited as if each window had been left out: with a window only where the token found there was seen in some
other document too.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from mikit.evidence.vocabulary import Vocabulary
from mikit.explainers.rules import FORM_TESTS, normal, token_test
from mikit.explainers.statistical.shown import Shown
from mikit.explainers.statistical.tokens import looks_of, satisfying
from mikit.trace import Clause

MIN_RATES = (0.3, 0.5, 0.7)
"""Lists hold the tokens that fire at least this often, estimated."""
MAX_TOKENS = 50
"""Tokens in a list."""
SINGLES = 6
"""Tokens tried alone."""
PRIOR, MAX_PRIOR = 3.0, 60.0
"""Least and greatest strength, in windows, of the belief that a token fires as often as trigger tokens do together."""
COMMON = 5
"""Windows that hold a token, for it to tell how much firing rates vary."""
FEW_DOCUMENTS = 4
"""With firing windows from fewer documents than this, leaving one out leaves too little: nothing is."""
AFFIX_LENGTHS = range(2, 7)
MIN_AFFIX_TOKENS = 3
"""Distinct tokens that an affix must have been seen on."""
MAX_AFFIXES = 16


@dataclass(frozen=True)
class Own:
    """The part of a clause that speaks of the token itself."""

    clause: Clause
    at: Bool[np.ndarray, "window pos"]
    credited_at: Bool[np.ndarray, "window pos"]
    occurrences: float
    """Of its tokens in the corpus."""


def _own(shown: Shown, vocabulary: Vocabulary, clause: Clause, credited: Sequence[int] | None = None) -> Own:
    test = token_test(clause)
    ok = np.array([test(text) for text in shown.texts] + [False], bool)
    at = ok[shown.codes]
    few = len(np.unique(shown.documents[shown.fires])) < FEW_DOCUMENTS
    leave_out = credited is not None and not few and not shown.is_census
    credited_at = at & np.isin(shown.codes, credited) if leave_out and credited is not None else at
    if clause.tokens is not None:
        elsewhere = set(clause.tokens) - set(shown.texts)
        occurrences = shown.counts[ok[:-1]].sum() + sum(vocabulary.counts[vocabulary.id_of[text]] for text in elsewhere)
    else:
        occurrences = max(vocabulary.counts[satisfying(clause, vocabulary)].sum(), at.sum())
    return Own(clause, at, credited_at, float(occurrences))


def prior_strength(seen: np.ndarray, held: np.ndarray) -> float:
    """How firmly the tokens' firing rates resemble each other, in windows: the strength of a beta prior.

    By moments (Kleinman 1973): what the rates vary beyond binomial noise, on tokens common enough to tell. Without this
    a feature that fires on seven of ten digits would be given a list of the digits that happened to fire on eight.

    Args:
        seen: windows that peak on the token.
        held: windows that hold it.
    """
    common = held >= COMMON
    if common.sum() < 3:
        return PRIOR
    rates, n = seen[common] / held[common], held[common]
    mean = seen[common].sum() / n.sum()
    noise = mean * (1 - mean)
    between = float(np.average((rates - mean) ** 2 - noise / n, weights=n))
    return float(np.clip(noise / between - 1, PRIOR, MAX_PRIOR)) if between > 0 else MAX_PRIOR


def token_rates(shown: Shown) -> dict[int, float]:
    """For each token on which the feature peaks, the share of windows holding it that peak on it, shrunk to the pooled share."""
    peaks = shown.peak_code[shown.fires]
    codes, seen = np.unique(peaks[peaks >= 0], return_counts=True)
    held = np.maximum(shown.shown_share * shown.occupied[codes], seen)
    pooled, strength = seen.sum() / held.sum(), prior_strength(seen, held)
    return dict(zip(codes.tolist(), ((seen + strength * pooled) / (held + strength)).tolist(), strict=True))


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
    for code in order[:SINGLES]:
        lists.setdefault((code,), 1)
    lists.setdefault(tuple(code for code in order if support[code] > 1)[:MAX_TOKENS], 1)
    for codes, documents in lists.items():
        if codes:
            credited = [code for code in codes if support[code] > documents]
            yield _own(shown, vocabulary, Clause(tokens=[shown.texts[code] for code in codes]), credited)
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
            unseen_rate = PRIOR * word_rate[word] / (shown.shown_share * n + PRIOR)
            added += [text] if unseen_rate >= least else []
    words, word_of = np.unique([normal(text) for text in shown.texts], return_inverse=True)
    support = shown.support(word_of[shown.peak_code[shown.fires]].tolist())
    credited = [
        code for code, word in enumerate(word_of.tolist()) if words[word] in spellings and support.get(word, 0) > 1
    ]
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
    ranked = sorted(longest.items(), key=lambda item: (-len(item[0][1]), -len(item[1]), item[1]))[:MAX_AFFIXES]
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
