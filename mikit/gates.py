"""The verdict at each end: what was scored against thresholds that were fixed before any hypothesis was written."""

from mikit.experiments.statistics import one_sided_lower
from mikit.settings import Protocol
from mikit.trace import (
    Chain,
    CheckVerdict,
    Estimate,
    FeatureKind,
    Gates,
    GateVerdict,
    InputScore,
    Intervention,
    Observation,
    OutputScore,
    Proportion,
)

CONFIRMED_SHARE = 0.65
"""What coverage and rejection exceed with 90 % confidence where an explanation is confirmed."""
CONFIRMED_OUTPUT = 0.3
"""The same of the output score."""
CONFIRMED_RECALL = 0.5
TOO_MANY_UNDECIDED = 2
"""Checks without a verdict that leave the chain without one."""
ROUNDING = 1e-9
"""A mean of shares may miss the gate that it equals by this much."""
MISSED: dict[CheckVerdict, str] = {"fail": "failed", "undecided": "undecided"}

MOST_FAILED = 0.1
"""Share of judgements that may fail before a gate is left undecided."""

Judgement = tuple[GateVerdict, str]
"""A verdict, and one sentence that gives the numbers."""

NO_TEXT: dict[FeatureKind, str] = {
    "dead": "The feature fires on no content token of the corpus: there is nothing to explain.",
    "special_only": "The feature fires on special tokens alone, which are never evidence: there is no text to explain.",
}


def judge_gates(
    observation: Observation,
    input_score: InputScore | None,
    output_score: OutputScore | None,
    chain: Chain | None,
    intervention: Intervention | None,
    protocol: Protocol,
) -> Gates:
    """The verdict on the scores of one pair of hypotheses.

    Args:
        observation: of the feature; its kind may leave the input end undecided, or all ends without a verdict.
        input_score: None where no input hypothesis was written.
        output_score: None where no output hypothesis was written.
        chain: the checks; None or without checks where none was made.
        intervention: a null one leaves output and chain without a verdict: an input-only feature is a finding.
        protocol: gives the thresholds.
    """
    if why := NO_TEXT.get(observation.feature_kind):
        at_input = at_output = at_chain = ("none", why)
    else:
        at_input = judge_input(observation, input_score, protocol)
        at_output = judge_output(intervention, output_score, protocol)
        at_chain = judge_chain(intervention, chain, protocol)
    return Gates(
        input=at_input[0],
        output=at_output[0],
        chain=at_chain[0],
        reasons={"input": at_input[1], "output": at_output[1], "chain": at_chain[1]},
    )


def judge_input(observation: Observation, score: InputScore | None, protocol: Protocol) -> Judgement:
    """Pass if coverage and rejection reach their gates; undecided for a feature that is too rare or too dense to test."""
    if observation.feature_kind == "rare":
        return "undecided", f"Only {observation.firing_windows} windows fire, and {protocol.rare_windows} are needed."
    if observation.feature_kind == "dense":
        share = observation.firing_windows / max(observation.n_windows, 1)
        return "undecided", (
            f"{share:.0%} of the windows fire, and above {protocol.dense_share:.0%} a text that should stay silent "
            "tells little."
        )
    if score is None:
        return "undecided", "There is no input hypothesis to score."
    if failed := too_many_failed(score.failed_judgements, score.judgements):
        return "undecided", failed
    if score.note and score.coverage.value is None:
        return "undecided", f"No text was written: {score.note}."
    if not score.cases:
        return "undecided", "No text could be found or written for the hypothesis."
    if score.coverage.value is None:
        return "fail", "No text could be found or written that the hypothesis predicts to fire."
    if score.rejection.value is None:
        return "fail", "No near miss could be found or written: the hypothesis predicts that everything like it fires."
    return judge_shares(score.coverage, score.rejection, protocol)


def too_many_failed(failed: int, judgements: int) -> str | None:
    """One sentence if more judgements failed than a verdict bears; None otherwise."""
    if failed <= MOST_FAILED * judgements:
        return None
    return f"{failed} of {judgements} judgements failed, and at most {MOST_FAILED:.0%} may."


def judge_shares(coverage: Proportion, rejection: Proportion, protocol: Protocol) -> Judgement:
    """The two metrics of the input gate beside their thresholds; both have a value."""
    return _compared(
        [
            ("coverage", coverage, "texts", protocol.gate_coverage),
            ("rejection", rejection, "near misses", protocol.gate_rejection),
        ]
    )


def judge_output(intervention: Intervention | None, score: OutputScore | None, protocol: Protocol) -> Judgement:
    """Pass if the output score reaches its gate; none for an intervention that does nothing."""
    if intervention is not None and intervention.null:
        return "none", _null(intervention)
    if score is None:
        return "undecided", "There is no output hypothesis that could be scored."
    if failed := too_many_failed(score.failed_judgements, score.judgements):
        return "undecided", failed
    return _compared([("output score", score.score, "prompts", protocol.gate_output)])


def judge_chain(intervention: Intervention | None, chain: Chain | None, protocol: Protocol) -> Judgement:
    """Pass if enough checks pass and necessity is among them; undecided where two or more checks are."""
    if intervention is not None and intervention.null:
        return "none", _null(intervention)
    if chain is None or not chain.checks:
        return "undecided", "No causal check was made."
    if failed := too_many_failed(chain.failed_judgements, chain.judgements):
        return "undecided", failed
    names = {
        verdict: [check.name.replace("_", " ") for check in chain.checks if check.verdict == verdict]
        for verdict in ("pass", "fail", "undecided")
    }
    n_passed, undecided = len(names["pass"]), names["undecided"]
    score = f"{n_passed} of {len(chain.checks)} checks pass"
    if len(undecided) >= TOO_MANY_UNDECIDED:
        return "undecided", f"{score}, and {len(undecided)} are undecided: {', '.join(undecided)}."
    missed = [f"{word}: {', '.join(names[verdict])}" for verdict, word in MISSED.items() if names[verdict]]
    score += f" ({'; '.join(missed)})" if missed else ""
    if n_passed < protocol.gate_functional:
        return "fail", f"{score}, which is below {protocol.gate_functional}."
    if "necessity" not in names["pass"]:
        return "fail", f"{score}, but necessity is not among them."
    return "pass", f"{score}, which reaches {protocol.gate_functional} with necessity among them."


def _null(intervention: Intervention) -> str:
    why = f": {intervention.null_reason.rstrip('.')}" if intervention.null_reason else ""
    return f"Adding the feature does nothing to speak of to the next token{why}."


def _compared(metrics: list[tuple[str, Proportion | Estimate, str, float]]) -> Judgement:
    """Each metric beside its gate: those that are below it, or all of them if none is."""
    rows = [
        (
            name,
            f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}] of {found.n} {units}",
            gate,
            found.value + ROUNDING < gate,
        )
        for name, found, units, gate in metrics
        if found.value is not None
    ]
    below = [f"{name} {value} is below {gate:.2f}" for name, value, gate, is_below in rows if is_below]
    if below:
        return "fail", _sentence(below)
    return "pass", _sentence([f"{name} {value} reaches {gate:.2f}" for name, value, gate, _ in rows])


def _sentence(parts: list[str]) -> str:
    joined = " and ".join(parts)
    return f"{joined[:1].upper()}{joined[1:]}."


def is_confirmed(
    gates: Gates, input_score: InputScore | None, output_score: OutputScore | None, batches: int = 1
) -> bool:
    """Whether all gates pass, by margins that chance hardly explains, for an explanation of most firing text.

    The scores are those on `confirm`, which nothing was chosen on. Whoever draws `confirm` anew has a further chance:
    at the b-th draw the bounds are those of 1 - 0.1 / b^2. The sum of 1 / b^2 stays below 1.65: however often it is
    drawn, all draws together are wrong hardly more often than the first.
    """
    if not gates.all_pass or input_score is None or output_score is None:
        return False
    level = 1 - 0.1 / max(batches, 1) ** 2
    return (
        one_sided_lower(input_score.coverage, level) >= CONFIRMED_SHARE
        and one_sided_lower(input_score.rejection, level) >= CONFIRMED_SHARE
        and one_sided_lower(output_score.score, level) >= CONFIRMED_OUTPUT
        and (input_score.recall.value or 0.0) >= CONFIRMED_RECALL
    )
