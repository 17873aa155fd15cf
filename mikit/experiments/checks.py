"""Step 8: five pre-registered checks of whether the feature itself carries the effect that a hypothesis claims.

All look at one contrast: the mean effect on the predicted tokens minus that on as many tokens of like frequency that
are not predicted; its sign is flipped for a hypothesis that says `suppresses`. The last three share one measurement:
they are not independent proofs.

Verdicts. *Necessity* passes if the ablation lowers the contrast more than every control does, and if so in 90 % of the
resamples of the documents, the strongest control being found anew in each. *Selectivity* passes if the 95 % interval of
the ablation's contrast, by document, lies below 0. *Sufficiency*, *dose response* and *own tokens* are decided by the
comparison of means, or the count, that they name; their intervals are by prompt. A check is undecided where it lacks
firing positions, controls, or tokens to compare.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mikit.experiments.contrast import Contrast, among, contrast_of, predicted_by
from mikit.experiments.matching import Looks, looks_of
from mikit.experiments.measure import Ablation, Measurement, ablate, measure
from mikit.experiments.setting import Setting
from mikit.experiments.statistics import bootstrap_mean
from mikit.settings import Protocol
from mikit.trace import CHECKS, Check, CheckName, Intervention, Observation, OutputHypothesis, Split

RESAMPLES = 1000
ONE_SIDED = 10.0
"""Percentile of the resamples that must lie above 0 in a one-sided comparison."""
MONOTONE = 0.8
"""Spearman correlation with the dose from which a prompt counts as responding."""
MONOTONE_SHARE = 0.75
"""Share of the prompts that must respond: 12 of 16."""


@dataclass(frozen=True)
class Checked:
    """The checks of a hypothesis, and how its tokens were found."""

    checks: list[Check]
    judgements: int
    failed_judgements: int


def run_checks(
    setting: Setting,
    feature: int,
    observation: Observation,
    intervention: Intervention,
    hypothesis: OutputHypothesis,
    split: Split,
) -> list[Check]:
    """The five checks of one output hypothesis, in the order of `trace.CHECKS`, on the prompts and documents of a split."""
    return check(setting, feature, observation, intervention, hypothesis, split).checks


def check(
    setting: Setting,
    feature: int,
    observation: Observation,
    intervention: Intervention,
    hypothesis: OutputHypothesis,
    split: Split,
) -> Checked:
    """The five checks, with the number of judgements that they rest on."""
    measured = measure(setting, feature, observation, intervention, split)
    texts = [setting.vocabulary.texts[i] for i in measured.tokens]
    looks = looks_of(texts, setting.vocabulary.counts[measured.tokens])
    sign = 1 if hypothesis.direction == "promotes" else -1
    predicted = predicted_by(setting, hypothesis, intervention, measured.tokens)
    contrast = contrast_of(predicted.flags, looks, sign, setting.seed)
    if contrast is None:
        why = "no eligible token is predicted, or every one is"
        return Checked([undecided(name, why) for name in CHECKS], predicted.judgements, predicted.failed)
    ablation = ablate(setting, feature, observation, split)
    theirs = control_contrasts(intervention, measured, contrast, looks, setting.seed)
    checks = [
        necessity(ablation, contrast, setting.protocol, setting.seed),
        selectivity(ablation, contrast, setting.protocol, setting.seed),
        sufficiency(measured, contrast, setting.seed),
        dose_response(measured, contrast, setting.protocol, setting.seed),
        own_tokens(measured, contrast, theirs, setting.seed),
    ]
    return Checked(checks, predicted.judgements, predicted.failed)


def functional_score(checks: Sequence[Check]) -> int:
    """Number of checks passed."""
    return sum(check.verdict == "pass" for check in checks)


def undecided(name: CheckName, why: str, n: int = 0) -> Check:
    """A check that could not be made."""
    return Check(name=name, verdict="undecided", effect=None, interval=None, n=n, reason=f"Undecided: {why}.")


def control_contrasts(
    intervention: Intervention, measured: Measurement, contrast: Contrast, looks: Looks, seed: int
) -> dict[str, Contrast]:
    """The contrast of each control's own tokens: those that it moves most on `explain`, the way that is predicted.

    A control all of whose tokens are predicted makes the same claim, and is left out: a random direction that leans
    towards or away from the feature moves the feature's tokens most.
    """
    made = {}
    for control in intervention.controls:
        moved = control.promoted if contrast.sign > 0 else control.suppressed
        is_theirs = among(measured.tokens, [token.id for token in moved])
        if is_theirs.any() and not set(np.flatnonzero(is_theirs)) <= set(contrast.predicted.tolist()):
            made[control.name] = contrast_of(is_theirs, looks, contrast.sign, seed)
    return {name: theirs for name, theirs in made.items() if theirs is not None}


@dataclass(frozen=True)
class Margin:
    """By how much one quantity exceeds the largest of several others, with its bootstrap."""

    value: float
    low: float
    high: float
    """95 % interval."""
    one_sided: float
    """What it exceeds in 90 % of the resamples."""


def margin(own: Float[np.ndarray, " unit"], others: Float[np.ndarray, "other unit"], seed: int) -> Margin:
    """Mean of `own` minus the largest mean of the others, resampled over units; the largest is found anew each time."""
    rng = np.random.default_rng(seed)
    picked = rng.integers(len(own), size=(RESAMPLES, len(own)))
    samples = own[picked].mean(-1) - others[:, picked].mean(-1).max(0)
    value = float(own.mean() - others.mean(-1).max())
    low, one_sided, high = (float(x) for x in np.percentile(samples, [2.5, ONE_SIDED, 97.5]))
    return Margin(value, min(low, value), max(high, value), one_sided)


def too_few(name: CheckName, ablation: Ablation, protocol: Protocol) -> Check | None:
    """Undecided if the feature was ablated at fewer positions than the protocol asks for."""
    n, needed = len(ablation.own), protocol.n_ablation_positions
    return undecided(name, f"{n} firing positions in different documents, {needed} needed", n) if n < needed else None


def necessity(ablation: Ablation, contrast: Contrast, protocol: Protocol, seed: int) -> Check:
    """Whether subtracting the feature lowers the contrast more than subtracting any control of the same norm does."""
    if short := too_few("necessity", ablation, protocol):
        return short
    if not len(ablation.controls):
        return undecided("necessity", "there is no control direction", len(ablation.own))
    own, controls = contrast.of(ablation.own), contrast.of(ablation.controls)
    ahead = margin(-own, -controls, seed)
    strongest = int(controls.mean(-1).argmin())
    return Check(
        name="necessity",
        verdict="pass" if ahead.value > 0 and ahead.one_sided > 0 else "fail",
        effect=ahead.value,
        interval=(ahead.low, ahead.high),
        n=len(own),
        reason=(
            f"Subtracting the feature changes the contrast by {own.mean():+.3f} nats, the strongest of "
            f"{len(controls)} controls ({ablation.names[strongest]}) by {controls.mean(-1)[strongest]:+.3f}; the "
            f"difference exceeds {ahead.one_sided:+.3f} in 90 % of resamples of {len(own)} documents (0 is needed)."
        ),
        bars={"feature": float(own.mean()), **_by_name(ablation.names, controls)},
    )


def selectivity(ablation: Ablation, contrast: Contrast, protocol: Protocol, seed: int) -> Check:
    """Whether it is the predicted tokens that fall when the feature is subtracted, not just any."""
    if short := too_few("selectivity", ablation, protocol):
        return short
    own = contrast.of(ablation.own)
    found = bootstrap_mean(own, np.arange(len(own)), seed)
    predicted = float(contrast.on_predicted(ablation.own).mean())
    others = float(contrast.on_background(ablation.own).mean())
    return Check(
        name="selectivity",
        verdict="pass" if found.high < 0 else "fail",
        effect=found.value,
        interval=(found.low, found.high),
        n=len(own),
        reason=(
            f"Subtracting the feature changes predicted tokens by {predicted:+.3f} nats, others of like frequency by "
            f"{others:+.3f}; the contrast's 95 % interval over {len(own)} documents is {found.low:+.3f} to "
            f"{found.high:+.3f} (below 0 is needed)."
        ),
        bars={"predicted tokens": predicted, "other tokens": others, "contrast": found.value},
    )


def sufficiency(measured: Measurement, contrast: Contrast, seed: int) -> Check:
    """Whether adding the feature raises the contrast more than adding any control of the same norm does."""
    own, controls = contrast.of(measured.scored), contrast.of(measured.controls)
    if not len(controls):
        return undecided("sufficiency", "there is no control direction", len(own))
    ahead = margin(own, controls, seed)
    strongest = int(controls.mean(-1).argmax())
    return Check(
        name="sufficiency",
        verdict="pass" if ahead.value > 0 else "fail",
        effect=ahead.value,
        interval=(ahead.low, ahead.high),
        n=len(own),
        reason=(
            f"Adding the feature changes the contrast by {own.mean():+.3f} nats, the strongest of {len(controls)} "
            f"controls ({measured.names[strongest]}) by {controls.mean(-1)[strongest]:+.3f}, over {len(own)} prompts."
        ),
        bars={"feature": float(own.mean()), **_by_name(measured.names, controls)},
    )


def spearman(doses: Sequence[float], values: Float[np.ndarray, "dose prompt"]) -> Float[np.ndarray, " prompt"]:
    """Rank correlation of each prompt's values with the dose; 0 where all of them are equal."""
    from scipy.stats import rankdata

    ranks = rankdata(values, axis=0) - (len(doses) + 1) / 2
    dose_ranks = rankdata(doses) - (len(doses) + 1) / 2
    scale = np.sqrt((ranks**2).sum(0) * (dose_ranks**2).sum())
    return np.divide(dose_ranks @ ranks, scale, out=np.zeros(values.shape[1]), where=scale > 0)


def dose_response(measured: Measurement, contrast: Contrast, protocol: Protocol, seed: int) -> Check:
    """Whether more of the feature means more contrast, prompt by prompt."""
    by_dose = contrast.of(measured.doses)
    scored = by_dose[measured.scoring]
    n = len(scored)
    responding = int((spearman(protocol.doses, by_dose) >= MONOTONE - 1e-9).sum())
    needed = int(np.ceil(MONOTONE_SHARE * n))
    found = bootstrap_mean(scored, np.arange(n), seed)
    return Check(
        name="dose_response",
        verdict="pass" if found.value > 0 and responding >= needed else "fail",
        effect=found.value,
        interval=(found.low, found.high),
        n=n,
        reason=(
            f"The contrast at the scoring dose is {found.value:+.3f} nats (above 0 is needed), and it follows the dose "
            f"(Spearman at least {MONOTONE:g}) in {responding} of {n} prompts ({needed} are needed)."
        ),
        bars=_by_name([f"{dose:g}" for dose in protocol.doses], by_dose),
    )


def own_tokens(measured: Measurement, contrast: Contrast, theirs: dict[str, Contrast], seed: int) -> Check:
    """Whether the feature moves the tokens predicted of it more than the tokens that belong to its controls."""
    own = contrast.of(measured.scored)
    if not theirs:
        return undecided("own_tokens", "no control promotes an eligible token", len(own))
    others = np.stack([other.of(measured.scored) for other in theirs.values()])
    ahead = margin(own, others, seed)
    strongest = list(theirs)[int(others.mean(-1).argmax())]
    return Check(
        name="own_tokens",
        verdict="pass" if ahead.value > 0 else "fail",
        effect=ahead.value,
        interval=(ahead.low, ahead.high),
        n=len(own),
        reason=(
            f"Adding the feature changes its own contrast by {own.mean():+.3f} nats, and that of the tokens of "
            f"{strongest}, the most of {len(theirs)} controls, by {others.mean(-1).max():+.3f}."
        ),
        bars={"its own": float(own.mean()), **_by_name(theirs, others)},
    )


def _by_name(names: Sequence[str] | dict[str, Contrast], values: Float[np.ndarray, "name unit"]) -> dict[str, float]:
    return {name: float(value) for name, value in zip(names, values.mean(-1), strict=True)}
