"""Figures of the output end: what steering does to the next token, and how well a hypothesis says so."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mikit.settings import Protocol
from mikit.trace import Intervention, LensToken, OutputScore
from mikit.viz import style
from mikit.viz.inputs import token_pair
from mikit.viz.style import bars, blank, empty, interval, panels, plain, reference, styled
from mikit.viz.text import token_label

CONTROL_NAMES = {
    "near": "near neighbours",
    "random_live": "random live features",
    "random_direction": "random directions",
}
MARKERS = {"near": "s", "random_live": "o", "random_direction": "v"}


@styled
def plot_doses(intervention: Intervention, target: float = 0.25) -> Figure:
    """Mean KL by dose, with the target and the dose that all later scores use.

    Args:
        intervention: of the feature.
        target: mean KL in nats that the scoring dose is nearest to.
    """
    scoring = next((dose for dose in intervention.doses if dose.dose == intervention.scoring_dose), None)
    if intervention.null:
        title = f"Steering does nothing to speak of: {intervention.null_reason or 'the intervention is null'}"
    elif scoring:
        title = f"At {scoring.dose:g} x ref the next-token distribution moves by {scoring.kl:.3g} nats"
    else:
        title = "No dose was measured"
    figure, (axes,) = panels(title, height=2.9)
    if not intervention.doses:
        empty(axes, "no dose was measured")
        return figure
    doses, kl = [dose.dose for dose in intervention.doses], [max(dose.kl, 1e-6) for dose in intervention.doses]
    axes.plot(doses, kl, "o-", color=style.FEATURE, linewidth=1.8, markersize=6)
    if scoring:
        axes.plot(
            scoring.dose, max(scoring.kl, 1e-6), "o", markersize=13, markerfacecolor="none", markeredgecolor=style.INK
        )
        axes.annotate("scoring dose", (scoring.dose, max(scoring.kl, 1e-6)), (9, -19), textcoords="offset points")
    axes.set(
        xscale="log", yscale="log", xlabel="dose, multiples of ref added along the direction", ylabel="mean KL, nats"
    )
    axes.set_xticks(doses, [f"{dose:g}" for dose in doses])
    axes.minorticks_off()
    plain(axes.yaxis)
    axes.grid(axis="y")
    reference(axes, target, f"target {target:g} nats", vertical=False)
    return figure


@styled
def plot_controls(intervention: Intervention) -> Figure:
    """KL of the feature at the scoring dose beside that of its control directions, at the same norm."""
    kl = next((dose.kl for dose in intervention.doses if dose.dose == intervention.scoring_dose), None)
    others = [control.kl for control in intervention.controls]
    title = "No control was measured"
    if kl is not None and others:
        title = (
            f"KL does not single the feature out: {kl:.3g} nats against {np.median(others):.3g} for the median control"
        )
        if kl > max(others) or kl < min(others):
            side = "more" if kl > max(others) else "less"
            title = f"The feature moves the distribution {side} than all {len(others)} controls: {kl:.3g} nats"
    figure, (axes,) = panels(title, height=2.5)
    if not others:
        empty(axes, "no controls")
        return figure
    if kl is not None:
        reference(axes, kl, f"feature {kl:.3g}", color=style.FEATURE)
        axes.plot(kl, 0, "D", color=style.FEATURE, markersize=8)
    for y, kind in enumerate(CONTROL_NAMES, start=1):
        values = [control.kl for control in intervention.controls if control.kind == kind]
        axes.plot(values, [y] * len(values), MARKERS[kind], color=style.CONTROLS[kind], markersize=7, alpha=0.8)
    near = [control.cosine for control in intervention.controls if control.kind == "near"]
    cosines = f"\ncosine {min(near):.2f} to {max(near):.2f}" if near else ""
    axes.set_yticks(range(4), ["the feature", CONTROL_NAMES["near"] + cosines, *list(CONTROL_NAMES.values())[1:]])
    axes.tick_params(axis="y", length=0)
    axes.set(ylim=(3.5, -0.7), xlabel=f"mean KL at {intervention.scoring_dose:g} x ref, same norm, nats")
    axes.set_xlim(0, 1.1 * max([*others, kl or 0.0, 1e-6]))
    axes.grid(axis="x")
    return figure


@styled
def plot_token_effects(intervention: Intervention, n: int = 12) -> Figure:
    """The tokens that steering promotes and suppresses most on `explain`, in nats of log-probability."""
    first = ", ".join(token_label(token.token) for token in intervention.promoted[:3])
    title = f"Steering promotes {first}" if first else "No token was measured"
    if intervention.promoted:
        title += f" ({intervention.promoted[0].value:+.2g} nats for the first)"
    up, down = intervention.promoted[:n], intervention.suppressed[:n]
    return token_pair(title, up, down, "change of log-probability, nats", ("most promoted", "most suppressed"))


@styled
def plot_output_score(score: OutputScore, protocol: Protocol | None = None) -> Figure:
    """The tokens most moved beside matched distractors, hatched where the hypothesis claims them, and the score."""
    gate = (protocol or Protocol()).gate_output
    title = (
        f"{score.hypothesis} claims {len(score.hits)} of the {len(score.targets)} tokens most moved "
        f"and {len(score.false_alarms)} of {len(score.distractors)} distractors: score {score.score.value:.2f}"
    )
    rows = max(len(score.targets), len(score.distractors), 4)
    figure = blank(title, height=1.9 + 0.19 * rows)
    places = figure.subplot_mosaic(
        [["targets", "distractors"], ["score", "score"]], height_ratios=(0.19 * rows + 0.5, 0.5)
    )
    _claimed(places["targets"], score.targets, score.hits, style.FEATURE, "tokens most moved")
    distractors = sorted(score.distractors, key=lambda token: -token.value)
    _claimed(places["distractors"], distractors, score.false_alarms, style.VERDICTS["fail"], "distractors")
    _score(places["score"], score, gate)
    return figure


def _score(axes: Axes, score: OutputScore, gate: float) -> None:
    """The score on its whole range: 0 is what ticking all, none or at random scores."""
    interval(axes, score.score, 0, style.FEATURE)
    axes.set(
        xlim=(-1.02, 1.02), ylim=(-1, 1), xlabel="score: share of hits less that of false alarms, with 95% interval"
    )
    axes.set_yticks([0], [f"{score.split}, n {score.score.n} prompts"])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.axvline(0, color=style.OTHER, linewidth=1)
    reference(axes, gate, f"gate {gate:g}")


def _claimed(axes: Axes, tokens: Sequence[LensToken], claimed: Sequence[str], color: str, name: str) -> None:
    if not tokens:
        empty(axes, f"{name}: none")
        return
    colors = [color if token.token in claimed else style.OTHER for token in tokens]
    hatches = [style.CLAIMED if token.token in claimed else "" for token in tokens]
    bars(axes, [token_label(token.token) for token in tokens], [token.value for token in tokens], colors, hatches)
    axes.tick_params(axis="y", labelsize=7.5)
    axes.set_xlabel("change of log-probability, nats")
    axes.set_title(f"{name}; hatched: claimed", color=style.MUTED)
