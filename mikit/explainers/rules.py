"""Rules on token texts: where a rule matches, and which tokens can satisfy it.

Forms of a token, judged on its text without surrounding white space unless it says otherwise:
`digits` only digits; `capitalized` starts with a capital and is not `uppercase` (a single capital is capitalized);
`uppercase` two or more characters, its letters all capitals; `punctuation` neither letter nor digit;
`word_start` begins with a space; `word_part` letters alone, without a space before them.
"""

from collections.abc import Callable, Iterable, Sequence

from mikit.trace import Clause, Form, Rule


def _is_uppercase(stripped: str) -> bool:
    return len(stripped) > 1 and stripped.isupper()


FORM_TESTS: dict[Form, Callable[[str], bool]] = {
    "digits": lambda text: text.strip().isdecimal(),
    "capitalized": lambda text: text.strip()[:1].isupper() and not _is_uppercase(text.strip()),
    "uppercase": lambda text: _is_uppercase(text.strip()),
    "punctuation": lambda text: bool(text.strip()) and not any(char.isalnum() for char in text),
    "word_start": lambda text: text.startswith(" "),
    "word_part": str.isalpha,
}


def has_form(text: str, form: Form) -> bool:
    """Whether a token has a form."""
    return FORM_TESTS[form](text)


def normal(text: str) -> str:
    """A token's text without surrounding space and case: what affixes and variants are judged on."""
    return text.strip().lower()


def constrains_token(clause: Clause) -> bool:
    """Whether the clause says something of the token itself, not only of what stands before it."""
    return any(part is not None for part in (clause.tokens, clause.prefix, clause.suffix, clause.form))


def token_test(clause: Clause) -> Callable[[str], bool]:
    """Whether a token satisfies the clause's conditions on the token itself; always so where there are none."""
    tests: list[Callable[[str], bool]] = []
    if clause.tokens is not None:
        tests.append(frozenset(clause.tokens).__contains__)
    if clause.form is not None:
        tests.append(FORM_TESTS[clause.form])
    if (prefix := clause.prefix) is not None:
        tests.append(lambda text: normal(text).startswith(prefix) and len(normal(text)) > len(prefix))
    if (suffix := clause.suffix) is not None:
        tests.append(lambda text: normal(text).endswith(suffix) and len(normal(text)) > len(suffix))
    return lambda text: all(test(text) for test in tests)


def clause_matcher(clause: Clause) -> Callable[[Sequence[str]], list[int]]:
    """A function from the content tokens of a text to the positions that satisfy the clause."""
    is_token = token_test(clause)
    if clause.after is None:
        return lambda tokens: [i for i, token in enumerate(tokens) if is_token(token)]
    cues, within = frozenset(clause.after), clause.within

    def positions(tokens: Sequence[str]) -> list[int]:
        found, last_cue = [], -within - 1
        for i, token in enumerate(tokens):
            if i - last_cue <= within and is_token(token):
                found.append(i)
            if token in cues:
                last_cue = i
        return found

    return positions


def matcher(rule: Rule) -> Callable[[Sequence[str]], list[int]]:
    """The rule, compiled: a function from the content tokens of a text to the positions that satisfy some clause."""
    clauses = [clause_matcher(clause) for clause in rule.any_of]
    return lambda tokens: sorted({position for positions in clauses for position in positions(tokens)})


def matches(rule: Rule, tokens: Sequence[str]) -> list[int]:
    """The positions among a text's content tokens that satisfy some clause, ascending."""
    return matcher(rule)(tokens)


def predicts(rule: Rule, tokens: Sequence[str]) -> bool:
    """Whether the rule says that a text with these content tokens fires."""
    return bool(matches(rule, tokens))


def trigger_texts(rule: Rule, vocab_texts: Iterable[str]) -> list[str]:
    """The distinct token texts that satisfy the own-token conditions of some clause that has any, in the order given."""
    tests = [token_test(clause) for clause in rule.any_of if constrains_token(clause)]
    return [text for text in dict.fromkeys(vocab_texts) if any(test(text) for test in tests)]
