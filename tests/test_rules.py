"""Rules: where they match, what they say, which tokens can satisfy them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mikit.explainers.rules import has_form, matches, predicts, trigger_texts
from mikit.explainers.sentences import describe, listed
from mikit.trace import Clause, Form, Rule

FORMS: tuple[Form, ...] = ("digits", "capitalized", "uppercase", "punctuation", "word_start", "word_part")
TOKEN = st.text(max_size=6) | st.sampled_from(
    [" the", " apple", "ing", "ed", "\n", " ", "42", " U", "NASA", '"', "\ufffd"]
)
LIST = st.lists(TOKEN, min_size=1, max_size=12)
CLAUSE = st.builds(
    Clause,
    tokens=st.none() | LIST,
    prefix=st.none() | st.text(min_size=1, max_size=3),
    suffix=st.none() | st.text(min_size=1, max_size=3),
    form=st.none() | st.sampled_from(FORMS),
    after=st.none() | LIST,
    within=st.integers(1, 64),
)
RULE = st.builds(Rule, any_of=st.lists(CLAUSE, min_size=1, max_size=4))


def rule(**clause: object) -> Rule:
    return Rule(any_of=[Clause.model_validate(clause)])


@pytest.mark.parametrize(
    ("form", "yes", "no"),
    [
        ("digits", ["4", " 1999"], ["4th", " ", "", "x"]),
        ("capitalized", [" Paris", "McDonald", " I", "A"], ["NASA", " paris", "4", ""]),
        ("uppercase", [" NASA", "US"], [" I", " Paris", "42", ""]),
        ("punctuation", [",", " (", "..."], [" ", "", "a.", "4"]),
        ("word_start", [" the", " 4"], ["the", "\n"]),
        ("word_part", ["ing", "The"], [" ing", "4", "a.", ""]),
    ],
)
def test_a_form_is_what_its_definition_says(form: Form, yes: list[str], no: list[str]) -> None:
    assert all(has_form(text, form) for text in yes)
    assert not any(has_form(text, form) for text in no)


def test_tokens_match_exactly_leading_space_and_case_included() -> None:
    assert matches(rule(tokens=[" pear"]), [" pear", "pear", " Pear", " pear"]) == [0, 3]


def test_affixes_are_judged_without_space_and_case_and_need_something_besides() -> None:
    assert matches(rule(suffix="ing"), [" Going", "ing", " SEEING", " ring ", " gone"]) == [0, 2, 3]
    assert matches(rule(prefix="un"), [" undo", "un", " Unfit", " sun"]) == [0, 2]


def test_conditions_of_a_clause_hold_together_and_clauses_apart() -> None:
    both = rule(prefix="a", suffix="e")
    assert matches(both, [" apple", " ant", " plate"]) == [0]
    either = Rule(any_of=[Clause(prefix="a"), Clause(suffix="e")])
    assert matches(either, [" apple", " ant", " plate", " b"]) == [0, 1, 2]


@pytest.mark.parametrize(("within", "expected"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3])])
def test_a_cue_counts_only_among_the_tokens_before(within: int, expected: list[int]) -> None:
    assert matches(rule(after=["x"], within=within), ["x", "a", "a", "a"]) == expected


def test_a_cue_is_not_its_own_cue_but_may_follow_one() -> None:
    assert matches(rule(tokens=["x"], after=["x"], within=2), ["x", "a", "x", "a", "a", "x"]) == [2]


def test_triggers_come_from_clauses_that_say_something_of_the_token() -> None:
    texts = [" apple", "going", " apple", " seeing", " the"]
    assert trigger_texts(Rule(any_of=[Clause(suffix="ing"), Clause(tokens=[" apple"])]), texts) == [
        " apple",
        "going",
        " seeing",
    ]
    assert trigger_texts(rule(after=[" the"]), texts) == []


def test_a_description_names_tokens_cue_and_distance() -> None:
    assert describe(rule(tokens=[" apple", " pear"], after=[" the"], within=3)) == (
        'Fires on " apple" or " pear" when " the" stands among the 3 tokens before it.'
    )
    assert describe(rule(after=[" the"])) == 'Fires on any token directly after " the".'
    assert describe(Rule(any_of=[Clause(form="digits"), Clause(suffix="ing")])) == (
        'Fires on digits; or on a token that ends with "ing".'
    )


def test_a_long_list_is_cut_and_counted() -> None:
    assert listed(list("abcde"), shown=2) == '"a", "b" or 3 more'


@given(RULE)
def test_every_rule_has_a_description_of_one_line(any_rule: Rule) -> None:
    text = describe(any_rule)
    assert text.startswith("Fires on ") and text.endswith(".") and "\n" not in text


@given(RULE, st.lists(TOKEN, max_size=12))
def test_a_match_satisfies_some_clause_by_the_letter(any_rule: Rule, tokens: list[str]) -> None:
    def by_the_letter(i: int, clause: Clause) -> bool:
        word = tokens[i].strip().lower()
        return all(
            [
                clause.tokens is None or tokens[i] in clause.tokens,
                clause.prefix is None or (word.startswith(clause.prefix) and len(word) > len(clause.prefix)),
                clause.suffix is None or (word.endswith(clause.suffix) and len(word) > len(clause.suffix)),
                clause.form is None or has_form(tokens[i], clause.form),
                clause.after is None or any(cue in clause.after for cue in tokens[max(i - clause.within, 0) : i]),
            ]
        )

    expected = [i for i in range(len(tokens)) if any(by_the_letter(i, clause) for clause in any_rule.any_of)]
    assert matches(any_rule, tokens) == expected
    assert predicts(any_rule, tokens) == bool(expected)
