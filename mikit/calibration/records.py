"""What calibration writes to disk: one file a feature, so that a stopped calibration goes on where it was."""

from typing import Literal

from mikit.runs.judging import Judged
from mikit.trace import Check, FeatureKind, Gates, InputScore, OutputScore, Record

Origin = Literal["own", "nearest_1", "nearest_6", "shuffled", "random_reference"]
ORIGINS: tuple[Origin, ...] = ("own", "nearest_1", "nearest_6", "shuffled", "random_reference")


class Trial(Record):
    """One explanation judged on one feature."""

    origin: str
    """Whose explanation it is."""
    lender: int | None
    """The latent that it was written for, if another one."""
    words: str
    input_score: InputScore | None
    """Without the texts."""
    output_score: OutputScore | None
    checks: list[Check]
    gates: Gates

    @property
    def passed(self) -> bool:
        """Whether all three gates pass."""
        return self.gates.all_pass


class FeatureTrials(Record):
    """All explanations tried on one feature."""

    feature: int
    feature_kind: FeatureKind
    null_intervention: bool
    firing_windows: int
    seconds: float
    trials: list[Trial]


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
