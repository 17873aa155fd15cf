"""mikit: explain the features of sparse autoencoders from both ends, and learn from planted circuits.

import mikit
trace = mikit.explain_feature(model="planted", layer=0, feature=3)
print(trace.meta.interpretations.input, trace.meta.gate_pass)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mikit.targets import Target
    from mikit.trace import Trace

__version__ = "0.1.0"
__all__ = ["__version__", "explain_feature", "load_target"]


def explain_feature(**params: Any) -> "Trace":
    """Explain one feature without Jupyter: the nine steps in this process.

    Args:
        **params: as in `mikit.settings.Params`: `model`, `layer`, `feature`, `run`, ...

    Returns:
        The trace. Steps that are done already, with the same parameters, are read from their files.

    Raises:
        mikit.errors.BadInput: an unknown name or an invalid value; the message says what would be valid.
    """
    from mikit.runs import explain

    return explain(**params)


def load_target(name: str, layer: int | None = None, **options: Any) -> "Target":
    """A language model with an SAE on one of its hook points.

    Args:
        name: a target's name, a transformers folder, or a hub id.
        layer: the block whose output is the hook point; the target's own, or the SAE's, if not given.
        **options: as in `mikit.targets.Options`: `sae`, `sae_root`, `sae_width`, `sae_l0`, `device`, `dtype`.

    Raises:
        mikit.errors.BadInput: one of them is not there, or they do not fit each other.
    """
    from mikit.targets import Options, load_target

    return load_target(name, layer, Options(**options))
