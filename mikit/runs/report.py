"""The report of a run: one HTML page that needs nothing but itself."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Template

from mikit import viz
from mikit.files import write_text
from mikit.progress import working
from mikit.runs.pages import page_template
from mikit.settings import Protocol
from mikit.trace import (
    Estimate,
    FeatureKind,
    GateVerdict,
    InputScore,
    Meta,
    Null,
    Observation,
    OutputScore,
    Proportion,
    Trace,
)

KINDS: dict[FeatureKind, str] = {
    "normal": "It fires often enough to be tested, and seldom enough to mean something.",
    "dead": "No content token makes it fire in the text that was read, so there is nothing to explain.",
    "special_only": "It fires on special tokens alone, which are never evidence, so there is nothing to explain.",
    "rare": "It fires in too few windows for the input gate to decide.",
    "dense": "It fires in so many windows that the input gate can't decide.",
}
WINDOW_GROUPS = (
    ("top", 8, "Where it fires most", True),
    ("quantile", 10, "Over the whole range of its activations", True),
    ("silent_trigger", 8, "Windows that hold a trigger token, and where it is silent", True),
    ("silent_random", 4, "Windows at random, where it is silent", False),
)
"""Kind of window, how many are shown, their title, and whether the group is open."""
NULL_NAMES = {
    "neighbour": "The nearest feature's explanation",
    "shuffled": "A random live feature's explanation",
    "random_reference": "A random direction with its own tokens",
}
QUESTIONS = {
    "input": "Is it known when it fires?",
    "output": "Is it known what it does?",
    "chain": "Does what it does follow from where it fires?",
}


OPENING = re.compile(r'(?:(?<=\s)|^)" (?=\S)')
"""A quotation mark before a token that begins with a space."""


class Metric(NamedTuple):
    """A gate's metric, drawn as an interval on a track from 0 to 1."""

    name: str
    text: str
    value: float | None
    low: float | None
    high: float | None
    n: str
    gate: str
    tick: float
    """Where the gate stands on the track."""


class GateCard(NamedTuple):
    """A gate as the page shows it."""

    name: str
    question: str
    verdict: GateVerdict
    reason: str
    metrics: list[Metric]


def summary(model: str, meta: Meta) -> list[str]:
    """The verdict in a few lines for a terminal, which no token of a corpus may steer."""
    lines = [f"{model}, layer {meta.layer_id}, feature {meta.feature_id}: {meta.status}, {meta.feature_kind}"]
    for end in ("input", "output", "chain"):
        said = getattr(meta.interpretations, end)
        lines.append(f"  {end:<6} {getattr(meta.gate_pass, end):<9} {said or 'no explanation'}")
        if reason := meta.gate_pass.reasons.get(end):
            lines.append(f"  {'':<16} {reason}")
    lines.append(f"  {'confirmed' if meta.confirmed else 'not confirmed'}")
    return [viz.visible(line) for line in [*lines, *null_lines(meta.nulls)]]


def null_lines(nulls: Mapping[str, Null]) -> list[str]:
    """What the gates said of explanations that must not pass, a line each."""
    lines = []
    for name, null in nulls.items():
        verdicts = ", ".join(f"{end} {verdict}" for end, verdict in null.gates.items())
        role = "reference" if name == "random_reference" else "must not pass"
        lines.append(f"  {role}: {NULL_NAMES[name][0].lower()}{NULL_NAMES[name][1:]}: {verdicts}")
    return lines


def write_report(trace: Trace, path: Path) -> None:
    """Write the page of a trace, atomically."""
    with working("drawing the report"):
        write_text(path, report_html(trace))


def report_html(trace: Trace) -> str:
    """The page of a trace: styles and figures inside, no script, everything from a corpus or a writer escaped."""
    inputs, outputs = trace.input_round, trace.output_round
    protocol = viz.protocol_of(trace)
    return _template().render(
        headline=headline(trace.meta),
        trace=trace,
        meta=trace.meta,
        protocol=protocol,
        cards=gate_cards(trace.meta, protocol),
        windows=_windows(inputs.observation) if inputs else [],
        observation=inputs.observation if inputs else None,
        input_score=input_score(trace),
        output_score=output_score(trace),
        intervention=outputs.interventions[-1] if outputs and outputs.interventions else None,
        provenance=_flat(trace.provenance.model_dump(exclude={"params", "step_seconds"})),
        parameters=_flat(trace.provenance.params),
        viz=viz,
        kinds=KINDS,
        null_names=NULL_NAMES,
    )


def headline(meta: Meta) -> str:
    """What came of it, in a few words."""
    gates = {"input": meta.gate_pass.input, "output": meta.gate_pass.output, "chain": meta.gate_pass.chain}
    if meta.status == "dead":
        return "nothing to explain"
    if meta.confirmed:
        return "explained, and confirmed"
    if meta.gate_pass.all_pass:
        return "all gates pass, too narrowly to confirm it"
    passed = [name for name, verdict in gates.items() if verdict == "pass"]
    return f"{' and '.join(passed)} explained" if passed else "not explained"


@cache
def _template() -> Template:
    filters: dict[str, Callable[..., str]] = {
        "number": _number,
        "score": _score,
        "share": _share,
        "interval": _interval,
        "quotes": _quotes,
    }
    return page_template("report.html.j2", filters)


def input_score(trace: Trace) -> InputScore | None:
    """The one that counts: on `confirm`, else that of the chosen hypothesis on `select`."""
    if not trace.input_round:
        return None
    found = trace.input_round.eval
    return found.confirm or next((score for score in found.per_hypothesis if score.hypothesis == found.chosen), None)


def output_score(trace: Trace) -> OutputScore | None:
    """The one that counts: on `confirm`, else that of the chosen hypothesis on `select`."""
    if not trace.output_round:
        return None
    found = trace.output_round.eval
    return found.confirm or next((score for score in found.per_hypothesis if score.hypothesis == found.chosen), None)


def gate_cards(meta: Meta, protocol: Protocol) -> list[GateCard]:
    """The three gates with their metrics, intervals and thresholds, and why each passed or failed."""
    found, passed = meta.intervals, meta.final_metrics.functional_score
    metrics = {
        "input": [
            _metric("activation coverage", found.get("activation_coverage"), protocol.gate_coverage, "texts"),
            _metric("boundary rejection", found.get("boundary_rejection"), protocol.gate_rejection, "texts"),
        ],
        "output": [_metric("output score", found.get("output_score"), protocol.gate_output, "prompts")],
        "chain": [_checks_metric(passed, protocol.gate_functional)],
    }
    gates = meta.gate_pass
    verdicts: dict[str, GateVerdict] = {"input": gates.input, "output": gates.output, "chain": gates.chain}
    reasons: dict[str, str] = {str(name): reason for name, reason in gates.reasons.items()}
    return [
        GateCard(name, question, verdicts[name], reasons.get(name, ""), metrics[name])
        for name, question in QUESTIONS.items()
    ]


def _metric(name: str, found: Proportion | Estimate | None, gate: float, unit: str) -> Metric:
    if found is None or found.value is None:
        return Metric(name, "–", None, None, None, "not measured", f"gate {gate:g}", gate)
    n = f"{_interval(found)}, n {found.n} {unit}"
    return Metric(name, f"{found.value:.2f}", found.value, found.low, found.high, n, f"gate {gate:g}", gate)


def _checks_metric(passed: int | None, gate: int) -> Metric:
    label = f"gate {gate}, necessity among them"
    if passed is None:
        return Metric("checks passed", "–", None, None, None, "not run", label, gate / 5)
    return Metric("checks passed", f"{passed} of 5", passed / 5, None, None, "", label, gate / 5)


def _windows(observation: Observation) -> list[dict[str, Any]]:
    groups = []
    for kind, n, title, opened in WINDOW_GROUPS:
        found = [window for window in observation.windows if window.kind == kind]
        stride = max(1, len(found) // n) if kind == "quantile" else 1
        html = viz.windows_html(found[::stride], observation.tau, n, observation.ref or None)
        shown = min(n, len(found[::stride]))
        groups.append({"title": title, "html": html, "shown": shown, "n": len(found), "open": opened})
    return [group for group in groups if group["n"]]


def _flat(values: Mapping[str, Any]) -> dict[str, str]:
    """Values as text, those of a mapping inside under a dotted name."""
    rows: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            rows |= {f"{name}.{inner}": text for inner, text in _flat(value).items()}
        else:
            rows[name] = str(value)
    return rows


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _quotes(text: str) -> str:
    """A token in quotes that begins with a space stays on one line."""
    return OPENING.sub('"\N{NO-BREAK SPACE}', text)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _interval(found: Proportion | Estimate | None) -> str:
    return "–" if found is None or found.low is None or found.high is None else f"[{found.low:.2f}, {found.high:.2f}]"
