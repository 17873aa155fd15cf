"""Answers: whether a submission is one, and what it scores.

The score corrects F1 for what a submission of everything gets, so that knowing nothing is worth nothing. No message says
anything about the truth.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mikit.errors import BadInput
from mikit.tasks.instance import Instance

LONGEST = 4096
"""Numbers in a submission, repetitions included."""
LOWEST, HIGHEST = 0.01, 0.99
EDGE = 1e-4
"""Scores stay this far inside (0.01, 0.99), and so print as 0.01 to 0.99."""
SHOWN = 40
PLAIN = (list, tuple, set, frozenset)
"""Not classes derived from them: those may do anything when they are read."""


class Reason(StrEnum):
    """Why a submission is not an answer."""

    NOT_A_LIST = "not_a_list"
    EMPTY = "empty"
    TOO_LONG = "too_long"
    NOT_AN_INTEGER = "not_an_integer"
    OUT_OF_RANGE = "out_of_range"


@dataclass(frozen=True)
class Rejection:
    """A submission that was not graded: it costs nothing but the try."""

    reason: Reason
    message: str
    """What is wrong, and what would be valid."""


@dataclass(frozen=True)
class Grade:
    """What an answer is worth."""

    score: float
    """From 0.01 to 0.99, both excluded; 0.0101 is what an answer without knowledge gets."""
    solved: bool
    """Whether the answer is the truth, no more and no less."""
    precision: float
    """Share of the answer that is true."""
    recall: float
    """Share of the truth that was found."""


def parse(submission: object, domain: range) -> frozenset[int] | Rejection:
    """The set of numbers that a submission names.

    Order and repetition don't matter. Lists, tuples, sets and one-dimensional arrays of whole numbers are answers; texts
    are not, not even of digits, and neither are booleans and fractions.

    Args:
        submission: anything.
        domain: the numbers that an answer may hold.
    """
    valid = f"valid: a list of whole numbers from {domain[0]} to {domain[-1]}"
    items = _items(submission)
    if items is None:
        return Rejection(Reason.NOT_A_LIST, f"{_shown(submission)} is not a list: {valid}")
    if not items:
        return Rejection(Reason.EMPTY, f"the list is empty: {valid}")
    if len(items) > LONGEST:
        return Rejection(Reason.TOO_LONG, f"a list of {len(items)}: valid: at most {LONGEST}")
    for item in items:
        if type(item) is not int and not _numpy_integer(item):
            return Rejection(Reason.NOT_AN_INTEGER, f"{_shown(item)} is not a whole number: {valid}")
    for item in items:
        if not domain[0] <= item <= domain[-1]:
            return Rejection(Reason.OUT_OF_RANGE, f"{_shown(item)} is out of range: {valid}")
    return frozenset(int(item) for item in items)


def _items(submission: object) -> Collection[Any] | None:
    if isinstance(submission, list | tuple | set | frozenset) and type(submission) in PLAIN:
        return submission
    if type(submission).__module__ in ("numpy", "torch") and getattr(submission, "ndim", None):
        try:
            # nested lists where there is more than one dimension: the items then are no integers
            return list(submission.tolist())  # type: ignore[attr-defined]
        except (TypeError, ValueError, RuntimeError):
            return None
    return None


def _numpy_integer(item: object) -> bool:
    if type(item).__module__ != "numpy":
        return False
    import numpy as np

    return isinstance(item, np.integer)


def _shown(value: object) -> str:
    """A value as it may stand in a message: short, whatever it is."""
    kind = type(value).__name__
    if type(value) is int and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    if type(value) in (int, float, bool, str, bytes, type(None)) or _numpy_integer(value):
        text = ascii(value[:SHOWN]) if isinstance(value, str | bytes) else repr(value)
        return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    return f"an object of type {kind[:SHOWN]}"


def f1(answer: Iterable[int], truth: Iterable[int]) -> float:
    """F1 of a set against the truth."""
    answer, truth = set(answer), set(truth)
    return 2 * len(answer & truth) / (len(answer) + len(truth))


def corrected(answer: frozenset[int], truth: frozenset[int], n: int) -> float:
    """F1 above what naming all `n` things gets, as a share of what there is above it; 0 at or below it, 1 for the truth."""
    everything = 2 * len(truth) / (n + len(truth))
    return max(0.0, (f1(answer, truth) - everything) / (1 - everything))


def grade(submission: object, instance: Instance) -> Grade | Rejection:
    """What a submission is worth, or why it is none; never an exception, whatever is submitted.

    Args:
        submission: a list of whole numbers, or what somebody took for one.
        instance: with the truth.
    """
    answer = parse(submission, instance.domain)
    if isinstance(answer, Rejection):
        return answer
    share = corrected(answer, instance.truth, len(instance.domain))
    score = min(max(LOWEST + (HIGHEST - LOWEST) * share, LOWEST + EDGE), HIGHEST - EDGE)
    right = len(answer & instance.truth)
    return Grade(score, answer == instance.truth, right / len(answer), right / len(instance.truth))


def grade_of(task_id: str, submission: object, instance: Instance) -> Grade | Rejection:
    """`grade` for the instances of one task.

    Raises:
        BadInput: the instance is one of another task.
    """
    if instance.task.id != task_id:
        raise BadInput(f"an instance of {instance.task.id}: valid: one of {task_id}, or mikit.tasks.grade_task")
    return grade(submission, instance)
