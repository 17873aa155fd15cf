"""Who writes hypotheses and judges with them: one interface, several explainers."""

from mikit.errors import one_of
from mikit.explainers.base import Explainer

EXPLAINERS = ("statistical",)


def get_explainer(name: str) -> Explainer:
    """The explainer of this name.

    Raises:
        BadInput: there is none of this name.
    """
    if name == "statistical":
        from mikit.explainers.statistical import StatisticalExplainer

        return StatisticalExplainer()
    raise one_of("explainer", name, list(EXPLAINERS))
