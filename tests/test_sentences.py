"""Rules as sentences, and sentences as rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mikit.errors import BadInput
from mikit.explainers.sentences import (
    SHOWN_TOKENS,
    describe,
    describe_clause,
    describe_output,
    listed,
    read_output,
    read_rule,
)
from mikit.trace import Clause, OutputHypothesis, Rule

FORMS = ["digits", "capitalized", "uppercase", "punctuation", "word_start", "word_part"]
tokens = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=SHOWN_TOKENS, unique=True)
affixes = st.text(alphabet="abcxyz", min_size=1, max_size=4)


@st.composite
def clauses(draw):
    parts = {
        "tokens": draw(st.none() | tokens),
        "form": draw(st.none() | st.sampled_from(FORMS)),
        "prefix": draw(st.none() | affixes),
        "suffix": draw(st.none() | affixes),
        "after": draw(st.none() | tokens),
    }
    if all(part is None for part in parts.values()):
        parts["tokens"] = draw(tokens)
    return Clause(**parts, within=draw(st.integers(1, 8)) if parts["after"] else 1)


@given(st.lists(clauses(), min_size=1, max_size=3))
def test_a_sentence_is_read_as_the_rule_that_it_was_written_from(parts):
    rule = Rule(any_of=parts)
    assert read_rule(describe(rule)) == rule


@given(st.sampled_from(["promotes", "suppresses"]), tokens)
def test_what_is_said_of_the_output_is_read_as_the_list_that_it_was_written_from(direction, texts):
    read = read_output(describe_output(direction, listed(texts)))
    assert (read.direction, read.kind, read.tokens) == (direction, "list", texts)


@given(st.sampled_from(FORMS), affixes)
def test_a_form_of_the_output_is_read_as_a_form(form, suffix):
    clause = Clause(form=form, suffix=suffix)
    read = read_output(describe_output("promotes", f'{describe_clause(clause)}, such as "xing" or "ying"'))
    assert (read.kind, read.rule) == ("form", clause)


@pytest.mark.parametrize(
    "sentence, clause",
    [
        ('fires on "apple" or "pear" after "the"', {"tokens": ["apple", "pear"], "after": ["the"]}),
        ('The word "bank" after "river" within 5 tokens', {"tokens": ["bank"], "after": ["river"], "within": 5}),
        ("numbers", {"form": "digits"}),
        ("Capitalised words", {"form": "capitalized"}),
        ('words ending in "ing"', {"suffix": "ing"}),
        ('anything beginning with "un"', {"prefix": "un"}),
        (r'fires on "\"" or "; or on "', {"tokens": ['"', "; or on "]}),
        ('fires on "ends with" and "digits"', {"tokens": ["ends with", "digits"]}),
    ],
)
def test_a_persons_way_of_saying_it_is_understood(sentence, clause):
    assert read_rule(sentence) == Rule(any_of=[Clause(**clause)])


@pytest.mark.parametrize("sentence", ["", " . ", "Fires on references to royal animals.", "<script>alert(1)</script>"])
def test_prose_without_a_judge_is_refused_with_an_example(sentence):
    with pytest.raises(BadInput, match='valid: fires on "apple"'):
        read_rule(sentence)


def test_tokens_that_are_only_counted_are_missed():
    rule = Rule(any_of=[Clause(tokens=[str(i) for i in range(SHOWN_TOKENS + 1)])])
    with pytest.raises(BadInput, match="or a rule as JSON"):
        read_rule(describe(rule))


@pytest.mark.parametrize("sentence", ['"a", "b"', "makes it rain", ""])
def test_an_output_must_say_up_or_down(sentence):
    with pytest.raises(BadInput, match="valid: promotes"):
        read_output(sentence)


def test_an_output_does_not_depend_on_what_comes_before():
    with pytest.raises(BadInput, match="asks for tokens before"):
        read_output('promotes "a" after "b"')


def test_a_direction_named_in_a_quoted_token_is_no_direction():
    assert read_output('lowers "promotes"') == OutputHypothesis(
        id="O1", text='lowers "promotes"', direction="suppresses", kind="list", tokens=["promotes"]
    )
