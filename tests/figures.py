"""Every public figure, from small data in which one text stands wherever a corpus, a model or a person could put one."""

from collections.abc import Callable

import builders
import numpy as np
import torch
from matplotlib.figure import Figure

from mikit import viz
from mikit.tasks import plots
from mikit.trace import Scored
from mikit.viz.explore import NextTokens, Overlap

Draw = Callable[[str], Figure]
SHARES = (builders.share(3, 10), builders.share(9, 10))


def _tokens(text: str) -> list:
    return builders.lens([text, f" {text}", "plain"], 2.0)


def _observation(text: str):
    return builders.observation(promoted=_tokens(text), suppressed=_tokens(text))


def _intervention(text: str, **overrides):
    return builders.intervention(promoted=_tokens(text), suppressed=_tokens(text), **overrides)


def _score(text: str):
    tokens = _tokens(text)
    return builders.output_score(text, targets=tokens, distractors=tokens, hits=[text], false_alarms=[f" {text}"])


def _checks(text: str):
    bars = {"feature": 1.0, f"near {text}": 0.4, f"live {text}": 0.1, "random 1": -0.1, "random 2": 0.2}
    return builders.chain(checks=[builders.check(bars=bars), builders.check("dose_response", bars={"1": 0.1, "2": 0.4}), builders.check("own_tokens", bars={text: 1.0, "other": 0.5})])  # fmt: skip


def _scored(text: str) -> Scored:
    return Scored(
        feature=3, feature_kind="normal", explanation={"input": builders.input_hypothesis(text=text), "output": None},
        gates=builders.gates(), confirmed=True, input_score=builders.input_score(text), output_score=_score(text),
        chain=_checks(text), nulls={}, provenance=builders.provenance(),
    )  # fmt: skip


def _next(text: str) -> NextTokens:
    values = np.array([0.4, 0.3])
    return NextTokens([text, "a"], values, values[::-1], values, [text, "b"], values, values, 0.1, 0.05)


def _overlap(text: str) -> Overlap:
    values = np.array([[1.0, 0.0], [0.5, 2.0], [0.0, 1.0]])
    return Overlap((text, "7"), SHARES, (0.1, 0.2), values, 0.3)


FIGURES: dict[str, Draw] = {
    "plot_activations": lambda text: viz.plot_activations(_observation(text)),
    "plot_logit_lens": lambda text: viz.plot_logit_lens(_observation(text)),
    "plot_input_scores": lambda text: viz.plot_input_scores([builders.input_score(text), builders.input_score("H2")]),
    "plot_case_activations": lambda text: viz.plot_case_activations(builders.input_score(text), builders.TAU),
    "plot_doses": lambda text: viz.plot_doses(_intervention(text, null=True, null_reason=text)),
    "plot_controls": lambda text: viz.plot_controls(_intervention(text)),
    "plot_token_effects": lambda text: viz.plot_token_effects(_intervention(text)),
    "plot_output_score": lambda text: viz.plot_output_score(_score(text)),
    "plot_checks": lambda text: viz.plot_checks(_checks(text)),
    "plot_gates": lambda text: viz.plot_gates(builders.trace()),
    "plot_scored": lambda text: viz.plot_scored(_scored(text)),
    "plot_density": lambda text: viz.plot_density(np.geomspace(1e-5, 0.4, 64)),
    "plot_rates": lambda text: viz.plot_rates(text, {text: {text: SHARES[0], "b": SHARES[1]}}, "b"),
    "plot_distributions": lambda text: viz.plot_distributions(text, {text: [0.2, 0.4]}, {text: 0.3}),
    "plot_step_seconds": lambda text: viz.plot_step_seconds(text, {text: 1.0, "b": 2.0}),
    "plot_compared": lambda text: viz.plot_compared(text, {text: {text: SHARES[0], "b": None}}, {text: 0.5}),
    "plot_costs": lambda text: viz.plot_costs(text, {text: 1.0, "b": 2.0}, {text: 10, "b": 2000}),
    "plot_histogram": lambda text: viz.plot_histogram(np.linspace(0.1, 3, 40), 1.0, 2.5, 1000),
    "plot_next_tokens": lambda text: viz.plot_next_tokens(_next(text), text),
    "plot_overlap": lambda text: viz.plot_overlap(_overlap(text)),
}
"""By the name of the function in `mikit.viz`."""

X = torch.linspace(-1, 1, 5)
LESSONS: dict[str, Draw] = {
    "matrix": lambda text: plots.matrix(torch.randn(3, 4), text, f"{text}, number", f"{text}, number", f"{text}, no unit"),
    "bars": lambda text: plots.bars(X, text, f"{text}, number", f"{text}, no unit", marked=[1], line=(0.5, text)),
    "scatter": lambda text: plots.scatter(X, X, text, f"{text}, no unit", f"{text}, no unit", named=[2]),
    "curves": lambda text: plots.curves(X, {text: X, "b": -X}, text, f"{text}, no unit", f"{text}, no unit", [text]),
    "surfaces": lambda text: plots.surfaces({text: X[:, None] * X}, text, f"{text}, no unit", f"{text}, no unit", f"{text}, no unit"),
    "series": lambda text: plots.series({f"{text}, no unit": X}, text, f"{text}, number"),
}  # fmt: skip
"""By the name of the function in `mikit.tasks.plots`; a lesson says itself what its axes show."""
