"""The output score finds the tokens that a feature moves, and can't be passed by a constant or a random answer."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_lab import TRUTH, lab, true_list

from mikit.experiments.intervene import intervene
from mikit.experiments.matching import case_of, looks_of, matched, script_of
from mikit.experiments.measure import measure
from mikit.experiments.output_score import choose_output, choose_tokens, normal_interval, rates, score_output
from mikit.gates import judge_output
from mikit.runs.judging import Subject, judge
from mikit.trace import Estimate, OutputScore

PROMOTING = ["lantern", "article", "fruits", "birds_or_professions", "bank_of_a_river", "digits", "spices"]


@pytest.fixture(scope="module")
def made():
    return lab()


class Answering:
    """An explainer that answers each token by a function of it."""

    name = "answering"

    def __init__(self, answer):
        self.answer = answer

    def claims(self, _hypothesis, tokens):
        return [self.answer(token) for token in tokens]


def answered(made, name, answer):
    """The score of a feature if every token were judged by `answer`."""
    setting, *rest = made.found(TRUTH[name].index)
    return score_output(dataclasses.replace(setting, explainer=Answering(answer)), *rest, true_list(name), "select")


@pytest.mark.parametrize("name", [*PROMOTING, "illnesses"])
def test_the_true_list_scores_high_and_another_features_list_does_not(made, name):
    found = made.found(TRUTH[name].index)
    stranger = "vehicles_repaired" if name != "illnesses" else "lantern"
    assert score_output(*found, true_list(name), "select").score.value >= 0.8
    assert score_output(*found, true_list(stranger), "select").score.value <= 0.2


def test_a_list_written_from_explain_holds_on_other_prompts(made):
    setting, *rest = made.found(TRUTH["fruits"].index)
    hypothesis = setting.explainer.output_hypotheses(rest[-1], 1).hypotheses[0]
    for split in ("select", "confirm"):
        assert score_output(setting, *rest, hypothesis, split).score.value >= 0.8


@pytest.mark.parametrize("answer", [True, False])
def test_ticking_all_or_none_scores_zero(made, answer):
    score = answered(made, "lantern", lambda _: answer)
    assert score.score.value == 0
    assert score.true_positive_rate == score.false_positive_rate == float(answer)


def test_ticking_at_random_scores_zero_on_average(made):
    measured = measure(*made.found(TRUTH["lantern"].index), "select")
    looks = looks_of(
        [made.setting.vocabulary.texts[i] for i in measured.tokens], made.setting.vocabulary.counts[measured.tokens]
    )
    choice = choose_tokens(measured.scored.mean(0), measured.controls.mean(1), looks, 20)
    rng = np.random.default_rng(0)
    judged = np.ones(len(measured.tokens), bool)
    scores = [np.subtract(*rates(choice, rng.random(len(judged)) < 0.5, judged)) for _ in range(1000)]
    assert abs(np.mean(scores)) < 0.02


def test_looks_alone_score_nothing_where_distractors_look_alike(made):
    score = answered(made, "lantern", lambda token: token.startswith(" ") and token.strip().islower())
    assert score.score.value == 0
    assert score.true_positive_rate == 1
    counts = made.setting.vocabulary.counts
    gap = np.mean(np.log1p(counts[[t.id for t in score.targets]])) - np.mean(
        np.log1p(counts[[t.id for t in score.distractors]])
    )
    assert abs(gap) < 0.5


def test_tokens_that_could_not_be_judged_count_on_neither_side(made):
    truth = TRUTH["lantern"].promotes
    score = answered(made, "lantern", lambda token: None if token[1] < "m" else token in truth)
    assert score.true_positive_rate == 1
    nothing = answered(made, "lantern", lambda token: None)
    assert nothing.failed_judgements == nothing.judgements > 0
    assert nothing.score.value == 0
    assert judge_output(None, nothing, made.setting.protocol)[0] == "undecided"


def test_distractors_are_neither_targets_nor_the_features_own(made):
    found = made.found(TRUTH["spices"].index)
    score = score_output(*found, true_list("spices"), "select")
    measured = measure(*found, "select")
    own = measured.tokens[np.argsort(-measured.scored.mean(0))[:50]]
    assert len(score.targets) == len(score.distractors) == 20
    assert not {token.id for token in score.distractors} & set(own.tolist())
    assert {token.token for token in score.targets} >= set(score.hits)
    assert score.score.low <= score.score.value <= score.score.high
    assert score.score.n == 16


def test_the_score_is_reproducible(made):
    found = made.found(TRUTH["fruits"].index)
    assert score_output(*found, true_list("fruits"), "select") == score_output(*found, true_list("fruits"), "select")


def test_the_two_splits_use_different_prompts(made):
    found = made.found(TRUTH["fruits"].index)
    select, confirm = (score_output(*found, true_list("fruits"), split) for split in ("select", "confirm"))
    assert [token.value for token in select.targets] != [token.value for token in confirm.targets]


def scored(identity, value):
    return OutputScore(
        hypothesis=identity, split="select", score=Estimate(value=value, low=value, high=value, n=16),
        true_positive_rate=value, false_positive_rate=0.0, targets=[], distractors=[], hits=[], false_alarms=[],
    )  # fmt: skip


def test_the_best_hypothesis_is_chosen_the_first_of_equals_and_none_of_none():
    assert choose_output([scored("O1", 0.2), scored("O2", 0.6), scored("O3", 0.6)]) == "O2"
    assert choose_output([]) is None


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(0, 12))
def test_matches_come_from_the_pool_once_each(seed, n_targets, n_pool):
    rng = np.random.default_rng(seed)
    looks = looks_of([f" t{i}" for i in range(30)], rng.integers(1, 500, 30))
    tokens = rng.permutation(30)
    pool = tokens[n_targets : n_targets + n_pool]
    found = matched(tokens[:n_targets], pool, looks)
    assert len(found) == len(set(found.tolist())) == min(n_targets, n_pool)
    assert set(found.tolist()) <= set(pool.tolist())


def test_a_match_looks_alike_before_it_is_as_frequent():
    texts = [" fine", " Fine", "fine", " FINE", " тонк", " pear", " plum"]
    looks = looks_of(texts, np.array([50, 50, 50, 50, 50, 4, 40]))
    assert matched(np.array([0]), np.array([1, 2, 3, 4, 5]), looks).tolist() == [5]
    assert matched(np.array([0]), np.array([5, 6]), looks).tolist() == [6]
    assert matched(np.array([0]), np.array([5, 1]), looks, kinds=False).tolist() == [1]


@pytest.mark.parametrize(
    ("text", "case", "script"),
    [(" pear", "lower", "LATIN"), (" Pear", "capitalized", "LATIN"), ("A", "capitalized", "LATIN"),
     (" NATO", "upper", "LATIN"), ("iPod", "mixed", "LATIN"), (" 42", "none", "digits"), (",", "none", "symbols"),
     ("б", "lower", "CYRILLIC"), ("漢", "none", "CJK")],
)  # fmt: skip
def test_case_and_script(text, case, script):
    assert case_of(text) == case
    assert script_of(text) == script


def test_targets_are_the_most_moved_and_distractors_what_controls_move():
    texts = [f" t{i}" for i in range(200)]
    looks = looks_of(texts, np.full(200, 7))
    own, other = np.zeros(200), np.zeros((1, 200))
    own[:60] = np.linspace(2, 1, 60)
    other[0, 100:150] = 1.0
    choice = choose_tokens(own, other, looks, 20)
    assert choice.targets.tolist() == list(range(20))
    assert set(choice.distractors.tolist()) <= set(range(100, 150))


def test_an_interval_follows_the_spread_and_stays_in_range():
    assert normal_interval(0.5, np.full(9, 0.2)) == (0.5, 0.5)
    low, high = normal_interval(0.9, np.linspace(0.2, 0.8, 50))
    assert low == pytest.approx(0.9 - 1.959964 * np.linspace(0.2, 0.8, 50).std())
    assert high == 1.0


@pytest.mark.parametrize("n_eligible", [0, 1, 30])
def test_a_language_too_small_for_distractors_leaves_the_gate_undecided(made, n_eligible):
    """With 50 eligible tokens or fewer all of them count as the feature's own, and nothing is left to compare with."""
    feature, seen = TRUTH["fruits"].index, made.observation(TRUTH["fruits"].index)
    counts = np.sort(made.setting.vocabulary.counts)[::-1]
    protocol = made.setting.protocol.model_copy(update={"min_token_count": int(counts[n_eligible]) + 1})
    small = dataclasses.replace(made.setting, protocol=protocol)
    subject = Subject(small, feature, seen, intervene(small, feature, seen, illustrate=False))
    judged = judge(subject, None, true_list("fruits"), "select")
    assert judged.gates.output == "undecided"
    assert judged.gates.chain != "pass"
