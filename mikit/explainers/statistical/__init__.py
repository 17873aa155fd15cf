"""The explainer without a language model: deterministic, offline, its hypotheses are rules and lists."""

from collections.abc import Sequence

from mikit.evidence.vocabulary import Vocabulary
from mikit.explainers.base import Tried
from mikit.explainers.rules import matcher
from mikit.explainers.sentences import describe
from mikit.explainers.statistical.authoring import write_cases
from mikit.explainers.statistical.output import claimed, output_hypotheses
from mikit.explainers.statistical.search import find_rules
from mikit.trace import (
    InputHypotheses,
    InputHypothesis,
    Intervention,
    Observation,
    OutputHypotheses,
    OutputHypothesis,
    TextCase,
)


class StatisticalExplainer:
    """Implements `mikit.explainers.base.Explainer` by counting."""

    name = "statistical"

    def input_hypotheses(
        self, observation: Observation, vocabulary: Vocabulary, n: int, tried: Sequence[Tried] = ()
    ) -> InputHypotheses:
        """The rules that best tell firing windows from silent ones, those that were tried left out."""
        if not any(window.peak >= observation.tau > 0 for window in observation.windows):
            note = f"no window shown reaches the firing threshold (feature is {observation.feature_kind})"
            return InputHypotheses(author=self.name, hypotheses=[], note=note)
        known = {each.text for each in tried}
        rules = find_rules(observation, vocabulary, n, known)
        hypotheses = [InputHypothesis(id=f"H{i}", text=describe(rule), rule=rule) for i, rule in enumerate(rules, 1)]
        why_none = None if hypotheses else "no rule tells the firing windows from the silent ones"
        return InputHypotheses(author=self.name, hypotheses=hypotheses, note=why_none)

    def author(
        self,
        hypothesis: InputHypothesis,
        n_positive: int,
        n_near: int,
        carriers: Sequence[Sequence[int]],
        vocabulary: Vocabulary,
        seed: int,
    ) -> list[TextCase]:
        """Carriers that the rule matches, then carriers edited to match; near misses are positives with the match broken."""
        if hypothesis.rule is None:
            return []
        return write_cases(hypothesis.rule, n_positive, n_near, carriers, vocabulary, seed)

    def predicts(self, hypothesis: InputHypothesis, windows: Sequence[Sequence[str]]) -> list[bool | None]:
        """By the rule; None without one."""
        if hypothesis.rule is None:
            return [None] * len(windows)
        match = matcher(hypothesis.rule)
        return [bool(match(tokens)) for tokens in windows]

    def output_hypotheses(self, intervention: Intervention, n: int, tried: Sequence[Tried] = ()) -> OutputHypotheses:
        """Lists of the tokens most moved, and a form that most of them share, those that were tried left out."""
        known = {each.text for each in tried}
        if not known:
            return output_hypotheses(intervention, n)
        found = output_hypotheses(intervention, n + len(known))
        new = [each for each in found.hypotheses if each.text not in known][:n]
        numbered = [each.model_copy(update={"id": f"O{i}"}) for i, each in enumerate(new, 1)]
        return found.model_copy(update={"hypotheses": numbered})

    def claims(self, hypothesis: OutputHypothesis, tokens: Sequence[str]) -> list[bool | None]:
        """Membership in the list, or the form's test."""
        return claimed(hypothesis, tokens)

    def plausibility(self, input_text: str, output_text: str) -> None:
        """None: this explainer can't read."""
