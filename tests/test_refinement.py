"""Rounds of refinement: what they repair, what they redo, when they stop, and that they win nothing by their number."""

import json
import sys

import builders
import numpy as np
import pytest
from planted_lab import TRUTH

import mikit
from mikit.errors import BadInput
from mikit.evidence.observe import natural_windows
from mikit.experiments.measure import firing_windows
from mikit.experiments.statistics import one_sided_lower, wilson
from mikit.explainers.sentences import describe
from mikit.explainers.statistical import StatisticalExplainer
from mikit.explainers.statistical.output import output_hypotheses
from mikit.files import file_hash
from mikit.gates import is_confirmed, judge_gates
from mikit.refine import failing, rank, why_stop
from mikit.runs import open_run, steps
from mikit.runs.engine import refine_pipeline
from mikit.runs.judging import judge
from mikit.runs.refinement import RoundDirectory, call_for, read_rounds, refine
from mikit.settings import Params, Protocol
from mikit.trace import Gates, InputHypothesis, OutputHypothesis, Round, RoundMetrics, Rule

pytestmark = pytest.mark.usefixtures("outputs")


def wrong_rule(name: str) -> Rule:
    other = next(
        truth for truth in TRUTH.values() if truth.rule and truth.name != name and not truth.own & TRUTH[name].own
    )
    return other.rule


def wrong_output(intervention) -> OutputHypothesis:
    """Tokens that fall, said to rise."""
    tokens = [token.token for token in intervention.suppressed[:20]]
    return OutputHypothesis(id="O1", text="Raises others.", direction=way_of(intervention), kind="list", tokens=tokens)


def wrong_chain(intervention) -> OutputHypothesis:
    """Enough of the feature's own tokens for the output gate, among more that its controls move: the checks see both."""
    way = way_of(intervention)
    own = moved(intervention, way)
    theirs = dict.fromkeys(token for control in intervention.controls for token in moved(control, way)[:20])
    tokens = [*own[:13], *(token for token in theirs if token not in own)][:50]
    return OutputHypothesis(id="O1", text="Raises all sorts.", direction=way, kind="list", tokens=tokens)


def way_of(intervention):
    written = output_hypotheses(intervention, 1).hypotheses
    return written[0].direction if written else "promotes"


def moved(by, way):
    return [token.token for token in (by.promoted if way == "promotes" else by.suppressed)]


def force_wrong(monkeypatch, end: str, name: str, others: int = 0) -> None:
    """The first hypothesis of an end is wrong; what is written after it failed is the explainer's own.

    `others` of its own stand beside the wrong one.
    """
    honest_input, honest_output = StatisticalExplainer.input_hypotheses, StatisticalExplainer.output_hypotheses

    def inputs(self, observation, vocabulary, n, tried=()):
        written = honest_input(self, observation, vocabulary, n, tried)
        rule = wrong_rule(name)
        forced = InputHypothesis(id="H1", text=describe(rule), rule=rule)
        return written if tried else written.model_copy(update={"hypotheses": [forced]})

    def outputs(self, intervention, n, tried=()):
        written = honest_output(self, intervention, n, tried)
        forced = wrong_output(intervention) if end == "output" else wrong_chain(intervention)
        beside = [each.model_copy(update={"id": f"O{i}"}) for i, each in enumerate(written.hypotheses[:others], 2)]
        return written if tried else written.model_copy(update={"hypotheses": [forced, *beside]})

    if end == "input":
        monkeypatch.setattr(StatisticalExplainer, "input_hypotheses", inputs)
    else:
        monkeypatch.setattr(StatisticalExplainer, "output_hypotheses", outputs)


DEPENDENT = {"input": [2, 3, 4, 8], "output": [6, 7, 8], "chain": [6, 7, 8]}


@pytest.mark.parametrize("end", DEPENDENT)
def test_a_hypothesis_forced_wrong_is_repaired_and_only_what_depends_on_it_is_done_again(monkeypatch, end):
    force_wrong(monkeypatch, end, "fruits")
    given = {"model": "planted", "feature": TRUTH["fruits"].index, "nulls": False, "run": f"forced-{end}"}
    run = open_run(**given)
    for step in steps.ALL[:8]:
        run.need(step)
    folder = run.directory.path
    before = {path.name: file_hash(path) for path in folder.glob("step?.json")}
    trace = mikit.explain_feature(**given, max_rounds=5)
    assert {e: getattr(trace.meta.gate_pass, e) for e in ("input", "output", "chain")} == TRUTH["fruits"].gates
    [first, *_] = trace.rounds
    assert (first.number, first.component, first.better) == (1, end, True)
    assert first.steps_rerun == DEPENDENT[end]
    again = sorted((folder / "rounds" / "1").iterdir())
    assert [path.name for path in again] == ["round.json", *(f"step{k}.json" for k in DEPENDENT[end])]
    assert {path.name: file_hash(path) for path in folder.glob("step?.json") if path.name in before} == before
    assert len(before) == 8 and not {file_hash(path) for path in again} & set(before.values())
    assert trace.meta.rounds == len(trace.rounds) == 1 and trace.meta.confirm_batches == 1


def test_where_another_hypothesis_stands_ready_the_pair_alone_is_changed(monkeypatch):
    force_wrong(monkeypatch, "chain", "fruits", others=2)
    monkeypatch.setattr("mikit.runs.steps.choose_output", lambda scores: scores[0].hypothesis)
    given = {"model": "planted", "feature": TRUTH["fruits"].index, "nulls": False, "run": "pair", "max_rounds": 5}
    trace = mikit.explain_feature(**given)
    [first] = trace.rounds
    assert (first.component, first.steps_rerun, first.better) == ("chain", [7, 8], True)
    assert trace.meta.gate_pass.all_pass and trace.chain.best_pair[1] != "O1"


REPAIRABLE = [t.name for t in TRUTH.values() if t.gates and set(t.gates.values()) == {"pass"}][:20]


@pytest.mark.slow
@pytest.mark.parametrize("end", DEPENDENT)
def test_most_planted_features_are_repaired_within_five_rounds(monkeypatch, end, capsys):
    repaired = {}
    for name in REPAIRABLE:
        with monkeypatch.context() as patch:
            force_wrong(patch, end, name)
            given = {"model": "planted", "feature": TRUTH[name].index, "nulls": False, "run": f"many-{end}"}
            trace = mikit.explain_feature(**given, max_rounds=5)
        if trace.rounds and trace.rounds[0].component == end:
            repaired[name] = trace.meta.gate_pass.all_pass
    with capsys.disabled():
        sys.stdout.write(f"\nforced wrong at {end}: {sum(repaired.values())} of {len(repaired)} repaired\n")
    assert len(repaired) >= 10 and np.mean(list(repaired.values())) >= 0.8, repaired


def test_a_round_that_was_stopped_goes_on_where_it_was(monkeypatch):
    force_wrong(monkeypatch, "input", "fruits")
    given = {"model": "planted", "feature": TRUTH["fruits"].index, "nulls": False, "max_rounds": 5}
    stopped = open_run(**given, run="stopped")
    call_for(stopped.directory, 5)
    for step in steps.ALL[:8]:
        stopped.need(step)
    with monkeypatch.context() as patch:
        patch.setattr("mikit.runs.steps.choose_input", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            refine(stopped)
    folder = stopped.directory.path / "rounds" / "1"
    assert {path.name for path in folder.iterdir()} == {"step2.json", "step3.json"}
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = open_run(**given, run="stopped")
    refined = refine(again)
    assert {name: (folder / name).read_bytes() for name in before} == before
    expected = mikit.explain_feature(**given, run="forced-input").rounds
    assert [each.model_dump() for each in refined.rounds] == [each.model_dump() for each in expected]


def test_where_all_gates_pass_no_round_is_done():
    trace = mikit.explain_feature(model="planted", feature=TRUTH["fruits"].index, nulls=False, run="fine", max_rounds=3)
    assert trace.rounds == [] and trace.meta.gate_pass.all_pass
    params, begun = refine_pipeline(
        Params(model="planted", feature=TRUTH["fruits"].index, run="fine"), 3, {"feature", "run"}
    )
    assert not begun and params.feature == TRUTH["fruits"].index


def test_a_finished_run_that_is_refined_draws_all_that_it_needs_from_documents_that_no_verdict_saw(monkeypatch):
    given = {"model": "planted", "feature": TRUTH["fruits"].index, "nulls": False, "run": "later"}
    with monkeypatch.context() as patch:
        force_wrong(patch, "input", "fruits")
        first = mikit.explain_feature(**given)
    assert first.meta.gate_pass.input == "fail"
    run = open_run(**given)
    call_for(run.directory, 5)
    assert 9 in run.directory.stale() and not set(run.directory.stale()) - {9}
    drawn = []
    monkeypatch.setattr(
        "mikit.runs.verdict.judge", lambda subject, *rest: drawn.append(subject) or judge(subject, *rest)
    )
    second = mikit.explain_feature(**given)
    assert second.meta.gate_pass.all_pass and second.meta.confirm_batches == 2 and second.meta.rounds == 1
    assert second.input_round.observation == first.input_round.observation

    [subject], seen = drawn, set(run.store.table.documents)
    setting, feature = subject.setting, subject.feature
    store = setting.drawn_from
    texts = {case.document for case in second.input_round.eval.confirm.cases if case.document}
    natural = natural_windows(store, feature, "confirm", 60, setting.protocol, [], 0)
    windows = np.concatenate([natural.firing, natural.silent])
    positions = firing_windows(setting, feature, "confirm")
    drawn_from = texts | {store.table.document_of(window) for window in [*windows, *positions]}
    assert not drawn_from & seen
    assert len(texts) > 60 and len(natural.firing) >= 40 and len(positions) >= 8
    assert store.tau(feature) == run.store.tau(feature) and setting.store.hash == run.store.hash
    prompts = setting.prompts["confirm"]
    assert len(prompts) == 16 and not {tuple(prompt) for prompt in prompts} & {
        p for split in run.prompts for p in run.prompts[split]
    }
    beginnings = {
        tuple(store.table.text(window)[: len(prompts[0])]) for window in np.flatnonzero(store.table.in_split("confirm"))
    }
    assert not beginnings & {tuple(prompt) for prompt in prompts}, "a document of a prompt gives no text"


@pytest.mark.slow
def test_where_no_unseen_document_is_left_a_further_verdict_is_undecided_and_says_so(monkeypatch):
    given = {"model": "planted", "feature": TRUTH["fruits"].index, "nulls": False, "run": "used-up"}
    given |= {"corpus_tokens": 130_000}
    with monkeypatch.context() as patch:
        force_wrong(patch, "input", "fruits")
        mikit.explain_feature(**given)
    call_for(open_run(**given).directory, 1)
    second = mikit.explain_feature(**given)
    assert second.rounds[0].better and second.rounds[0].gates.input == "pass"
    verdict = second.meta.gate_pass
    assert {verdict.input, verdict.output, verdict.chain} == {"undecided"} and not second.meta.confirmed
    assert "a larger corpus has more" in verdict.reasons["chain"]


def test_a_refiner_is_told_where_there_is_no_run_and_what_it_may_change():
    with pytest.raises(BadInput, match="holds no run"):
        refine_pipeline(Params(model="planted", feature=3, run="nowhere"), 3, {"run"})
    mikit.explain_feature(model="planted", feature=TRUTH["fruits"].index, nulls=False, run="fine", max_rounds=3)
    with pytest.raises(BadInput, match="run's own"):
        refine_pipeline(Params(feature=TRUTH["fruits"].index, run="fine", seed=3), 3, {"run", "feature", "seed"})


@pytest.mark.slow
def test_rounds_of_other_parameters_are_not_taken_for_those_of_this_run(monkeypatch):
    force_wrong(monkeypatch, "input", "fruits")
    given = {"model": "planted", "feature": TRUTH["fruits"].index, "nulls": False, "run": "changed", "max_rounds": 2}
    mikit.explain_feature(**given)
    again = mikit.explain_feature(**given, seed=4)
    assert again.provenance.params["seed"] == 4 and again.meta.gate_pass.all_pass
    for each in again.rounds:
        files = (open_run(**given, seed=4).directory.path / "rounds" / str(each.number)).glob("step*.json")
        assert {json.loads(path.read_text())["params"]["seed"] for path in files} == {4}


# --- what is worked on, and when it ends ---


def gates(i, o, c):
    return Gates(input=i, output=o, chain=c, reasons={"input": "", "output": "", "chain": ""})


@pytest.mark.parametrize(
    "found, kind, component",
    [
        (gates("fail", "fail", "fail"), "normal", "input"),
        (gates("pass", "fail", "fail"), "normal", "output"),
        (gates("pass", "pass", "fail"), "normal", "chain"),
        (gates("pass", "pass", "pass"), "normal", None),
        (gates("pass", "none", "none"), "normal", None),
        (gates("undecided", "pass", "pass"), "normal", "input"),
        (gates("undecided", "pass", "pass"), "rare", None),
        (gates("undecided", "pass", "fail"), "dense", "chain"),
        (gates("none", "none", "none"), "dead", None),
        (gates("pass", "pass", "undecided"), "normal", None),
    ],
)
def test_the_first_failing_component_is_worked_on(found, kind, component):
    assert failing(found, kind) == component


def rounds(*better):
    nothing = RoundMetrics(activation_coverage=None, boundary_rejection=None, output_score=None, functional_score=None)
    return [
        Round(number=i, component="input", diagnosis="", changes=[], steps_rerun=[], metrics=nothing,
              gates=gates("fail", "fail", "fail"), better=each, started_from=0)
        for i, each in enumerate(better, 1)
    ]  # fmt: skip


def test_it_stops_at_its_limit_or_after_two_rounds_without_gain_or_at_a_budget():
    assert why_stop("input", [], 5, False) is None
    assert why_stop(None, [], 5, False)
    assert why_stop("input", rounds(True, False), 5, False) is None
    assert "no gain" in why_stop("input", rounds(True, False, False), 5, False)
    assert "3 rounds" in why_stop("input", rounds(True, False, True), 3, False)
    assert "budget" in why_stop("input", rounds(True), 5, True)
    assert why_stop("input", [], 0, False)


def at_share(share):
    """A state whose input hypothesis is true of this share of its texts; everything else about it is perfect."""
    score = builders.input_score(split="confirm", coverage=share, rejection=wilson(30, 30), recall=wilson(41, 48))
    output = builders.output_score(split="confirm")
    found = judge_gates(builders.observation(), score, output, builders.chain(), builders.intervention(), Protocol())
    metrics = RoundMetrics(
        activation_coverage=share.value, boundary_rejection=1.0, output_score=0.7, functional_score=4
    )
    return found, score, output, rank(found, metrics)


@pytest.mark.parametrize("n_rounds, calls", [(1, 1), (5, 1), (50, 1), (5, 4)])
def test_however_many_rounds_a_half_true_hypothesis_is_seldom_confirmed(n_rounds, calls):
    """Its texts fire in 60 %: rounds pick the luckiest on `select`, and `confirm` is drawn once a call."""
    rng, protocol, confirmed = np.random.default_rng(0), Protocol(), 0
    on_select = [at_share(wilson(k, protocol.n_select))[3] for k in range(protocol.n_select + 1)]
    on_confirm = [at_share(wilson(k, protocol.n_confirm)) for k in range(protocol.n_confirm + 1)]
    assert is_confirmed(*on_confirm[-1][:3], 4), "a true hypothesis is confirmed, even at the fourth draw"
    for _ in range(200):
        is_lucky = False
        for batch in range(1, calls + 1):
            select = rng.binomial(protocol.n_select, 0.6, size=n_rounds)
            confirm = rng.binomial(protocol.n_confirm, 0.6, size=n_rounds)
            best = max(range(n_rounds), key=lambda i: on_select[select[i]])
            found, score, output, _ = on_confirm[confirm[best]]
            is_lucky |= is_confirmed(found, score, output, batch)
        confirmed += is_lucky
    assert confirmed <= 0.05 * 200


def test_a_further_draw_of_confirm_raises_the_bar():
    share = wilson(26, 30)
    assert one_sided_lower(share, 1 - 0.1) > one_sided_lower(share, 1 - 0.1 / 4**2)


def test_a_round_reads_what_it_did_not_do_from_where_it_started(tmp_path):
    base = open_run(model="planted", feature=TRUTH["fruits"].index, run="fine").directory
    first = RoundDirectory(base, 1, base)
    assert first.read(1) == base.read(1) and first.own(1) is None
    assert read_rounds(base) == []
