"""What the gates say of explanations that must not pass, and of a random direction: the scale to read a verdict on."""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from mikit.evidence.observe import observe
from mikit.experiments.activation import peak_activations
from mikit.experiments.intervene import intervene
from mikit.experiments.setting import Setting
from mikit.runs.judging import Judged, Subject, judge
from mikit.trace import Explanation, InputHypothesis, Null

NullName = Literal["neighbour", "shuffled", "random_reference"]
CALIBRATION_WINDOWS = 256


def try_nulls(subject: Subject, input_hypothesis: InputHypothesis | None) -> dict[str, Null]:
    """The nearest feature's explanation and a random live feature's, judged on this feature, and a random direction.

    Args:
        subject: the feature.
        input_hypothesis: its own, whose texts the random direction is tried on.
    """
    nulls: dict[str, Null] = {}
    lenders: dict[NullName, int | None] = {"neighbour": nearest(subject, rank=1), "shuffled": stranger(subject)}
    for name, latent in lenders.items():
        if latent is not None:
            theirs = explanation_of(subject.setting, latent)
            nulls[name] = null_of(name, latent, theirs, judge(subject, theirs.input, theirs.output, "confirm"))
    if not subject.intervention.null:
        nulls["random_reference"] = random_reference(subject, input_hypothesis)
    return nulls


def nearest(subject: Subject, rank: int) -> int | None:
    """The live feature of that rank by decoder cosine, from 1; None if there are fewer."""
    return next(iter(subject.observation.neighbours[rank - 1 : rank]), None)


def stranger(subject: Subject) -> int | None:
    """A live feature drawn by seed that is none of the nearest; None if there is no other."""
    setting, feature = subject.setting, subject.feature
    live = setting.store.live(setting.protocol.rare_windows).tolist()
    others = [latent for latent in live if latent != feature and latent not in subject.observation.neighbours]
    return int(np.random.default_rng([setting.seed, feature]).choice(others)) if others else None


def explanation_of(setting: Setting, latent: int) -> Explanation:
    """The first hypotheses that the run's explainer writes of a latent, from that latent's own evidence."""
    theirs = observe(setting.target, setting.store, latent, setting.protocol, setting.seed)
    inputs = setting.explainer.input_hypotheses(theirs, setting.vocabulary, 1).hypotheses
    outputs = setting.explainer.output_hypotheses(intervene(setting, latent, theirs, illustrate=False), 1).hypotheses
    return Explanation(input=next(iter(inputs), None), output=next(iter(outputs), None))


def null_of(name: NullName, latent: int | None, explanation: Explanation, judged: Judged) -> Null:
    """The short form of a verdict that goes into the trace."""
    gates = judged.gates
    return Null(
        name=name,
        latent=latent,
        explanation=explanation.words,
        coverage=judged.input_score.coverage if judged.input_score else None,
        rejection=judged.input_score.rejection if judged.input_score else None,
        recall=judged.input_score.recall if judged.input_score else None,
        output_score=judged.output_score.score.value if judged.output_score else None,
        functional_score=judged.chain.functional_score,
        gates={"input": gates.input, "output": gates.output, "chain": gates.chain},
    )


def random_reference(subject: Subject, input_hypothesis: InputHypothesis | None) -> Null:
    """The short form of `random_trial`."""
    explanation, judged = random_trial(subject, input_hypothesis)
    note = "a random direction of the feature's norm with the tokens that it promotes itself"
    # recall speaks of where the feature itself fires
    return null_of("random_reference", None, explanation, judged).model_copy(update={"note": note, "recall": None})


def random_trial(subject: Subject, input_hypothesis: InputHypothesis | None) -> tuple[Explanation, Judged]:
    """A random direction in the feature's place, at the same norm, claiming the tokens that it promotes itself.

    Any direction promotes what it promotes: its output and chain scores are a reference, not a null. It reads the
    residual stream as a latent that fires in as many windows as the feature does, on the texts of the feature's own
    explanation, and must fail the input gate.
    """
    setting = with_random_direction(subject.setting, subject.feature)
    intervention = intervene(setting, subject.feature, subject.observation, illustrate=False)
    outputs = setting.explainer.output_hypotheses(intervention, 1).hypotheses
    own = Explanation(input=None, output=next(iter(outputs), None))
    tau = as_often(setting, subject)
    theirs = Subject(setting, subject.feature, subject.observation.model_copy(update={"tau": tau}), intervention)
    return own, judge(theirs, input_hypothesis, own.output, "confirm")


def with_random_direction(setting: Setting, feature: int) -> Setting:
    """The setting with a latent that reads and writes along a direction drawn by seed and feature."""
    sae = setting.target.sae
    generator = torch.Generator().manual_seed(setting.seed * 1_000_003 + feature)
    direction = torch.randn(sae.d_in, generator=generator)
    direction = direction / direction.norm()
    W_dec, W_enc = sae.W_dec.clone(), sae.W_enc.clone()
    W_dec[feature] = direction * sae.W_dec[feature].norm()
    W_enc[:, feature] = direction
    b_enc, threshold = sae.b_enc.clone(), sae.threshold.clone()
    b_enc[feature] = threshold[feature] = 0.0
    changed = replace(sae, W_dec=W_dec, W_enc=W_enc, b_enc=b_enc, threshold=threshold)
    return replace(setting, target=replace(setting.target, sae=changed))


def as_often(setting: Setting, subject: Subject) -> float:
    """The threshold above which a latent of which only the direction is given fires in as many windows as the feature does."""
    table, n_windows = setting.store.table, setting.store.n_windows
    chosen = np.random.default_rng(setting.seed).permutation(n_windows)[:CALIBRATION_WINDOWS]
    texts = [table.text(i) for i in chosen]
    peaks, _ = peak_activations(setting.target, [subject.feature], texts, setting.batch)
    rate = subject.observation.firing_windows / subject.observation.n_windows
    return float(np.quantile(peaks[:, 0], 1 - rate))
