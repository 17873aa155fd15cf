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
    """Arguments that are cut by row, as what is read is: requests with rows of one length can be computed together."""
    read: Callable[..., Any] | None
    """What is computed of the arguments by row first; None where that is all."""
    rest: Callable[..., Any] | None
    """What is made of that for each request by itself, with its other arguments."""
    seconds: float | None
    """How long a request may take; None for any time."""


SERVED: dict[str, Served] = {}
"""By name: what a host computes for others, and nothing else."""


def served(
    *,
    by_row: tuple[str, ...] = (),
    read: Callable[..., Any] | None = None,
    rest: Callable[..., Any] | None = None,
    seconds: float | None = SECONDS,
) -> Callable[[F], F]:
    """Have a function ask the host if its first argument is a target whose model lies there.

    Args:
        by_row: names of the arguments that are cut by row.
        read, rest: the two halves of a function f(lm, *by_row, *others) = rest(lm, read(lm, *by_row), *by_row, *others) of
            which only the first is computed together.
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

        SERVED[name] = Served(function, signature, by_row, read, rest, seconds)
        return ask  # type: ignore[return-value]

    return wrap


def is_complete(target: Any) -> bool:
    """Whether the SAE of a target is the one that lies where its model is; true for a target that is loaded here."""
    return getattr(target.model, "sae_hash", target.sae.hash) == target.sae.hash
