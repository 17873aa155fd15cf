"""The contrast that the causal checks look at: predicted tokens against as many of like frequency not predicted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from mikit.experiments.matching import Looks, matched
from mikit.experiments.setting import Setting
from mikit.trace import Control, Intervention, OutputHypothesis

MOST_FREQUENT = 200
"""Predicted tokens that a contrast looks at: a form covers thousands, and the rare ones tell little."""


@dataclass(frozen=True)
class Contrast:
    """Two equally large groups among the eligible tokens, as indices, and the sign of what is predicted."""

    predicted: Int[np.ndarray, " predicted"]
    background: Int[np.ndarray, " predicted"]
    sign: int
    """1 for tokens said to be promoted, -1 for suppressed ones: a contrast is positive where the hypothesis holds."""

    def of(self, effect: Float[np.ndarray, "*batch token"]) -> Float[np.ndarray, "*batch"]:
        """Mean effect on the predicted tokens minus that on the others, nats, times the sign."""
        return self.sign * (self.on_predicted(effect) - self.on_background(effect))

    def on_predicted(self, effect: Float[np.ndarray, "*batch token"]) -> Float[np.ndarray, "*batch"]:
        """Mean effect on the predicted tokens, nats."""
        return effect[..., self.predicted].mean(-1)

    def on_background(self, effect: Float[np.ndarray, "*batch token"]) -> Float[np.ndarray, "*batch"]:
        """Mean effect on the tokens not predicted, nats."""
        return effect[..., self.background].mean(-1)


def contrast_of(is_predicted: Bool[np.ndarray, " token"], looks: Looks, sign: int, seed: int) -> Contrast | None:
    """The contrast of predicted tokens, the `MOST_FREQUENT` of them at most; None if no token is, or all are.

    Tokens of the background are the nearest in frequency; which of many that are equally near is drawn by seed.
    """
    pool = np.random.default_rng(seed).permutation(np.flatnonzero(~is_predicted))
    predicted = np.flatnonzero(is_predicted)
    by_frequency = np.argsort(-looks.log_count[predicted], kind="stable")
    predicted = predicted[by_frequency][: min(MOST_FREQUENT, len(pool))]
    return Contrast(predicted, matched(predicted, pool, looks, kinds=False), sign) if len(predicted) else None


class Predicted(NamedTuple):
    """The tokens that a hypothesis speaks of."""

    flags: Bool[np.ndarray, " token"]
    judgements: int
    failed: int
    """Tokens that could not be judged; they count as not predicted."""


def predicted_by(
    setting: Setting, hypothesis: OutputHypothesis, intervention: Intervention, tokens: Int[np.ndarray, " token"]
) -> Predicted:
    """Which of some tokens, given by id, the hypothesis claims to be moved.

    A list or a form is asked about every token. A judge is asked about candidates alone: the tokens that the feature
    moves most on `explain`, and as many that each control moves most there. A control's tokens are among them as the
    feature's are, so that whoever ticks all, or ticks at random, claims no more of the feature than of any control.
    """
    texts = setting.vocabulary.texts
    where = np.arange(len(tokens))
    if hypothesis.kind == "text":
        n = setting.protocol.n_output_tokens
        rising = hypothesis.direction == "promotes"
        moved: list[Intervention | Control] = [intervention, *intervention.controls]
        lists = [(each.promoted if rising else each.suppressed)[:n] for each in moved]
        where = np.flatnonzero(among(tokens, [token.id for group in lists for token in group]))
    answers = setting.explainer.claims(hypothesis, [texts[tokens[i]] for i in where])
    flags = np.zeros(len(tokens), bool)
    flags[where] = [answer is True for answer in answers]
    return Predicted(flags, len(answers), sum(answer is None for answer in answers))


def among(tokens: Int[np.ndarray, " token"], ids: Sequence[int]) -> Bool[np.ndarray, " token"]:
    """Which of some tokens are in a list of ids."""
    return np.isin(tokens, np.asarray(ids, dtype=int))
