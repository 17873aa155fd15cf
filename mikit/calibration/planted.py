"""Verdicts on planted features held against what was planted, and explanations that are wrong in one point each.

This is the one place outside tests that reads the truth; nothing that a run does can reach it.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mikit.calibration.borrowed import own_explanation, subject_of
from mikit.calibration.records import PlantedTrials, Trial, trial_of
from mikit.explainers.rules import matcher
from mikit.explainers.sentences import describe, describe_output, listed
from mikit.runs.judging import Subject, judge
from mikit.runs.run import Run
from mikit.settings import Params
from mikit.targets.planted.truth import Truth, truths
from mikit.trace import Clause, Direction, Explanation, InputHypothesis, OutputHypothesis, Rule

HARDEST = ("other_effect", "sibling", "cue_dropped")
"""Right in all but one point: the effect of another feature with the same trigger, the trigger of a feature close by, a cue left out."""


@dataclass(frozen=True)
class WrongJob:
    """Explanations to be tried on a feature, by origin, each with the latent that it was written for."""

    params: Params
    others: tuple[tuple[str, int | None, Explanation], ...]


def declared(seed: int | None = None) -> list[Truth]:
    """The truth of each feature that the spec declares: companions and spare dead latents are left out."""
    return [
        truth
        for truth in truths(seed=seed)
        if truth.gates is not None and not truth.name.startswith(("companion_", "dead_"))
    ]


def true_explanation(truth: Truth) -> Explanation:
    """What a perfect explainer would write."""
    rule = truth.rule
    direction: Direction = "promotes" if truth.promotes else "suppresses"
    tokens = sorted(truth.promotes or truth.suppresses)
    return Explanation(
        input=InputHypothesis(id="H1", text=describe(rule), rule=rule) if rule else None,
        output=OutputHypothesis(
            id="O1", text=describe_output(direction, listed(tokens)), direction=direction, kind="list", tokens=tokens
        )
        if tokens
        else None,
    )


def explain_planted(params: Params) -> PlantedTrials:
    """A planted feature explained as a run would, beside its truth."""
    start, run = time.monotonic(), Run(params)
    truth, subject = _truths(params.planted_seed)[params.feature], subject_of(run)
    own = own_explanation(run, subject)
    rule = own.input.rule if own.input else None
    quality = rule_quality(rule, truth, unseen_windows(run)) if rule and truth.rule else (None, None)
    trial = trial_of("own", None, own.words, judge(subject, own.input, own.output, "confirm"))
    return _beside(truth, params, subject, own, [trial], quality, time.monotonic() - start)


def try_wrong(job: WrongJob) -> PlantedTrials:
    """Wrong explanations on a planted feature."""
    start = time.monotonic()
    truth, subject = _truths(job.params.planted_seed)[job.params.feature], subject_of(Run(job.params))
    trials = [_tried(subject, origin, lender, theirs) for origin, lender, theirs in job.others]
    own, seconds = true_explanation(truth), time.monotonic() - start
    return _beside(truth, job.params, subject, own, trials, (None, None), seconds)


def _beside(
    truth: Truth,
    params: Params,
    subject: Subject,
    own: Explanation,
    trials: list[Trial],
    quality: tuple[float | None, float | None],
    seconds: float,
) -> PlantedTrials:
    """What was found of a declared feature, beside what is true of it."""
    assert truth.gates is not None
    assert truth.feature_kind is not None
    return PlantedTrials(
        feature=truth.index,
        feature_kind=subject.observation.feature_kind,
        null_intervention=subject.intervention.null,
        firing_windows=subject.observation.firing_windows,
        seconds=seconds,
        own=own,
        trials=trials,
        seed=params.planted_seed or 0,
        name=truth.name,
        true_kind=truth.feature_kind,
        true_gates=dict(truth.gates),
        explainable=truth.rule is not None,
        rule_precision=quality[0],
        rule_recall=quality[1],
    )


def _tried(subject: Subject, origin: str, lender: int | None, theirs: Explanation) -> Trial:
    return trial_of(origin, lender, theirs.words, judge(subject, theirs.input, theirs.output, "confirm"))


@lru_cache(maxsize=8)
def _truths(seed: int | None) -> tuple[Truth, ...]:
    return truths(seed=seed)


def hardest(truth: Truth, all_truths: Sequence[Truth]) -> Iterator[tuple[str, int | None, Explanation]]:
    """Explanations of a feature that are right but for one point, as far as the spec has a feature to take it from."""
    own = true_explanation(truth)
    if own.input is None or own.output is None:
        return
    for other in all_truths:
        if other.index == truth.index or other.rule is None:
            continue
        theirs = true_explanation(other)
        if other.rule == truth.rule and theirs.output:
            yield "other_effect", other.index, Explanation(input=own.input, output=theirs.output)
        if truth.near == other.name or other.near == truth.name:
            yield "sibling", other.index, Explanation(input=theirs.input, output=own.output)
    if truth.cues:
        rule = Rule(any_of=[Clause(tokens=sorted(truth.own))])
        dropped = InputHypothesis(id="H1", text=describe(rule), rule=rule)
        yield "cue_dropped", None, Explanation(input=dropped, output=own.output)


def derangements(
    explanations: Mapping[int, Explanation], n: int, seed: int
) -> dict[int, list[tuple[int, Explanation]]]:
    """For each feature the explanations of `n` others: `n` random orders of all in which none stays in its place.

    Args:
        explanations: by feature.
        n: how many orders.
        seed: of the orders.
    """
    rng = np.random.default_rng([seed, 20])
    features = np.array(sorted(explanations))
    given: dict[int, list[tuple[int, Explanation]]] = {int(feature): [] for feature in features}
    made = 0
    while made < n and len(features) > 1:
        order = rng.permutation(features)
        if (order == features).any():
            continue
        made += 1
        for feature, lender in zip(features.tolist(), order.tolist(), strict=True):
            given[feature].append((lender, explanations[lender]))
    return given


def wrong_jobs(params: Params, found: Sequence[PlantedTrials], n: int) -> dict[str, WrongJob]:
    """What is wrong for each explained feature of one model: the hardest ones, and what `n` derangements lend it.

    Args:
        params: of the runs, with the model's seed.
        found: what `explain_planted` found on that model.
        n: derangements.
    """
    known = declared(params.planted_seed)
    own = {each.feature: each.own for each in found if each.own.input and each.own.output}
    lent = derangements(own, n, params.planted_seed or 0)
    jobs = {}
    for feature, others in lent.items():
        truth = known[[each.index for each in known].index(feature)]
        wrong = [*hardest(truth, known), *(("derangement", lender, theirs) for lender, theirs in others)]
        jobs[f"wrong-{n}-{feature}"] = WrongJob(params.model_copy(update={"feature": feature}), tuple(wrong))
    return jobs


def rule_quality(rule: Rule, truth: Truth, texts: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Precision and recall of a rule over windows, against where the feature is planted."""
    match = matcher(rule)
    predicted = [bool(match(tokens)) for tokens in texts]
    true = [bool(truth.fires(tokens)) for tokens in texts]
    both = sum(p and t for p, t in zip(predicted, true, strict=True))
    return both / max(sum(predicted), 1), both / max(sum(true), 1)


def unseen_windows(run: Run) -> list[list[str]]:
    """Token texts of all windows outside `explain`."""
    table, texts = run.store.table, run.vocabulary.texts
    rows = [i for i in range(len(table)) if table.split_of(i) != "explain"]
    return [[texts[token] for token in table.text(i)] for i in rows]
