"""The statistical explainer: rules found from evidence, texts written from rules, lists found from effects."""

import time
from functools import cache

import numpy as np
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import COMMON, FRUIT, LENGTH, METAL, TAU, Feature

from mikit.errors import BadInput
from mikit.evidence.vocabulary import Vocabulary
from mikit.explainers import get_explainer
from mikit.explainers.rules import has_form, predicts
from mikit.trace import (
    Clause,
    Control,
    InputHypothesis,
    Intervention,
    LensToken,
    OutputHypothesis,
    Rule,
    TextCase,
)

EXPLAINER = get_explainer("statistical")

RULES = {
    "single token": [Clause(tokens=[" apple"])],
    "token class": [Clause(tokens=FRUIT)],
    "spellings": [Clause(tokens=[" apple", "apple", " Apple"])],
    "cue within 5": [Clause(tokens=[" the"], after=[" was", " is"], within=5)],
    "n-gram": [Clause(tokens=[" of"], after=[" the"])],
    "anything after": [Clause(after=FRUIT)],
    "suffix": [Clause(suffix="ing")],
    "digits": [Clause(form="digits")],
    "piece after": [Clause(form="word_part", after=[" the"])],
    "two classes": [Clause(tokens=FRUIT), Clause(tokens=METAL)],
    "class or cue": [Clause(tokens=METAL), Clause(tokens=[" and"], after=[" of"], within=3)],
}


@cache
def vocabulary() -> Vocabulary:
    return synthetic.vocabulary()


@cache
def feature(name: str, sometimes: float = 1.0) -> Feature:
    return synthetic.feature(Rule(any_of=RULES[name]), sometimes=sometimes)


def hypothesis(*clauses: Clause) -> InputHypothesis:
    return InputHypothesis(id="H1", text="a rule", rule=Rule(any_of=list(clauses)))


def held_out(found: InputHypothesis, of: Feature) -> tuple[float, float]:
    """Precision and recall against the true rule on the half of the corpus that was not shown."""
    unseen = slice(len(of.texts) // 2, None)
    predicted = np.array(EXPLAINER.predicts(found, of.texts[unseen]), bool)
    truth = of.truth[unseen]
    both = (predicted & truth).sum()
    return both / predicted.sum(), both / truth.sum()


# --- hypotheses of the input


@pytest.mark.parametrize("name", RULES)
def test_the_first_hypothesis_is_the_true_rule_under_grey_noise(name: str) -> None:
    first = EXPLAINER.input_hypotheses(feature(name).observation, vocabulary(), 3).hypotheses[0]
    precision, recall = held_out(first, feature(name))
    assert precision >= 0.9 and recall >= 0.9, first.text


@pytest.mark.parametrize(
    "name", ["single token", "token class", "suffix", "digits", "n-gram", "cue within 5", "two classes"]
)
def test_a_feature_that_fires_on_seven_matches_of_ten_is_still_found(name: str) -> None:
    first = EXPLAINER.input_hypotheses(feature(name, 0.7).observation, vocabulary(), 1).hypotheses[0]
    precision, recall = held_out(first, feature(name, 0.7))
    assert precision >= 0.9 and recall >= 0.9, first.text


def test_open_classes_are_said_as_classes_and_not_as_lists() -> None:
    for name in ("suffix", "digits"):
        first = EXPLAINER.input_hypotheses(feature(name).observation, vocabulary(), 1).hypotheses[0]
        assert first.rule is not None and first.rule.any_of == RULES[name]


def test_hypotheses_are_distinct_numbered_and_no_more_than_asked_for() -> None:
    for n in (1, 2, 3):
        found = EXPLAINER.input_hypotheses(feature("anything after").observation, vocabulary(), n).hypotheses
        assert 1 <= len(found) <= n
        assert [each.id for each in found] == [f"H{i}" for i in range(1, len(found) + 1)]
        assert len({each.text for each in found}) == len(found)


def test_the_same_evidence_gives_the_same_hypotheses() -> None:
    observation = feature("class or cue").observation
    assert EXPLAINER.input_hypotheses(observation, vocabulary(), 3) == EXPLAINER.input_hypotheses(
        observation, vocabulary(), 3
    )


def test_a_peak_below_tau_is_no_evidence_and_one_at_tau_is() -> None:
    observation = feature("single token").observation
    grey = [
        window.model_copy(update={"peak": 0.9 * TAU, "activations": [min(a, 0.9 * TAU) for a in window.activations]})
        for window in observation.windows
    ]
    none = EXPLAINER.input_hypotheses(observation.model_copy(update={"windows": grey}), vocabulary(), 3)
    assert none.hypotheses == [] and none.note
    at_tau = [
        window.model_copy(
            update={"peak": min(window.peak, TAU), "activations": [min(a, TAU) for a in window.activations]}
        )
        for window in observation.windows
    ]
    found = EXPLAINER.input_hypotheses(observation.model_copy(update={"windows": at_tau}), vocabulary(), 1)
    assert found.hypotheses[0].text == 'Fires on " apple".'


def test_a_dead_feature_has_no_hypothesis_but_a_note() -> None:
    dead = synthetic.feature(Rule(any_of=[Clause(tokens=["absent"])]), grey=0.0)
    written = EXPLAINER.input_hypotheses(dead.observation, vocabulary(), 3)
    assert written.hypotheses == [] and written.note is not None and "dead" in written.note


def test_a_rule_seen_in_two_windows_of_one_document_is_still_a_hypothesis() -> None:
    observation = feature("single token").observation
    firing = [window for window in observation.windows if window.peak >= TAU][:2]
    silent = [window for window in observation.windows if window.peak < TAU and " apple" not in window.tokens]
    rare = observation.model_copy(update={"windows": [*firing, *silent], "firing_windows": 2, "feature_kind": "rare"})
    first = EXPLAINER.input_hypotheses(rare, vocabulary(), 1).hypotheses[0]
    assert all(EXPLAINER.predicts(first, [window.tokens for window in firing]))


def test_hypotheses_take_less_than_a_second() -> None:
    observation, words = feature("anything after").observation, vocabulary()
    start = time.process_time()
    EXPLAINER.input_hypotheses(observation, words, 3)
    assert time.process_time() - start < 1.0


# --- texts written from a rule


TEXT = st.sampled_from([*FRUIT, *METAL, *COMMON, "absent"])
WRITABLE = st.builds(
    Clause,
    tokens=st.none() | st.lists(TEXT, min_size=1, max_size=6, unique=True),
    suffix=st.none() | st.sampled_from(["ing", "ba"]),
    form=st.none() | st.sampled_from(["digits", "capitalized", "word_part", "punctuation"]),
    after=st.none() | st.lists(TEXT, min_size=1, max_size=4, unique=True),
    within=st.integers(1, 8),
)


def carriers(n: int = 60, seed: int = 5) -> list[list[int]]:
    """Windows of 8 to 32 tokens, as the ends of documents are."""
    lengths = np.random.default_rng(seed).integers(8, LENGTH + 1, size=n)
    return [row[:length].tolist() for row, length in zip(synthetic.corpus(seed, n), lengths, strict=True)]


def write(
    *clauses: Clause, n_positive: int = 10, n_near: int = 10, seed: int = 0, n_carriers: int = 60
) -> list[TextCase]:
    return EXPLAINER.author(hypothesis(*clauses), n_positive, n_near, carriers(n_carriers), vocabulary(), seed)


def texts_of(case: TextCase) -> list[str]:
    return [vocabulary().texts[i] for i in case.ids]


@settings(max_examples=40, deadline=None)
@given(st.lists(WRITABLE, min_size=1, max_size=3), st.integers(0, 5))
def test_positives_satisfy_the_rule_near_misses_do_not_and_all_are_distinct(clauses: list[Clause], seed: int) -> None:
    cases = write(*clauses, seed=seed)
    rule = Rule(any_of=clauses)
    assert all(predicts(rule, texts_of(case)) == (case.role == "positive") for case in cases)
    assert len({tuple(case.ids) for case in cases}) == len(cases)
    assert all(len(case.ids) <= 32 and case.text == "".join(texts_of(case)) and case.document is None for case in cases)
    assert all((case.stratum == "authored") == (case.role == "near_miss") for case in cases)
    assert not vocabulary().special_ids.intersection(i for case in cases for i in case.ids)


@pytest.mark.parametrize("name", RULES)
def test_as_many_texts_are_written_as_asked_for(name: str) -> None:
    roles = [case.role for case in write(*RULES[name], n_positive=30, n_near=30, n_carriers=200)]
    assert roles == ["positive"] * 30 + ["near_miss"] * 30


def test_carriers_that_satisfy_the_rule_are_used_as_they_are_before_any_is_edited() -> None:
    rule = Rule(any_of=RULES["token class"])
    material = carriers()
    natural = {tuple(ids) for ids in material if predicts(rule, [vocabulary().texts[i] for i in ids])}
    positives = [
        tuple(case.ids) for case in write(*RULES["token class"], n_positive=len(natural) + 5) if case.role == "positive"
    ]
    assert set(positives[: len(natural)]) == natural


def test_edits_are_spread_over_clauses_and_tokens() -> None:
    rare = ["absent", " apple", " zinc", "ba", "ko"]
    names = [text for text in rare if text in vocabulary().id_of]
    clauses = [Clause(tokens=names[:1], after=[" was"], within=3), Clause(tokens=names[1:], after=[" is"])]
    positives = [texts_of(case) for case in write(*clauses, n_positive=12) if case.role == "positive"]
    by_clause = [sum(predicts(Rule(any_of=[clause]), tokens) for tokens in positives) for clause in clauses]
    assert min(by_clause) >= 4


def test_a_near_miss_differs_from_a_positive_in_few_tokens_of_the_same_looks() -> None:
    cases = write(Clause(tokens=FRUIT), n_positive=20, n_near=20)
    positives = [case.ids for case in cases if case.role == "positive"]
    for case in cases:
        if case.role == "near_miss":
            changed = min(
                [
                    [(a, b) for a, b in zip(case.ids, ids, strict=True) if a != b]
                    for ids in positives
                    if len(ids) == len(case.ids)
                ],
                key=len,
            )
            assert 1 <= len(changed) <= 4
            for new, old in changed:
                new_text, old_text = vocabulary().texts[new], vocabulary().texts[old]
                assert new_text.startswith(" ") == old_text.startswith(" ")
                assert has_form(new_text, "capitalized") == has_form(old_text, "capitalized")


def _form_and_position(case: TextCase) -> list[float]:
    tokens = texts_of(case)
    counts = [
        sum(has_form(token, form) for token in tokens) for form in ("digits", "capitalized", "punctuation", "word_part")
    ]
    frequency = float(np.mean(np.log1p(vocabulary().counts[case.ids])))
    return [
        1.0,
        len(tokens),
        len(case.text),
        *counts,
        frequency,
        has_form(tokens[0], "word_part"),
        has_form(tokens[-1], "word_part"),
    ]


@pytest.mark.parametrize("name", ["token class", "single token", "n-gram", "cue within 5", "class or cue"])
def test_form_and_position_do_not_give_a_role_away(name: str) -> None:
    """A linear classifier trained on half of 400 texts is right on the other half as often as chance allows."""
    cases = write(*RULES[name], n_positive=200, n_near=200, n_carriers=400)
    features = np.array([_form_and_position(case) for case in cases])
    role = np.array([1.0 if case.role == "positive" else -1.0 for case in cases])
    order = np.random.default_rng(0).permutation(len(cases))
    train, test = order[: len(cases) // 2], order[len(cases) // 2 :]
    weights = np.linalg.lstsq(features[train], role[train], rcond=None)[0]
    accuracy = float((np.sign(features[test] @ weights) == role[test]).mean())
    assert abs(accuracy - 0.5) < 0.12


def test_the_place_of_an_edit_is_not_constant() -> None:
    absent = next(text for text in vocabulary().texts[300:] if text.startswith(" "))
    rule = Clause(tokens=[absent], after=[" of"], within=2)
    places = {texts_of(case).index(absent) for case in write(rule, n_positive=30) if case.role == "positive"}
    assert len(places) > 8


def test_without_a_rule_nothing_is_written_or_predicted() -> None:
    bare = InputHypothesis(id="H1", text="fruit", rule=None)
    assert EXPLAINER.author(bare, 5, 5, carriers(), vocabulary(), 0) == []
    assert EXPLAINER.predicts(bare, [[" apple"], [" the"]]) == [None, None]


def test_a_rule_that_nothing_escapes_has_no_near_misses() -> None:
    everything = Rule(
        any_of=[Clause(form="word_start"), Clause(form="word_part"), Clause(form="digits"), Clause(form="punctuation")]
    )
    assert all(case.role == "positive" for case in write(*everything.any_of))


# --- hypotheses of the output


def lens(tokens: list[str], first: float, last: float) -> list[LensToken]:
    return [
        LensToken(id=i, token=t, value=v)
        for i, (t, v) in enumerate(zip(tokens, np.linspace(first, last, len(tokens)).tolist(), strict=True))
    ]


def intervention(
    promoted: list[LensToken], suppressed: list[LensToken], null: bool = False, noise: float = 0.5
) -> Intervention:
    others = [f" other{i}" for i in range(20)]
    controls = [
        Control(
            name=f"random {i}",
            kind="random_direction",
            latent=None,
            cosine=0.0,
            kl=0.2,
            promoted=lens(others, 2 * noise, noise),
            suppressed=lens(others, -2 * noise, -noise),
        )
        for i in range(4)
    ]
    return Intervention(
        position="last_token", doses=[], scoring_dose=1.0, null=null, null_reason="KL below 1e-3" if null else None, random_kl=0.2,
        promoted=promoted, suppressed=suppressed, teacher_forced=[], completions=[], controls=controls, n_prompts=16,
    )  # fmt: skip


WORDS = [f" word{i}" for i in range(50)]


def test_the_list_holds_the_tokens_most_moved_and_claims_those_alone() -> None:
    first, *_ = EXPLAINER.output_hypotheses(intervention(lens(WORDS, 3.0, 1.0), lens(["x"], -0.1, -0.1)), 3).hypotheses
    assert (first.kind, first.direction, first.tokens) == ("list", "promotes", WORDS)
    assert '" word0"' in first.text
    assert EXPLAINER.claims(first, [" word3", " other", " Word3"]) == [True, False, False]


def test_the_tail_that_random_directions_reach_too_is_cut() -> None:
    first = EXPLAINER.output_hypotheses(intervention(lens(WORDS, 3.0, 0.0), [], noise=2.0), 1).hypotheses[0]
    assert 20 <= len(first.tokens) < 50


def test_a_form_shared_by_the_head_and_not_by_the_controls_is_a_hypothesis() -> None:
    years = [str(n) for n in range(1900, 1950)]
    found = EXPLAINER.output_hypotheses(intervention(lens(years, 3.0, 1.0), []), 3).hypotheses
    form = next(each for each in found if each.kind == "form")
    assert form.rule == Clause(form="digits")
    assert EXPLAINER.claims(form, ["77", " 8", "word"]) == [True, True, False]


def test_suppression_comes_first_where_it_is_clearly_stronger_and_is_silent_where_not() -> None:
    stronger = EXPLAINER.output_hypotheses(intervention(lens(WORDS, 1.0, 0.5), lens(COMMON, -4.0, -3.0)), 3).hypotheses
    assert [each.direction for each in stronger][:2] == ["suppresses", "promotes"]
    alike = EXPLAINER.output_hypotheses(intervention(lens(WORDS, 1.0, 0.5), lens(COMMON, -1.0, -0.5)), 3).hypotheses
    assert {each.direction for each in alike} == {"promotes"}


def test_a_null_intervention_has_no_hypothesis_but_its_reason() -> None:
    written = EXPLAINER.output_hypotheses(intervention([], [], null=True), 3)
    assert written.hypotheses == [] and written.note is not None and "KL below 1e-3" in written.note


def test_what_only_a_reader_can_judge_is_left_unjudged() -> None:
    text = OutputHypothesis(id="O1", text="words of joy", direction="promotes", kind="text")
    assert EXPLAINER.claims(text, [" happy"]) == [None]
    assert EXPLAINER.plausibility("fires on joy", "promotes joy") is None


def test_an_unknown_explainer_is_refused_with_the_choices() -> None:
    with pytest.raises(BadInput, match="unknown explainer 'statistcal': did you mean 'statistical'"):
        get_explainer("statistcal")
