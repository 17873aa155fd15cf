"""What steps 1 to 8 of a run found, in one piece."""

from dataclasses import dataclass
from typing import TypeVar

from mikit.trace import (
    Chain,
    InputEval,
    InputExperiments,
    InputHypotheses,
    InputHypothesis,
    Intervention,
    Observation,
    OutputEval,
    OutputHypotheses,
    OutputHypothesis,
)

H = TypeVar("H", InputHypothesis, OutputHypothesis)


@dataclass(frozen=True)
class Found:
    """The outputs of steps 1 to 8."""

    observation: Observation
    input_hypotheses: InputHypotheses
    experiments: InputExperiments
    input_eval: InputEval
    intervention: Intervention
    output_hypotheses: OutputHypotheses
    output_eval: OutputEval
    chain: Chain

    @property
    def input_choice(self) -> InputHypothesis | None:
        """The hypothesis that step 4 chose."""
        return chosen(self.input_hypotheses.hypotheses, self.input_eval.chosen)

    @property
    def output_choice(self) -> OutputHypothesis | None:
        """The hypothesis that step 7 chose."""
        return chosen(self.output_hypotheses.hypotheses, self.output_eval.chosen)


def chosen(hypotheses: list[H], identity: str | None) -> H | None:
    """The hypothesis of that id."""
    return next((hypothesis for hypothesis in hypotheses if hypothesis.id == identity), None)
