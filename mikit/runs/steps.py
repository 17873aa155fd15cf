"""The nine steps from evidence to verdict: each a function of a run, each in a notebook of the same name."""

from mikit.evidence.observe import observe as observe_feature
from mikit.experiments.input_score import choose_input, score_input
from mikit.experiments.intervene import intervene as intervene_on
from mikit.experiments.output_score import choose_output
from mikit.experiments.texts import design_experiment, peak_tokens
from mikit.runs.found import chosen
from mikit.runs.judging import Subject, chain_of, output_score_of
from mikit.runs.run import Run, step
from mikit.runs.verdict import Refinement, trace_of
from mikit.trace import (
    Chain,
    InputEval,
    InputExperiments,
    InputHypotheses,
    Intervention,
    Observation,
    OutputEval,
    OutputHypotheses,
    Trace,
)


@step(1, Observation)
def observe(run: Run) -> Observation:
    """Where the feature fires: windows of the corpus, its scale, and what its direction writes to the logits.

    Firing windows may come from elsewhere; what that leaves undefined is measured on the corpus, and said.
    """
    local = observe_feature(run.target, run.store, run.feature, run.protocol, run.params.seed)
    if run.params.source == "neuronpedia":
        from mikit.evidence.neuronpedia import feature_record, with_record

        record, origin = feature_record(run.params)
        return with_record(local, record, origin, run.target, run.vocabulary, run.params)
    if run.params.source == "bos_token":
        from mikit.evidence.bos_tokens import read_bos, with_bos_tokens

        found = read_bos(run.target, run.params)
        return with_bos_tokens(local, found, run.target, run.vocabulary, run.params)
    return local


@step(2, InputHypotheses)
def hypothesise_input(run: Run) -> InputHypotheses:
    """What makes it fire: up to three hypotheses, written from the windows of `explain`."""
    return run.explainer.input_hypotheses(run.need(observe), run.vocabulary, run.params.max_hypotheses)


@step(3, InputExperiments)
def design_input(run: Run) -> InputExperiments:
    """Texts that each hypothesis says should fire, and texts that it says should not; no activation is looked at."""
    hypotheses, peaks = run.need(hypothesise_input).hypotheses, peak_tokens(run.need(observe))
    n = run.protocol.n_select
    return InputExperiments(
        experiments=[design_experiment(run.setting, h, "select", n, trigger_ids=peaks) for h in hypotheses]
    )


@step(4, InputEval)
def score_inputs(run: Run) -> InputEval:
    """Which hypothesis predicts best where the feature fires, on `select`."""
    observation, hypotheses = run.need(observe), run.need(hypothesise_input).hypotheses
    experiments = run.need(design_input).experiments
    scores = [
        score_input(run.setting, run.feature, observation, hypothesis, experiment)
        for hypothesis, experiment in zip(hypotheses, experiments, strict=True)
    ]
    return InputEval(per_hypothesis=scores, chosen=choose_input(scores, run.protocol))


@step(5, Intervention)
def intervene(run: Run) -> Intervention:
    """What adding the feature's direction does to the next token, beside directions that should do nothing alike."""
    return intervene_on(run.setting, run.feature, run.need(observe))


@step(6, OutputHypotheses)
def hypothesise_output(run: Run) -> OutputHypotheses:
    """What it does to the output: up to three hypotheses, written from the `explain` prompts."""
    return run.explainer.output_hypotheses(run.need(intervene), run.params.max_hypotheses)


@step(7, OutputEval)
def score_outputs(run: Run) -> OutputEval:
    """Which hypothesis tells moved tokens from matched distractors best, on the `select` prompts."""
    subject = Subject(run.setting, run.feature, run.need(observe), run.need(intervene))
    tried = [output_score_of(subject, each, "select") for each in run.need(hypothesise_output).hypotheses]
    scores = [score for score in tried if score is not None]
    return OutputEval(per_hypothesis=scores, chosen=choose_output(scores))


@step(8, Chain)
def test_chain(run: Run) -> Chain:
    """Whether the feature is what carries the effect: five causal checks of the best pair, on `select`."""
    return chain_of(
        Subject(run.setting, run.feature, run.need(observe), run.need(intervene)),
        chosen(run.need(hypothesise_input).hypotheses, run.need(score_inputs).chosen),
        chosen(run.need(hypothesise_output).hypotheses, run.need(score_outputs).chosen),
        "select",
    )


@step(9, Trace)
def conclude(run: Run) -> Trace:
    """The verdict: the chosen pair, of the best round if there were any, scored once on `confirm`, with gates, nulls
    and provenance.
    """
    from mikit.runs.refinement import refine

    refined = refine(run)
    session = refined.session
    before = Refinement(refined.rounds, session.batch) if session else Refinement()
    return trace_of(run, refined.best.found, before)


ALL = (
    observe,
    hypothesise_input,
    design_input,
    score_inputs,
    intervene,
    hypothesise_output,
    score_outputs,
    test_chain,
    conclude,
)
"""The steps in order."""
