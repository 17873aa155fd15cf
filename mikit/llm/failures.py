"""What can go wrong with a question to a language model: each way has a name, and is counted under it."""

from typing import Literal

from mikit.errors import MikitError

Kind = Literal[
    "refusal",
    "empty",
    "truncated",
    "malformed",
    "wrong_schema",
    "too_long",
    "bad_request",
    "timeout",
    "connection",
    "rate_limit",
    "server",
    "html",
    "budget",
]
OUTAGES: frozenset[Kind] = frozenset({"timeout", "connection", "rate_limit", "server", "html"})
"""Those of the way to the server, not of what the model said."""


class LlmFailure(Exception):
    """One question without a usable answer; whoever asked counts it and goes on."""

    def __init__(self, kind: Kind, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind: Kind = kind


class Transient(LlmFailure):
    """One that may pass: the question is asked again, not before `wait` seconds where the server says so."""

    def __init__(self, kind: Kind, detail: str = "", wait: float | None = None) -> None:
        super().__init__(kind, detail)
        self.wait = wait


class BudgetSpent(LlmFailure):
    """The budget of tokens or of money is spent: the question was not asked."""

    def __init__(self, detail: str) -> None:
        super().__init__("budget", detail)


class LlmUnusable(MikitError):
    """The server answers none of several questions in a row: the message says why, and what to do."""
