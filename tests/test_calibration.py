"""Calibration: what is counted, what is kept, and what the gates let pass that they should not."""

import builders
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mikit.calibration import tables
from mikit.calibration.borrowed import draw_features
from mikit.calibration.collect import collect
from mikit.calibration.planted import declared, derangements, hardest, true_explanation
from mikit.calibration.records import FeatureTrials, PlantedTrials, Trial
from mikit.experiments.statistics import mean_of, wilson
from mikit.gates import judge_input
from mikit.settings import Params, Protocol
from mikit.targets.planted.truth import truths
from mikit.trace import CHECKS, Check, Explanation, Gates, Record

RUNS = 200
PASS = {"input": "pass", "output": "pass", "chain": "pass"}


def trial(origin="own", gates=PASS, passed=CHECKS, **parts) -> Trial:
    checks = [
        Check(name=name, verdict="pass" if name in passed else "fail", effect=0.1 if name in passed else -0.1,
              interval=(-0.05, 0.2), n=16, reason="")
        for name in CHECKS
    ]  # fmt: skip
    values = {"input_score": None, "output_score": None, "lender": None, "words": ""}
    return Trial(origin=origin, checks=checks, gates=Gates(**gates, reasons={}), **(values | parts))


def planted(feature=3, trials=(), **parts) -> PlantedTrials:
    values = {
        "feature": feature, "feature_kind": "normal", "null_intervention": False, "firing_windows": 100, "seconds": 1.0,
        "own": Explanation(input=None, output=None), "trials": list(trials), "seed": 0, "name": "x",
        "true_kind": "normal", "true_gates": PASS, "explainable": True, "rule_precision": 1.0, "rule_recall": 1.0,
    }  # fmt: skip
    return PlantedTrials(**(values | parts))


# --- what the gates let pass


@pytest.mark.parametrize("strata", [1, 3])
def test_a_hypothesis_that_is_right_six_times_of_ten_hardly_ever_passes_the_input_gate(strata):
    rng, n, passes = np.random.default_rng(0), Protocol().n_confirm, {"fires": 0, "silent": 0}
    sound = wilson(n, n)
    for _ in range(RUNS):
        coverage = wilson(int(rng.binomial(n, 0.6)), n)
        rejection = mean_of([wilson(int(rng.binomial(n, 0.6)), n) for _ in range(strata)])
        for name, parts in {
            "fires": {"coverage": coverage, "rejection": sound},
            "silent": {"coverage": sound, "rejection": rejection},
        }.items():
            score = builders.input_score(**parts)
            passes[name] += judge_input(builders.observation(), score, Protocol())[0] == "pass"
    assert max(passes.values()) <= 0.05 * RUNS


@pytest.mark.slow
def test_a_planted_rule_that_is_right_six_times_of_ten_hardly_ever_passes_the_input_gate():
    """The whole of it: texts drawn, written and scored on the model, over 200 seeds."""
    import dataclasses

    from planted_lab import TRUTH, lab

    from mikit.experiments.input_score import score_input
    from mikit.experiments.texts import design_experiment
    from mikit.trace import Clause, InputHypothesis, Rule

    setting, feature, observation, _ = lab().found(TRUTH["fruits"].index)
    # written and natural texts take the tokens of a rule evenly enough: six words of ten that fire, four that do not
    words = sorted(TRUTH["fruits"].own)[:6] + sorted(TRUTH["metals"].own)[:4]
    mixed = InputHypothesis(id="H1", text="Six of ten.", rule=Rule(any_of=[Clause(tokens=words)]))
    shares, passed = [], 0
    for seed in range(RUNS):
        drawn = dataclasses.replace(setting, seed=seed)
        score = score_input(drawn, feature, observation, mixed, design_experiment(drawn, mixed, "confirm", 30))
        shares.append(score.coverage.value)
        passed += judge_input(observation, score, setting.protocol)[0] == "pass"
    assert np.mean(shares) == pytest.approx(0.6, abs=0.1)
    assert passed <= 0.05 * RUNS


# --- wrong explanations


@given(st.integers(2, 12), st.integers(0, 4), st.integers(0, 99))
def test_a_derangement_never_gives_a_feature_its_own_explanation_back(n, orders, seed):
    own = {10 * i: Explanation(input=None, output=None) for i in range(n)}
    given_to = derangements(own, orders, seed)
    assert set(given_to) == set(own)
    for feature, others in given_to.items():
        assert len(others) == orders
        assert feature not in [lender for lender, _ in others]
    for order in range(orders):
        assert sorted(others[order][0] for others in given_to.values()) == sorted(own)


def test_one_feature_alone_can_be_lent_nothing():
    assert derangements({3: Explanation(input=None, output=None)}, 4, 0) == {3: []}


def test_the_hardest_wrong_explanations_are_right_but_for_one_point():
    known = {truth.name: truth for truth in declared()}
    every = list(known.values())
    for name, origins in {
        "fruits": {"other_effect", "sibling"},
        "lantern_again": {"other_effect"},
        "royal_animals": {"cue_dropped"},
        "bank_of_money": {"cue_dropped"},
        "metals": set(),
        "unused": set(),
    }.items():
        own, found = true_explanation(known[name]), list(hardest(known[name], every))
        assert {origin for origin, _, _ in found} == origins
        for origin, _, wrong in found:
            same_input, same_output = wrong.input.rule == own.input.rule, wrong.output.tokens == own.output.tokens
            assert (same_input, same_output) == ((True, False) if origin == "other_effect" else (False, True))


def test_every_kind_of_feature_is_declared_three_times_or_more():
    known = declared()
    same_trigger = [t for t in known if t.rule and sum(t.rule == other.rule for other in known) > 1]
    groups = {
        **{kind: [t for t in known if t.kind == kind] for kind in
           ("token", "class", "union", "cued", "sense", "form", "dense", "rare", "bos", "dead")},
        "no output effect": [t for t in known if t.rule and not t.promotes | t.suppresses],
        "promotes": [t for t in known if t.promotes],
        "suppresses": [t for t in known if t.suppresses],
        "same trigger": same_trigger,
        "sibling": [t for t in known if t.near],
    }  # fmt: skip
    assert {name: len(members) for name, members in groups.items() if len(members) < 3} == {}


def test_what_a_feature_promotes_is_no_word_that_fires_it_or_its_siblings():
    for truth in declared():
        assert not truth.promotes & truth.own


@pytest.mark.parametrize("seed", [1, 2])
def test_another_seed_keeps_the_declared_truth_and_changes_what_is_left_to_chance(seed):
    here, there = truths(), truths(seed=seed)
    n = len(declared())
    assert [t.rule for t in here[:n]] == [t.rule for t in there[:n]]
    assert [t.promotes for t in here[:n]] == [t.promotes for t in there[:n]]
    assert [t.promotes for t in here[n:]] != [t.promotes for t in there[n:]]


# --- what is counted


def test_a_gate_without_a_verdict_is_not_counted_and_an_undecided_one_has_not_passed():
    gates = [PASS, PASS | {"input": "undecided"}, {"input": "fail", "output": "none", "chain": "none"}]
    found = [planted(trials=[trial(gates=each)]) for each in gates]
    rates = {rate.what: rate.share for rate in tables.pass_rates(found, ["own"])}
    assert (rates["input"].value, rates["input"].n) == (pytest.approx(1 / 3), 3)
    assert (rates["output"].value, rates["output"].n) == (1.0, 2)
    assert (rates["all gates"].value, rates["all gates"].n) == (pytest.approx(1 / 3), 3)


def test_the_confusion_matrix_adds_up():
    found = [
        planted(trials=[trial()]),
        planted(trials=[trial(gates=PASS | {"chain": "fail"})], rule_recall=0.8),
        planted(trials=[trial(gates=PASS | {"input": "undecided"})], true_gates=PASS | {"input": "undecided"},
                feature_kind="rare", explainable=False, rule_precision=None, rule_recall=None),
    ]  # fmt: skip
    wrong = [planted(trials=[trial("derangement"), trial("derangement", PASS | {"output": "fail"}), trial("sibling")])]
    summary = tables.planted_summary(found, wrong)
    assert sum(summary.confusion.values()) == 9
    assert summary.gates.value == pytest.approx(8 / 9)
    assert (summary.sensitivity["chain"].value, summary.sensitivity["input"].n) == (pytest.approx(2 / 3), 2)
    assert summary.kinds.value == pytest.approx(2 / 3)
    assert (summary.rules.value, summary.rules.n) == (0.5, 2)
    assert (summary.wrong["derangement"].value, summary.wrong["sibling"].value) == (0.5, 1.0)
    assert summary.specificity.value == pytest.approx(1 / 3)
    assert "| chain | pass | 2 | 1 | 0 | 0 |" in tables.confusion_markdown(summary)


def test_the_functional_variants_count_checks_and_ask_for_necessity():
    four = trial(passed=[name for name in CHECKS if name != "sufficiency"])
    without = trial(passed=[name for name in CHECKS if name != "necessity"])
    says = {name: (passes(four), passes(without)) for name, passes in tables.VARIANTS.items() if "chain" in name}
    assert says["chain: 4 of 5 with necessity (the gate)"] == (True, False)
    assert says["chain: 4 of 5, any"] == (True, True)
    assert says["chain: 5 of 5"] == (False, False)
    assert says["chain: necessity by its mean"] == (True, False)
    assert says["chain: necessity by its 95 % interval"] == (False, False)


def test_a_table_names_every_origin_and_its_n():
    rates = tables.pass_rates([planted(trials=[trial(), trial("nearest_1")])], ["own", "nearest_1"])
    text = tables.markdown(rates, ["own", "nearest_1"])
    assert text.startswith("| passes | own | nearest 1 |\n|---|---|---|\n| input | 1.00 [0.21, 1.00] |")
    assert "own 1, nearest 1 1" in text


# --- what is kept


class Number(Record):
    value: int


CALLS = []


def number(value: int) -> Number:
    if value < 0:
        raise KeyboardInterrupt
    CALLS.append(value)
    return Number(value=value)


def test_a_calibration_that_was_stopped_goes_on_where_it_was(tmp_path):
    CALLS.clear()
    with pytest.raises(KeyboardInterrupt):
        collect(number, {"a": 1, "b": -1}, Number, tmp_path, "numbers")
    (tmp_path / "c.json").write_text("torn")
    assert collect(number, {"a": 1, "c": 3}, Number, tmp_path, "numbers") == [Number(value=1), Number(value=3)]
    assert CALLS == [1, 3]


def test_features_on_which_choices_were_made_are_not_drawn_again():
    class Store:
        def live(self, _min_windows):
            return np.arange(100)

    tuned = draw_features(Store(), 40, 30, 0, [7, 8], 0)
    held_out = draw_features(Store(), 40, 30, 30, [7, 8], 0)
    assert len(set(tuned) | set(held_out)) == 60
    assert not {7, 8} & set(tuned + held_out)


def test_records_of_features_without_a_truth_are_read_back():
    record = FeatureTrials(
        feature=3, feature_kind="normal", null_intervention=False, firing_windows=9, seconds=0.5,
        own=Explanation(input=None, output=None), trials=[trial()],
    )  # fmt: skip
    assert FeatureTrials.model_validate_json(record.model_dump_json()) == record
    assert Params().planted_spec is None
