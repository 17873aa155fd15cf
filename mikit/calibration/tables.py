"""From trials to tables: pass rates with intervals, what other gates would have said, and the confusion with the truth."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mikit.calibration.records import FeatureTrials, PlantedTrials, Trial
from mikit.experiments.statistics import wilson
from mikit.gates import ROUNDING
from mikit.settings import Protocol
from mikit.trace import CHECKS, Proportion

ENDS = ("input", "output", "chain")
GOOD_RULE = 0.9
"""Precision and recall from which a rule counts as found."""


@dataclass(frozen=True)
class Rate:
    """How often explanations of one origin pass something."""

    origin: str
    what: str
    """A gate, a check, `all gates`, or a variant."""
    share: Proportion


def pass_rates(found: Sequence[FeatureTrials], origins: Sequence[str]) -> list[Rate]:
    """For each origin, the share that passes each gate, each check, and all gates; an undecided one has not passed.

    Features on which the intervention does nothing have no output and no chain, and count at the input alone.
    """
    rates = []
    for origin in origins:
        trials = [trial for each in found for trial in each.of(origin)]
        for end in ENDS:
            given = [verdict for trial in trials if (verdict := getattr(trial.gates, end)) != "none"]
            rates.append(Rate(origin, end, wilson(given.count("pass"), len(given))))
        rates.append(Rate(origin, "all gates", _share(trials, lambda trial: trial.gates.all_pass)))
        for name in CHECKS:
            verdicts = [check.verdict for trial in trials for check in trial.checks if check.name == name]
            rates.append(Rate(origin, name, wilson(verdicts.count("pass"), len(verdicts))))
    return rates


def _share(trials: Sequence[Trial], passes: Callable[[Trial], bool]) -> Proportion:
    return wilson(sum(map(passes, trials)), len(trials))


def _functional(least: int, necessity: bool) -> Callable[[Trial], bool]:
    def passes(trial: Trial) -> bool:
        passed = {check.name for check in trial.checks if check.verdict == "pass"}
        return len(passed) >= least and (not necessity or "necessity" in passed)

    return passes


def _necessity(percent: float) -> Callable[[Trial], bool]:
    """The functional gate with necessity passed by its mean alone, or by the whole of its 95 % interval."""

    def passes(trial: Trial) -> bool:
        necessity = next((check for check in trial.checks if check.name == "necessity"), None)
        if necessity is None or necessity.effect is None or necessity.interval is None:
            return False
        bound = necessity.interval[0] if percent > 50 else necessity.effect
        others = sum(check.verdict == "pass" for check in trial.checks if check.name != "necessity")
        return bound > 0 and others >= Protocol().gate_functional - 1

    return passes


def _input(coverage: str, least: float) -> Callable[[Trial], bool]:
    def passes(trial: Trial) -> bool:
        score = trial.input_score
        if score is None or trial.gates.input in ("undecided", "none"):
            return False
        return (getattr(score, coverage).value or 0) + ROUNDING >= least <= (score.rejection.value or 0) + ROUNDING

    return passes


def _output(least: float) -> Callable[[Trial], bool]:
    return lambda trial: trial.output_score is not None and trial.output_score.score.value + ROUNDING >= least


VARIANTS: Mapping[str, Callable[[Trial], bool]] = {
    "input: coverage at the tokens that the rule names, 0.8 (the gate)": _input("coverage", 0.8),
    "input: coverage anywhere in the text, 0.8": _input("coverage_of_texts", 0.8),
    "input: coverage at the tokens that the rule names, 0.7": _input("coverage", 0.7),
    "input: coverage at the tokens that the rule names, 0.9": _input("coverage", 0.9),
    "output: 0.5 (the gate)": _output(0.5),
    "output: 0.4": _output(0.4),
    "output: 0.3": _output(0.3),
    "chain: 4 of 5 with necessity (the gate)": _functional(4, True),
    "chain: 3 of 5 with necessity": _functional(3, True),
    "chain: 4 of 5, any": _functional(4, False),
    "chain: 5 of 5": _functional(5, True),
    "chain: necessity by its mean": _necessity(50),
    "chain: necessity by its 95 % interval": _necessity(97.5),
}
"""Gates that could have been: each says whether a trial would have passed."""


def variant_rates(found: Sequence[FeatureTrials], origins: Sequence[str]) -> list[Rate]:
    """For each variant of a gate the share of each origin that it would have let pass."""
    return [
        Rate(origin, name, _share([trial for each in found for trial in each.of(origin)], passes))
        for name, passes in VARIANTS.items()
        for origin in origins
    ]


@dataclass(frozen=True)
class PlantedSummary:
    """What the verdicts on planted features are worth."""

    confusion: dict[tuple[str, str, str], int]
    """By end, the verdict that the truth demands, and the one found."""
    gates: Proportion
    """Verdicts that are right, over features and ends."""
    sensitivity: dict[str, Proportion]
    """By end: found to pass, of those that ought to."""
    kinds: Proportion
    rules: Proportion
    """Rules with precision and recall of `GOOD_RULE`, of live features that text explains."""
    wrong: dict[str, Proportion]
    """By what is wrong: explanations that pass all gates."""
    specificity: Proportion
    """Wrong explanations that do not pass all gates."""


def planted_summary(found: Sequence[PlantedTrials], wrong: Sequence[PlantedTrials]) -> PlantedSummary:
    """The verdicts beside the truth.

    Args:
        found: each feature's own explanation.
        wrong: explanations that ought not to pass.
    """
    confusion: Counter[tuple[str, str, str]] = Counter()
    for each in found:
        for trial in each.of("own"):
            confusion.update((end, each.true_gates[end], getattr(trial.gates, end)) for end in ENDS)
    right = sum(n for (_, wanted, got), n in confusion.items() if wanted == got)
    explainable = [each for each in found if each.explainable]
    trials = [trial for each in wrong for trial in each.trials]
    origins = dict.fromkeys(trial.origin for trial in trials)
    passed = sum(trial.gates.all_pass for trial in trials)
    return PlantedSummary(
        confusion=dict(confusion),
        gates=wilson(right, confusion.total()),
        sensitivity={
            end: wilson(
                confusion[end, "pass", "pass"], sum(n for (e, w, _), n in confusion.items() if (e, w) == (end, "pass"))
            )
            for end in ENDS
        },
        kinds=wilson(sum(each.feature_kind == each.true_kind for each in found), len(found)),
        rules=wilson(sum(map(is_good_rule, explainable)), len(explainable)),
        wrong={
            origin: _share([t for t in trials if t.origin == origin], lambda trial: trial.gates.all_pass)
            for origin in origins
        },
        specificity=wilson(len(trials) - passed, len(trials)),
    )


def is_good_rule(trials: PlantedTrials) -> bool:
    """Whether the chosen rule has the precision and the recall of `GOOD_RULE`."""
    return min(trials.rule_precision or 0.0, trials.rule_recall or 0.0) >= GOOD_RULE


def shown(share: Proportion) -> str:
    """A share with its interval, such as `0.65 [0.52, 0.76]`."""
    return "-" if share.value is None else f"{share.value:.2f} [{share.low:.2f}, {share.high:.2f}]"


def markdown(rates: Sequence[Rate], origins: Sequence[str]) -> str:
    """A table with a row for each thing passed and a column for each origin."""
    rows = dict.fromkeys(rate.what for rate in rates)
    by_place = {(rate.what, rate.origin): rate.share for rate in rates}
    lines = [
        f"| passes | {' | '.join(name.replace('_', ' ') for name in origins)} |",
        "|---" * (len(origins) + 1) + "|",
    ]
    for what in rows:
        cells = [shown(by_place[what, origin]) if (what, origin) in by_place else "-" for origin in origins]
        lines.append(f"| {what.replace('_', ' ')} | {' | '.join(cells)} |")
    n = [f"{name.replace('_', ' ')} {max(rate.share.n for rate in rates if rate.origin == name)}" for name in origins]
    return "\n".join([*lines, "", f"n at most: {', '.join(n)}; 95 % intervals (Wilson)."])


def confusion_markdown(summary: PlantedSummary) -> str:
    """The confusion matrix: a row for each end and verdict of the truth, a column for each verdict found."""
    verdicts = ("pass", "fail", "undecided", "none")
    lines = [f"| end | truth | {' | '.join(f'found {verdict}' for verdict in verdicts)} |", "|---" * 6 + "|"]
    for end in ENDS:
        for wanted in verdicts:
            counts = [summary.confusion.get((end, wanted, got), 0) for got in verdicts]
            if any(counts):
                lines.append(f"| {end} | {wanted} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)
