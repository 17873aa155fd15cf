"""The explainer that is a language model: writer, author of test texts, and judges, each of whom sees only its own part.

The writer sees evidence and no test; the author and the judges see the hypothesis and no activation. What one of them
wrote is data to the next. A question without a usable answer is a judgement that failed: None, counted, never guessed.
"""

import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mikit.evidence.vocabulary import Vocabulary
from mikit.explainers.base import AuthorFailed, Tokenization, Tried
from mikit.explainers.llm import schemas
from mikit.explainers.llm.prompting import prompt_hashes, render
from mikit.explainers.llm.shown import effect_shown, tried_shown, windows_shown
from mikit.explainers.llm.wording import few_tokens, one_line, rule_of
from mikit.explainers.rules import matcher
from mikit.explainers.statistical.output import claimed
from mikit.llm import Client, LlmFailure, Question
from mikit.trace import (
    InputHypotheses,
    InputHypothesis,
    Intervention,
    Observation,
    OutputHypotheses,
    OutputHypothesis,
    Stratum,
    TextCase,
)

log = logging.getLogger(__name__)

ROLES = ("writer", "author", "judge", "recall", "plausibility")
MOST_TOKENS = 32
"""Content tokens of a text that is scored; a longer one is left out."""
A_PART = 15
"""Texts of each kind that an author is asked for at once."""
WINDOWS_AT_ONCE = 20
TOKENS_AT_ONCE = 60
SHUFFLES = 3
"""Orders in which tokens are judged; the majority counts."""
TRIALS = 3
"""Readings of plausibility."""
STYLE_TEXTS = 3


@dataclass(frozen=True)
class LlmExplainer:
    """Implements `mikit.explainers.base.Explainer` by asking a language model."""

    client: Client
    models: Mapping[str, str]
    """By role."""
    max_tokens: int
    temperature: float
    tokens: Tokenization
    name: str = "llm"

    @property
    def prompt_hashes(self) -> dict[str, str]:
        """Of the files that its prompts are made from."""
        return prompt_hashes()

    def _question(self, role: str, file: str, schema: dict[str, Any], numbers: dict[str, int], **data: Any) -> Question:
        prompt = render(file, numbers, data)
        return Question(
            purpose=role,
            model=self.models[role],
            system=prompt.system,
            user=prompt.user,
            schema=schema,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
        )

    # --- writer ---

    def input_hypotheses(
        self, observation: Observation, vocabulary: Vocabulary, n: int, tried: Sequence[Tried] = ()
    ) -> InputHypotheses:
        """What tells firing windows from silent ones, in the model's words; a rule beside it where it gave one."""
        firing, silent = windows_shown(observation)
        if not firing:
            note = f"no window shown reaches the firing threshold (feature is {observation.feature_kind})"
            return InputHypotheses(author=self.name, hypotheses=[], note=note)
        shown = {"firing": firing, "silent": silent, "tried": tried_shown(tried)}
        question = self._question("writer", "write_input", schemas.INPUTS, {"n": n}, **shown)
        try:
            given = self.client.ask(question)["hypotheses"]
        except LlmFailure as failure:
            return InputHypotheses(author=self.name, hypotheses=[], note=_why("writer", failure))
        known = {each.text for each in tried}
        texts = {one_line(each["text"]): each.get("rule") for each in reversed(given)}
        new = [(text, rule) for text, rule in reversed(texts.items()) if text and text not in known][:n]
        hypotheses = [
            InputHypothesis(id=f"H{i}", text=text, rule=rule_of(rule, vocabulary))
            for i, (text, rule) in enumerate(new, 1)
        ]
        return InputHypotheses(author=self.name, hypotheses=hypotheses, note=None if new else "the writer wrote none")

    def output_hypotheses(self, intervention: Intervention, n: int, tried: Sequence[Tried] = ()) -> OutputHypotheses:
        """What kind of token the feature moves, in the model's words."""
        if intervention.null or not (intervention.promoted or intervention.suppressed):
            note = intervention.null_reason or "the intervention moves no eligible token"
            return OutputHypotheses(author=self.name, hypotheses=[], note=note)
        shown = effect_shown(intervention) | {"tried": tried_shown(tried)}
        question = self._question("writer", "write_output", schemas.OUTPUTS, {"n": n}, **shown)
        try:
            given = self.client.ask(question)["hypotheses"]
        except LlmFailure as failure:
            return OutputHypotheses(author=self.name, hypotheses=[], note=_why("writer", failure))
        known = {each.text for each in tried}
        texts = {one_line(each["text"]): each["direction"] for each in reversed(given)}
        new = [(text, way) for text, way in reversed(texts.items()) if text and text not in known][:n]
        hypotheses = [
            OutputHypothesis(id=f"O{i}", text=text, direction=way, kind="text") for i, (text, way) in enumerate(new, 1)
        ]
        return OutputHypotheses(author=self.name, hypotheses=hypotheses, note=None if new else "the writer wrote none")

    # --- author ---

    def author(
        self,
        hypothesis: InputHypothesis,
        n_positive: int,
        n_near: int,
        carriers: Sequence[Sequence[int]],
        vocabulary: Vocabulary,
        seed: int,
    ) -> list[TextCase]:
        """Texts written from the hypothesis; a few random windows show the style.

        Raises:
            AuthorFailed: not one text came back that could be read.
        """
        parts = -(-max(n_positive, n_near) // A_PART)
        order = np.random.default_rng(seed).permutation(len(carriers))
        questions = []
        for part in range(parts):
            style = [self.tokens.text_of(carriers[i]) for i in order[part * STYLE_TEXTS : (part + 1) * STYLE_TEXTS]]
            numbers = {"n_fires": -(-n_positive // parts), "n_silent": -(-n_near // parts)}
            questions.append(
                self._question(
                    "author",
                    "author",
                    schemas.TEXTS,
                    numbers | {"part": part + 1, "parts": parts},
                    hypothesis=hypothesis.text,
                    style=style,
                )
            )
        answers = self.client.ask_all(questions)
        written = [answer for answer in answers if isinstance(answer, dict)]
        if not written:
            failures = [answer for answer in answers if isinstance(answer, LlmFailure)]
            raise AuthorFailed(_why("author", failures[0]))
        return [
            *self._cases([text for answer in written for text in answer["fires"]], "positive", n_positive),
            *self._cases([text for answer in written for text in answer["silent"]], "near_miss", n_near),
        ]

    def _cases(self, texts: Sequence[str], role: Literal["positive", "near_miss"], n: int) -> list[TextCase]:
        found: dict[tuple[int, ...], TextCase] = {}
        for text in texts:
            ids = self.tokens.ids_of(one_line(text))
            if 0 < len(ids) <= MOST_TOKENS:
                stratum: Stratum | None = "authored" if role == "near_miss" else None
                case = TextCase(role=role, stratum=stratum, ids=ids, text=self.tokens.text_of(ids), document=None)
                found.setdefault(tuple(ids), case)
        return list(found.values())[:n]

    # --- judges ---

    def predicts(self, hypothesis: InputHypothesis, windows: Sequence[Sequence[str]]) -> list[bool | None]:
        """By the rule if there is one; else by a judge who reads hypothesis and windows, mixed, and no activation."""
        if hypothesis.rule is not None:
            match = matcher(hypothesis.rule)
            return [bool(match(tokens)) for tokens in windows]
        order = _order(len(windows), hypothesis.text, 0)
        groups = [order[i : i + WINDOWS_AT_ONCE] for i in range(0, len(order), WINDOWS_AT_ONCE)]
        questions = [
            self._question(
                "recall",
                "judge_windows",
                schemas.FIRES,
                {},
                hypothesis=hypothesis.text,
                texts={number: "".join(windows[i]) for number, i in enumerate(group, 1)},
            )
            for group in groups
        ]
        verdicts: list[bool | None] = [None] * len(windows)
        for group, answer in zip(groups, self.client.ask_all(questions), strict=True):
            for i, verdict in zip(group, _ticked(answer, "fires", len(group)), strict=True):
                verdicts[i] = verdict
        return verdicts

    def claims(self, hypothesis: OutputHypothesis, tokens: Sequence[str]) -> list[bool | None]:
        """By list or form where it has one; else by a judge, in three orders, who reads few tokens in the hypothesis."""
        if hypothesis.kind != "text":
            return claimed(hypothesis, tokens)
        words = few_tokens(hypothesis.text)
        groups, questions = [], []
        for shuffle in range(SHUFFLES):
            order = _order(len(tokens), words, shuffle)
            for start in range(0, len(order), TOKENS_AT_ONCE):
                group = order[start : start + TOKENS_AT_ONCE]
                shown = {number: tokens[i] for number, i in enumerate(group, 1)}
                groups.append(group)
                questions.append(
                    self._question("judge", "judge_tokens", schemas.CLAIMED, {}, hypothesis=words, tokens=shown)
                )
        votes: list[list[bool]] = [[] for _ in tokens]
        for group, answer in zip(groups, self.client.ask_all(questions), strict=True):
            for i, verdict in zip(group, _ticked(answer, "claimed", len(group)), strict=True):
                if verdict is not None:
                    votes[i].append(verdict)
        return [_majority(cast) for cast in votes]

    def plausibility(self, input_text: str, output_text: str) -> float | None:
        """The mean of three readings; None where none could be made."""
        questions = [
            self._question(
                "plausibility",
                "plausibility",
                schemas.SCORE,
                {"trial": trial, "trials": TRIALS},
                input=input_text,
                output=few_tokens(output_text),
            )
            for trial in range(1, TRIALS + 1)
        ]
        answers = self.client.ask_all(questions)
        scores = [answer["score"] for answer in answers if isinstance(answer, dict) and 1 <= answer["score"] <= 5]
        return float(np.mean(scores)) if scores else None


def _why(role: str, failure: LlmFailure) -> str:
    return f"the {role}'s reply can't be used ({failure.kind})"


def _order(n: int, words: str, shuffle: int) -> list[int]:
    """An order that tells nothing of what is judged, and is the same whenever the same is judged."""
    return np.random.default_rng([shuffle, n, zlib.crc32(words.encode())]).permutation(n).tolist()


def _ticked(answer: dict[str, Any] | LlmFailure, name: str, n: int) -> list[bool | None]:
    """Which of `n` numbered things were ticked; no verdict on any of them where the answer names one that there is not."""
    if isinstance(answer, LlmFailure):
        return [None] * n
    ticked = set(answer[name])
    if not ticked <= set(range(1, n + 1)):
        log.info("a judge ticked numbers that were not on its list: none of its verdicts counts")
        return [None] * n
    return [number in ticked for number in range(1, n + 1)]


def _majority(votes: Sequence[bool]) -> bool | None:
    """What most say; None of fewer than two, or of as many for as against."""
    yes = sum(votes)
    return None if len(votes) < 2 or 2 * yes == len(votes) else 2 * yes > len(votes)
