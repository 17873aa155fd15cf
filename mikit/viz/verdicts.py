"""Figures of the chain and of the verdict: five checks, four metrics against their gates."""

import re
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mikit.settings import Protocol
from mikit.trace import CHECKS, Chain, Check, Estimate, Gates, GateVerdict, Meta, Proportion, Scored, Trace
from mikit.viz import style
from mikit.viz.style import empty, interval, panels, styled
from mikit.viz.text import drawable

FEW = 4
"""Bars whose names fit below them."""
CONTROL_KINDS = {"near": "near", "live": "random_live", "random": "random_direction"}
"""The kind of control, by the word that the name of its bar begins with."""
NUMBER = re.compile(r"-?\d+(\.\d+)?")


def protocol_of(trace: Trace) -> Protocol:
    """The protocol that a trace was made under: where its gates stand."""
    return Protocol.model_validate(trace.provenance.params.get("protocol", {}))


@styled
def plot_checks(chain: Chain) -> Figure:
    """A panel for each of the five checks: the feature beside its controls, or by dose, under the verdict."""
    passed = sum(check.verdict == "pass" for check in chain.checks)
    title = f"{passed} of {len(CHECKS)} causal checks pass on {chain.split}" if chain.checks else "No check was run"
    figure, axes = panels(title, height=3.0, columns=len(CHECKS))
    checks = {check.name: check for check in chain.checks}
    for panel, name in zip(axes, CHECKS, strict=True):
        if name in checks:
            _check(panel, checks[name])
        else:
            empty(panel, f"{name.replace('_', ' ')}\nnot run")
    if checks:
        figure.supylabel("contrast, nats", fontsize=8.5, color=style.MUTED)
    kinds = [
        Patch(facecolor=color, edgecolor=style.PAPER, linewidth=0, hatch=2 * style.HATCHES[kind])
        for kind, color in style.CONTROLS.items()
    ]
    if any(len(check.bars) > FEW for check in chain.checks):
        names = ["near neighbours", "random live features", "random directions"]
        figure.legend(kinds, names, loc="outside lower right", ncols=3, title=None)
    return figure


def _check(axes: Axes, check: Check) -> None:
    color = style.VERDICTS[check.verdict]
    heading = f"{style.MARKS[check.verdict]} {check.name.replace('_', ' ')}\n{check.verdict}"
    axes.set_title(heading, color=color, fontweight="bold", fontsize=9)
    axes.tick_params(axis="x", length=0, labelsize=7.5)
    axes.tick_params(axis="y", labelsize=7.5)
    if not check.bars:
        empty(axes, f"no value\nn {check.n}" if check.effect is None else f"effect {check.effect:.3g}\nn {check.n}")
        return
    names, values = list(check.bars), list(check.bars.values())
    places = range(len(names))
    if all(NUMBER.fullmatch(name) for name in names):
        axes.plot(places, values, "o-", color=color, linewidth=1.8, markersize=5)
        axes.set_xlabel("dose, multiples of ref")
    else:
        drawn = axes.bar(places, values, color=[_beside(name, color) for name in names], width=0.78)
        style.hatch(drawn, [style.HATCHES.get(CONTROL_KINDS.get(name.split(" ")[0], ""), "") for name in names])
        axes.set_xlabel("" if len(names) <= FEW else f"beside {len(names) - 1} controls")
    # more names than fit below are told apart by colour and hatching
    labels = [drawable(name).replace(" ", "\n") for name in names] if len(names) <= FEW else [""] * len(names)
    axes.set_xticks(places, labels)
    axes.axhline(0, color=style.INK, linewidth=0.8)
    axes.grid(axis="y")


def _beside(name: str, color: str) -> str:
    """The colour of a bar: the verdict's for the feature, else that of the kind of control that its name begins with."""
    kind = CONTROL_KINDS.get(name.split(" ")[0])
    return style.CONTROLS[kind] if kind else color


@styled
def plot_gates(trace: Trace) -> Figure:
    """The four gate metrics on `confirm` with their intervals and gates, each in the colour of its gate's verdict."""
    return _gates(_verdict(trace.meta.gate_pass, trace.meta.confirmed), gate_rows(trace.meta, protocol_of(trace)))


@styled
def plot_scored(scored: Scored) -> Figure:
    """The same of an explanation that somebody brought."""
    inputs, output = scored.input_score, scored.output_score
    found: dict[str, Estimate | Proportion | None] = {
        "activation_coverage": inputs.coverage if inputs else None,
        "boundary_rejection": inputs.rejection if inputs else None,
        "output_score": output.score if output else None,
    }
    protocol = Protocol.model_validate(scored.provenance.params.get("protocol", {}))
    rows = _rows(found, scored.chain.functional_score, scored.gates, protocol)
    return _gates(_verdict(scored.gates, scored.confirmed), rows)


Row = tuple[str, Proportion | Estimate | None, float, GateVerdict]
"""A metric: name, value with interval, gate, and the verdict of the end that it belongs to."""


def _gates(title: str, rows: Sequence[Row]) -> Figure:
    figure, (axes,) = panels(title, height=2.4)
    for y, (_, value, gate, verdict) in enumerate(rows):
        color = style.VERDICTS[verdict]
        axes.plot([gate, gate], [y - 0.36, y + 0.36], color=style.INK, linewidth=1.8)
        if value is None or value.value is None:
            axes.text(0.01, y, "not measured", va="center", fontsize=8, color=style.MUTED)
        else:
            axes.barh(y, value.value, height=0.5, color=color, alpha=0.22)
            interval(axes, value, y, color)
        axes.text(1.04, y, f"{style.MARKS[verdict]} {verdict}", va="center", color=color, fontweight="bold")
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.tick_params(axis="y", length=0)
    lowest = min([0.0, *(v.low for _, v, *_ in rows if v and v.low is not None)])
    axes.set(
        xlim=(lowest - 0.02, 1.2), ylim=(len(rows) - 0.4, -0.6), xlabel="share, with 95% interval; upright bar: gate"
    )
    axes.set_xticks([tick for tick in (-1, -0.5, 0, 0.25, 0.5, 0.75, 1) if tick >= lowest])
    axes.grid(axis="x")
    return figure


def gate_rows(meta: Meta, protocol: Protocol) -> list[Row]:
    """The four metrics as shares."""
    return _rows(meta.intervals, meta.final_metrics.functional_score, meta.gate_pass, protocol)


def _rows(
    found: Mapping[str, Estimate | Proportion | None], passed: int | None, gates: Gates, protocol: Protocol
) -> list[Row]:
    share = None if passed is None else Proportion(value=passed / 5, low=None, high=None, n=5)
    return [
        ("activation coverage", found.get("activation_coverage"), protocol.gate_coverage, gates.input),
        ("boundary rejection", found.get("boundary_rejection"), protocol.gate_rejection, gates.input),
        ("output score", found.get("output_score"), protocol.gate_output, gates.output),
        ("checks passed of 5", share, protocol.gate_functional / 5, gates.chain),
    ]


def _verdict(gates: Gates, confirmed: bool) -> str:
    ends = {"input": gates.input, "output": gates.output, "chain": gates.chain}
    if gates.all_pass:
        return f"All three gates pass, {'and the explanation is confirmed' if confirmed else 'but not by the margins that confirm it'}"
    return "; ".join(f"{end} gate: {verdict}" for end, verdict in ends.items()).capitalize()
