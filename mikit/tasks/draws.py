"""Random draws that are the same on every machine: hash output turned into integers, nothing else.

Generators of numpy and torch may change between versions, and the last digits of logarithms, sines and matrix products
differ between processors. What is drawn here is whole numbers, or whole numbers divided by a power of two.
"""

import hashlib
import hmac
import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Int

T = TypeVar("T")

GRID = 4096
"""Reals are drawn on this many equal steps."""


class Draws:
    """A stream of draws that a key determines."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._drawn = 0

    def stream(self, label: str) -> "Draws":
        """A stream of its own for one purpose: draws added elsewhere don't move it."""
        return Draws(hmac.digest(self._key, label.encode(), "sha256"))

    def _block(self, size: int) -> bytes:
        """The next `size` bytes."""
        self._drawn += 1
        return hashlib.shake_256(self._key + self._drawn.to_bytes(8, "little")).digest(size)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Int[np.ndarray, "..."]:
        """Whole numbers from `low` to `high`, both possible, as int64; 64 bits each, so that the bias is below 2^-40."""
        values = np.frombuffer(self._block(8 * math.prod(shape)), dtype="<u8") % np.uint64(high - low + 1)
        return values.astype(np.int64).reshape(shape) + low

    def integer(self, low: int, high: int) -> int:
        """One whole number from `low` to `high`, both possible."""
        return int.from_bytes(self._block(8), "little") % (high - low + 1) + low

    def real(self, low: float, high: float) -> float:
        """A number from `low` to `high`."""
        return low + (high - low) * self.integer(0, GRID) / GRID

    def sign(self) -> int:
        """1 or -1."""
        return 2 * self.integer(0, 1) - 1

    def signed(self, low: float, high: float) -> float:
        """A number whose magnitude is from `low` to `high`, of either sign."""
        return self.sign() * self.real(low, high)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in a random order (Fisher and Yates)."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.integer(0, last)
            result[last], result[other] = result[other], result[last]
        return result

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different items, in a random order."""
        return self.shuffled(items)[:count]

    def shares(self, count: int) -> list[float]:
        """`count` positive numbers that add up to 1, none more than twice another."""
        parts = [self.integer(8, 16) for _ in range(count)]
        return [part / sum(parts) for part in parts]
