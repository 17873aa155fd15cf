"""Figures of the input end: where the feature fires, and how well its hypotheses say so."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mikit.settings import Protocol
from mikit.trace import GATED_STRATA, STRATA, InputScore, LensToken, Observation, Proportion, ScoredCase
from mikit.viz import style
from mikit.viz.style import bars, empty, interval, panels, percent, plain, reference, styled
from mikit.viz.text import drawable, token_label

WINDOW_KINDS = {
    "top": ("strongest", style.FEATURE, "o"),
    "quantile": ("over the quantiles", style.CONTROLS["random_live"], "D"),
    "silent_trigger": ("silent, with a trigger", style.SECOND, "v"),
    "silent_random": ("silent, at random", style.OTHER, "s"),
}
CASE_COLORS = {"positive": style.FEATURE, "random": style.OTHER}
GROUPS = {
    "positive": "positives",
    "authored": "near misses:\nauthored",
    "corpus": "near misses:\ncorpus",
    "neighbour": "near misses:\nneighbour",
    "random": "random texts\n(not gated)",
}
STRATUM_ROWS = {
    "authored": "authored near misses silent",
    "corpus": "corpus near misses silent",
    "neighbour": "neighbour near misses silent",
    "random": "random texts silent, not gated",
}


@styled
def plot_activations(observation: Observation) -> Figure:
    """Activations of the tokens in the windows shown, and the peak of each window, with tau and ref."""
    figure, (tokens, peaks) = panels(_fires_how_often(observation), height=3.1, columns=2)
    values = np.array([a for window in observation.windows for a in window.activations if a > 0])
    if not values.size:
        empty(tokens, "no token of the windows shown\nhas an activation above 0")
    else:
        tokens.hist(values, bins=40, color=style.HOT)
        tokens.set(xlabel="activation of a token, SAE units", ylabel="number of tokens in the windows", yscale="log")
        tokens.set_title(
            f"{np.mean(values < observation.tau):.0%} of non-zero activations are below tau", color=style.MUTED
        )
        tokens.set_xlim(left=0)
        plain(tokens.yaxis)
        _scale(tokens, observation, vertical=True)
    _peaks(peaks, observation)
    if observation.windows:
        figure.legend(loc="outside lower right", ncols=len(WINDOW_KINDS), handletextpad=0.1, columnspacing=1.2)
    return figure


def _fires_how_often(observation: Observation) -> str:
    if not observation.firing_windows:
        return f"No window fires in {observation.tokens_read:,} tokens"
    share = observation.firing_windows / max(observation.n_windows, 1)
    tokens = percent(observation.density)
    return (
        f"Fires in {percent(share)} of {observation.n_windows:,} windows; {tokens} of tokens have an activation above 0"
    )


def _peaks(axes: Axes, observation: Observation) -> None:
    start = 0
    for kind, (name, color, marker) in WINDOW_KINDS.items():
        values = sorted((window.peak for window in observation.windows if window.kind == kind), reverse=True)
        places = np.arange(start, start + len(values))
        if values:
            axes.plot(places, values, marker, color=color, markersize=3.5, label=f"{name} ({len(values)})")
        start += len(values)
    if not start:
        return empty(axes, "no windows")
    axes.set(xlabel="windows, ranked in their group", ylabel="peak activation, SAE units")
    axes.set_title("peak of each window shown", color=style.MUTED)
    axes.grid(axis="y")
    return _scale(axes, observation, vertical=False)


def _scale(axes: Axes, observation: Observation, vertical: bool) -> None:
    if observation.ref > 0:
        reference(axes, observation.tau, f"tau {observation.tau:.3g}", vertical)
        reference(axes, observation.ref, f"ref {observation.ref:.3g}", vertical)


@styled
def plot_logit_lens(observation: Observation, n: int = 12) -> Figure:
    """The tokens that the feature's direction points to and away from, by its logit lens."""
    first = ", ".join(token_label(token.token) for token in observation.promoted[:3])
    title = f"Read through the unembedding, the direction points to {first}" if first else "The logit lens is empty"
    return token_pair(
        title, observation.promoted[:n], observation.suppressed[:n], "logit, nats", ("points to", "points away from")
    )


def token_pair(
    title: str, up: Sequence[LensToken], down: Sequence[LensToken], unit: str, names: tuple[str, str]
) -> Figure:
    """Two panels of tokens with their values as bars: those moved up, and those moved down."""
    figure, axes = panels(title, height=0.55 + 0.24 * max(len(up), len(down), 4), columns=2)
    for panel, tokens, name, color in zip(axes, (up, down), names, (style.FEATURE, style.OTHER), strict=True):
        if not tokens:
            empty(panel, f"{name}: no tokens")
            continue
        bars(panel, [token_label(token.token) for token in tokens], [token.value for token in tokens], color)
        panel.set_title(name, color=style.MUTED)
        panel.set_xlabel(unit)
    return figure


@styled
def plot_input_scores(scores: Sequence[InputScore], protocol: Protocol | None = None) -> Figure:
    """Coverage, rejection by stratum and recall of each hypothesis, with Wilson intervals and the gates' lines.

    Args:
        scores: told apart by colour and marker.
        protocol: where the gates stand; the default one if not given.
    """
    protocol = protocol or Protocol()
    figure, (axes,) = panels(_passing(scores, protocol), height=1.4 + 0.33 * len(_rows(protocol)) + 0.1 * len(scores))
    if not scores:
        empty(axes, "no hypothesis was scored")
        return figure
    offsets = (np.arange(len(scores)) - (len(scores) - 1) / 2) * min(0.26, 0.7 / len(scores))
    for i, (score, offset) in enumerate(zip(scores, offsets, strict=True)):
        color, marker = style.series(i)
        for y, (name, gate) in enumerate(_rows(protocol)):
            interval(axes, _shares(score)[name], y + offset, color, marker)
            if gate is not None and i == 0:
                axes.plot([gate, gate], [y - 0.45, y + 0.45], color=style.INK, linewidth=1.6)
        axes.plot([], [], marker, color=color, linestyle="", label=f"{drawable(score.hypothesis)} on {score.split}")
    axes.plot([], [], "|", color=style.INK, markersize=10, markeredgewidth=1.6, label="gate")
    _label_rows(axes, [name for name, _ in _rows(protocol)], _shares(scores[0]))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(scores) + 1, borderpad=0)
    return figure


def _rows(protocol: Protocol) -> list[tuple[str, float | None]]:
    """The rows of the figure from top to bottom, each with its gate."""
    return [
        ("activation coverage", protocol.gate_coverage),
        ("boundary rejection", protocol.gate_rejection),
        *((STRATUM_ROWS[stratum], None) for stratum in STRATA),
        ("recall, not gated", None),
        ("specificity, not gated", None),
    ]


def _shares(score: InputScore) -> dict[str, Proportion]:
    none = Proportion(value=None, low=None, high=None, n=0)
    return {
        "activation coverage": score.coverage,
        "boundary rejection": score.rejection,
        **{STRATUM_ROWS[stratum]: score.strata.get(stratum, none) for stratum in STRATA},
        "recall, not gated": score.recall,
        "specificity, not gated": score.specificity,
    }


def _label_rows(axes: Axes, names: Sequence[str], shares: dict[str, Proportion]) -> None:
    axes.set_yticks(range(len(names)), [f"{name}  (n {shares[name].n})" for name in names])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(-0.02, 1.02), ylim=(len(names) - 0.4, -0.6), xlabel="share of cases, with 95% interval")
    axes.axhline(1.5, color=style.RULE, linewidth=1)
    axes.grid(axis="x")


def _passing(scores: Sequence[InputScore], protocol: Protocol) -> str:
    """The best of the scores as a sentence."""
    known = [score for score in scores if score.coverage.value is not None and score.rejection.value is not None]
    if not known:
        return "No hypothesis could be scored"
    best = max(known, key=lambda score: min(score.coverage.value or 0, score.rejection.value or 0))
    coverage, rejection = best.coverage.value or 0, best.rejection.value or 0
    passes = coverage >= protocol.gate_coverage and rejection >= protocol.gate_rejection
    verb = "reaches both gates" if passes else "misses a gate"
    return f"{best.hypothesis} {verb}: {coverage:.0%} of positives fire, {rejection:.0%} of near misses stay silent"


@styled
def plot_case_activations(score: InputScore, tau: float) -> Figure:
    """The activation of every scored text, by group, with tau.

    Args:
        score: of one hypothesis.
        tau: the observation's firing threshold.
    """
    groups = {group: [case for case in score.cases if _group(case) == group] for group in GROUPS}
    positives, near = groups["positive"], [case for stratum in GATED_STRATA for case in groups[stratum]]
    fired = sum(case.fires for case in near)
    title = (
        f"{sum(case.fires for case in positives)} of {len(positives)} positives fire, "
        f"and {fired} of {len(near)} near misses do although they should not"
    )
    figure, (axes,) = panels(title, height=3.0)
    for x, (group, cases) in enumerate(groups.items()):
        _strip(axes, x, cases, CASE_COLORS.get(group, style.SECOND))
    labels = [f"{GROUPS[group]}\nn {len(cases)}" for group, cases in groups.items()]
    axes.set_xticks(range(len(GROUPS)), labels)
    axes.tick_params(axis="x", length=0)
    axes.set(xlim=(-0.5, len(GROUPS) - 0.3), ylabel="largest activation, SAE units")
    axes.set_title(
        f"{drawable(score.hypothesis)} on {score.split}; filled: as predicted, open: against the prediction",
        color=style.MUTED,
    )
    axes.grid(axis="y")
    reference(axes, tau, f"tau {tau:.3g}", vertical=False)
    return figure


def _group(case: ScoredCase) -> str:
    return "positive" if case.role == "positive" else case.stratum or "authored"


def _strip(axes: Axes, x: int, cases: Sequence[ScoredCase], color: str) -> None:
    """The cases of a group around `x`, spread sideways so that equal ones are seen; open where the prediction fails."""
    shifts = np.random.default_rng(x).uniform(-0.22, 0.22, len(cases))
    for right, face in ((True, color), (False, "none")):
        chosen = [i for i, case in enumerate(cases) if (case.fires == (case.role == "positive")) is right]
        places, values = x + shifts[chosen], [cases[i].activation for i in chosen]
        axes.plot(places, values, "o", markersize=5.5, markeredgecolor=color, markerfacecolor=face, alpha=0.85)
