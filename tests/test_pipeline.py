"""The nine steps on the planted model: the verdicts are those that the truth demands, and nothing is done twice."""

import pytest

import mikit
from mikit.errors import BadInput
from mikit.runs import open_run, steps
from mikit.targets.planted.truth import truths
from mikit.trace import Trace

pytestmark = pytest.mark.usefixtures("outputs")

TRUTHS = {truth.name: truth for truth in truths() if truth.gates}
KINDS = ["lantern", "metals", "fruits", "royal_animals", "unused", "beginning", "gems", "article", "illnesses"]
"""A feature of each kind that has a verdict of its own."""


def verdicts(gates) -> dict[str, str]:
    return {end: getattr(gates, end) for end in ("input", "output", "chain")}


@pytest.mark.parametrize("name", KINDS)
def test_the_verdicts_are_those_that_the_truth_demands(name):
    truth = TRUTHS[name]
    meta = mikit.explain_feature(model="planted", feature=truth.index, run="verdicts").meta
    assert meta.feature_kind == truth.feature_kind
    assert verdicts(meta.gate_pass) == truth.gates, meta.gate_pass.reasons


@pytest.mark.parametrize("name", KINDS)
def test_another_features_explanation_never_passes_all_gates(name):
    meta = mikit.explain_feature(model="planted", feature=TRUTHS[name].index, run="verdicts").meta
    for null in meta.nulls.values():
        assert set(null.gates.values()) != {"pass"}, null


def test_a_random_direction_fails_the_input_gate_whatever_it_does_to_the_output():
    meta = mikit.explain_feature(model="planted", feature=TRUTHS["fruits"].index, run="verdicts").meta
    assert meta.nulls["random_reference"].gates["input"] == "fail"


def test_a_finished_run_is_read_and_not_repeated(monkeypatch):
    first = mikit.explain_feature(model="planted", feature=3, run="twice")
    for function in steps.ALL:
        monkeypatch.setattr(steps, function.__name__, None)
    assert open_run(model="planted", feature=3, run="twice").directory.finished()
    monkeypatch.undo()
    again = mikit.explain_feature(model="planted", feature=3, run="twice")
    assert again.model_dump() == first.model_dump()


def test_a_trace_survives_its_own_file():
    trace = mikit.explain_feature(model="planted", feature=3, run="verdicts")
    written = open_run(model="planted", feature=3, run="verdicts").directory.trace_path
    assert Trace.model_validate_json(written.read_text()) == trace


def test_a_lost_trace_is_written_again_from_the_steps():
    first = mikit.explain_feature(model="planted", feature=3, run="verdicts")
    path = open_run(model="planted", feature=3, run="verdicts").directory.trace_path
    path.unlink()
    again = mikit.explain_feature(model="planted", feature=3, run="verdicts")
    assert again.model_dump() == first.model_dump()
    assert path.exists()


def test_writer_and_judge_share_no_document():
    trace = mikit.explain_feature(model="planted", feature=3, run="verdicts")
    shown = {window.document for window in trace.input_round.observation.windows}
    chosen_on = {case.document for e in trace.input_round.experiments for case in e.cases if case.document}
    judged_on = {case.document for case in trace.input_round.eval.confirm.cases if case.document}
    assert shown and chosen_on and judged_on
    assert not shown & chosen_on and not shown & judged_on and not chosen_on & judged_on


def test_two_seeds_draw_different_texts_and_one_seed_the_same():
    def texts(run: str, seed: int) -> list[str]:
        opened = open_run(model="planted", feature=3, run=run, seed=seed)
        return [case.text for case in opened.need(steps.design_input).experiments[0].cases]

    assert texts("a", 1) == texts("b", 1)
    assert texts("a", 1) != texts("c", 2)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": "plantd"}, "did you mean 'planted'"),
        ({"layer": 7}, "valid: 0"),
        ({"feature": 10_000}, "out of range"),
        ({"feature": -1}, "greater than or equal to 0"),
        ({"run": "../up"}, "letters, digits"),
        ({"featur": 3}, "unknown parameter 'featur'"),
    ],
)
def test_bad_input_is_one_line_that_says_what_would_be_valid(given, says):
    with pytest.raises(BadInput, match=says) as caught:
        mikit.explain_feature(**({"model": "planted"} | given))
    assert "\n" not in str(caught.value)
