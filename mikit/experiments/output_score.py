"""Step 7: does a hypothesis tell the tokens that the feature moves from tokens that other directions move?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from mikit.errors import MikitError
from mikit.experiments.matching import Looks, looks_of, matched
from mikit.experiments.measure import Measurement, lens_tokens, measure, most_moved
from mikit.experiments.setting import Setting
from mikit.trace import Estimate, Intervention, Observation, OutputHypothesis, OutputScore, Split

RESAMPLES = 200

OWN = 50
"""Tokens that count as the feature's own: never distractors."""
Z = 1.959964
"""Standard deviations to the end of a 95 % interval."""
MOST_JUDGED = 120
"""Tokens that a judge is asked about at most: those of the choice on the prompts as they are, then those that most
resamples hold. A token beyond them is left out of the resamples, as one is that could not be judged."""
A_CONTROL = 50
"""Tokens that each control offers as distractors."""


class Unscorable(MikitError):
    """A hypothesis can't be scored: nothing to compare with, or nothing could be judged. The gate is left undecided."""


@dataclass(frozen=True)
class Choice:
    """Indices among the eligible tokens."""

    targets: Int[np.ndarray, " target"]
    distractors: Int[np.ndarray, " distractor"]


def choose_tokens(
    own: Float[np.ndarray, " token"], others: Float[np.ndarray, "control token"], looks: Looks, n: int
) -> Choice:
    """The tokens most moved by the feature, and as many like them that controls move.

    Args:
        own: mean effect of the feature, positive where it moves a token the way that the hypothesis says.
        others: the same of each control.
        looks: of the tokens.
        n: targets wanted.
    """
    moved = most_moved(own, max(n, OWN))
    n_offered = min(A_CONTROL, others.shape[1])
    pool = np.setdiff1d(np.argpartition(-others, n_offered - 1, axis=1)[:, :n_offered], moved)
    return Choice(moved[:n], matched(moved[:n], pool, looks))


def resampled_choices(
    effects: Float[np.ndarray, "direction prompt token"], looks: Looks, n: int, seed: int
) -> list[Choice]:
    """The choice on the prompts as they are, then on each resample of the prompts, all of it derived anew.

    Args:
        effects: row 0 is the feature, the rest are controls; positive where a token moves the way looked at.
        looks: of the tokens.
        n: targets wanted.
        seed: of the resampling.
    """
    n_prompts = effects.shape[1]
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(n_prompts, np.full(n_prompts, 1 / n_prompts), size=RESAMPLES)
    means = [effects.mean(1)]
    means += [np.einsum("p,dpt->dt", row.astype(np.float32) / n_prompts, effects) for row in weights]
    return [choose_tokens(mean[0], mean[1:], looks, n) for mean in means]


def rates(
    choice: Choice, claimed: Bool[np.ndarray, " token"], judged: Bool[np.ndarray, " token"]
) -> tuple[float, float]:
    """Share of targets and share of distractors that a hypothesis claims, of those that could be judged."""

    def share(indices: Int[np.ndarray, " subset"]) -> float:
        known = indices[judged[indices]]
        return float(claimed[known].mean()) if len(known) else float("nan")

    return share(choice.targets), share(choice.distractors)


def normal_interval(value: float, samples: Float[np.ndarray, " resample"]) -> tuple[float, float]:
    """95 % interval, within -1 to 1, from the spread of bootstrap samples around a value.

    A resample repeats prompts and so finds its targets less well: samples lie below the value, and their percentiles
    mislead. On made-up effects of four noise levels this interval held the true score in 96 to 98 % of cases, the
    percentile interval in 83 to 100 %, the bias-corrected one in 73 to 97 %, the basic one in 18 to 79 %.
    """
    arm = Z * float(np.std(samples))
    return max(value - arm, -1.0), min(value + arm, 1.0)


def score_output(
    setting: Setting,
    feature: int,
    observation: Observation,
    intervention: Intervention,
    hypothesis: OutputHypothesis,
    split: Split,
) -> OutputScore:
    """TPR - FPR over the tokens most moved on this split's prompts and distractors that its controls move alike.

    The interval is a bootstrap over prompts: each resample picks its own targets and distractors.

    Raises:
        Unscorable: controls move nothing but the feature's own tokens, or nothing could be judged.
    """
    measured = measure(setting, feature, observation, intervention, split)
    sign = 1 if hypothesis.direction == "promotes" else -1
    looks = looks_of([setting.vocabulary.texts[i] for i in measured.tokens], setting.vocabulary.counts[measured.tokens])
    effects = sign * np.concatenate([measured.scored[None], measured.controls])
    choices = resampled_choices(effects, looks, setting.protocol.n_output_tokens, setting.seed)
    claimed, judged, asked = _claims(setting, hypothesis, measured, choices)
    failed = int((~judged[asked]).sum())
    true, false = rates(choices[0], claimed, judged)
    scores = np.array([np.subtract(*rates(choice, claimed, judged)) for choice in choices])
    targets, distractors = choices[0].targets, choices[0].distractors
    if np.isnan(scores[0]):
        if not failed:
            raise Unscorable(f"{hypothesis.id} can't be scored on {split}: no distractor was found, or no token judged")
        true, false = (0.0 if np.isnan(rate) else rate for rate in (true, false))
        scores = np.zeros(1 + len(choices))
    low, high = normal_interval(true - false, scores[1:][~np.isnan(scores[1:])])
    return OutputScore(
        hypothesis=hypothesis.id,
        split=split,
        score=Estimate(
            value=true - false,
            low=low,
            high=high,
            n=effects.shape[1],
        ),
        true_positive_rate=true,
        false_positive_rate=false,
        targets=lens_tokens(setting.vocabulary, measured.tokens[targets], measured.scored.mean(0)[targets]),
        distractors=lens_tokens(setting.vocabulary, measured.tokens[distractors], measured.scored.mean(0)[distractors]),
        hits=[setting.vocabulary.texts[measured.tokens[i]] for i in targets if claimed[i]],
        false_alarms=[setting.vocabulary.texts[measured.tokens[i]] for i in distractors if claimed[i]],
        judgements=len(asked),
        failed_judgements=failed,
    )


def _claims(
    setting: Setting, hypothesis: OutputHypothesis, measured: Measurement, choices: Sequence[Choice]
) -> tuple[Bool[np.ndarray, " token"], Bool[np.ndarray, " token"], Int[np.ndarray, " asked"]]:
    """Which eligible tokens the hypothesis claims, which were judged, and which were asked about: those that some
    choice holds, once; a bounded number of them where a judge has to be asked.
    """
    held = np.concatenate([np.concatenate([c.targets, c.distractors]) for c in choices])
    asked, seen = np.unique(held, return_counts=True)
    if hypothesis.kind == "text" and len(asked) > MOST_JUDGED:
        first = np.isin(asked, np.concatenate([choices[0].targets, choices[0].distractors]))
        asked = np.sort(asked[np.lexsort((-seen, ~first))[:MOST_JUDGED]])
    answers = setting.explainer.claims(hypothesis, [setting.vocabulary.texts[i] for i in measured.tokens[asked]])
    claimed, judged = np.zeros(len(measured.tokens), bool), np.zeros(len(measured.tokens), bool)
    claimed[asked] = [answer is True for answer in answers]
    judged[asked] = [answer is not None for answer in answers]
    return claimed, judged, asked


def choose_output(scores: Sequence[OutputScore]) -> str | None:
    """The hypothesis of the highest score, the first of equal ones; None where there is none."""
    return max(scores, key=lambda score: score.score.value).hypothesis if scores else None
