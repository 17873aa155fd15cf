"""What a writer is shown, as plain values: windows with the tokens on which the feature is active, and tokens it moves."""

from collections.abc import Sequence
from typing import Any

from mikit.explainers.base import Tried
from mikit.trace import Intervention, LensToken, Observation, Window

FIRING = {"top": 10, "quantile": 14}
SILENT = {"silent_trigger": 12, "silent_random": 6}
ACTIVE_TOKENS = 4
"""Tokens of a window that are named, the most active ones."""
MOVED = 30
OTHERS = 3
"""Controls whose tokens are shown."""
OF_OTHERS = 8
FAILURES = 8
"""Texts that went against a hypothesis, shown to the one who writes the next."""


def windows_shown(observation: Observation) -> tuple[list[dict[str, Any]], list[str]]:
    """Firing windows with activations in per cent of ref, strongest first, and silent ones, as text alone."""
    firing, silent = [], []
    for kind, n in FIRING.items():
        fit = [w for w in observation.windows if w.kind == kind and w.peak >= observation.tau > 0]
        firing += _spread(fit, n)
    for kind, n in SILENT.items():
        silent += ["".join(window.tokens) for window in _spread([w for w in observation.windows if w.kind == kind], n)]
    firing.sort(key=lambda window: -window.peak)
    return [_marked(window, observation.ref or observation.tau) for window in firing], silent


def _spread(windows: Sequence[Window], n: int) -> list[Window]:
    """`n` of the windows, evenly over their order."""
    if len(windows) <= n:
        return list(windows)
    return [windows[i * len(windows) // n] for i in range(n)]


def _marked(window: Window, scale: float) -> dict[str, Any]:
    order = sorted(range(len(window.tokens)), key=lambda i: -window.activations[i])[:ACTIVE_TOKENS]
    active = [
        [window.tokens[i], round(100 * window.activations[i] / scale)] for i in order if window.activations[i] > 0
    ]
    return {"text": "".join(window.tokens), "active": active}


def effect_shown(intervention: Intervention) -> dict[str, Any]:
    """The tokens that the feature moves, and those that some controls raise."""
    others = [
        control.promoted[:OF_OTHERS]
        for control in intervention.controls[:: max(1, len(intervention.controls) // OTHERS)]
    ]
    return {
        "promoted": _texts(intervention.promoted[:MOVED]),
        "suppressed": _texts(intervention.suppressed[:MOVED]),
        "others": [_texts(tokens) for tokens in others[:OTHERS]],
    }


def _texts(tokens: Sequence[LensToken]) -> list[str]:
    return [token.token for token in tokens]


def tried_shown(tried: Sequence[Tried]) -> list[dict[str, Any]] | None:
    """Hypotheses that were tried before, with what went against them; None if there is none."""
    if not tried:
        return None
    return [
        {"tried before, and failed": each.text, "result": each.result, "against it": list(each.against[:FAILURES])}
        for each in tried[-6:]
    ]
