"""What a sweep found as a table, a row a feature, and the rates in it; read from its manifest and its runs' traces."""

import json
import logging
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mikit import paths
from mikit.experiments.statistics import wilson
from mikit.files import atomic_path
from mikit.progress import track
from mikit.runs.manifest import Entry, Manifest
from mikit.runs.score import all_pass, expected_false_passes_of, write_table
from mikit.trace import Meta, Proportion, Record

log = logging.getLogger(__name__)
ORIGINS = ("own", "neighbour", "shuffled")
"""Whose explanation: the feature's own, and two that must not pass."""
BANDS = ((0.0, 1e-4), (1e-4, 1e-3), (1e-3, 1e-2), (1e-2, 1e-1), (1e-1, 1.01))
"""Densities that are told apart."""
UNTESTED = {"dead", "special_only"}
"""Kinds with nothing to explain: they are counted apart, and are in no rate."""


class Row(Record):
    """A feature of a sweep."""

    layer: int
    feature: int
    state: str
    kind: str | None = None
    density: float | None = None
    """Share of tokens that it is active on."""
    input_gate: str | None = None
    output_gate: str | None = None
    chain_gate: str | None = None
    all_gates: bool | None = None
    confirmed: bool | None = None
    coverage: float | None = None
    rejection: float | None = None
    recall: float | None = None
    output_score: float | None = None
    functional_score: int | None = None
    neighbour_passes: bool | None = None
    """Whether the nearest feature's explanation passes all gates, where that was tried."""
    shuffled_passes: bool | None = None
    """The same of a random live feature's."""
    rounds: int | None = None
    seconds: float | None = None
    """Work of all steps."""
    llm_calls: int | None = None
    failed_calls: int | None = None
    tokens: int | None = None
    usd: float | None = None
    """None where no price is known."""
    slowest_step: str | None = None
    input: str | None = None
    output: str | None = None
    failed_step: int | None = None
    cause: str | None = None
    folder: str
    """Of its run, below the outputs folder."""


class Table(Record):
    """All rows, and the seconds of each step by name."""

    name: str
    started_at: str
    model: str
    rows: list[Row]
    steps: dict[str, float]
    """Median over features, seconds."""


def read_table(manifest: Manifest) -> Table:
    """The table of a sweep; a trace that is torn counts as absent, and is logged."""
    rows: list[Row] = []
    seconds: dict[str, list[float]] = {}
    for entry in track(manifest.entries, "reading the runs", len(manifest.entries), unit="runs"):
        row, steps = _row(entry)
        rows.append(row)
        for step, taken in steps.items():
            seconds.setdefault(step, []).append(taken)
    return Table(
        name=manifest.name,
        started_at=manifest.started_at,
        model=str(manifest.params.get("model")),
        rows=rows,
        steps={step: statistics.median(taken) for step, taken in sorted(seconds.items())},
    )


def _row(entry: Entry) -> tuple[Row, Mapping[str, float]]:
    bare = Row(
        layer=entry.layer, feature=entry.feature, state=entry.state, folder=entry.folder,
        failed_step=entry.step if entry.state == "failed" else None, cause=entry.cause if entry.state == "failed" else None,
    )  # fmt: skip
    if entry.state != "done":
        return bare, {}
    path = paths.outputs() / entry.folder / "trace.json"
    try:
        # a thousand traces: only the parts that are shown are validated
        raw = json.loads(path.read_bytes())
        meta = Meta.model_validate(raw["meta"])
        steps: dict[str, float] = raw["provenance"]["step_seconds"]
        observed = (raw["input_round"] or {}).get("observation", {})
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        log.warning("%s can't be read and counts as absent: %s", path, str(error).splitlines()[0])
        return bare.model_copy(update={"state": "pending"}), {}
    final, gates, cost = meta.final_metrics, meta.gate_pass, meta.token_cost
    nulls = {name: all_pass(null) for name, null in meta.nulls.items()}
    found: dict[str, Any] = {
        "kind": meta.feature_kind, "density": observed.get("density"), "input_gate": gates.input,
        "output_gate": gates.output, "chain_gate": gates.chain, "all_gates": gates.all_pass, "confirmed": meta.confirmed,
        "coverage": final.activation_coverage, "rejection": final.boundary_rejection, "recall": meta.recall,
        "output_score": final.output_score, "functional_score": final.functional_score,
        "neighbour_passes": nulls.get("neighbour"), "shuffled_passes": nulls.get("shuffled"), "rounds": meta.rounds,
        "seconds": meta.seconds, "llm_calls": cost.calls, "failed_calls": cost.failed_calls, "tokens": cost.total_tokens,
        "usd": cost.usd, "slowest_step": max(steps, key=steps.__getitem__) if steps else None,
        "input": meta.interpretations.input, "output": meta.interpretations.output,
    }  # fmt: skip
    return bare.model_copy(update=found), steps


# --- rates ---


def tested(rows: Iterable[Row]) -> list[Row]:
    """Those that are done and have something to explain."""
    return [row for row in rows if row.state == "done" and row.kind not in UNTESTED]


def rates(rows: Sequence[Row]) -> dict[str, Proportion]:
    """How often all gates pass, by whose explanation it is."""
    passed: dict[str, list[bool]] = {
        "own": [bool(row.all_gates) for row in rows],
        "neighbour": [row.neighbour_passes for row in rows if row.neighbour_passes is not None],
        "shuffled": [row.shuffled_passes for row in rows if row.shuffled_passes is not None],
    }
    return {origin: wilson(sum(flags), len(flags)) for origin, flags in passed.items()}


def gate_rates(rows: Sequence[Row]) -> dict[str, Proportion]:
    """How often each gate passes, and how many are confirmed, of the features' own explanations."""
    counts = {end: sum(getattr(row, f"{end}_gate") == "pass" for row in rows) for end in ("input", "output", "chain")}
    counts |= {
        "all gates": sum(bool(row.all_gates) for row in rows),
        "confirmed": sum(bool(row.confirmed) for row in rows),
    }
    return {name: wilson(n, len(rows)) for name, n in counts.items()}


def grouped(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The tested rows: all of them, by layer, and by density."""
    kept = tested(rows)
    groups: dict[str, list[Row]] = {"all": kept}
    layers = sorted({row.layer for row in kept})
    if len(layers) > 1:
        groups |= {f"layer {layer}": [row for row in kept if row.layer == layer] for layer in layers}
    for low, high in BANDS:
        here = [row for row in kept if row.density is not None and low <= row.density < high]
        if here:
            groups[f"density {low:g} to {min(high, 1):g}"] = here
    return groups


def failures(rows: Iterable[Row]) -> list[tuple[str, str, int]]:
    """Step, cause and number of what failed, the most frequent first."""
    counts = Counter(
        (f"step {row.failed_step}" if row.failed_step else "before the first step", row.cause or "unknown")
        for row in rows
        if row.state == "failed"
    )
    return [(step, cause, n) for (step, cause), n in counts.most_common()]


def false_passes(rows: Sequence[Row]) -> str | None:
    """How many passes would be expected by chance, as a sentence with its interval; None where no null was tried."""
    kept = tested(rows)
    return expected_false_passes_of(
        [row.neighbour_passes for row in kept if row.neighbour_passes is not None], len(kept)
    )


def total(rows: Iterable[Row], of: Callable[[Row], float | None]) -> float | None:
    """The sum over rows that have a value; None where none has."""
    values = [value for row in rows if (value := of(row)) is not None]
    return sum(values) if values else None


# --- files ---


def write_files(table: Table, folder: Path) -> list[Path]:
    """Write `features.csv` and `features.parquet`, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row.model_dump() for row in table.rows]
    write_table(rows, folder / "features.csv")
    plain = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    schema = pa.schema([(name, plain[_kind(field.annotation)]) for name, field in Row.model_fields.items()])
    with atomic_path(folder / "features.parquet") as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary)
    return [folder / "features.csv", folder / "features.parquet"]


def _kind(annotation: Any) -> type:
    """The plain type in `int` or `int | None`."""
    parts = getattr(annotation, "__args__", (annotation,))
    return next(part for part in parts if part is not type(None))
