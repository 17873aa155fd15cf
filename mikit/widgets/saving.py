"""What is seen, kept: figures as PNG, and a params file that makes `mikit run` explain the same feature."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from mikit import paths
from mikit.files import atomic_path, write_text
from mikit.runs.run import Run
from mikit.settings import Params
from mikit.settings_sources import flatten
from mikit.targets import NAMES

PATHS = ("model", "planted_spec", "sae", "sae_root", "corpus", "bos_token_root", "neuronpedia_record", "llm_prices")
"""Parameters that may name a file or a folder: from where the params file is used, a relative name would mean another."""
ALWAYS = ("model", "layer", "feature", "run")
"""Named in a params file though they may have their default."""


def folder_of(run: Run) -> Path:
    """Where the explorer keeps what it saves of a feature."""
    return paths.outputs() / "explorer" / f"layer-{run.params.layer}-feature-{run.feature}"


def save_figures(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write each figure as a PNG of its name."""
    written = []
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=150)
        written.append(path)
    return written


def params_text(run: Run) -> str:
    """The run's parameters as a params file: those that differ from their defaults."""
    given = flatten(run.params.model_dump(mode="json"))
    default = flatten(Params().model_dump(mode="json"))
    chosen = {name: given[name] for name in given if name in ALWAYS or given[name] != default[name]}
    for name in PATHS:
        if name in chosen and chosen[name] not in NAMES and (path := paths.existing(chosen[name])):
            chosen[name] = str(path.resolve())
    # who explains follows from the environment of whoever runs it again
    chosen = {name: value for name, value in chosen.items() if not (name == "explainer" and value == "statistical")}
    return f"# mikit run --params FILE\n{_yaml(chosen)}"


def _yaml(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)


def save_params(run: Run, folder: Path) -> Path:
    """Write the params file, and say where."""
    path = folder / "params.yaml"
    write_text(path, params_text(run))
    return path
