"""The report of a sweep: one HTML page that needs nothing but itself, and the same as CSV and parquet."""

import base64
import hashlib
import os
import statistics
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from markupsafe import Markup
from matplotlib.figure import Figure

from mikit import paths, viz
from mikit.errors import BadInput
from mikit.files import write_text
from mikit.progress import working
from mikit.runs import sweep_table as tables
from mikit.runs.manifest import Manifest, read_manifest
from mikit.runs.pages import page_template
from mikit.runs.sweep_table import Row, Table
from mikit.settings import Protocol
from mikit.trace import Proportion
from mikit.viz.style import percent

SCRIPT = Path(__file__).parent / "sweep.js"
COLUMNS: dict[str, str] = {
    "layer": "Layer", "feature": "Feature", "state": "State", "kind": "Kind", "density": "Density", "input_gate": "Input",
    "output_gate": "Output", "chain_gate": "Chain", "confirmed": "Confirmed", "coverage": "Coverage",
    "rejection": "Rejection", "recall": "Recall", "output_score": "Output score", "functional_score": "Checks",
    "seconds": "Seconds", "tokens": "Tokens", "usd": "USD", "input": "What makes it fire", "output": "What it does",
    "cause": "Cause of failure",
}  # fmt: skip
"""Columns of the page's table, with their heads."""
TEXTS = {"state", "kind", "input_gate", "output_gate", "chain_gate", "confirmed", "input", "output", "cause"}
METRICS = ("coverage", "rejection", "recall", "output_score")


def write_sweep_report(folder: Path) -> list[str]:
    """Write `report.html`, `features.csv` and `features.parquet` into a sweep's folder, from its manifest and traces.

    Returns:
        Lines for a terminal: pass rates, the false passes that are expected, and where the files lie.

    Raises:
        BadInput: there is no manifest.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise BadInput(f"{folder} holds no manifest.json: valid: the folder of a sweep, {paths.outputs()}/sweeps/NAME")
    table = tables.read_table(manifest)
    with working("drawing the report"):
        write_text(folder / "report.html", sweep_html(table, manifest, folder))
        files = tables.write_files(table, folder)
    lines = rate_lines(table)
    return [*lines, *(f"{path.suffix[1:]:<8}{path}" for path in files), f"report: {folder / 'report.html'}"]


def rate_lines(table: Table) -> list[str]:
    """The pass rates in a few lines."""
    kept = tables.tested(table.rows)
    lines = [f"{len(kept)} of {len(table.rows)} features are done and have something to explain"]
    lines += [f"  {name:<10} {shown(share)}" for name, share in tables.gate_rates(kept).items()]
    lines += [f"  all gates, {name}: {shown(share)}" for name, share in tables.rates(kept).items() if name != "own"]
    return [*lines, *filter(None, [tables.false_passes(table.rows)])]


def sweep_html(table: Table, manifest: Manifest, folder: Path) -> str:
    """The page of a sweep: styles, figures and one small script inside, everything from elsewhere escaped."""
    kept = tables.tested(table.rows)
    groups = {name: tables.rates(rows) for name, rows in tables.grouped(table.rows).items()}
    script = SCRIPT.read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _template().render(
        table=table,
        rows=[(row, _links(row, folder)) for row in table.rows],
        columns=COLUMNS,
        texts=TEXTS,
        counts={state: sum(row.state == state for row in table.rows) for state in ("done", "failed", "pending")},
        kinds={
            kind: sum(row.kind == kind for row in table.rows)
            for kind in dict.fromkeys(r.kind for r in table.rows)
            if kind
        },
        tested=kept,
        gate_rates=tables.gate_rates(kept),
        groups=groups,
        origins=tables.ORIGINS,
        failures=tables.failures(table.rows),
        expected=tables.false_passes(table.rows),
        costs=costs(table),
        figures=figures(table) if kept else {},
        params=manifest.params,
        spec=manifest.spec,
        script=Markup(script),
        digest=digest,
    )


def figures(table: Table) -> dict[str, Figure]:
    """The figures of the page, by what they show."""
    kept = tables.tested(table.rows)
    by_group = {name: tables.rates(rows) for name, rows in tables.grouped(table.rows).items()}
    protocol = Protocol()
    gates = {
        "coverage": protocol.gate_coverage,
        "rejection": protocol.gate_rejection,
        "output_score": protocol.gate_output,
    }
    values = {name: [v for row in kept if (v := getattr(row, name)) is not None] for name in METRICS}
    own = by_group["all"]["own"]
    slowest = max(table.steps, key=table.steps.__getitem__, default=None)
    return {
        "rates": viz.plot_rates(
            f"All gates pass for {percent(own.value)} of {own.n} features, beside explanations that must not pass",
            {name: by_group[name] for name in list(by_group)[:1]},
        ),
        "distributions": viz.plot_distributions("How the metrics are spread over features", values, gates),
        "steps": viz.plot_step_seconds(
            f"The slowest step is {slowest}" if slowest else "No step was timed", table.steps
        ),
    }


def costs(table: Table) -> dict[str, str]:
    """What it took, as text; what is not known is a dash."""
    done = [row for row in table.rows if row.state == "done"]
    seconds = tables.total(done, lambda row: row.seconds)
    usd = tables.total(done, lambda row: row.usd)
    middle = statistics.median([row.seconds or 0.0 for row in done]) if done else None
    return {
        "work of all steps": "–" if seconds is None else f"{seconds / 60:,.1f} minutes",
        "a feature, median": "–" if middle is None else f"{middle:,.1f} s",
        "LLM calls": f"{tables.total(done, lambda row: row.llm_calls) or 0:,.0f}",
        "calls that failed": f"{tables.total(done, lambda row: row.failed_calls) or 0:,.0f}",
        "tokens": f"{tables.total(done, lambda row: row.tokens) or 0:,.0f}",
        "money": "–" if usd is None else f"{usd:,.2f} USD",
    }


def shown(share: Proportion) -> str:
    """A share with its interval and n, such as `0.65 [0.52, 0.76] of 60`."""
    return "–" if share.value is None else f"{share.value:.2f} [{share.low:.2f}, {share.high:.2f}] of {share.n}"


def _links(row: Row, folder: Path) -> str | None:
    """The address of a feature's own report, from the sweep's folder: its parts are numbers and a plain run name."""
    if row.state != "done":
        return None
    return Path(os.path.relpath(paths.outputs() / row.folder / "report.html", folder)).as_posix()


@cache
def _template() -> Template:
    return page_template("sweep.html.j2", {"rate": shown, "cell": _cell})


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:.3g}"
        if isinstance(value, float) and abs(value) < 1000
        else f"{value:.0f}"
        if isinstance(value, float)
        else str(value)
    )
