"""Finding a feature: by tokens that it fires on, by how often it is active, or at random."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mikit.errors import BadInput
from mikit.evidence.store import EvidenceStore
from mikit.evidence.vocabulary import Vocabulary
from mikit.runs.score import known_tokens
from mikit.viz import visible
from mikit.viz.style import percent

BANDS: dict[str, tuple[float, float]] = {
    "rare: below 0.01%": (0.0, 1e-4),
    "0.01% to 0.1%": (1e-4, 1e-3),
    "0.1% to 1%": (1e-3, 1e-2),
    "1% to 10%": (1e-2, 0.1),
    "dense: above 10%": (0.1, 1.0),
}
"""Share of content tokens on which a feature is active: above the first bound, up to the second."""
WORDS = re.compile(r'"(?P<quoted>[^"]*)"|(?P<plain>[^\s,;]+)')
SHOWN = 30


@dataclass(frozen=True)
class Found:
    """A feature and why it was found."""

    latent: int
    why: str
    """A few words for a list; plain text."""


def typed_tokens(typed: str) -> list[str]:
    """The tokens that somebody types: words, or texts in quotes where a space or a comma belongs to one.

    Raises:
        BadInput: nothing is typed.
    """
    texts = [word["quoted"] or word["plain"] for word in WORDS.finditer(typed)]
    if not any(texts):
        raise BadInput('tokens: nothing is typed: valid: words, or texts in quotes such as " for"')
    return [text for text in texts if text]


def by_tokens(store: EvidenceStore, vocabulary: Vocabulary, texts: Sequence[str], n: int = SHOWN) -> list[Found]:
    """Features that fire on some tokens and little else, the best first.

    How well the tokens name the feature is the harmonic mean of two shares of the `explain` tokens: of its firings
    those that are on the tokens, and of the tokens' occurrences those that it fires on.

    Args:
        store: where features fire.
        vocabulary: of the model.
        texts: the tokens; one without the space before it will do.
        n: how many at most.

    Raises:
        BadInput: one of them is no token.
    """
    ids = [vocabulary.id_of[token] for token in known_tokens(texts, vocabulary)]
    table, explain = store.table, store.table.in_split("explain")
    on_tokens = np.isin(table.ids, ids) & explain[:, None]
    window, position, value = (store.arrays[name] for name in ("window", "position", "value"))
    latent = np.repeat(np.arange(len(store.firing_counts)), np.diff(store.arrays["pointers"]))
    fires = (value >= store.arrays["tau"][latent]) & (store.arrays["tau"][latent] > 0) & explain[window]
    hits = fires & on_tokens[window, position]
    n_fires, n_hits = (np.bincount(latent[rows], minlength=len(store.firing_counts)) for rows in (fires, hits))
    total = int(on_tokens.sum())
    harmonic = 2 * n_hits / np.maximum(n_fires + total, 1)
    best = np.argsort(-harmonic, kind="stable")[:n]
    return [
        Found(int(i), f"{n_hits[i]} of its {n_fires[i]} firings, of {total} such tokens") for i in best if n_hits[i]
    ]


def by_density(store: EvidenceStore, band: str, seed: int, n: int = SHOWN) -> list[Found]:
    """Features of a band of density that fire on `explain` at all: some at random, by index.

    Raises:
        BadInput: there is no such band.
    """
    if band not in BANDS:
        raise BadInput(f"band {band!r}: valid: {', '.join(BANDS)}")
    low, high = BANDS[band]
    density = np.diff(store.arrays["pointers"]) / (store.tokens_read - store.massive_tokens)
    inside = np.flatnonzero((density > low) & (density <= high) & (np.asarray(store.arrays["ref"]) > 0))
    chosen = np.sort(np.random.default_rng(seed).permutation(inside)[:n])
    return [Found(int(i), f"active on {percent(float(density[i]))} of tokens") for i in chosen]


def at_random(store: EvidenceStore, min_windows: int, seed: int) -> int:
    """A feature that fires often enough to be judged.

    Raises:
        BadInput: none does.
    """
    live = store.live(min_windows)
    if not len(live):
        raise BadInput(f"no feature fires in {min_windows} windows or more: valid: a larger corpus")
    return int(np.random.default_rng(seed).choice(live))


def label(found: Found) -> str:
    """One line for a list of choices."""
    return visible(f"{found.latent} · {found.why}")


def labels(found: Sequence[Found]) -> list[tuple[str, int]]:
    """Lines for a list of choices, with what each stands for."""
    return [(label(each), each.latent) for each in found]
