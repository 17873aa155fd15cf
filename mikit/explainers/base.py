"""The interface of an explainer: it writes hypotheses and test texts, and judges what a hypothesis predicts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mikit.errors import MikitError
from mikit.evidence.vocabulary import Vocabulary
from mikit.trace import (
    InputHypotheses,
    InputHypothesis,
    Intervention,
    Observation,
    OutputHypotheses,
    OutputHypothesis,
    TextCase,
)


class AuthorFailed(MikitError):
    """No test text could be written, for a reason that is not the hypothesis's: the message says which."""


@dataclass(frozen=True)
class Tokenization:
    """How the explained model reads and writes text."""

    ids_of: Callable[[str], list[int]]
    """Content ids of a text."""
    text_of: Callable[[Sequence[int]], str]
    """Text of content ids."""


@dataclass(frozen=True)
class Tried:
    """A hypothesis that failed on `select`, for whoever writes the next one."""

    text: str
    result: str
    """The numbers, in one sentence."""
    against: tuple[str, ...] = ()
    """What went against it, a phrase each."""


class Explainer(Protocol):
    """Writer and judge of both ends. The experiments call it and never ask which one it is.

    A judgement is True, False, or None where none could be made; an explainer never fills in a default.
    """

    @property
    def name(self) -> str:
        """Its name in params; the `author` of what it writes."""
        ...

    def input_hypotheses(
        self, observation: Observation, vocabulary: Vocabulary, n: int, tried: Sequence[Tried] = ()
    ) -> InputHypotheses:
        """Up to `n` distinct hypotheses of what makes the feature fire, the best first; none with a note if there is no evidence.

        None of them is one that was tried.
        """
        ...

    def author(
        self,
        hypothesis: InputHypothesis,
        n_positive: int,
        n_near: int,
        carriers: Sequence[Sequence[int]],
        vocabulary: Vocabulary,
        seed: int,
    ) -> list[TextCase]:
        """Texts that should fire and near misses that should not, written from the hypothesis alone.

        Args:
            hypothesis: all that the writer knows of the feature; no activation is in reach.
            n_positive: positives wanted.
            n_near: near misses wanted; each has the stratum `authored`.
            carriers: content ids of random windows, chosen without looking at activations: raw material.
            vocabulary: from which tokens are taken.
            seed: of every random choice.

        Returns:
            At most the number asked for of each role, all distinct, each of at most 32 content tokens.

        Raises:
            AuthorFailed: nothing could be written, though the hypothesis may be sound.
        """
        ...

    def predicts(self, hypothesis: InputHypothesis, windows: Sequence[Sequence[str]]) -> list[bool | None]:
        """For each window, given as token texts, whether the hypothesis says that it fires."""
        ...

    def output_hypotheses(self, intervention: Intervention, n: int, tried: Sequence[Tried] = ()) -> OutputHypotheses:
        """Up to `n` hypotheses of what the feature does to the next token; none with a note if it does nothing."""
        ...

    def claims(self, hypothesis: OutputHypothesis, tokens: Sequence[str]) -> list[bool | None]:
        """For each token, whether the hypothesis says that it is moved. Embeddings of the explained model are never used."""
        ...

    def plausibility(self, input_text: str, output_text: str) -> float | None:
        """How well the two ends go together to a reader, 1 to 5; None from an explainer that can't read. Never gated."""
        ...
