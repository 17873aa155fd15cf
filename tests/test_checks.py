"""The five causal checks pass for what is planted, fail for what is not, and are undecided where too little is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_lab import TRUTH, lab, true_list

from mikit.experiments.checks import (
    dose_response,
    functional_score,
    margin,
    necessity,
    own_tokens,
    run_checks,
    selectivity,
    spearman,
    sufficiency,
)
from mikit.experiments.contrast import MOST_FREQUENT, Contrast, contrast_of
from mikit.experiments.matching import Looks
from mikit.experiments.measure import Ablation, Measurement, ablate, firing_sites
from mikit.settings import Protocol
from mikit.trace import CHECKS, OutputHypothesis

PROTOCOL = Protocol()
V, PROMPTS, POSITIONS = 40, 16, 12
P = Contrast(np.arange(5), np.arange(20, 25), sign=1)


@pytest.fixture(scope="module")
def made():
    return lab()


@pytest.mark.parametrize("name", ["lantern", "fruits", "capitals", "royal_animals", "bank_of_money", "illnesses"])
def test_a_true_explanation_passes_all_five(made, name):
    checks = run_checks(*made.found(TRUTH[name].index), true_list(name), "select")
    assert [check.name for check in checks] == list(CHECKS)
    assert [check.verdict for check in checks] == ["pass"] * 5, [check.reason for check in checks]
    assert functional_score(checks) == 5


@pytest.mark.parametrize("name", ["lantern", "fruits", "royal_animals", "bank_of_money"])
def test_another_features_explanation_does_not_pass_the_gate(made, name):
    for stranger in ("vehicles_repaired", "dairy", "digits"):
        checks = run_checks(*made.found(TRUTH[name].index), true_list(stranger), "select")
        assert functional_score(checks) < PROTOCOL.gate_functional
        assert {check.name: check.verdict for check in checks}["sufficiency"] == "fail"


def test_the_wrong_direction_fails(made):
    lowered = true_list("lantern").model_copy(update={"direction": "suppresses"})
    checks = run_checks(*made.found(TRUTH["lantern"].index), lowered, "select")
    assert functional_score(checks) == 0


def test_too_few_firing_documents_leave_ablation_undecided(made):
    checks = run_checks(*made.found(TRUTH["gems"].index), true_list("gems"), "select")
    assert [check.verdict for check in checks[:2]] == ["undecided"] * 2
    assert "8 needed" in checks[0].reason


def test_nothing_predicted_leaves_all_undecided(made):
    nothing = OutputHypothesis(id="O1", text="None.", direction="promotes", kind="list", tokens=["zyzzyva"])
    checks = run_checks(*made.found(TRUTH["lantern"].index), nothing, "select")
    assert [check.verdict for check in checks] == ["undecided"] * 5
    assert functional_score(checks) == 0


def test_a_check_shows_the_feature_beside_every_control(made):
    checks = run_checks(*made.found(TRUTH["fruits"].index), true_list("fruits"), "select")
    controls = [control.name for control in made.intervention(TRUTH["fruits"].index).controls]
    bars = {check.name: list(check.bars) for check in checks}
    assert bars["necessity"] == bars["sufficiency"] == ["feature", *controls]
    assert bars["dose_response"] == ["0.5", "1", "2", "4"]
    assert bars["own_tokens"] == ["its own", *controls]
    for check in checks:
        assert check.interval[0] <= check.effect <= check.interval[1]


def test_ablation_looks_at_one_firing_position_a_document_of_the_split(made):
    setting, feature = made.setting, TRUTH["lantern"].index
    table = setting.store.table
    documents_of = {}
    for window in np.flatnonzero(table.in_split("select")):
        for stop in range(1, table.lengths[window] + 1):
            documents_of.setdefault(tuple(table.text(window)[:stop]), set()).add(int(table.document[window]))
    sites = firing_sites(setting, feature, "select")
    assert 8 <= len(sites) <= 32
    assert all(site.ids in documents_of for site in sites)
    for site in sites:
        assert setting.vocabulary.texts[site.ids[-1]] in TRUTH["lantern"].own
        assert -site.weights[-1] >= setting.store.tau(feature)


def test_ablating_lowers_what_the_feature_promotes(made):
    setting, feature, observation, _ = made.found(TRUTH["lantern"].index)
    found = ablate(setting, feature, observation, "select")
    promoted = np.isin([setting.vocabulary.texts[i] for i in found.tokens], list(TRUTH["lantern"].promotes))
    assert found.own[:, promoted].mean() < -0.3
    assert abs(found.own[:, ~promoted].mean()) < 0.1


# --- on made-up effects


def measured(own=1.0, control=0.0, doses=(0.5, 1, 2, 4), noise=0.05, n=PROMPTS, seed=0):
    """A feature that raises tokens 0 to 4 by `own` a unit of dose, beside three controls that raise them by `control`."""
    rng = np.random.default_rng(seed)
    effects = noise * rng.standard_normal((len(doses), n, V))
    effects[..., :5] += own * np.array(doses)[:, None, None]
    controls = noise * rng.standard_normal((3, n, V))
    controls[..., :5] += control
    return Measurement(np.arange(V), effects, controls, ("near 1", "live 2", "random 3"), scoring=1)


def ablation(own=-1.0, control=0.0, noise=0.05, n=POSITIONS, seed=0):
    rng = np.random.default_rng(seed)
    effects, controls = noise * rng.standard_normal((n, V)), noise * rng.standard_normal((3, n, V))
    effects[:, :5] += own
    controls[..., :5] += control
    return Ablation(np.arange(V), effects, controls, ("near 1", "live 2", "random 3"))


@pytest.mark.parametrize(
    ("own", "control", "verdict"), [(-1.0, 0.0, "pass"), (-1.0, -1.5, "fail"), (0.0, 0.0, "fail"), (1.0, 0.0, "fail")]
)
def test_necessity_asks_for_more_than_every_control(own, control, verdict):
    assert necessity(ablation(own, control), P, PROTOCOL, 0).verdict == verdict


def test_necessity_is_not_passed_by_luck():
    passed = [necessity(ablation(0.0, 0.0, seed=s), P, PROTOCOL, 0).verdict == "pass" for s in range(40)]
    assert np.mean(passed) <= 0.1


def test_necessity_is_undecided_with_too_few_positions():
    assert necessity(ablation(n=7), P, PROTOCOL, 0).verdict == "undecided"
    assert selectivity(ablation(n=7), P, PROTOCOL, 0).verdict == "undecided"
    assert necessity(ablation(n=8), P, PROTOCOL, 0).verdict == "pass"


def test_selectivity_fails_where_all_tokens_fall_alike():
    found = ablation(own=0.0)
    everything = Ablation(found.tokens, found.own - 1.0, found.controls, found.names)
    assert selectivity(everything, P, PROTOCOL, 0).verdict == "fail"
    assert selectivity(ablation(own=-0.5), P, PROTOCOL, 0).verdict == "pass"


def test_sufficiency_asks_for_more_than_every_control():
    assert sufficiency(measured(1.0, 0.5), P, 0).verdict == "pass"
    assert sufficiency(measured(1.0, 1.5), P, 0).verdict == "fail"


def test_dose_response_wants_growth_in_three_prompts_of_four():
    assert dose_response(measured(), P, PROTOCOL, 0).verdict == "pass"
    assert dose_response(measured(-1.0), P, PROTOCOL, 0).verdict == "fail"
    flat = measured(0.0)
    flat.doses[:, :, :5] += 1.0
    assert dose_response(flat, P, PROTOCOL, 0).verdict == "fail"
    for broken, verdict in ((4, "pass"), (5, "fail")):
        some = measured(noise=0.0)
        some.doses[:, :broken] = some.doses[::-1, :broken]
        assert dose_response(some, P, PROTOCOL, 0).verdict == verdict


def test_own_tokens_compares_with_the_tokens_of_controls():
    theirs = {"near 1": Contrast(np.arange(10, 15), np.arange(30, 35), sign=1)}
    assert own_tokens(measured(), P, theirs, 0).verdict == "pass"
    strong = measured()
    strong.doses[:, :, 10:15] += 9.0
    assert own_tokens(strong, P, theirs, 0).verdict == "fail"
    assert own_tokens(measured(), P, {}, 0).verdict == "undecided"


@given(st.integers(0, 1000))
def test_a_suppressing_hypothesis_is_the_mirror_image(seed):
    found, mirrored = measured(seed=seed), measured(seed=seed)
    mirrored.doses[:] *= -1
    mirrored.controls[:] *= -1
    lowered = Contrast(P.predicted, P.background, sign=-1)
    for check in (sufficiency, dose_response):
        extra = (PROTOCOL,) if check is dose_response else ()
        one, other = check(found, P, *extra, 0), check(mirrored, lowered, *extra, 0)
        assert (one.verdict, one.effect) == (other.verdict, pytest.approx(other.effect))


@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4, unique=True))
def test_spearman_is_scipys(values):
    from scipy.stats import spearmanr

    found = spearman([0.5, 1, 2, 4], np.array(values)[:, None])[0]
    assert found == pytest.approx(spearmanr([0.5, 1, 2, 4], values).statistic)
    assert spearman([1, 2], np.ones((2, 1)))[0] == 0


def test_a_margin_is_over_the_largest_of_the_others():
    own, others = np.full(9, 1.0), np.array([np.zeros(9), np.full(9, 0.75)])
    found = margin(own, others, 0)
    assert found.value == found.low == found.high == found.one_sided == pytest.approx(0.25)


@given(st.integers(0, 10_000), st.integers(0, 30))
def test_a_contrast_is_of_two_disjoint_groups_of_one_size(seed, n_predicted):
    rng = np.random.default_rng(seed)
    looks = Looks(np.zeros((V, 3), int), np.log1p(rng.integers(1, 300, V)))
    predicted = np.isin(np.arange(V), rng.permutation(V)[:n_predicted])
    found = contrast_of(predicted, looks, 1, seed)
    if not n_predicted:
        assert found is None
        return
    assert len(found.predicted) == len(found.background) == min(n_predicted, V - n_predicted)
    assert predicted[found.predicted].all()
    assert not predicted[found.background].any()
    assert found.of(np.full(V, 3.7)) == pytest.approx(0)


def test_a_form_is_judged_by_its_most_frequent_tokens():
    looks = Looks(np.zeros((900, 3), int), np.arange(900.0))
    found = contrast_of(np.arange(900) < 500, looks, 1, 0)
    assert len(found.predicted) == MOST_FREQUENT
    assert found.predicted.min() == 500 - MOST_FREQUENT
    assert found.background.min() >= 500
