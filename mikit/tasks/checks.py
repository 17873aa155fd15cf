"""Checks of exercises: whether a value is what was asked for, and if not, what kind of thing is off.

A check never shows the value that it expects. An exercise that is open, or not right, stops "run all" with one line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mikit.errors import BadInput, MikitError

TOLERANCE = 1e-3
"""Of the largest magnitude expected: float32 sums in another order are well inside."""


class _Shown(MikitError):
    """An error that a notebook shows as its one line, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class ExerciseOpen(_Shown):
    """The exercise has not been done yet."""


class NotRight(_Shown):
    """The value is not what was asked for; the message says in what way."""


@dataclass(frozen=True)
class Right:
    """The value is what was asked for."""

    message: str

    def __repr__(self) -> str:
        return f"✓ {self.message}"


def check(name: str, value: object, expected: Float[Tensor, "..."], axes: Sequence[str]) -> Right:
    """Hold a value against what is expected.

    Args:
        name: of the exercise.
        value: an array or tensor, or `...` where nothing was done yet.
        expected: of float64, not shown to anybody.
        axes: what the dimensions are.

    Raises:
        ExerciseOpen: the value is `...`.
        NotRight: the value is another; the message says what is off.
    """
    if value is ...:
        raise ExerciseOpen(f"○ {name}: not done yet. Put your code in place of the dots; the hints above unfold.")
    sizes = [f"{axis} = {size}" for axis, size in zip(axes, expected.shape, strict=True)]
    wanted = f"shape [{', '.join(sizes)}]" if sizes else "a single number"
    given = _tensor(value)
    if given is None:
        raise NotRight(f"✗ {name} is of type {type(value).__name__}: it should be a tensor, {wanted}")
    if fault := difference(given, expected, wanted):
        raise NotRight(f"✗ {name}: {fault}")
    return Right(f"{name}: right, {wanted}")


def difference(given: Float[Tensor, "..."], expected: Float[Tensor, "..."], wanted: str = "") -> str | None:
    """What kind of difference there is, in words; None if there is none worth speaking of."""
    if given.shape != expected.shape:
        if given.dim() == 2 and given.T.shape == expected.shape:
            return f"transposed: it should have {wanted}"
        return f"shape {list(given.shape)}; it should have {wanted}"
    if not torch.isfinite(given).all():
        return f"{int((~torch.isfinite(given)).sum())} of {given.numel()} values are infinite or not a number"
    close = _closeness(expected)
    if close(given, expected):
        return None
    if expected.numel() == 1:
        return "too large" if float(given) > float(expected) else "too small"
    for changed, fault in (
        (-given, "right but for the sign"),
        (given.abs(), "right in magnitude, but it should have no sign: take absolute values"),
        (given.square(), "what is asked for are the squares of this"),
        (given.clamp(min=0).sqrt(), "what is asked for are the square roots of this"),
    ):
        if close(changed, expected):
            return fault
    if given.dim() == 1 and close(given[:-1], expected[1:]):
        return "shifted: every value stands one place too early"
    if given.dim() == 1 and close(given[1:], expected[:-1]):
        return "shifted: every value stands one place too late"
    if close(given, expected.abs()):
        return "right in magnitude, but the signs are lost: leave out the absolute value"
    factor = float((given * expected).sum() / expected.square().sum())
    if factor and close(given / factor, expected):
        return f"right but for a factor: all values are {factor:.4g} times as large as they should be"
    if close(given - (given - expected).mean(), expected):
        return "right but for a constant: all values are off by the same amount"
    right = int(((given - expected).abs() <= TOLERANCE * expected.abs().max()).sum())
    return f"not it: {right} of {given.numel()} values are right"


def _closeness(expected: Float[Tensor, "..."]) -> Any:
    tolerance = TOLERANCE * float(expected.abs().max())
    return lambda a, b: bool(((a - b).abs() <= tolerance).all())


def _tensor(value: object) -> Float[Tensor, "..."] | None:
    if isinstance(value, str | bytes | dict | set) or value is None:
        return None
    try:
        return torch.as_tensor(value).detach().double()
    except (TypeError, ValueError, RuntimeError):
        return None


def unknown(name: str, valid: Sequence[str]) -> BadInput:
    """The error for an exercise that there is none of."""
    return BadInput(f"no exercise {name!r}: valid: {', '.join(valid)}")
