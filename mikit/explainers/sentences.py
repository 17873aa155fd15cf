"""Rules and lists of tokens as English sentences, and sentences of that kind as rules.

Without a language model a sentence can be checked only where it says which tokens it means: in quotes, or by a form
that is known here. `read_rule` and `read_output` read what `describe` and `describe_output` write, and what a person
would write in its place: `fires on "apple" or "pear" after "the"`, `promotes "red", "blue"`.
"""

import json
import re
from collections.abc import Sequence

from mikit.errors import BadInput
from mikit.trace import Clause, Direction, Form, OutputHypothesis, Rule

SHOWN_TOKENS = 8
"""Tokens that a description names before it counts the rest."""

FORM_NAMES: dict[Form, str] = {
    "digits": "digits",
    "capitalized": "a capitalized token",
    "uppercase": "a token in capitals",
    "punctuation": "punctuation",
    "word_start": "a token that begins with a space",
    "word_part": "a piece of a word without a space before it",
}


def quoted(text: str) -> str:
    """A token as people see it: in quotes, line breaks and the like escaped."""
    return json.dumps(text, ensure_ascii=False)


def listed(tokens: Sequence[str], shown: int = SHOWN_TOKENS) -> str:
    """Tokens as a phrase: the first few by name, then how many more."""
    if not tokens:
        return "no token"
    names = [quoted(token) for token in tokens[:shown]]
    if len(tokens) > shown:
        return f"{', '.join(names)} or {len(tokens) - shown} more"
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _token_phrase(clause: Clause) -> str:
    named = listed(clause.tokens) if clause.tokens is not None else None
    kind = FORM_NAMES[clause.form] if clause.form is not None else None
    affixes = [
        f"{verb} with {quoted(affix)}"
        for verb, affix in (("starts", clause.prefix), ("ends", clause.suffix))
        if affix is not None
    ]
    if named:
        qualities = ([f"is {kind}"] if kind else []) + affixes
        return named + (f" where it {' and '.join(qualities)}" if qualities else "")
    if affixes:
        return f"{kind or 'a token'}{' that' if kind != 'digits' else ' where it'} {' and '.join(affixes)}"
    return kind or "any token"


def describe_clause(clause: Clause) -> str:
    """One clause as a phrase, such as `" pear" directly after " the"`."""
    phrase = _token_phrase(clause)
    if clause.after is None:
        return phrase
    if clause.within == 1:
        return f"{phrase} directly after {listed(clause.after)}"
    return f"{phrase} when {listed(clause.after)} stands among the {clause.within} tokens before it"


def describe(rule: Rule) -> str:
    """The rule as one English sentence."""
    return f"Fires on {'; or on '.join(map(describe_clause, rule.any_of))}."


VERBS: dict[Direction, str] = {"promotes": "Raises", "suppresses": "Lowers"}


def describe_output(direction: Direction, what: str) -> str:
    """What a feature does to the next token as one English sentence; `what` is a phrase such as `listed` makes."""
    return f"{VERBS[direction]} the probability that the next token is {what}."


QUOTED = r'"(?:[^"\\]|\\.)*"'
FORM_WORDS: dict[Form, str] = {
    "digits": r"digits?|numbers?|numerals?",
    "uppercase": r"a token in capitals|in capitals|upper-?case|all caps",
    "capitalized": r"capitali[sz]ed",
    "punctuation": r"punctuation",
    "word_start": r"begins with a space|with a leading space",
    "word_part": r"piece of a word|part of a word",
}
AFFIX_WORDS = {"prefix": r"(?:starts?|starting|begins?|beginning)\s+with", "suffix": r"(?:ends?|ending)\s+(?:with|in)"}
BEFORE = re.compile(
    rf"\bwhen\s+(?P<when>.*?)\s+stands?\s+among\s+the\s+(?P<n>\d+)\s+tokens\s+before\s+it"
    rf"|\b(?:directly\s+)?after\s+(?P<after>{QUOTED}(?:\s*(?:,|or|and)\s*{QUOTED})*(?:\s+or\s+\d+\s+more)?)"
    r"(?:\s+within\s+(?P<within>\d+)(?:\s+tokens)?)?",
    re.IGNORECASE,
)
CLAUSES = re.compile(r"\s*;\s*or\s+on\s+|\s*;\s*", re.IGNORECASE)
COUNTED = re.compile(r"\bor\s+\d+\s+more\b")
DIRECTIONS: dict[Direction, str] = {
    "suppresses": r"\b(?:lowers?|suppress(?:es)?|decreases?|demotes?|inhibits?)\b",
    "promotes": r"\b(?:raises?|promotes?|boosts?|increases?|predicts?)\b",
}
UNREADABLE = (
    "says of no token in quotes and of no known form what it means, and without a language model nobody can judge that: "
    'valid: fires on "apple" or "pear" after "the"; starts with "un"; ends with "ing"; digits; capitalized; punctuation'
)
INCOMPLETE = 'counts tokens ("or 5 more") that it does not name: valid: all of them in quotes, or a rule as JSON'


def read_rule(sentence: str) -> Rule:
    """The rule that a sentence states: what `describe` wrote, or the like.

    Raises:
        BadInput: it names no token and no form, or leaves tokens out.
    """
    masked, texts = _masked(sentence)
    parts = [part for part in CLAUSES.split(masked) if part.strip(" .")]
    return Rule(any_of=[_read_clause(part, texts, sentence) for part in parts or [""]])


def read_output(sentence: str, identity: str = "O1") -> OutputHypothesis:
    """The output hypothesis that a sentence states: tokens in quotes, or a form, that are promoted or suppressed.

    Raises:
        BadInput: it says neither raises nor lowers, or not of which tokens.
    """
    masked, texts = _masked(sentence)
    direction = next((name for name, words in DIRECTIONS.items() if re.search(words, masked, re.IGNORECASE)), None)
    if direction is None:
        raise BadInput(f'output {_short(sentence)} says neither: valid: promotes "red", "blue"; or suppresses …')
    example = re.split(r",\s*such as\b", masked)[0]
    clause = _read_clause(example, texts, sentence)
    if clause.after:
        raise BadInput(f"output {_short(sentence)} asks for tokens before the next one: valid: tokens, or a form")
    if clause.tokens is not None and clause.model_dump(exclude_defaults=True).keys() == {"tokens"}:
        return OutputHypothesis(id=identity, text=sentence, direction=direction, kind="list", tokens=clause.tokens)
    return OutputHypothesis(id=identity, text=sentence, direction=direction, kind="form", rule=clause)


def _short(sentence: str) -> str:
    return json.dumps(sentence if len(sentence) <= 60 else sentence[:57] + "...", ensure_ascii=False)


def _masked(sentence: str) -> tuple[str, list[str]]:
    """The sentence with each quoted text replaced by its number in quotes, so that no word of it is read as grammar."""
    texts: list[str] = []

    def number(found: re.Match[str]) -> str:
        try:
            texts.append(json.loads(found[0]))
        except ValueError:
            raise BadInput(
                f'{_short(sentence)}: {found[0]} is not a text in quotes: valid: \\" and \\n inside'
            ) from None
        return f'"{len(texts) - 1}"'

    return re.sub(QUOTED, number, sentence), texts


def _read_clause(part: str, texts: Sequence[str], sentence: str) -> Clause:
    values: dict[str, object] = {}
    if COUNTED.search(part):
        raise BadInput(f"{_short(sentence)} {INCOMPLETE}")
    if found := BEFORE.search(part):
        values["after"] = _texts(found["when"] or found["after"], texts)
        values["within"] = int(found["n"] or found["within"] or 1)
        part = part[: found.start()] + part[found.end() :]
    for name, words in AFFIX_WORDS.items():
        if affix := re.search(rf'{words}\s+"(\d+)"', part, re.IGNORECASE):
            values[name] = texts[int(affix[1])]
            part = part[: affix.start()] + part[affix.end() :]
    for form, words in FORM_WORDS.items():
        if (shape := re.search(rf"\b(?:{words})\b", part, re.IGNORECASE)) and "form" not in values:
            values["form"] = form
            part = part[: shape.start()] + part[shape.end() :]
    if tokens := _texts(part, texts):
        values["tokens"] = tokens
    if not values:
        raise BadInput(f"{_short(sentence)} {UNREADABLE}")
    return Clause.model_validate(values)


def _texts(part: str, texts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(texts[int(i)] for i in re.findall(r'"(\d+)"', part)))
