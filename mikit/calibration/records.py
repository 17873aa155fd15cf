"""What calibration keeps on disk: a file a feature, so that a stopped calibration goes on where it was."""

from mikit.runs.judging import Judged
from mikit.trace import Check, Explanation, FeatureKind, Gates, GateVerdict, InputScore, OutputScore, Record


class Trial(Record):
    """One explanation judged on one feature."""

    origin: str
    """Whose explanation it is, or what is wrong with it."""
    lender: int | None
    """The latent that it was written for, if another one."""
    words: str
    input_score: InputScore | None
    """Without the texts."""
    output_score: OutputScore | None
    checks: list[Check]
    gates: Gates


class FeatureTrials(Record):
    """All explanations tried on one feature."""

    feature: int
    feature_kind: FeatureKind
    null_intervention: bool
    firing_windows: int
    seconds: float
    own: Explanation
    """What a run chooses for it."""
    trials: list[Trial]

    def of(self, origin: str) -> list[Trial]:
        """The trials of one origin."""
        return [trial for trial in self.trials if trial.origin == origin]


class PlantedTrials(FeatureTrials):
    """The same of a feature whose truth is known."""

    seed: int
    """Of the model."""
    name: str
    true_kind: FeatureKind
    true_gates: dict[str, GateVerdict]
    explainable: bool
    """Whether text makes it fire: there is a rule to be found."""
    rule_precision: float | None
    """Share of the windows that the chosen rule matches that fire by the truth, outside `explain`; None without a rule."""
    rule_recall: float | None
    """Share of the windows that fire by the truth that it matches."""


def trial_of(origin: str, lender: int | None, words: str, judged: Judged) -> Trial:
    """What is kept of a verdict."""
    score = judged.input_score
    return Trial(
        origin=origin,
        lender=lender,
        words=words,
        input_score=score.model_copy(update={"cases": []}) if score else None,
        output_score=judged.output_score,
        checks=judged.chain.checks,
        gates=judged.gates,
    )
