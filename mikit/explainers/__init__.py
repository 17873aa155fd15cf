"""Who writes hypotheses and judges with them: one interface, several explainers."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mikit.errors import BadInput, one_of
from mikit.explainers.base import Explainer, Tokenization
from mikit.settings import Params

if TYPE_CHECKING:
    from mikit.llm import Client

EXPLAINERS = ("statistical", "llm")


def get_explainer(
    name: str,
    params: Params | None = None,
    client: "Callable[[], Client] | None" = None,
    tokens: Tokenization | None = None,
) -> Explainer:
    """The explainer of this name.

    Args:
        name: `statistical`, which needs nothing else, or `llm`.
        params: with `llm`: which model has which role.
        client: with `llm`: gives what asks them.
        tokens: with `llm`: how the explained model reads text.

    Raises:
        BadInput: there is none of this name, or no language model is named.
    """
    if name in ("statistical", "auto"):
        from mikit.explainers.statistical import StatisticalExplainer

        return StatisticalExplainer()
    if name == "llm":
        if params is None or client is None or tokens is None:
            raise BadInput("explainer llm: valid: in a run, which has a language model and a target")
        from mikit.explainers.llm import ROLES, LlmExplainer

        made = client()
        models = {role: getattr(params, f"llm_{role}") or params.llm_model or "" for role in ROLES}
        return LlmExplainer(made, models, params.llm_max_tokens, params.llm_temperature, tokens)
    raise one_of("explainer", name, list(EXPLAINERS))
