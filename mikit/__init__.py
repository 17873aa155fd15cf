"""mikit: explain the features of sparse autoencoders from both ends, and learn from planted circuits.

import mikit
trace = mikit.explain_feature(model="planted", layer=0, feature=3)
print(trace.meta.interpretations.input, trace.meta.gate_pass)
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mikit.targets import Target
    from mikit.trace import Scored, Trace

__version__ = "0.1.0"
__all__ = ["__version__", "explain_feature", "load_target", "score_explanation"]

# Read when torch is loaded: else its threads spin while they wait, and beside a busy process two are slower than one.
for _name, _value in {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}.items():
    os.environ.setdefault(_name, _value)


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


def score_explanation(
    explanation: str | None = None, output: str | None = None, rule: str | None = None, **params: Any
) -> "Scored":
    """Put an explanation that you bring through the gates.

    Args:
        explanation: when the feature fires, tokens in quotes: `fires on "a" or "b" after "c"`.
        output: what it does, tokens in quotes: `promotes "a", "b"`.
        rule: when it fires, as JSON of `mikit.trace.Rule`; then `explanation` is only its wording.
        **params: as in `mikit.settings.Params`.

    Raises:
        mikit.errors.BadInput: nothing that can be checked is said, or a parameter is wrong.
    """
    from mikit.runs.score import Row, score_rows
    from mikit.settings import make_params

    chosen = make_params({"run": "score"} | params)
    [(_, scored)] = score_rows(chosen, [Row(chosen.feature, explanation, output, rule, "given")])
    return scored


def load_target(name: str, layer: int | None = None) -> "Target":
    """A language model with an SAE on one of its hook points, by name."""
    from mikit.targets import load_target

    return load_target(name, layer)
