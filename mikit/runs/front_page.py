"""What the index notebook shows: whether everything is there that runs need, and what the last runs found."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from markupsafe import Markup
from pydantic import ValidationError

from mikit import paths, viz
from mikit.errors import BadInput
from mikit.runs.doctor import Finding
from mikit.runs.report import headline
from mikit.trace import GateVerdict, Meta, Trace
from mikit.viz.tables import link, paragraph, relative_address, table, verdict
from mikit.viz.windows import Html

STATES: dict[str, GateVerdict] = {"ok": "pass", "note": "undecided", "missing": "fail"}
"""A finding's state, and the verdict whose mark it is shown with."""


@dataclass(frozen=True)
class LastRun:
    """A run that ended."""

    folder: Path
    ended_at: datetime
    """UTC: when its trace was written."""
    model: str
    meta: Meta | None
    """None where the trace is torn or of another version."""


def last_runs(n: int = 10) -> list[LastRun]:
    """The runs in the outputs folder that ended last, newest first; what is no run is passed over.

    Raises:
        BadInput: fewer than one is asked for.
    """
    if n < 1:
        raise BadInput(f"the last {n} runs: valid: 1 or more")
    traces = sorted(
        ((_changed(path), path) for path in paths.outputs().glob("layer-*/feature-*/*/trace.json")),
        key=lambda found: (-found[0], str(found[1])),
    )
    return [_read(path, ended) for ended, path in traces if ended > 0][:n]


def _changed(path: Path) -> float:
    """When a file was written, in seconds; 0 for what is no file, such as a pipe that a read would wait for."""
    try:
        return path.stat().st_mtime if path.is_file() else 0.0
    except OSError:
        return 0.0


def _read(path: Path, ended: float) -> LastRun:
    when = datetime.fromtimestamp(ended, UTC)
    try:
        trace = Trace.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return LastRun(path.parent, when, "", None)
    return LastRun(path.parent, when, trace.provenance.model_id, trace.meta)


def runs_table(n: int = 10, start: Path | None = None) -> Html:
    """The last runs with their verdicts, newest first, each with its report and its trace.

    Args:
        n: how many at most.
        start: the folder of the page or notebook that shows it, which links start from; that of the notebooks if not
            given. A file outside the project's folder, which JupyterLab can't open, is named and not linked.
    """
    runs = last_runs(n)
    if not runs:
        return paragraph(
            f"No run has ended yet in {paths.outputs()}. In a terminal: ", Markup("<code>make demo</code>"),
            " (a feature of SmolLM2-135M, minutes). Or here: the last cell of this notebook (seconds), then this one again.",
        )  # fmt: skip
    heads = ["run", "model", "input", "output", "chain", "what came of it", "ended (UTC)", "report", "trace"]
    shown = table(heads, [_row(run, start or paths.notebooks()) for run in runs], f"The last {len(runs)} runs")
    if all((run.folder / "report.html").is_file() for run in runs if run.meta):
        return shown
    return Html(
        shown
        + paragraph(
            "A run without a report was made by Python alone: ",
            Markup("<code>mikit report FOLDER</code>"),
            " writes it.",
        )
    )


def _row(run: LastRun, start: Path) -> list[object]:
    name = run.folder.relative_to(paths.outputs()).as_posix()
    when = f"{run.ended_at:%Y-%m-%d %H:%M}"
    files = [_file(run.folder / "report.html", start), _file(run.folder / "trace.json", start)]
    if run.meta is None:
        return [name, None, None, None, None, "torn, or of another version: run it again", when, *files]
    gates = run.meta.gate_pass
    marks = [verdict(gates.input), verdict(gates.output), verdict(gates.chain)]
    return [name, run.model, *marks, headline(run.meta), when, *files]


def _file(path: Path, start: Path) -> object:
    if not path.is_file():
        return None
    if not path.resolve().is_relative_to(paths.PROJECT.resolve()):
        return Markup('<span title="{}">{}</span>').format(viz.visible(str(path)), path.name)
    return link(path.name, relative_address(path, start))


def doctor_table(findings: list[Finding] | None = None) -> Html:
    """What `mikit doctor` finds: a line where all is well, and a row for each thing to mend.

    Args:
        findings: of this machine and its outputs folder if not given.
    """
    if findings is None:
        from mikit.runs.doctor import examine
        from mikit.runs.leftovers import examine_outputs

        findings = [*examine(), *examine_outputs()]
    well = [finding for finding in findings if finding.state == "ok"]
    ill = sorted((finding for finding in findings if finding.state != "ok"), key=lambda finding: finding.state)
    rows = [
        [verdict(STATES[finding.state], finding.state), finding.name, finding.detail, finding.remedy or None]
        for finding in ill
    ]
    summary = f"{len(well)} of {len(findings)} things that runs need are in order"
    if not rows:
        return paragraph(verdict("pass", "ok"), f" {summary}")
    shown = table(["state", "what", "found", "what to do"], rows, summary)
    folders = [finding for finding in well if finding.name.endswith("folder") or finding.name == "runs"]
    return Html(shown + paragraph("; ".join(viz.visible(f"{each.name}: {each.detail}") for each in folders)))
