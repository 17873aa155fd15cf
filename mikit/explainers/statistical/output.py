"""Output hypotheses of the statistical explainer: closed lists of the tokens most moved, and forms that most of them share."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from mikit.explainers.rules import FORM_TESTS, normal, token_test
from mikit.explainers.sentences import describe_clause, describe_output, listed
from mikit.trace import Clause, Direction, Intervention, LensToken, OutputHypotheses, OutputHypothesis

MAX_LIST = 50
MIN_LIST = 20
"""As many as are scored: a shorter list gives hits away."""
SCORED = 20
"""Tokens at the head of the list that a form is judged on, as the output score does."""
NOISE = 0.5
"""A token is noise below this share of what the 20th token of a random direction reaches."""
STRONGER = 1.25
"""Suppression comes first where it is this many times as strong as promotion."""
FORM_SHARE, FORM_FALSE_SHARE = 0.7, 0.3
"""A form covers this share of the head at least, and at most that share of what controls promote."""


def strength(moved: Sequence[LensToken]) -> float:
    """Mean size of the effect on the tokens most moved, nats."""
    return float(np.mean([abs(token.value) for token in moved[:SCORED]])) if moved else 0.0


def noise_floor(intervention: Intervention) -> float:
    """The effect, in nats, below which a token counts as moved by chance; 0 where no random direction was steered."""
    lasts = [
        c.promoted[:SCORED][-1].value for c in intervention.controls if c.kind == "random_direction" and c.promoted
    ]
    return NOISE * float(np.median(lasts)) if lasts else 0.0


def _list(moved: Sequence[LensToken], direction: Direction, floor: float) -> OutputHypothesis | None:
    sign = 1 if direction == "promotes" else -1
    clear = [token for i, token in enumerate(moved) if sign * token.value > (floor if i >= MIN_LIST else 0)]
    tokens = list(dict.fromkeys(token.token for token in clear))[:MAX_LIST]
    if not tokens:
        return None
    text = describe_output(direction, listed(tokens))
    return OutputHypothesis(id="O", text=text, direction=direction, kind="list", tokens=tokens)


def _form_clauses(tokens: Sequence[str]) -> Iterator[Clause]:
    """Forms and affixes that could describe most of these tokens."""
    yield from (Clause(form=form) for form in FORM_TESTS)
    words = {normal(token) for token in tokens}
    for field, cut in (("suffix", lambda word, n: word[-n:]), ("prefix", lambda word, n: word[:n])):
        common = Counter(cut(word, n) for word in sorted(words) for n in (2, 3, 4) if len(word) > n)
        yield from (Clause(**{field: affix}) for affix, seen in common.most_common(3) if seen > 2)


def _share(clause: Clause, tokens: Sequence[str]) -> float:
    test = token_test(clause)
    return float(np.mean([test(token) for token in tokens])) if tokens else 0.0


def _form(moved: Sequence[LensToken], direction: Direction, controls: Sequence[str]) -> OutputHypothesis | None:
    """The form that best tells the head of the list from what the controls promote, if one does."""
    head = [token.token for token in moved[:SCORED]]
    shares = [(_share(clause, head), _share(clause, controls), clause) for clause in _form_clauses(head)]
    good = [entry for entry in shares if entry[0] >= FORM_SHARE and entry[1] <= FORM_FALSE_SHARE]
    if not good:
        return None
    rule = max(good, key=lambda entry: entry[0] - entry[1])[2]
    text = describe_output(direction, f"{describe_clause(rule)}, such as {listed(head, 5)}")
    return OutputHypothesis(id="O", text=text, direction=direction, kind="form", rule=rule)


def output_hypotheses(intervention: Intervention, n: int) -> OutputHypotheses:
    """Up to `n` hypotheses from the effects on `explain`: the stronger side's list first, then forms, then the other side's list."""
    if intervention.null:
        note = f"the intervention moves nothing to speak of: {intervention.null_reason or 'null intervention'}"
        return OutputHypotheses(author="statistical", hypotheses=[], note=note)
    floor = noise_floor(intervention)
    up, down = strength(intervention.promoted), strength(intervention.suppressed)
    controls = [token.token for control in intervention.controls for token in control.promoted]
    promotes = _list(intervention.promoted, "promotes", floor)
    form = _form(intervention.promoted, "promotes", controls) if controls else None
    suppresses = _list(intervention.suppressed, "suppresses", floor) if down > STRONGER * up else None
    found = [hypothesis for hypothesis in (suppresses, promotes, form) if hypothesis is not None][:n]
    named = [hypothesis.model_copy(update={"id": f"O{i}"}) for i, hypothesis in enumerate(found, 1)]
    return OutputHypotheses(author="statistical", hypotheses=named, note=None if named else "no eligible token moved")


def claimed(hypothesis: OutputHypothesis, tokens: Sequence[str]) -> list[bool | None]:
    """Whether each token is in the list, or has the form; None for a hypothesis that only a reader can judge."""
    if hypothesis.kind == "list":
        members = frozenset(hypothesis.tokens)
        return [token in members for token in tokens]
    if hypothesis.kind == "form" and hypothesis.rule is not None:
        test = token_test(hypothesis.rule)
        return [test(token) for token in tokens]
    return [None] * len(tokens)
