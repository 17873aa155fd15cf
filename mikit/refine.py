"""What to redo when a gate fails: pure functions on scores and verdicts, all of them on `select`.

What a refiner may change are hypotheses and which of them make the pair. Thresholds, doses, controls, numbers of texts and
the judges' prompts are out of its reach: it has no name for them.
"""

from collections.abc import Sequence
from typing import Literal

from mikit.explainers.base import Tried
from mikit.trace import FeatureKind, Gates, InputScore, OutputScore, Round, RoundMetrics

Component = Literal["input", "output", "chain"]
ORDER: tuple[Component, ...] = ("input", "output", "chain")
WITHOUT_GAIN = 2
"""Rounds in a row without gain after which it stops."""
EXAMPLES = 8
"""Texts or tokens of each sort that went against a hypothesis."""

StepNumber = int
REWRITTEN: dict[Component, StepNumber] = {"input": 2, "output": 6, "chain": 6}
"""The step that is done anew for a component; what depends on it follows."""


def failing(gates: Gates, kind: FeatureKind) -> Component | None:
    """The first component that fails, in the order input, output, chain; None if there is none that work would mend.

    An end that is undecided is worked on if the feature is one that could be decided: its hypothesis is missing, or its
    judges failed. Checks that are undecided lack firing positions, which no hypothesis can add.
    """
    for component in ORDER:
        verdict = getattr(gates, component)
        mendable = verdict == "undecided" and kind == "normal" and component != "chain"
        if verdict == "fail" or mendable:
            return component
    return None


Rank = tuple[int, int, float, float]


def rank(gates: Gates, metrics: RoundMetrics) -> Rank:
    """What rounds are compared by: gates passed, checks passed, output score, and the mean of the two input metrics."""
    inputs = [metrics.activation_coverage or 0.0, metrics.boundary_rejection or 0.0]
    passed = sum(getattr(gates, component) == "pass" for component in ORDER)
    score = metrics.output_score if metrics.output_score is not None else -1.0
    return passed, metrics.functional_score or 0, score, sum(inputs) / 2


def why_stop(component: Component | None, rounds: Sequence[Round], max_rounds: int, over_budget: bool) -> str | None:
    """Why no further round follows; None if one does.

    Args:
        component: what fails in the best state so far.
        rounds: those of this refinement.
        max_rounds: how many it may have.
        over_budget: whether the budget kept the last one from asking all that it wanted to.
    """
    if component is None:
        return "nothing is left that a hypothesis could mend"
    if over_budget:
        return "the budget is spent"
    if len(rounds) >= max_rounds:
        return f"{max_rounds} rounds were allowed"
    if len(rounds) >= WITHOUT_GAIN and not any(each.better for each in rounds[-WITHOUT_GAIN:]):
        return f"{WITHOUT_GAIN} rounds in a row brought no gain"
    return None


def tried_input(text: str, score: InputScore) -> Tried:
    """An input hypothesis with its numbers and the texts that went against it."""
    silent = [case.text for case in score.cases if case.role == "positive" and not case.fires]
    firing = [case.text for case in score.cases if case.role == "near_miss" and case.stratum != "random" and case.fires]
    return Tried(
        text=text,
        result=(
            f"coverage {_number(score.coverage.value)}, rejection {_number(score.rejection.value)}, "
            f"recall {_number(score.recall.value)}, precision {_number(score.precision.value)}"
        ),
        against=(
            *(f"said to fire, and silent: {each}" for each in silent[:EXAMPLES]),
            *(f"said to be silent, and fires: {each}" for each in firing[:EXAMPLES]),
        ),
    )


def tried_output(text: str, score: OutputScore, chain: str | None = None) -> Tried:
    """An output hypothesis with its score, the tokens that went against it, and what the checks said, if they failed."""
    missed = [token.token for token in score.targets if token.token not in score.hits]
    return Tried(
        text=text,
        result=f"output score {score.score.value:.2f}" + (f"; {chain}" if chain else ""),
        against=(
            *(f"moved, and not claimed: {each}" for each in missed[:EXAMPLES]),
            *(f"claimed, and not moved: {each}" for each in score.false_alarms[:EXAMPLES]),
        ),
    )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"
