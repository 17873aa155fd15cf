"""Features with a known rule, seen as the evidence step would show them: a language of made-up text, no model."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from mikit.evidence.vocabulary import Vocabulary
from mikit.explainers.rules import matcher
from mikit.trace import Observation, Rule, Window

LENGTH = 32
REF = 10.0
TAU = 0.25 * REF
WINDOWS_A_DOCUMENT = 4

FRUIT = [" apple", " pear", " plum", " cherry", " melon", " grape"]
METAL = [" iron", " copper", " zinc", " silver", " tin", " lead"]
GERUNDS = [
    " going",
    " making",
    " taking",
    " seeing",
    " coming",
    " giving",
    " living",
    " moving",
    " playing",
    " turning",
]
COMMON = [
    " the",
    " of",
    " and",
    " in",
    " to",
    " a",
    ",",
    ".",
    " was",
    " is",
    " for",
    " on",
    " as",
    " by",
    " with",
    " that",
]
SPECIAL = "<bos>"


def _words(rng: np.random.Generator, n: int) -> list[str]:
    syllables = ["ba", "ko", "ti", "mu", "re", "sa", "lo", "vi", "de", "no", "fa", "ge", "hu", "ja", "wo", "ze"]
    made = {"".join(rng.choice(syllables, size=rng.integers(2, 4))) for _ in range(2 * n)}
    return sorted(made)[:n]


def vocabulary(seed: int = 0, n: int = 3000) -> Vocabulary:
    """About 800 tokens: common words, classes of words, digits, capitals, pieces of words; counts as in `corpus(seed)`."""
    texts = vocabulary_texts()
    return Vocabulary(texts, np.bincount(corpus(seed, n).ravel(), minlength=len(texts)), frozenset([0]))


def vocabulary_texts() -> tuple[str, ...]:
    """The tokens, most frequent first behind the special one."""
    rng = np.random.default_rng(7)
    plain = [" " + word for word in _words(rng, 420)]
    capitals = [" " + word.capitalize() for word in _words(rng, 120)]
    pieces = _words(rng, 120)
    digits = [" " + str(n) for n in range(1900, 1920)] + [str(n) for n in range(10)]
    rest = [*plain, *capitals, *pieces, *digits, *FRUIT, *METAL, *GERUNDS, " Apple", "apple", ";", " (", ")"]
    order = rng.permutation(len(rest))
    return (SPECIAL, *COMMON, *dict.fromkeys(rest[i] for i in order))


def corpus(seed: int, n: int = 3000) -> np.ndarray:
    """Windows of token ids, [n, 32], frequencies by Zipf's law, the words of a document somewhat alike."""
    rng = np.random.default_rng(seed)
    size = len(vocabulary_texts())
    chances = 1 / (np.arange(1, size) + 8.0)
    chances /= chances.sum()
    rows = []
    for _ in range(n // WINDOWS_A_DOCUMENT):
        local = chances * rng.gamma(2.0, 0.5, size - 1)
        rows.append(1 + rng.choice(size - 1, size=(WINDOWS_A_DOCUMENT, LENGTH), p=local / local.sum()))
    return np.concatenate(rows)


@dataclass(frozen=True)
class Feature:
    """A feature of known rule on a corpus."""

    rule: Rule
    texts: list[list[str]]
    truth: np.ndarray
    """Which windows the rule matches."""
    activations: np.ndarray
    observation: Observation


def feature(rule: Rule, seed: int = 0, sometimes: float = 1.0, grey: float = 0.02, n: int = 3000) -> Feature:
    """The rule as a feature that fires on a share `sometimes` of its matches, beside activations below tau at a share `grey` of all tokens."""
    rng = np.random.default_rng(seed + 100)
    ids, names, match = corpus(seed, n), vocabulary_texts(), matcher(rule)
    texts = [[names[i] for i in row] for row in ids]
    acts = np.where(rng.random(ids.shape) < grey, rng.uniform(0.1, 0.95 * TAU, ids.shape), 0.0)
    found = [match(tokens) for tokens in texts]
    for row, positions in enumerate(found):
        for position in positions:
            if rng.random() < sometimes:
                acts[row, position] = rng.uniform(1.1 * TAU, REF)
    truth = np.array([bool(positions) for positions in found])
    return Feature(rule, texts, truth, acts, observe(ids, texts, acts, rng))


def observe(ids: np.ndarray, texts: list[list[str]], acts: np.ndarray, rng: np.random.Generator) -> Observation:
    """The first half of the corpus shown as evidence: top, quantile, silent with a trigger token, silent at random."""
    n_explain = len(ids) // 2
    peaks = acts.max(1)
    shown = np.arange(n_explain)
    active = shown[peaks[:n_explain] > 0]
    active = active[np.argsort(-peaks[active], kind="stable")]
    top, rest = active[:32], active[32:]
    rest = rest[peaks[rest] >= TAU]
    spread = rest[np.unique(np.linspace(0, len(rest) - 1, 64).astype(int))] if len(rest) else rest
    silent = shown[peaks[:n_explain] < TAU]
    triggers = Counter(texts[i][acts[i].argmax()] for i in active if peaks[i] >= TAU)
    holding: list[int] = []
    for token, count in triggers.most_common():
        having = [i for i in rng.permutation(silent).tolist() if token in texts[i] and i not in holding]
        holding += having[: min(48 - len(holding), int(np.ceil(48 * count / triggers.total())))]
    more = [i for i in rng.permutation(silent).tolist() if i not in holding]
    holding += [i for i in more if triggers.keys() & set(texts[i])][: 48 - len(holding)]
    kinds = {
        "top": top,
        "quantile": spread,
        "silent_trigger": np.array(holding, int),
        "silent_random": rng.permutation(np.setdiff1d(silent, holding))[:48],
    }
    windows = [
        Window(
            kind=kind, document=f"d{i // WINDOWS_A_DOCUMENT}", split="explain", start=int(i % WINDOWS_A_DOCUMENT) * LENGTH,
            ids=ids[i].tolist(), tokens=texts[i], activations=acts[i].tolist(), peak=float(peaks[i]), peak_index=int(acts[i].argmax()),
        )
        for kind, rows in kinds.items()
        for i in rows
    ]  # fmt: skip
    firing = int((peaks >= TAU).sum())
    return Observation(
        source="corpus", corpus="synthetic", tokens_read=ids.size, feature_kind="normal" if firing else "dead",
        ref=REF if firing else 0.0, tau=TAU if firing else 0.0, density=float((acts > 0).mean()), firing_windows=firing,
        n_windows=len(ids), bos_activation=0.0, windows=windows, promoted=[], suppressed=[], neighbours=[], neighbour_cosines=[],
    )  # fmt: skip
