"""What a sweep needs to know of a layer before it starts; this runs inside a kernel, which keeps what it loads."""

import json

import numpy as np

from mikit.evidence import open_evidence
from mikit.runs.run import Run
from mikit.runs.sweep_spec import Features, choose
from mikit.settings import make_params
from mikit.targets.base import Target
from mikit.targets.remote.served import served


def prepare(params: str, features: str) -> str:
    """Load the target, make the evidence where it is missing, and choose the features.

    Args:
        params: of a run of that layer, as JSON.
        features: what was asked for, as JSON.

    Returns:
        The indices, as JSON.

    Raises:
        BadInput: of the target, the corpus or the choice.
    """
    run = Run(make_params(json.loads(params)))
    asked = Features.model_validate_json(features)
    make_evidence(run.target, run.params.model_dump_json())
    d_sae, store = run.target.sae.d_sae, run.store
    is_live = np.zeros(d_sae, dtype=bool)
    is_live[store.live(run.protocol.rare_windows)] = True
    density = np.array([store.density(latent) for latent in range(d_sae)]) if asked.density else np.zeros(d_sae)
    return json.dumps(choose(asked, run.params.layer, d_sae, density, is_live, run.params.seed))


@served(seconds=None)
def make_evidence(target: Target, params: str) -> None:
    """Make the evidence of some parameters, given as JSON, where it is missing: next to the model."""
    open_evidence(target, make_params(json.loads(params)))
