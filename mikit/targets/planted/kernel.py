"""An attention score that depends on distance alone, by rotary embedding: high for some distances, low for all others."""

from functools import lru_cache

import numpy as np
from jaxtyping import Float

from mikit.errors import BadInput

ROPE_THETA = 100.0
"""Base of the rotary frequencies: with 8 of them the fastest turns in 6 tokens, the slowest in 350."""
HEAD_DIM = 16
REACH = 168
"""Tokens in the longest text that is read right."""
MARGIN = 0.7
ROUNDS = 20_000


@lru_cache(maxsize=32)
def window_key(within: int, reach: int = REACH) -> Float[np.ndarray, " head_dim"]:
    """The key whose score with the query (1, ..., 1, 0, ..., 0) is at least `MARGIN` at distances 1 to `within`.

    At every other distance below `reach`, 0 included, the score is at most -`MARGIN`. A rotary score of such a query with the key
    (a, b) is the sum over frequencies w of a_w cos(w distance) + b_w sin(w distance); the coefficients are found by
    alternating projections: least squares, then targets that ask nothing more of a distance already served.

    Raises:
        BadInput: the frequencies can't tell these distances apart.
    """
    frequencies = ROPE_THETA ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    distance = np.arange(reach)
    angles = np.outer(distance, frequencies)
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    sign = np.where((distance >= 1) & (distance <= within), 1.0, -1.0)
    solve, target = np.linalg.pinv(waves), sign
    for _ in range(ROUNDS):
        key = solve @ target
        served = sign * (waves @ key)
        if served.min() >= MARGIN:
            return key
        target = sign * np.maximum(1.0, served)
    raise BadInput(f"within = {within}: no attention head of this model can look that far back and no farther")
