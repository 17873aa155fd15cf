"""An explanation judged: its input and its output hypothesis scored on one split, the causal checks, and the gates."""

import logging
from dataclasses import dataclass

from mikit.experiments.checks import check, functional_score
from mikit.experiments.input_score import score_input
from mikit.experiments.output_score import Unscorable, score_output
from mikit.experiments.setting import Setting
from mikit.experiments.texts import design_experiment, peak_tokens
from mikit.gates import NO_TEXT, judge_gates
from mikit.trace import (
    Chain,
    Gates,
    InputHypothesis,
    InputScore,
    Intervention,
    Observation,
    OutputHypothesis,
    OutputScore,
    Split,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Subject:
    """A feature with what was measured of it before any explanation of it is judged."""

    setting: Setting
    feature: int
    observation: Observation
    """Of step 1."""
    intervention: Intervention
    """Of step 5."""


@dataclass(frozen=True)
class Judged:
    """What the gates say of an explanation, and why."""

    input_score: InputScore | None
    """None without an input hypothesis."""
    output_score: OutputScore | None
    """None without an output hypothesis, and where the intervention is null."""
    chain: Chain
    gates: Gates


def unjudged(subject: Subject, why: str) -> Judged:
    """No verdict, and why: what a gate would say of the feature without any explanation stands."""
    protocol = subject.setting.protocol
    gates = judge_gates(subject.observation, None, None, None, subject.intervention, protocol)
    reasons = {end: why if getattr(gates, end) == "undecided" else reason for end, reason in gates.reasons.items()}
    chain = Chain(split="confirm", best_pair=None, checks=[], functional_score=None, explanation=f"No chain: {why}")
    return Judged(None, None, chain, gates.model_copy(update={"reasons": reasons}))


def judge(
    subject: Subject, input_hypothesis: InputHypothesis | None, output_hypothesis: OutputHypothesis | None, split: Split
) -> Judged:
    """Score a pair of hypotheses, whoever wrote them, on texts and prompts of one split.

    Of a feature that no text fires nothing is scored: all its gates are `none`.
    """
    if subject.observation.feature_kind in NO_TEXT:
        input_hypothesis = output_hypothesis = None
    input_score = input_score_of(subject, input_hypothesis, split) if input_hypothesis else None
    output_score = output_score_of(subject, output_hypothesis, split) if output_hypothesis else None
    chain = chain_of(subject, input_hypothesis, output_hypothesis, split)
    gates = judge_gates(
        subject.observation, input_score, output_score, chain, subject.intervention, subject.setting.protocol
    )
    return Judged(input_score, output_score, chain, gates)


def input_score_of(subject: Subject, hypothesis: InputHypothesis, split: Split) -> InputScore:
    """A hypothesis scored on texts made for it: `n_confirm` a group on `confirm`, `n_select` elsewhere."""
    protocol = subject.setting.protocol
    n = protocol.n_confirm if split == "confirm" else protocol.n_select
    experiment = design_experiment(subject.setting, hypothesis, split, n, peak_tokens(subject.observation))
    return score_input(subject.setting, subject.feature, subject.observation, hypothesis, experiment)


def output_score_of(subject: Subject, hypothesis: OutputHypothesis, split: Split) -> OutputScore | None:
    """A hypothesis scored on the tokens that the feature moves; None where there is nothing to score it on."""
    if subject.intervention.null:
        return None
    given = subject.setting, subject.feature, subject.observation, subject.intervention
    try:
        return score_output(*given, hypothesis, split)
    except Unscorable as why:
        log.warning("%s", why)
        return None


def chain_of(
    subject: Subject,
    input_hypothesis: InputHypothesis | None,
    output_hypothesis: OutputHypothesis | None,
    split: Split,
) -> Chain:
    """The five checks of a pair; none where there is nothing to check."""
    if subject.intervention.null or output_hypothesis is None:
        why = subject.intervention.null_reason or "there is no output hypothesis to check"
        return Chain(split=split, best_pair=None, checks=[], functional_score=None, explanation=f"No chain: {why}.")
    found = check(subject.setting, subject.feature, subject.observation, subject.intervention, output_hypothesis, split)
    checks = found.checks
    if input_hypothesis is None:
        return Chain(
            split=split,
            best_pair=None,
            checks=checks,
            functional_score=functional_score(checks),
            explanation=f"What makes the feature fire is not known; where it fires, {_lower(output_hypothesis.text)}",
            judgements=found.judgements,
            failed_judgements=found.failed_judgements,
        )
    return Chain(
        split=split,
        best_pair=(input_hypothesis.id, output_hypothesis.id),
        checks=checks,
        functional_score=functional_score(checks),
        plausibility=subject.setting.explainer.plausibility(input_hypothesis.text, output_hypothesis.text),
        explanation=f"The feature {_lower(input_hypothesis.text).rstrip('.')}; there it {_lower(output_hypothesis.text)}",
        judgements=found.judgements,
        failed_judgements=found.failed_judgements,
    )


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
