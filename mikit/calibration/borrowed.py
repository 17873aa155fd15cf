"""A feature's own explanation beside explanations written for other features: the calibration of a model without a truth."""

import time
from collections.abc import Collection

import numpy as np

from mikit.calibration.records import FeatureTrials, Trial, trial_of
from mikit.evidence.store import EvidenceStore
from mikit.experiments.input_score import choose_input
from mikit.experiments.intervene import intervene
from mikit.experiments.output_score import choose_output
from mikit.runs.found import chosen
from mikit.runs.judging import Subject, input_score_of, judge, output_score_of
from mikit.runs.nulls import explanation_of, nearest, random_trial, stranger
from mikit.runs.run import Run
from mikit.runs.steps import hypothesise_input, observe
from mikit.settings import Params
from mikit.trace import Explanation

RANKS = (1, 6)
"""Of the nearest features whose explanations are tried: the first is no control, the sixth is none either."""
ORIGINS = ("own", *(f"nearest_{rank}" for rank in RANKS), "shuffled", "random_reference")


def draw_features(
    store: EvidenceStore, min_windows: int, n: int, skip: int, exclude: Collection[int], seed: int
) -> list[int]:
    """`n` random live features, after the first `skip` of the same order: those that choices were made on.

    Args:
        store: tells which latents are live.
        min_windows: firing windows that a live one has.
        n: how many are wanted.
        skip: how many come before them.
        exclude: never drawn.
        seed: of the order.
    """
    live = np.setdiff1d(store.live(min_windows), list(exclude))
    return np.random.default_rng(seed).permutation(live)[skip : skip + n].tolist()


def subject_of(run: Run) -> Subject:
    """The run's feature, observed and steered, without what is only shown."""
    observation = run.need(observe)
    intervention = intervene(run.setting, run.feature, observation, illustrate=False)
    return Subject(run.setting, run.feature, observation, intervention)


def own_explanation(run: Run, subject: Subject) -> Explanation:
    """The pair that a run chooses: written from `explain`, chosen on `select`."""
    inputs = run.need(hypothesise_input).hypotheses
    outputs = run.explainer.output_hypotheses(subject.intervention, run.params.max_hypotheses).hypotheses
    best_input = choose_input([input_score_of(subject, each, "select") for each in inputs], run.protocol)
    scores = [score for each in outputs if (score := output_score_of(subject, each, "select"))]
    return Explanation(input=chosen(inputs, best_input), output=chosen(outputs, choose_output(scores)))


def try_explanations(params: Params) -> FeatureTrials:
    """A feature under its own explanation, those of its near features, a stranger's, and a random direction's."""
    start = time.monotonic()
    run = Run(params)
    subject = subject_of(run)
    own = own_explanation(run, subject)
    trials: list[Trial] = [trial_of("own", None, own.words, judge(subject, own.input, own.output, "confirm"))]
    lenders = {f"nearest_{rank}": nearest(subject, rank) for rank in RANKS} | {"shuffled": stranger(subject)}
    for origin, lender in lenders.items():
        if lender is not None:
            theirs = explanation_of(run.setting, lender)
            judged = judge(subject, theirs.input, theirs.output, "confirm")
            trials.append(trial_of(origin, lender, theirs.words, judged))
    if not subject.intervention.null:
        direction, judged = random_trial(subject, own.input)
        trials.append(trial_of("random_reference", None, direction.words, judged))
    return FeatureTrials(
        feature=run.feature,
        feature_kind=subject.observation.feature_kind,
        null_intervention=subject.intervention.null,
        firing_windows=subject.observation.firing_windows,
        seconds=time.monotonic() - start,
        own=own,
        trials=trials,
    )
