"""Finished runs as rows in Neuronpedia's form: what fires it, what it does, what was scored, and on what it rests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mikit.errors import BadInput
from mikit.files import write_text
from mikit.trace import LensToken, Trace, Window

TYPE = "mikit"
"""Name of the sort of explanation."""


def write_rows(run_dirs: Sequence[Path], out: Path) -> int:
    """Write one row for each run, as JSON lines.

    Returns:
        How many.

    Raises:
        BadInput: a folder holds no valid trace.
    """
    rows = []
    for folder in run_dirs:
        try:
            rows.append(row_of(Trace.model_validate_json((folder / "trace.json").read_bytes())))
        except (OSError, ValidationError):
            raise BadInput(f"{folder} holds no valid trace.json: valid: the folder of a finished run") from None
    write_text(out, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows))
    return len(rows)


def row_of(trace: Trace) -> dict[str, Any]:
    """A trace as a row: names and nesting are the site's, and what it has no place for lies under `mikit`."""
    meta, origin = trace.meta, trace.provenance
    observation = trace.input_round.observation if trace.input_round else None
    intervention = trace.output_round.interventions[-1] if trace.output_round else None
    return {
        "modelId": origin.model_id,
        "layer": str(origin.layer),
        "index": str(origin.feature),
        "sourceSetName": None,
        "hookName": origin.hook_point,
        "maxActApprox": max((window.peak for window in observation.windows), default=0.0) if observation else None,
        "frac_nonzero": observation.density if observation else None,
        "source": {"saelensSaeId": origin.sae_id, "dataset": origin.corpus},
        **_moved("pos", intervention.promoted if intervention else []),
        **_moved("neg", intervention.suppressed if intervention else []),
        "activations": [_row(window) for window in observation.windows if window.peak > 0] if observation else [],
        "explanations": [
            {
                "description": text,
                "explanationModelName": origin.llm.get("writer", origin.explainer),
                "typeName": f"{TYPE}-{end}",
                "scores": _scores(trace, end),
            }
            for end, text in meta.interpretations.model_dump().items()
            if text
        ],
        "mikit": {
            "run": meta.run,
            "status": meta.status,
            "feature_kind": meta.feature_kind,
            "gates": meta.gate_pass.model_dump(),
            "confirmed": meta.confirmed,
            "rounds": meta.rounds,
            "confirm_batches": meta.confirm_batches,
            "effect": "change of log-probability, nats, in pos_values and neg_values",
            "provenance": origin.model_dump(mode="json"),
        },
    }


def _moved(side: str, tokens: Sequence[LensToken]) -> dict[str, Any]:
    return {f"{side}_str": [token.token for token in tokens], f"{side}_values": [token.value for token in tokens]}


def _row(window: Window) -> dict[str, Any]:
    return {
        "tokens": window.tokens,
        "values": window.activations,
        "maxValue": window.peak,
        "maxValueTokenIndex": window.peak_index,
        "minValue": min(window.activations),
        "dataIndex": window.document,
    }


def _scores(trace: Trace, end: str) -> list[dict[str, Any]]:
    metrics = trace.meta.final_metrics
    by_end: dict[str, dict[str, float | int | None]] = {
        "input": {"activation_coverage": metrics.activation_coverage, "boundary_rejection": metrics.boundary_rejection,
                  "recall": trace.meta.recall},
        "output": {"output_score": metrics.output_score},
        "chain": {"functional_score": metrics.functional_score},
    }  # fmt: skip
    return [{"value": value, "explanationScoreTypeName": f"{TYPE}-{name}"} for name, value in by_end[end].items()]
