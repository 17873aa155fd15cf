"""Percentiles of each latent's activations from one pass, in memory that does not grow with the number of values."""

import numpy as np
from jaxtyping import Float, Int

MANTISSA_BITS = 6
"""Leading bits of a float's mantissa that tell bins apart: 64 bins an octave, each at most 1/64 wide."""
OCTAVES = (-10, 16)
"""Values from 2^-10 to 2^16 have bins of their own; what lies beyond falls into the first or the last."""
SHIFT = 23 - MANTISSA_BITS
FIRST = (127 + OCTAVES[0]) << MANTISSA_BITS
BINS = (OCTAVES[1] - OCTAVES[0]) << MANTISSA_BITS
BLOCK = 256
"""Latents whose cumulative counts are in memory at once."""


class LogHistogram:
    """Counts of each latent's positive values in bins that a float32's leading bits name: no logarithm is taken."""

    def __init__(self, latents: int) -> None:
        self.counts = np.zeros((latents, BINS), np.int32)
        self.largest = np.zeros(latents, np.float32)

    def add(self, latent: Int[np.ndarray, " value"], value: Float[np.ndarray, " value"]) -> None:
        """Count positive float32 values."""
        bins = np.clip((value.view(np.int32) >> SHIFT) - FIRST, 0, BINS - 1)
        np.add.at(self.counts.reshape(-1), latent * BINS + bins, 1)
        np.maximum.at(self.largest, latent, value)

    def percentile(self, percent: float) -> Float[np.ndarray, " latent"]:
        """The percentile of each latent's values, as `numpy.percentile` defines it; 0 where there are none.

        The two values between which it lies are known to within their bins, that is to 1/64 of themselves, and no
        value is taken to be larger than the largest.
        """
        blocks = [self._percentile(slice(i, i + BLOCK), percent) for i in range(0, len(self.counts), BLOCK)]
        return np.concatenate(blocks).astype(np.float32)

    def _percentile(self, latents: slice, percent: float) -> Float[np.ndarray, " latent"]:
        counts = self.counts[latents]
        ends = counts.cumsum(axis=1, dtype=np.int64)
        n = ends[:, -1]
        rank = np.maximum(n - 1, 0) * (percent / 100)
        below, above = (self._ordered(latents, counts, ends, k.astype(np.int64)) for k in (np.floor(rank), np.ceil(rank)))
        return np.where(n > 0, below + (above - below) * (rank % 1), 0.0)

    def _ordered(
        self,
        latents: slice,
        counts: Int[np.ndarray, "latent bin"],
        ends: Int[np.ndarray, "latent bin"],
        k: Int[np.ndarray, " latent"],
    ) -> Float[np.ndarray, " latent"]:
        """The value of rank `k`, the values of a bin being spread evenly over it."""
        rows = np.arange(len(k))
        bins = np.minimum((ends <= k[:, None]).sum(axis=1), BINS - 1)
        count = counts[rows, bins]
        within = (k - (ends[rows, bins] - count) + 0.5) / np.maximum(count, 1)
        low, high = edge(bins), edge(bins + 1)
        return np.minimum(low + (high - low) * within, self.largest[latents])


def edge(bins: Int[np.ndarray, " latent"]) -> Float[np.ndarray, " latent"]:
    """The lower edge of bins."""
    return ((bins + FIRST) << SHIFT).astype(np.int32).view(np.float32).astype(np.float64)
