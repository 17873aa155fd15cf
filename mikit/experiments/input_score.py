"""Step 4: how well a hypothesis predicts where the feature fires."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mikit.evidence.observe import natural_windows
from mikit.experiments.activation import peaks_of, text_activations
from mikit.experiments.setting import Setting
from mikit.experiments.statistics import EMPTY, auroc, clustered, mean_of, wilson
from mikit.experiments.texts import peak_tokens
from mikit.explainers.rules import matcher
from mikit.settings import Protocol
from mikit.trace import (
    GATED_STRATA,
    STRATA,
    InputExperiment,
    InputHypothesis,
    InputScore,
    Observation,
    Proportion,
    ScoredCase,
    Split,
    Stratum,
    TextCase,
)

N_NATURAL = 60
"""Naturally firing windows, and silent ones, on which recall is measured."""
MIN_RECALL = 0.5
"""What `confirmed` asks of recall; here it comes before small differences between hypotheses."""


def score_input(
    setting: Setting, feature: int, observation: Observation, hypothesis: InputHypothesis, experiment: InputExperiment
) -> InputScore:
    """Run the texts of an experiment through the model and compare what fires with what was predicted.

    Args:
        setting: the target, and the evidence from which natural windows are drawn.
        feature: the latent.
        observation: its tau, its neighbours, and the tokens on which it peaks.
        hypothesis: what is judged.
        experiment: its texts.
    """
    neighbours = observation.neighbours[: setting.protocol.n_neighbours]
    texts = [case.ids for case in experiment.cases]
    activations = text_activations(setting.target, [feature, *neighbours], texts, setting.batch)
    peaks, _ = peaks_of(activations, 1 + len(neighbours))
    matched = _matched(setting, hypothesis, experiment.cases)
    cases = [
        _scored(case, acts[:, 0], at, observation.tau)
        for case, acts, at in zip(experiment.cases, activations, matched, strict=True)
    ]
    positives = [case for case in cases if case.role == "positive"]
    gated = [case.activation for case in cases if case.stratum in GATED_STRATA]
    strata = {stratum: _share_silent(cases, stratum, observation.tau) for stratum in STRATA}
    above_zero = [_share_silent(cases, stratum, 0.0) for stratum in GATED_STRATA]
    natural = natural_agreement(setting, feature, observation, hypothesis, experiment.split)
    is_positive = np.array([case.role == "positive" for case in cases], bool)
    return InputScore(
        hypothesis=hypothesis.id,
        split=experiment.split,
        coverage=_share([case.fires_where_said is not False and case.fires for case in positives], positives),
        rejection=mean_of([strata[stratum] for stratum in GATED_STRATA]),
        strata=strata,
        coverage_of_texts=_share([case.fires for case in positives], positives),
        coverage_above_zero=_share([fires(case.activation, 0.0) for case in positives], positives),
        rejection_above_zero=mean_of(above_zero),
        grey_share=float(np.mean([0 < case.activation < observation.tau for case in cases])) if cases else None,
        auroc=auroc([case.activation for case in positives], gated),
        recall=natural.recall,
        precision=natural.precision,
        balanced_accuracy=natural.balanced_accuracy,
        specificity=specificity(setting, observation, neighbours, peaks[is_positive]),
        cases=cases,
        judgements=experiment.judgements + natural.judgements,
        failed_judgements=experiment.failed_judgements + natural.failed,
        note=experiment.note,
    )


def fires(activation: float, tau: float) -> bool:
    """Whether an activation counts: at least tau, and above 0 also for a feature that has no scale."""
    return activation > 0 and activation >= tau


def _matched(
    setting: Setting, hypothesis: InputHypothesis, cases: Sequence[TextCase]
) -> Sequence[Sequence[int] | None]:
    """The positions of each text that the rule matches; None without a rule."""
    if hypothesis.rule is None:
        return [None] * len(cases)
    match = matcher(hypothesis.rule)
    return [match([setting.vocabulary.texts[i] for i in case.ids]) for case in cases]


def _scored(
    case: TextCase, activations: Float[np.ndarray, " pos"], matched: Sequence[int] | None, tau: float
) -> ScoredCase:
    peak_index = int(activations.argmax())
    peak = float(activations[peak_index])
    return ScoredCase(
        role=case.role,
        stratum=case.stratum,
        text=case.text,
        document=case.document,
        activation=peak,
        fires=fires(peak, tau),
        peak_index=peak_index,
        fires_where_said=None if matched is None else any(fires(float(activations[i]), tau) for i in matched),
    )


def _share(flags: Sequence[bool], cases: Sequence[ScoredCase]) -> Proportion:
    return clustered(flags, [case.document for case in cases])


def _share_silent(cases: Sequence[ScoredCase], stratum: Stratum, tau: float) -> Proportion:
    members = [case for case in cases if case.stratum == stratum]
    return _share([not fires(case.activation, tau) for case in members], members)


def specificity(
    setting: Setting,
    observation: Observation,
    neighbours: Sequence[int],
    positive_peaks: Float[np.ndarray, "positive latent"],
) -> Proportion:
    """Share of the neighbours that fire on fewer of the positives than the feature does; a tie is not a win.

    Args:
        setting: its evidence gives the tau of each neighbour.
        observation: gives the feature's own tau.
        neighbours: latents.
        positive_peaks: on the positives, of the feature and then of each neighbour.
    """
    if not len(positive_peaks):
        return EMPTY
    taus = np.array([observation.tau, *(setting.store.tau(latent) for latent in neighbours)])
    coverage = ((positive_peaks >= taus) & (positive_peaks > 0)).mean(axis=0)
    return wilson(int((coverage[1:] < coverage[0]).sum()), len(neighbours))


class NaturalAgreement(NamedTuple):
    """What a hypothesis predicts of natural windows, beside what they do."""

    recall: Proportion
    precision: Proportion
    balanced_accuracy: float | None
    """None without windows of both kinds."""
    judgements: int
    failed: int
    """Windows that could not be judged."""


def natural_agreement(
    setting: Setting, feature: int, observation: Observation, hypothesis: InputHypothesis, split: Split
) -> NaturalAgreement:
    """What a hypothesis predicts of windows drawn by activation: firing ones at all strengths, and silent ones.

    Half of the silent windows hold a token on which the feature peaks, whatever tokens the hypothesis speaks of: all
    hypotheses on a feature are measured alike. A window that could not be judged is left out, and counted.
    """
    store, table = setting.drawn_from, setting.drawn_from.table
    drawn = natural_windows(store, feature, split, N_NATURAL, setting.protocol, peak_tokens(observation), setting.seed)
    windows = [int(window) for window in (*drawn.firing, *drawn.silent)]
    tokens = [[setting.vocabulary.texts[i] for i in table.text(window)] for window in windows]
    answers = setting.explainer.predicts(hypothesis, tokens)
    firing = [True] * len(drawn.firing) + [False] * len(drawn.silent)
    judged = [
        (is_firing, answer, table.document_of(window))
        for is_firing, answer, window in zip(firing, answers, windows, strict=True)
        if answer is not None
    ]
    recall = _agreement([(answer, document) for is_firing, answer, document in judged if is_firing])
    rejected = _agreement([(not answer, document) for is_firing, answer, document in judged if not is_firing])
    precision = _agreement([(is_firing, document) for is_firing, answer, document in judged if answer])
    both = [share.value for share in (recall, rejected) if share.value is not None]
    balanced = sum(both) / 2 if len(both) == 2 else None
    return NaturalAgreement(recall, precision, balanced, len(answers), sum(answer is None for answer in answers))


def _agreement(judged: Sequence[tuple[bool, str]]) -> Proportion:
    return clustered([flag for flag, _ in judged], [document for _, document in judged])


def choose_input(scores: Sequence[InputScore], protocol: Protocol | None = None) -> str | None:
    """The id of the best hypothesis; None if there is none. Of equally good ones the first.

    Those come first that reach both gates with a recall of `MIN_RECALL`, as a confirmed explanation must. Then the
    harmonic mean of coverage, rejection, recall and precision decides, which is near the worst of them: a narrow
    explanation, whose every text fires while most firing text goes unexplained, can't make up for its recall.

    Args:
        scores: on one split, in the order of the writer's preference.
        protocol: the gates' thresholds; the defaults if not given.
    """
    gates = protocol or Protocol()
    return max(scores, key=lambda score: _merit(score, gates)).hypothesis if scores else None


def _merit(score: InputScore, protocol: Protocol) -> tuple[bool, float]:
    coverage, rejection, recall, precision = (
        share.value or 0.0 for share in (score.coverage, score.rejection, score.recall, score.precision)
    )
    fit = coverage >= protocol.gate_coverage and rejection >= protocol.gate_rejection and recall >= MIN_RECALL
    parts = (coverage, rejection, recall, precision)
    return fit, len(parts) / sum(1 / part for part in parts) if all(parts) else 0.0
