"""The windows of an observation as arrays, weighted so that sums estimate numbers of windows in natural text.

Firing windows and silent windows that hold a trigger token are shown far more often than they occur. A weight is the
number of corpus windows that a shown one stands for: top windows stand for themselves, quantile windows for the other
firing ones, and silent windows are post-stratified by the token they hold on which the feature peaks elsewhere, if any.
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
    is_census: bool = False
    """Whether every token there is was read: what was not shown does not fire, and no token must be seen a second time."""

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
    is_census = observation.source == "bos_token"
    return Shown(
        texts, codes, firing, peak_code, fires, documents, weight, counts, occupied, n_windows, n_tokens, is_census
    )


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
    silent_weight = _silent_weights(codes[~fires], np.unique(peak_code[fires]), codes[fires], weight[fires], occupied)
    plain = np.isnan(silent_weight)
    n_silent = n_windows - n_firing
    holding = float(np.nansum(silent_weight))
    if holding and (holding > n_silent - plain.sum() or not plain.any()):
        silent_weight *= max(n_silent - plain.sum(), 0) / holding
        holding = float(np.nansum(silent_weight))
    silent_weight[plain] = (n_silent - holding) / max(plain.sum(), 1)
    weight[~fires] = silent_weight
    return weight


def _silent_weights(
    silent: np.ndarray, triggers: np.ndarray, firing: np.ndarray, firing_weight: np.ndarray, occupied: np.ndarray
) -> np.ndarray:
    """Of silent windows that hold a trigger token, by the rarest one that each holds; NaN for the others.

    A token's share of the silent windows shown follows its share of the peaks, not how often it occurs: without a
    stratum a token, the few silent windows that hold a good trigger would stand for the many that hold " the".
    """
    weight = np.full(len(silent), np.nan)
    for token in triggers[np.argsort(occupied[triggers], kind="stable")]:
        rows = np.isnan(weight) & (silent == token).any(1)
        if rows.any():
            in_corpus = occupied[token] - firing_weight @ (firing == token).any(1)
            weight[rows] = max(in_corpus, rows.sum()) / rows.sum()
    return weight
