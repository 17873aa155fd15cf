"""Functions that are computed where the model is: here, or by the host if the model is a stand-in."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
SECONDS = 900.0
"""How long a request may take, waiting for others included, before its host counts as hung."""


@dataclass(frozen=True)
class Served:
    """A function of a model and of data, without effect on either."""

    function: Callable[..., Any]
    signature: inspect.Signature
    by_row: tuple[str, ...]
    """Arguments that are cut by row, as the result is: requests with rows of one length can be computed together."""
    seconds: float | None
    """How long a request may take; None for any time."""


SERVED: dict[str, Served] = {}
"""By name: what a host computes for others, and nothing else."""


def served(*, by_row: tuple[str, ...] = (), seconds: float | None = SECONDS) -> Callable[[F], F]:
    """Have a function ask the host if its first argument is a target whose model lies there.

    Args:
        by_row: names of the arguments that are cut by row.
        seconds: how long a request may take.
    """

    def wrap(function: F) -> F:
        name = f"{function.__module__.removeprefix('mikit.')}.{function.__name__}"
        signature = inspect.signature(function)

        @wraps(function)
        def ask(lm: Any, *args: Any, **kwargs: Any) -> Any:
            client = getattr(getattr(lm, "model", None), "host_client", None)
            if client is None:
                return function(lm, *args, **kwargs)
            bound = signature.bind(lm, *args, **kwargs)
            bound.apply_defaults()
            _, *given = bound.arguments
            return client.call(name, {each: bound.arguments[each] for each in given}, seconds)

        SERVED[name] = Served(function, signature, by_row, seconds)
        return ask  # type: ignore[return-value]

    return wrap
