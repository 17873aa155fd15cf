"""The windows of an observation as arrays, weighted so that sums estimate numbers of windows in natural text.

Firing windows and silent windows that hold a trigger token are shown far more often than they occur. A weight is the
number of corpus windows that a shown one stands for: top windows stand for themselves, quantile windows for the other
firing ones, and silent windows are post-stratified by whether they hold a token on which the feature peaked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from mikit.evidence.corpora import SHARES
from mikit.evidence.vocabulary import Vocabulary
from mikit.trace import Observation, Window


@dataclass(frozen=True)
class Shown:
    """Windows in rows, content tokens in columns; a token is the index of its text in `texts`."""

    texts: tuple[str, ...]
    """The distinct token texts of all windows."""
    codes: Int[np.ndarray, "window pos"]
    """Padded with -1."""
    firing: Bool[np.ndarray, "window pos"]
    """Activation at least tau."""
    peak_code: Int[np.ndarray, " window"]
    """The token at the peak."""
    fires: Bool[np.ndarray, " window"]
    """Peak at least tau."""
    documents: Int[np.ndarray, " window"]
    weight: Float[np.ndarray, " window"]
    """Corpus windows that it stands for."""
    counts: Float[np.ndarray, " text"]
    """Occurrences of the token in the corpus."""
    occupied: Float[np.ndarray, " text"]
    """Corpus windows that hold the token: its count over its occurrences in a window that holds it."""
    n_windows: int
    """Windows in the corpus."""
    n_tokens: int
    """Content tokens in the corpus."""

    @property
    def n_firing(self) -> float:
        """Corpus windows that fire."""
        return float(self.weight[self.fires].sum())

    @property
    def shown_share(self) -> float:
        """Share of the corpus's firing windows that are shown."""
        return float(self.fires.sum()) / self.n_firing

    def windows_holding(self, at: Bool[np.ndarray, "window pos"], occurrences: float) -> float:
        """Corpus windows with a match, from the number of matches in the corpus and from how many a shown window has."""
        holding = float(self.weight @ at.any(1))
        in_each = float(self.weight @ at.sum(1)) / holding if holding else 1.0
        return min(occurrences / in_each, float(self.n_windows))

    def support(self, keys: Sequence[int]) -> dict[int, int]:
        """For each key (one a firing window, in order; -1 for none), the number of distinct documents that it comes from."""
        pairs = {(key, document) for key, document in zip(keys, self.documents[self.fires], strict=True) if key >= 0}
        counts: dict[int, int] = {}
        for key, _ in pairs:
            counts[key] = counts.get(key, 0) + 1
        return counts


def shown_windows(observation: Observation, vocabulary: Vocabulary) -> Shown:
    """The observation as arrays. A window whose peak is below tau is silent, whatever it was shown as."""
    windows = [window for window in observation.windows if window.tokens]
    code_of: dict[str, int] = {}
    codes = np.full((len(windows), max(len(window.tokens) for window in windows)), -1)
    firing = np.zeros(codes.shape, bool)
    for row, window in enumerate(windows):
        codes[row, : len(window.tokens)] = [code_of.setdefault(token, len(code_of)) for token in window.tokens]
        firing[row, : len(window.tokens)] = np.array(window.activations) >= observation.tau
    fires = np.array([window.peak >= observation.tau for window in windows])
    documents = np.unique([window.document for window in windows], return_inverse=True)[1]
    peak_code = codes[np.arange(len(windows)), [window.peak_index for window in windows]]
    texts = tuple(code_of)
    n_windows = max(observation.n_windows, len(windows))
    occurrences = np.bincount(codes[codes >= 0], minlength=len(texts))
    holding = np.bincount(np.concatenate([np.unique(row[row >= 0]) for row in codes]), minlength=len(texts))
    known = [vocabulary.counts[vocabulary.id_of[text]] if text in vocabulary.id_of else 0 for text in texts]
    counts = np.maximum(known, occurrences).astype(float)
    occupied = counts * holding / occurrences
    weight = _weights(observation, windows, fires, codes, peak_code, occupied, n_windows)
    n_tokens = max(observation.tokens_read, int((codes >= 0).sum()))
    return Shown(texts, codes, firing, peak_code, fires, documents, weight, counts, occupied, n_windows, n_tokens)


def _weights(
    observation: Observation,
    windows: Sequence[Window],
    fires: np.ndarray,
    codes: np.ndarray,
    peak_code: np.ndarray,
    occupied: np.ndarray,
    n_windows: int,
) -> np.ndarray:
    weight = np.ones(len(windows))
    n_firing = min(max(observation.firing_windows, int(fires.sum())), n_windows)
    top = fires & np.array([window.kind == "top" for window in windows])
    rest = fires & ~top
    in_explain = n_firing * SHARES["explain"] / 100
    if rest.any():
        weight[rest] = max(1.0, (in_explain - top.sum()) / rest.sum())
    weight[fires] *= n_firing / weight[fires].sum()
    triggers = np.unique(peak_code[fires])
    holds_trigger = ~fires & np.isin(codes, triggers).any(1)
    plain = ~fires & ~holds_trigger
    n_silent = n_windows - n_firing
    n_holding = n_windows * -np.expm1(-occupied[triggers].sum() / n_windows) - n_firing
    n_holding = float(np.clip(n_holding, holds_trigger.sum(), max(n_silent - plain.sum(), holds_trigger.sum())))
    if not plain.any():
        n_holding = n_silent
    elif not holds_trigger.any():
        n_holding = 0.0
    weight[holds_trigger] = n_holding / max(holds_trigger.sum(), 1)
    weight[plain] = (n_silent - n_holding) / max(plain.sum(), 1)
    return weight
