"""A finished sweep of made-up features on disk: what the report of a sweep reads, in any size."""

import json
import random
from pathlib import Path
from typing import Any

import builders

from mikit import paths
from mikit.files import write_json
from mikit.runs.manifest import Entry, Manifest, folder_of

ENDS = ("input", "output", "chain")
HOSTILE = "</td><script>alert(1)</script> & \u202e <img src=x onerror=alert(1)>"


def varied(plain: dict[str, Any], layer: int, feature: int, rng: random.Random) -> str:
    """A trace, as text, whose gates, density and costs vary."""
    passes = rng.random() < 0.3 + 0.1 * layer
    verdict, lent = "pass" if passes else "fail", "pass" if rng.random() < 0.05 else "fail"
    meta = plain["meta"]
    meta |= {"layer_id": layer, "feature_id": feature, "seconds": rng.uniform(5, 60), "recall": rng.random()}
    meta["gate_pass"] |= dict.fromkeys(ENDS, verdict)
    meta["confirmed"] = passes and rng.random() < 0.5
    meta["nulls"]["neighbour"]["gates"] = dict.fromkeys(ENDS, lent)
    plain["input_round"]["observation"]["density"] = 10 ** rng.uniform(-5, -0.5)
    return json.dumps(plain)


def make(n: int, name: str = "synthetic", failed: int = 3, hostile: str = HOSTILE) -> Path:
    """Write a sweep of `n` features over two layers; the last `failed` of them failed."""
    rng, plain = random.Random(0), builders.trace().model_dump(mode="json")
    entries = []
    for number in range(n):
        layer, feature = number % 2, number // 2
        folder = f"layer-{layer}/feature-{feature}/{name}"
        entry = Entry(layer=layer, feature=feature, folder=folder, state="done", attempts=1, seconds=1.0)
        if number >= n - failed:
            entry = entry.model_copy(update={"state": "failed", "step": 4, "cause": f"ValueError: {hostile}"})
        else:
            path = paths.outputs() / folder / "trace.json"
            path.parent.mkdir(parents=True)
            path.write_text(varied(plain, layer, feature, rng), "utf-8")
        entries.append(entry)
    folder = folder_of(name)
    manifest = Manifest(
        name=name,
        identity="0",
        started_at="2025-01-31T09:30:00+00:00",
        params={"model": "planted"},
        spec={},
        entries=entries,
    )
    write_json(folder / "manifest.json", manifest.model_dump(mode="json"))
    return folder
