"""What the explorer looks at: a target with its evidence, and what is known of one of its features."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from mikit import paths, viz
from mikit.errors import BadInput
from mikit.evidence.observe import observe
from mikit.progress import tell
from mikit.runs.run import Run
from mikit.settings import make_params
from mikit.settings_sources import effective
from mikit.trace import Observation

RUN_NAME = "explorer"
"""Also where a params file names another run, which the explorer has no business to change."""


@dataclass(frozen=True, eq=False)
class Session:
    """A target and its evidence, loaded; `run.feature` is the feature to begin with."""

    run: Run

    def look(self, feature: int) -> "Look":
        """What the evidence says of a feature, on documents of `explain` alone: the others are for tests.

        Raises:
            BadInput: there is no such latent.
        """
        run = self.run.of_feature(feature)
        observation = observe(run.target, run.store, feature, run.protocol, run.params.seed)
        _, values = run.store.actives(feature, "explain")
        table = run.store.table
        return Look(run, observation, values, int(table.lengths[table.in_split("explain")].sum()))


@dataclass(frozen=True, eq=False)
class Look:
    """One feature as the explorer shows it."""

    run: Run
    observation: Observation
    values: Float[np.ndarray, " n"]
    """Its activations above 0 on `explain`."""
    n_tokens: int
    """Content tokens of `explain`."""

    @property
    def feature(self) -> int:
        """Its index."""
        return self.run.feature

    def histogram(self) -> Figure:
        """Its activations, with tau and ref."""
        return viz.plot_histogram(self.values, self.observation.tau, self.observation.ref, self.n_tokens)


def open_session(params_file: str = "", **given: Any) -> Session:
    """A session by a params file or by parameters, everything loaded that any panel needs.

    Args:
        params_file: a YAML file; environment variables count above it, as on the command line.
        **given: parameters, which count where there is no file.

    Raises:
        BadInput: as for `mikit.runs.open_run`, or there is no such file.
    """
    if params_file:
        path = paths.existing(params_file) or _below_project(params_file)
        run = Run(effective({"run": RUN_NAME}, os.environ, path).params)
    else:
        run = Run(make_params({"run": RUN_NAME} | given))
    tell(f"loading {run.params.model}")
    run.target  # noqa: B018  a bad name or index ends here
    tell("opening the evidence; the first time a corpus is read, which takes about a minute on smollm2-135m")
    run.store  # noqa: B018
    run.vocabulary  # noqa: B018
    return Session(run)


def _below_project(name: str) -> Path:
    """A params file named from the checkout, such as `params/demo.yaml`: a notebook's folder is another one."""
    if path := paths.existing(str(paths.PROJECT / name)):
        return path
    raise BadInput(f"params file {name}: there is no such file: valid: such as params/demo.yaml")
