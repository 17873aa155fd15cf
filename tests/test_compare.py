"""Runs and rounds side by side: read from their files alone, every difference named, a bad folder refused in one line."""

import json
import shutil

import builders
import pytest
from planted_lab import TRUTH
from test_refinement import force_wrong
from test_report import ATTACKS, Outline

from mikit import paths
from mikit.errors import BadInput
from mikit.files import write_json
from mikit.runs import compare, open_run, steps
from mikit.runs.refinement import refine
from mikit.settings import Params
from mikit.trace import Estimate, Proportion, TokenCost


def write_run(name: str, feature: int = 3, **overrides):
    """A finished run in the outputs folder."""
    trace = builders.trace(**overrides)
    folder = paths.outputs() / f"layer-0/feature-{feature}" / name
    write_json(folder / "trace.json", trace.model_dump(mode="json"))
    return folder


def with_params(**params):
    return builders.provenance(params=Params(run="example", **params).model_dump(mode="json"))


@pytest.fixture
def sides():
    folders = [
        write_run("first", provenance=with_params(seed=0)),
        write_run(
            "second",
            provenance=with_params(seed=7, explainer="llm"),
            meta=builders.meta(
                gate_pass=builders.gates(input="fail"),
                confirmed=False,
                token_cost=TokenCost(calls=3, total_tokens=1234),
            ),
        ),
    ]
    return compare.read_runs(folders)


def test_the_parameters_that_differ_are_named_and_no_others(sides):
    assert compare.differences(sides) == {"seed": [0, 7], "explainer": ["auto", "llm"]}
    text = Outline(compare.differences_table(sides)).text
    assert "seed07" in text and "batch" not in text


def test_a_side_has_the_shortest_name_that_tells_it_apart(sides):
    assert [side.name for side in sides] == ["first", "second"]
    other = write_run("first", feature=4)
    names = [side.name for side in compare.read_runs([paths.outputs() / "layer-0/feature-3/first", other, other])]
    assert names == ["feature-3/first", "feature-4/first", "feature-4/first (2)"]


def test_a_run_is_found_below_the_outputs_folder_by_its_path_and_by_its_trace(sides):
    ways = ["layer-0/feature-3/first", paths.outputs() / "layer-0/feature-3/first/trace.json"]
    assert [side.gates for side in compare.read_runs(ways)] == [sides[0].gates] * 2


def test_metrics_have_the_intervals_of_the_trace(sides):
    trace = builders.trace()
    assert sides[0].metrics["activation coverage"] == trace.input_round.eval.confirm.coverage
    assert isinstance(sides[0].metrics["output score"], Estimate)
    assert sides[0].metrics["checks passed"] == Proportion(value=0.8, low=None, high=None, n=5)
    figure = compare.plot(sides)
    assert figure.get_suptitle().startswith("All gates pass for 1 of 2: first")
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(compare.NAMES)


def test_gates_are_marks_and_words(sides):
    text = Outline(compare.gates_table(sides)).text
    assert "✓ pass✗ fail" in text
    assert sides[1].gates.reasons["input"] in text


def test_an_unknown_price_is_not_zero_and_no_call_costs_nothing(sides):
    text = Outline(compare.cost_table(sides)).text
    assert "0 (no language model was asked)unknown (no price is known)" in text
    assert "1,234" in text
    priced = write_run("third", meta=builders.meta(token_cost=TokenCost(calls=1, total_tokens=5, usd=0.25)))
    assert "0.2500" in compare.cost_table(compare.read_runs([priced]))


def test_the_chosen_hypothesis_is_marked_and_every_experiment_counted(sides):
    text = Outline(compare.hypotheses_table(sides)).text
    assert f"→ H1: {builders.input_hypothesis().text}" in text
    assert "positive" in Outline(compare.experiments_table(sides)).text


def test_a_feature_that_never_fires_can_be_compared_too(sides):
    dead = builders.dead_trace()
    write_json(paths.outputs() / "dead" / "trace.json", dead.model_dump(mode="json"))
    found = [*sides, *compare.read_runs(["dead"])]
    assert found[2].metrics == {} and "– none" in Outline(compare.gates_table(found)).text
    compare.plot(found).draw_without_rendering()
    compare.plot_cost(found).draw_without_rendering()


@pytest.mark.parametrize("fault", ["missing", "torn", "foreign", "a file"])
def test_what_is_no_finished_run_is_refused_in_one_line(fault, tmp_path):
    folder = tmp_path / fault
    if fault == "a file":
        folder.write_text("x")
    elif fault != "missing":
        folder.mkdir()
        (folder / "trace.json").write_text('{"meta": {' if fault == "torn" else "[]")
    with pytest.raises(BadInput, match=r"valid trace\.json: valid: the folder of a finished run"):
        compare.read_runs([folder])


@pytest.mark.parametrize("name", ["a\0b", "~nobody-of-this-name/x", "x" * 5000])
def test_what_can_be_no_folder_is_refused_in_one_line(name):
    with pytest.raises(BadInput, match="valid: the folder of a") as caught:
        compare.read_runs([name])
    assert "\n" not in str(caught.value)


def test_nothing_to_compare_is_refused():
    with pytest.raises(BadInput, match="no run to compare"):
        compare.read_runs([])


@pytest.mark.parametrize("text", ATTACKS)
def test_what_others_wrote_becomes_text_in_every_table(text):
    hostile = builders.input_hypothesis(text=text)
    inputs = builders.input_round(hypotheses=[hostile])
    gates = builders.gates(reasons=dict.fromkeys(("input", "output", "chain"), text))
    folder = write_run("first", input_round=inputs, meta=builders.meta(gate_pass=gates))
    odd = paths.outputs() / "x" / text.replace("/", "_").replace("\x00", "")
    shutil.copytree(folder, odd)
    data = json.loads((odd / "trace.json").read_text())
    data["provenance"]["params"]["corpus"] = text
    (odd / "trace.json").write_text(json.dumps(data))
    sides = compare.read_runs([folder, odd])
    tables = [compare.hypotheses_table, compare.experiments_table, compare.metrics_table, compare.gates_table]
    for make in [*tables, compare.cost_table, compare.differences_table]:
        outline = Outline(make(sides))
        assert {tag for tag, _ in outline.found} <= {
            "div",
            "table",
            "caption",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "span",
            "br",
        }
        assert [name for _, name in outline.names() if name.startswith("on")] == []
        assert outline.faults == []
    compare.plot(sides).draw_without_rendering()


# --- rounds ---


@pytest.fixture(scope="module")
def refined(tmp_path_factory):
    """A real run of a planted feature: its first input hypothesis is forced wrong, and a round mends it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIKIT_OUTPUTS", str(tmp_path_factory.mktemp("refined")))
        force_wrong(patch, "input", "fruits")
        run = open_run(model="planted", layer=0, feature=TRUTH["fruits"].index, run="refined", max_rounds=2)
        run.need(steps.test_chain)
        yield run.directory.path, refine(run)


def test_rounds_are_read_as_refinement_saw_them(refined):
    folder, found = refined
    sides = compare.read_rounds(folder)
    assert len(found.rounds) == 1 and found.rounds[0].better
    assert len(found.rounds) == 1 and found.rounds[0].better
    assert [side.name for side in sides] == ["before refinement", *(f"round {each.number}" for each in found.rounds)]
    assert [side.gates for side in sides[1:]] == [each.gates for each in found.rounds]
    assert sides[0].gates == found.states[0].gates
    assert {side.split for side in sides} == {"select"}
    assert compare.differences(sides) == {}
    assert sides[0].inputs != sides[1].inputs and sides[0].outputs == sides[1].outputs
    assert sides[1].seconds == pytest.approx(
        sum(
            json.loads((folder / "rounds/1" / f"step{k}.json").read_text())["seconds"]
            for k in found.rounds[0].steps_rerun
        )
    )
    assert all(found.rounds[i].diagnosis in side.outcome for i, side in enumerate(sides[1:]))


def test_a_torn_round_is_refused_in_one_line(refined, tmp_path):
    folder, _ = refined
    copied = tmp_path / "copy"
    shutil.copytree(folder, copied)
    (copied / "rounds" / "1").mkdir(parents=True, exist_ok=True)
    (copied / "rounds" / "1" / "round.json").write_text("{")
    with pytest.raises(BadInput, match=r"holds no valid round\.json"):
        compare.read_rounds(copied)
    (copied / "step4.json").unlink()
    with pytest.raises(BadInput, match=r"holds no step4\.json"):
        compare.read_rounds(copied)
