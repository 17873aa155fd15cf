"""A gate passes on its numbers alone, says them, and never passes what could not be tested."""

import pytest
from builders import chain, check, input_score, intervention, observation, output_score
from hypothesis import assume, given
from hypothesis import strategies as st

from mikit.experiments.statistics import EMPTY, mean_of, wilson
from mikit.gates import is_confirmed, judge_chain, judge_gates, judge_input, judge_output
from mikit.settings import Protocol
from mikit.trace import CHECKS, Estimate, Gates

PROTOCOL = Protocol()
RANK = {"fail": 0, "undecided": 1, "pass": 2}


def scored(fired, silent, n=30, **overrides):
    """A score whose shares are these numbers of `n` texts."""
    near = mean_of([wilson(silent, n)] * 3)
    values = {"coverage": wilson(fired, n), "rejection": near, "recall": wilson(45, 60)}
    return input_score(**(values | overrides))


def checks(**verdicts):
    return [check(name, verdict=verdicts.get(name, "pass")) for name in CHECKS]


def judged(**given):
    parts = {
        "observation": observation(),
        "input_score": scored(28, 28),
        "output_score": output_score(),
        "chain": chain(checks=checks()),
        "intervention": intervention(),
    }
    return judge_gates(**(parts | given), protocol=PROTOCOL)


def estimate(value, half=0.1):
    return Estimate(value=value, low=value - half, high=value + half, n=16)


def test_good_numbers_at_all_ends_pass():
    gates = judged()
    assert gates.all_pass
    assert gates.reasons["input"] == (
        "Coverage 0.93 [0.79, 0.98] of 30 texts reaches 0.80 and rejection 0.93 [0.85, 0.96] of 90 near misses reaches 0.80."
    )


@pytest.mark.parametrize(
    ("coverage", "rejection", "verdict"),
    [(24, 24, "pass"), (23, 30, "fail"), (30, 23, "fail"), (0, 0, "fail"), (30, 30, "pass")],
)
def test_both_shares_must_reach_their_gates(coverage, rejection, verdict):
    assert judged(input_score=scored(coverage, rejection)).input == verdict


def test_a_failure_names_the_number_that_failed_and_no_other():
    reason = judged(input_score=scored(19, 30)).reasons["input"]
    assert reason == "Coverage 0.63 [0.46, 0.78] of 30 texts is below 0.80."


@pytest.mark.parametrize("kind", ["rare", "dense"])
def test_a_feature_too_rare_or_too_dense_is_undecided_at_the_input_however_good_its_numbers(kind):
    gates = judged(observation=observation(feature_kind=kind))
    assert (gates.input, gates.output, gates.chain) == ("undecided", "pass", "pass")
    assert gates.reasons["input"].count("windows") >= 1


@pytest.mark.parametrize("kind", ["dead", "special_only"])
def test_a_feature_without_text_gets_no_verdict_at_any_end(kind):
    gates = judged(observation=observation(feature_kind=kind), input_score=None, output_score=None, chain=None)
    assert (gates.input, gates.output, gates.chain) == ("none", "none", "none")
    assert all("nothing to explain" in why or "no text to explain" in why for why in gates.reasons.values())


def test_a_hypothesis_that_everything_satisfies_fails_for_want_of_a_near_miss():
    empty = dict.fromkeys(("authored", "corpus", "neighbour", "random"), EMPTY)
    gates = judged(input_score=scored(30, 30, rejection=EMPTY, strata=empty))
    assert gates.input == "fail"
    assert "No near miss" in gates.reasons["input"]


def test_a_hypothesis_that_nothing_satisfies_fails_for_want_of_a_positive():
    gates = judged(input_score=scored(30, 30, coverage=EMPTY))
    assert gates.input == "fail"
    assert "predicts to fire" in gates.reasons["input"]


def test_what_could_not_be_scored_is_undecided():
    gates = judged(input_score=None, output_score=None, chain=None)
    assert (gates.input, gates.output, gates.chain) == ("undecided", "undecided", "undecided")
    assert judged(input_score=scored(30, 30, cases=[])).input == "undecided"
    assert judged(chain=chain(checks=[])).chain == "undecided"


def test_a_null_intervention_leaves_output_and_chain_without_a_verdict():
    silent = intervention(null=True, null_reason="KL 0.0002 nats is below 0.001")
    gates = judged(intervention=silent)
    assert (gates.input, gates.output, gates.chain) == ("pass", "none", "none")
    assert "KL 0.0002 nats" in gates.reasons["output"]


@pytest.mark.parametrize(
    ("verdicts", "expected", "said"),
    [
        ({}, "pass", "5 of 5"),
        ({"own_tokens": "fail"}, "pass", "failed: own tokens"),
        ({"selectivity": "undecided"}, "pass", "undecided: selectivity"),
        ({"necessity": "fail"}, "fail", "necessity is not among them"),
        ({"necessity": "undecided"}, "fail", "necessity is not among them"),
        ({"own_tokens": "fail", "sufficiency": "fail"}, "fail", "3 of 5 checks pass (failed: sufficiency, own tokens)"),
        ({"necessity": "undecided", "selectivity": "undecided"}, "undecided", "necessity, selectivity"),
        (dict.fromkeys(CHECKS, "undecided"), "undecided", "0 of 5"),
    ],
)
def test_four_checks_with_necessity_pass_the_chain(verdicts, expected, said):
    gates = judged(chain=chain(checks=checks(**verdicts)))
    assert gates.chain == expected
    assert said in gates.reasons["chain"]


@given(st.floats(-1, 1), st.floats(-1, 1))
def test_a_higher_output_score_never_loses_the_gate(first, second):
    low, high = sorted([first, second])
    verdicts = [judge_output(intervention(), output_score(score=estimate(value)), PROTOCOL)[0] for value in (low, high)]
    assert RANK[verdicts[0]] <= RANK[verdicts[1]]
    assert verdicts[0] == ("pass" if low >= PROTOCOL.gate_output - 1e-9 else "fail")


@given(*[st.integers(0, 30)] * 4)
def test_more_texts_right_never_lose_the_input_gate_or_the_confirmation(coverage, rejection, more, further):
    better = scored(min(coverage + more, 30), min(rejection + further, 30))
    worse = scored(coverage, rejection)
    verdicts = [judge_input(observation(), score, PROTOCOL)[0] for score in (worse, better)]
    assert RANK[verdicts[0]] <= RANK[verdicts[1]]
    confirmed = [is_confirmed(judged(input_score=score), score, output_score()) for score in (worse, better)]
    assert confirmed[0] <= confirmed[1]


@given(st.lists(st.sampled_from(["pass", "fail", "undecided"]), min_size=5, max_size=5), st.integers(0, 4))
def test_one_more_check_passed_never_loses_the_chain(verdicts, which):
    assume(verdicts[which] != "pass")
    improved = [*verdicts[:which], "pass", *verdicts[which + 1 :]]

    def verdict(values):
        made = [check(name, verdict=value) for name, value in zip(CHECKS, values, strict=True)]
        return judge_chain(intervention(), chain(checks=made), PROTOCOL)[0]

    assert not (verdict(verdicts) == "pass" and verdict(improved) != "pass")


def test_a_mean_that_equals_the_gate_passes_whatever_the_rounding():
    strata = [wilson(7, 10), wilson(8, 10), wilson(9, 10)]
    assert judged(input_score=scored(8, 8, n=10, rejection=mean_of(strata))).input == "pass"


# --- confirmed


def confirmed(gates=None, inputs=None, outputs=None):
    inputs, outputs = inputs or scored(28, 28), outputs or output_score(score=estimate(0.7, 0.15))
    return is_confirmed(gates or judged(input_score=inputs, output_score=outputs), inputs, outputs)


def test_clear_passes_are_confirmed():
    assert confirmed()


@pytest.mark.parametrize("end", ["input", "output", "chain"])
@pytest.mark.parametrize("verdict", ["fail", "undecided", "none"])
def test_nothing_is_confirmed_unless_all_gates_pass(end, verdict):
    values = dict.fromkeys(("input", "output", "chain"), "pass") | {end: verdict}
    assert not confirmed(gates=Gates(**values, reasons={}))


def test_few_texts_pass_a_gate_and_confirm_nothing():
    few = scored(4, 4, n=5)
    assert judged(input_score=few).input == "pass"
    assert not confirmed(inputs=few)


def test_a_narrow_explanation_is_not_confirmed():
    assert not confirmed(inputs=scored(30, 30, recall=wilson(20, 60)))
    assert not confirmed(inputs=scored(30, 30, recall=EMPTY))


def test_an_output_score_that_may_be_small_is_not_confirmed():
    assert not confirmed(outputs=output_score(score=estimate(0.55, 0.5)))
    assert not is_confirmed(judged(), scored(28, 28), None)
    assert not is_confirmed(judged(), None, output_score())
