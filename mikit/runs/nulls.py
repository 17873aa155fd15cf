"""What the gates say of explanations that must not pass, and of a random direction: the scale to read a verdict on."""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from mikit.evidence.observe import observe
from mikit.experiments.activation import peak_activations
from mikit.experiments.checks import functional_score, run_checks
from mikit.experiments.input_score import score_input
from mikit.experiments.intervene import intervene
from mikit.experiments.output_score import score_output
from mikit.experiments.setting import Setting
from mikit.experiments.statistics import mean_of, wilson
from mikit.experiments.texts import design_experiment
from mikit.gates import judge_gates
from mikit.runs.found import Found
from mikit.runs.run import Run
from mikit.trace import GATED_STRATA, Chain, Gates, InputHypothesis, Null, OutputHypothesis, Proportion, TextCase

NullName = Literal["neighbour", "shuffled", "random_reference"]
MIN_FIRING_WINDOWS = 40
"""A latent with fewer has too little evidence to lend an explanation."""
CALIBRATION_WINDOWS = 256


def try_nulls(run: Run, found: Found) -> dict[str, Null]:
    """The nearest feature's explanation and a random live feature's, judged on this feature, and a random direction."""
    observation = found.observation
    live = [i for i in run.store.live(MIN_FIRING_WINDOWS).tolist() if i != run.feature]
    nearest = next((i for i in observation.neighbours if i in set(live)), None)
    strangers = [i for i in live if i not in observation.neighbours]
    nulls: dict[str, Null] = {}
    if nearest is not None:
        nulls["neighbour"] = _borrowed(run, found, "neighbour", nearest)
    if strangers:
        stranger = int(np.random.default_rng([run.params.seed, run.feature]).choice(strangers))
        nulls["shuffled"] = _borrowed(run, found, "shuffled", stranger)
    if not found.intervention.null:
        nulls["random_reference"] = _random_reference(run, found)
    return nulls


def _borrowed(run: Run, found: Found, name: NullName, latent: int) -> Null:
    """Another feature's explanation, written from that feature's own evidence, scored on this one."""
    setting = run.setting
    theirs = observe(run.target, run.store, latent, run.protocol, run.params.seed)
    inputs = run.explainer.input_hypotheses(theirs, run.vocabulary, 1).hypotheses
    outputs = run.explainer.output_hypotheses(intervene(setting, latent, theirs), 1).hypotheses
    words = " ".join([*(hypothesis.text for hypothesis in inputs), *(hypothesis.text for hypothesis in outputs)])
    return _judged(run, found, setting, name, latent, words, inputs, outputs)


def _judged(
    run: Run,
    found: Found,
    setting: Setting,
    name: NullName,
    latent: int | None,
    words: str,
    inputs: list[InputHypothesis],
    outputs: list[OutputHypothesis],
) -> Null:
    observation, intervention = found.observation, found.intervention
    input_score = output_score = chain = None
    if inputs:
        experiment = design_experiment(setting, inputs[0], "confirm", run.protocol.n_confirm)
        input_score = score_input(setting, run.feature, observation, inputs[0], experiment)
    if outputs and not intervention.null:
        output_score = score_output(setting, run.feature, observation, intervention, outputs[0], "confirm")
        checks = run_checks(setting, run.feature, observation, intervention, outputs[0], "confirm")
        chain = Chain(
            split="confirm", best_pair=None, checks=checks, functional_score=functional_score(checks), explanation=words
        )
    gates = judge_gates(observation, input_score, output_score, chain, intervention, run.protocol)
    return Null(
        name=name,
        latent=latent,
        explanation=words,
        coverage=input_score.coverage if input_score else None,
        rejection=input_score.rejection if input_score else None,
        output_score=output_score.score.value if output_score else None,
        functional_score=chain.functional_score if chain else None,
        gates=_verdicts(gates),
    )


def _verdicts(gates: Gates) -> dict:
    return {"input": gates.input, "output": gates.output, "chain": gates.chain}


def _random_reference(run: Run, found: Found) -> Null:
    """A random direction in the feature's place, at the same norm, claiming the tokens that it promotes itself.

    Any direction promotes what it promotes: its output and chain scores are a reference, not a null. It reads the
    residual stream as a latent that fires in as many windows as the feature does, and must fail the input gate.
    """
    setting = _with_random_direction(run)
    intervention = intervene(setting, run.feature, found.observation)
    outputs = run.explainer.output_hypotheses(intervention, 1).hypotheses
    words = " ".join(hypothesis.text for hypothesis in outputs)
    theirs = replace(found, intervention=intervention)
    null = _judged(run, theirs, setting, "random_reference", None, words, [], outputs)
    if found.input_choice is None:
        return null
    experiment = design_experiment(run.setting, found.input_choice, "confirm", run.protocol.n_confirm)
    coverage, rejection = _read_along(run, setting, found, experiment.cases)
    passes = all(
        share.value is not None and share.value >= gate
        for share, gate in ((coverage, run.protocol.gate_coverage), (rejection, run.protocol.gate_rejection))
    )
    return null.model_copy(
        update={
            "coverage": coverage,
            "rejection": rejection,
            "gates": null.gates | {"input": "pass" if passes else "fail"},
            "note": "a random direction of the feature's norm with the tokens that it promotes itself",
        }
    )


def _with_random_direction(run: Run) -> Setting:
    sae, feature = run.target.sae, run.feature
    generator = torch.Generator().manual_seed(run.params.seed * 1_000_003 + feature)
    direction = torch.randn(sae.d_in, generator=generator)
    direction = direction / direction.norm()
    changed = sae.reading_along(feature, direction)
    return replace(run.setting, target=replace(run.target, sae=changed))


def _read_along(run: Run, setting: Setting, found: Found, cases: list[TextCase]) -> tuple[Proportion, Proportion]:
    """Coverage and rejection of a latent that reads along the random direction and fires as often as the feature."""
    table = run.store.table
    chosen = np.random.default_rng(run.params.seed).permutation(run.store.n_windows)[:CALIBRATION_WINDOWS]
    texts = [table.text(i) for i in chosen]
    peaks, _ = peak_activations(setting.target, [run.feature], texts, setting.batch)
    rate = found.observation.firing_windows / found.observation.n_windows
    tau = float(np.quantile(peaks[:, 0], 1 - rate))
    values, _ = peak_activations(setting.target, [run.feature], [case.ids for case in cases], setting.batch)
    silent = values[:, 0] < tau
    groups = {stratum: [i for i, case in enumerate(cases) if case.stratum == stratum] for stratum in GATED_STRATA}
    positives = [i for i, case in enumerate(cases) if case.role == "positive"]
    rejected = [wilson(int(silent[rows].sum()), len(rows)) for rows in groups.values() if rows]
    return wilson(int((~silent[positives]).sum()), len(positives)), mean_of(rejected)
